"""Records a training script from the inside: losses, optimizer steps, saves, written files, output. Changes nothing that it computes.

Environment: S2A_TRACE (folder for rank<N>.jsonl and rank<N>.out), S2A_BATCH_DIV (divide the batch size of the loaders that the script makes),
S2A_FIXED_ORDER (samplers draw from a stream of their own, the same for a plain and a prepared loader), S2A_SLOW_SAVES (seconds that a save waits,
so that a rank which reads the file too early does so every time), S2A_LAUNCHES (the script forks its ranks itself: each starts a record of its own).

Accelerate deals the batches of the sampler round-robin, so with the batch size halved two ranks together process what the plain script processes in
one batch, if only the order of the samples is the same: that is what S2A_FIXED_ORDER is for.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import multiprocessing.util
import os
import socket
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.data as tud
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

DIRECTIONS = 3  # projections of each parameter onto pseudo-random directions
REST = 0.3
TIMEOUT = timedelta(seconds=30)  # a rank that waits for nobody fails soon


class Recorder:
    """One process's record, line by line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = os.path.realpath(os.getcwd())
        self.begin("cells" if os.environ.get("S2A_LAUNCHES") else f"rank{os.environ.get('RANK', '0')}")
        self.starts: dict[int, tuple[int, Optimizer, list[torch.Tensor]]] = {}
        self.directions: dict[tuple[int, int], torch.Tensor] = {}
        self.sharded: dict[int, int] = {}  # the last checksum of an optimizer whose parameters lie in parts: looking again takes all ranks
        self.busy = False

    def begin(self, name: str) -> None:
        """Record into files of this name from now on."""
        self.pid, self.name = os.getpid(), name
        self.file = open(self.folder / f"{name}.jsonl", "a", buffering=1, encoding="utf-8")  # noqa: SIM115  (open to the end)
        redirect(self.folder / name)

    def forked(self) -> None:
        """A rank that the script has forked: it ends without the interpreter's own exit."""
        if os.getpid() != self.pid:
            self.begin(f"rank{os.environ['RANK']}")
            multiprocessing.util.Finalize(self, self.end, exitpriority=1)

    def emit(self, event: str, **values: object) -> None:
        self.file.write(json.dumps({"event": event, **values}) + "\n")

    def path(self, name: object) -> str | None:
        """A path as the comparison names it: relative to where the script runs; None for anything elsewhere."""
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if not isinstance(name, str | os.PathLike):
            return None
        full = os.path.realpath(os.path.join(self.home, name))
        return os.path.relpath(full, self.home) if full.startswith(self.home + os.sep) else None

    def before_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        _, _, start = self.starts.setdefault(id(optimizer), (len(self.starts), optimizer, []))
        start += [whole(p).double().cpu().clone() for p in list(parameters(optimizer))[len(start) :]]  # a group may be added later

    def after_step(self, optimizer: Optimizer, args: object, kwargs: object) -> None:
        index, _, start = self.starts[id(optimizer)]
        now = [whole(p) for p in parameters(optimizer)]
        if any(hasattr(p, "full_tensor") for p in parameters(optimizer)):
            self.sharded[index] = checksum(now)
        values = [p.double().cpu().flatten() for p in now]
        self.emit(
            "step",
            optimizer=index,
            lrs=[float(group.get("lr", 0.0)) for group in optimizer.param_groups],
            crc=checksum(now),
            moved=[float((v - s.flatten()).norm()) for v, s in zip(values, start, strict=True)],
            marks=[[float(torch.dot(v, self.direction(v.numel(), j))) for j in range(DIRECTIONS)] for v in values],
        )

    def direction(self, size: int, number: int) -> torch.Tensor:
        if (size, number) not in self.directions:
            draws = np.random.RandomState(1000 + number).standard_normal(size)
            self.directions[size, number] = torch.from_numpy(draws)
        return self.directions[size, number]

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Files opened for writing, whichever library opens them."""
        if event != "open" or self.busy:
            return
        name, mode, flags = args
        writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool((flags or 0) & (os.O_WRONLY | os.O_RDWR))
        if not writes:
            return
        self.busy = True
        path = self.path(name)
        if path:
            self.emit("write", path=path)
        self.busy = False

    def end(self) -> None:
        """How many processes the script believed in: accelerate counts one, silently, when it is launched wrongly."""
        state = sys.modules.get("accelerate.state")
        shared = state.PartialState._shared_state if state else {}
        crcs = [self.sharded.get(index) or checksum(parameters(optimizer)) for index, optimizer, _ in self.starts.values()]
        self.emit("end", accelerate=bool(shared), processes=int(shared.get("num_processes", 1)), device=str(shared.get("device", "")), crcs=crcs)
        sys.stdout.flush()
        sys.stderr.flush()


def parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    """The optimizer's parameters in its order."""
    for group in optimizer.param_groups:
        yield from group["params"]


