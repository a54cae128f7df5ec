"""Which role an object has by the name of what made it."""

from __future__ import annotations

import re
from functools import lru_cache

from script2accel.knowledge import torch as names

CONSTRUCTORS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("optimizer", names.OPTIMIZER, "made by `{path}`"),
    ("scheduler", names.SCHEDULER, "made by `{path}`"),
    ("loader", names.LOADER, "made by `{path}`"),
    ("sampler", names.SAMPLER, "made by `{path}`"),
    ("dataset", names.DATASET, "made by `{path}`"),
    ("criterion", names.LOSS_MODULE, "made by `{path}`"),
    ("scaler", names.SCALER, "made by `{path}`"),
    ("writer", names.WRITER, "made by `{path}`"),
    ("progress bar", names.PROGRESS, "made by `{path}`"),
    ("ema", names.EMA, "made by `{path}`"),
    ("model", names.DDP, "wrapped by `{path}`"),
    ("model", names.DATA_PARALLEL, "wrapped by `{path}`"),
    ("model", names.MODULE, "made by `{path}`"),
    ("device", re.compile(r"^torch\.device$|^torch\.accelerator\.current_accelerator$"), "made by `{path}`"),
    ("rank", re.compile(r"^torch\.distributed\.(get_rank|get_node_local_rank)$"), "given by `{path}`"),
    ("world size", re.compile(r"^torch\.distributed\.get_world_size$"), "given by `{path}`"),
    ("rank", names.SPAWN, "`torch.multiprocessing.spawn` gives it"),
    ("accelerator", re.compile(r"^accelerate\.(accelerator\.)?Accelerator$"), "made by `{path}`"),
    ("loss", names.LOSS_FUNCTION, "computed by `{path}`"),
)
CLASSES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("dataset", names.DATASET_BASE, "its class is a Dataset"),
    ("loader", names.LOADER_BASE, "its class is a DataLoader"),
    ("sampler", names.SAMPLER_BASE, "its class is a Sampler"),
    ("optimizer", names.OPTIMIZER_BASE, "its class is an Optimizer"),
    ("scheduler", names.SCHEDULER_BASE, "its class is a learning rate scheduler"),
)


@lru_cache(maxsize=4096)
def constructed(path: str) -> tuple[str, str] | None:
    """The role of what a library's function or class gives, and why."""
    return next(((role, why.format(path=path)) for role, pattern, why in CONSTRUCTORS if pattern.match(path)), None) if path else None
