"""Runs a script under the instrument in a folder of its own: as one process, or as ranks that talk over gloo (or NCCL).

Two ways: `Cold` starts what a user would start (`python train.py`, `torchrun --nproc_per_node 2 train.py`), `Warm` forks it from a process that has
torch imported already. They make the same trace (a test says so); S2A_DIFFERENTIAL=cold chooses the first.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tests.differential.trace import Run, read_rank

HOOKS = Path(__file__).resolve().parent / "hooks"
TIMEOUT = 120.0
EASY = 4  # ranks that get that time together; more of them share two cores
QUIET = ("ACCELERATE_", "S2A_", "TORCHELASTIC_", "FSDP_", "PARALLELISM_CONFIG_")
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Launcher(Protocol):
    """A way to start a script."""

    def start(self, script: Path, argv: Sequence[str], cwd: Path, env: Mapping[str, str], processes: int) -> tuple[int, str]:
        """Runs it to its end; gives the exit status and what the launcher itself said."""


def environment(extra: Mapping[str, str], *, gpu: bool) -> dict[str, str]:
    """The surroundings of a script under test: ours alone, not the reader's accelerate configuration."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(QUIET) and key not in RANKS}
    env |= {"PYTHONPATH": str(HOOKS), "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "TQDM_MININTERVAL": "1000"}
    if gpu:
        env |= {"NVIDIA_TF32_OVERRIDE": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    else:
        env |= {"CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    return env | dict(extra)


class Cold:
    """What a user starts."""

    def start(self, script: Path, argv: Sequence[str], cwd: Path, env: Mapping[str, str], processes: int) -> tuple[int, str]:
        command = [sys.executable, str(script), *argv]
        if processes > 1:
            torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
            command = [sys.executable, *torchrun, str(script), *argv]
        started = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = started.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)
            said, _ = started.communicate()
            return 124, f"not ended after {TIMEOUT:.0f} s\n{said}"
        return started.returncode, said


class Warm:
    """Forks from a process that is started once and kept."""

    def __init__(self, also: Mapping[str, str] | None = None) -> None:
        """`also` are variables for the process; what S2A_WARM_ALSO names there is imported, too."""
        command = [sys.executable, str(HOOKS / "s2a_warm.py")]
        self.server = subprocess.Popen(
            command, env=environment(also or {}, gpu=False), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def start(self, script: Path, argv: Sequence[str], cwd: Path, env: Mapping[str, str], processes: int) -> tuple[int, str]:
        assert self.server.stdin and self.server.stdout
        request = {
            "script": str(script),
            "argv": list(argv),
            "cwd": str(cwd),
            "env": dict(env),
            "processes": processes,
            "timeout": TIMEOUT * max(1.0, processes / EASY),
        }
        self.server.stdin.write(json.dumps(request) + "\n")
        answer = json.loads(self.server.stdout.readline() or '{"code": 70, "said": "the warm process has ended"}')
        return answer["code"], answer["said"]

    def close(self) -> None:
        """Ends the kept process."""
        assert self.server.stdin
        self.server.stdin.close()
        self.server.terminate()
        self.server.wait(timeout=30)


def run(
    launcher: Launcher,
    source: bytes | Mapping[str, bytes],
    runs: Iterable[Sequence[str]],
    scratch: Path,
    *,
    processes: int = 1,
    divide: int = 1,
    fixed_order: bool = False,
    gpu: bool = False,
    precision: str | None = None,
    group: bool = False,
    as_gpus: bool = False,
    launches: bool = False,
    beside: bool = False,
    also: Mapping[str, str] | None = None,
) -> Run:
    """Writes the script (or several files, the first is started) into `scratch` and runs it, once for each argument list, in one folder.

    With `as_gpus`, accelerate takes CPU ranks for GPUs (`tests.cpu_shim`). `also` are more variables.
    With `launches`, the script starts its processes itself. With `beside`, the files stand in the folder that it runs in, as a notebook's do.
    With `group`, a single process finds its (lonely) group in the environment, as under torchrun.
    """
    code, work, trace = scratch / ("work" if beside else "code"), scratch / "work", scratch / "trace"
    for folder in (code, work, trace):
        folder.mkdir(parents=True, exist_ok=True)
    texts = {"train.py": source} if isinstance(source, bytes) else source
    for path, text in texts.items():
        (code / path).parent.mkdir(parents=True, exist_ok=True)
        (code / path).write_bytes(text)
    script = code / next(iter(texts))
    extra = {"S2A_TRACE": str(trace), "S2A_BATCH_DIV": str(divide)}
    if fixed_order:
        extra["S2A_FIXED_ORDER"] = "1"
    if processes > 1:
        extra["S2A_SLOW_SAVES"] = "0.3"
    if group and processes == 1:
        extra |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    if as_gpus:
        extra |= {"S2A_RANKS_AS_GPUS": "1", "ACCELERATE_USE_CPU": "false"}
    if launches:
        extra["S2A_LAUNCHES"] = "1"
    if precision:
        extra["ACCELERATE_MIXED_PRECISION"] = precision
    status, said = 0, ""
    for argv in runs:
        status, said = launcher.start(script, argv, work, environment(extra | dict(also or {}), gpu=gpu), 1 if launches else processes)
        if status:
            break
    return Run(status, work, tuple(read_rank(trace, number) for number in range(processes)), said, frozenset(texts) if beside else frozenset())