def whole(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's values, gathered where it lies in parts on several ranks."""
    values = parameter.detach()
    return values.full_tensor() if hasattr(values, "full_tensor") else values


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """One number for the exact values of some tensors."""
    crc = 0
    for tensor in tensors:
        crc = zlib.crc32(tensor.detach().float().cpu().contiguous().numpy().tobytes(), crc)
    return crc


def install() -> Recorder:
    """Starts the record of this process."""
    recorder = Recorder(Path(os.environ["S2A_TRACE"]))
    if os.environ.get("S2A_RANKS_AS_GPUS"):
        ranks_as_gpus()
    if os.environ.get("S2A_DEEPSPEED"):
        record_engine(recorder)
    else:
        register_optimizer_step_pre_hook(recorder.before_step)
        register_optimizer_step_post_hook(recorder.after_step)
    record_backward(recorder)
    record_saves(recorder)
    sys.addaudithook(recorder.audit)
    divide_batches(recorder, int(os.environ.get("S2A_BATCH_DIV", "1")))
    if os.environ.get("S2A_FIXED_ORDER"):
        fix_order()
    limit_waiting(recorder)
    if os.environ.get("S2A_LAUNCHES"):
        any_port()
    atexit.register(recorder.end)
    return recorder


def ranks_as_gpus() -> None:
    """Parallelism that accelerate keeps for GPUs runs on gloo ranks, context-parallel attention or a DeepSpeed engine too."""
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    for shim in ("cpu_shim", *(["deepspeed_cpu"] if os.environ.get("S2A_DEEPSPEED") else ["cpu_attention"])):
        importlib.import_module(shim).install()


def redirect(stem: Path) -> None:
    """Output goes to files, one pair a rank: a launcher's interleaved lines can't be compared."""
    for number, ending in ((1, "out"), (2, "err")):
        descriptor = os.open(f"{stem}.{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, number)
        os.close(descriptor)


def record_backward(recorder: Recorder) -> None:
    backward = torch.Tensor.backward

    def recorded(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        scale = getattr(self, "_s2a_scale", 1.0)
        recorder.emit("backward", loss=float(self.detach().double()) / scale if self.numel() == 1 else None)
        backward(self, *args, **kwargs)

    torch.Tensor.backward = recorded  # type: ignore[method-assign]
    scaled = torch.amp.GradScaler.scale

    def remembered(self: torch.amp.GradScaler, outputs: Any) -> Any:
        result = scaled(self, outputs)
        if isinstance(result, torch.Tensor):
            result._s2a_scale = self.get_scale()  # type: ignore[attr-defined]
        return result

    torch.amp.GradScaler.scale = remembered  # type: ignore[method-assign]


def record_engine(recorder: Recorder) -> None:
    """Steps of a DeepSpeed engine: its optimizer steps flat parts of this rank's own, one group after the other, so that only rates are compared."""
    engine = importlib.import_module("deepspeed.runtime.engine").DeepSpeedEngine
    step = engine.step

    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        step(self, *args, **kwargs)
        rates = [float(group.get("lr", 0.0)) for group in self.optimizer.param_groups]
        recorder.emit("step", optimizer=0, lrs=rates, crc=0, moved=[], marks=[])

    engine.step = recorded


def record_saves(recorder: Recorder) -> None:
    save = torch.save
    wait = float(os.environ.get("S2A_SLOW_SAVES", "0"))

    def recorded(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        path = recorder.path(f)
        if path:  # an open file has been seen by the audit hook already
            recorder.emit("write", path=path)
        time.sleep(wait)
        save(obj, f, *args, **kwargs)

    torch.save = recorded


def divide_batches(recorder: Recorder, by: int) -> None:
    """Loaders that the script makes get a smaller batch; those that accelerate rebuilds from them are left alone."""
    if by == 1:
        return
    init = tud.DataLoader.__init__

    def divided(self: tud.DataLoader[Any], dataset: Any, batch_size: int | None = 1, *args: Any, **kwargs: Any) -> None:
        maker = sys._getframe(1).f_globals.get("__name__", "")
        if batch_size and kwargs.get("batch_sampler") is None and not maker.startswith("accelerate"):
            if batch_size % by:
                raise ValueError(f"a batch of {batch_size} can't be divided by {by}")
            batch_size //= by
        init(self, dataset, batch_size, *args, **kwargs)

    tud.DataLoader.__init__ = divided  # type: ignore[method-assign]


def fix_order() -> None:
    """Random samplers draw from (number of samples, how often they were iterated), and leave the global stream alone."""

    def stream(sampler: Any, size: int) -> torch.Generator:
        turn = sampler.__dict__["_turn"] = sampler.__dict__.get("_turn", -1) + 1
        return torch.Generator().manual_seed(7919 * turn + size)

    def random_order(self: tud.RandomSampler) -> Iterator[int]:
        size = len(self.data_source)
        generator = stream(self, size)
        if self.replacement:
            yield from torch.randint(size, (self.num_samples,), generator=generator).tolist()
            return
        left = self.num_samples
        while left > 0:
            yield from torch.randperm(size, generator=generator).tolist()[:left]
            left -= size

    def subset_order(self: tud.SubsetRandomSampler) -> Iterator[int]:
        for place in torch.randperm(len(self.indices), generator=stream(self, len(self.indices))).tolist():
            yield self.indices[place]

    def weighted_order(self: tud.WeightedRandomSampler) -> Iterator[int]:
        generator = stream(self, len(self.weights))
        yield from torch.multinomial(self.weights, self.num_samples, self.replacement, generator=generator).tolist()

    tud.RandomSampler.__iter__ = random_order  # type: ignore[method-assign]
    tud.SubsetRandomSampler.__iter__ = subset_order  # type: ignore[method-assign]
    tud.WeightedRandomSampler.__iter__ = weighted_order  # type: ignore[method-assign]


def any_port() -> None:
    """`notebook_launcher` has one port for all, and tests run beside each other."""
    launchers = importlib.import_module("accelerate.launchers")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        chosen = functools.partial(launchers.notebook_launcher, use_port=str(free.getsockname()[1]))
    sys.modules["accelerate"].notebook_launcher = launchers.notebook_launcher = chosen  # type: ignore[attr-defined]


def limit_waiting(recorder: Recorder) -> None:
    """A collective that only one rank reaches fails after half a minute, not after ten or thirty."""
    init = dist.init_process_group

    def limited(*args: Any, **kwargs: Any) -> None:
        recorder.forked()
        longest = TIMEOUT * max(1.0, int(os.environ.get("WORLD_SIZE", "1")) / 2)  # many ranks on few cores come late
        kwargs["timeout"] = min(kwargs.get("timeout") or longest, longest)
        init(*args, **kwargs)

    dist.init_process_group = limited
    destroy = dist.destroy_process_group

    def rested(*args: Any, **kwargs: Any) -> None:
        time.sleep(REST)  # gloo's threads let go of the last collective; torch joins them with the interpreter locked, and may wait for ever
        destroy(*args, **kwargs)

    dist.destroy_process_group = rested
