"""A process that has imported torch and accelerate once, and forks a fresh child for each script: seconds saved on every run.

Reads one request a line ({script, argv, cwd, env, processes, timeout}) and answers with one line ({code, said}). Each child is what
`python script` or a rank under torchrun would be: its own argv, folder, environment, and `__main__`. CPU only: CUDA doesn't survive a fork.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import runpy
import signal
import sys
import time
import traceback
from datetime import timedelta

import s2a_recorder
import torch.distributed as dist

USED = (  # what the scripts import, often in the middle of a run: imported once for all the children
    "accelerate.optimizer",
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.nn.parallel",
    "torch.utils.data.distributed",
)
GRACE = 3.0  # seconds that the other ranks get when one has failed


def child(request: dict, environment: dict[str, str]) -> int:
    """Runs the script as `__main__` and gives its exit status."""
    os.environ.update(environment)
    os.chdir(request["cwd"])
    sys.argv = [request["script"], *request["argv"]]
    sys.path[0] = os.path.dirname(request["script"])
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, encoding="utf-8", closefd=False) for fd in (1, 2))
    s2a_recorder.install()
    try:
        runpy.run_path(request["script"], run_name="__main__")
        return 0
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:  # what the interpreter itself does at the top of a script
        traceback.print_exc()
        return 1
    finally:
        atexit._run_exitfuncs()


def serve(request: dict) -> dict:
    """One run, one process or several ranks around a store of ours (no port to guess)."""
    count = request["processes"]
    environment = dict(request["env"])
    if count > 1:
        store = dist.TCPStore("127.0.0.1", 0, count, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
        environment |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
    pids = {}
    for rank in range(count):
        mine = environment | ({"RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {})
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                code = child(request, mine)
            finally:
                os._exit(code)
        pids[pid] = rank
    return wait(pids, time.monotonic() + request["timeout"])


def wait(pids: dict[int, int], deadline: float) -> dict:
    """The first bad exit status of the ranks, or 0; a rank still there at the deadline, or long after another failed, is ended."""
    code, said = 0, ""
    while pids:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in pids:
            rank = pids.pop(pid)
            ended = os.waitstatus_to_exitcode(status)
            if ended and not code:
                code, said = ended, f"rank {rank} ended with {ended}"
                deadline = min(deadline, time.monotonic() + GRACE)
            continue
        if time.monotonic() > deadline:
            for left in pids:
                os.kill(left, signal.SIGKILL)
            if not code:
                code, said = 124, f"ranks {sorted(pids.values())} had not ended in time"
            deadline = float("inf")
        time.sleep(0.02)
    return {"code": code, "said": said}


if __name__ == "__main__":
    for module in (*USED, *os.environ.get("S2A_WARM_ALSO", "").split()):
        importlib.import_module(module)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        answers.write(json.dumps(serve(json.loads(line))) + "\n")
