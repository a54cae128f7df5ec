"""Makes accelerate take CPU ranks for GPUs, so that its parallel code runs on gloo, or on torch's fake process group in one process.

For tests alone, and read by nothing else. `fake(rank, world)` is one rank of a world that doesn't exist: meshes, layouts and data splits can be
looked at, nothing can be sent. Scripts under torchrun import this module before they make an Accelerator.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState, PartialState
from accelerate.utils import DistributedType
from torch.testing._internal.distributed.fake_pg import FakeStore

VARIABLES = {
    "ACCELERATE_TORCH_DEVICE": "cpu",  # the device is not looked for (accelerate/state.py, set_device)
    "ACCELERATE_BYPASS_DEVICE_MAP": "true",  # DDP gets no device ids (accelerate/accelerator.py, prepare_model)
}


def _backend(state: Any, cpu: bool, sagemaker_dp: bool = False, backend: str | None = None) -> tuple[str, DistributedType]:
    """Stands in for `PartialState._prepare_backend`, which would say MULTI_CPU."""
    return (dist.get_backend() if dist.is_initialized() else "gloo"), DistributedType.MULTI_GPU


_REAL = PartialState._prepare_backend


def install() -> None:
    """For the rest of this process."""
    os.environ.update(VARIABLES)
    os.environ.setdefault("LOCAL_RANK", "0")
    PartialState._prepare_backend = _backend


def forget() -> None:
    """Drop everything that accelerate and torch remember of the process group."""
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    if dist.is_initialized():
        dist.destroy_process_group()


@contextlib.contextmanager
def fake(rank: int, world: int, environment: dict[str, str] | None = None) -> Iterator[None]:
    """Be one rank of a fake world, under variables such as a launcher sets; everything is as before afterwards."""
    before = dict(os.environ)
    forget()
    PartialState._prepare_backend = _backend
    os.environ.update({**VARIABLES, "LOCAL_RANK": str(rank), "RANK": str(rank), "WORLD_SIZE": str(world), **(environment or {})})
    try:
        dist.init_process_group("fake", rank=rank, world_size=world, store=FakeStore())
        yield
    finally:
        forget()
        PartialState._prepare_backend = _REAL
        os.environ.clear()
        os.environ.update(before)


if os.environ.get("TORCHELASTIC_RUN_ID"):
    install()
