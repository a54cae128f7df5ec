"""The part of DeepSpeed's JSON that this tool writes, and which optimizers its CPU offload keeps as they are.

DeepSpeed accepts unknown keys of its configuration in silence, so what is written is checked here (DeepSpeed docs, config-json).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

AUTO = "auto"

SCHEMA: Mapping[str, object] = {
    "train_batch_size": int,
    "train_micro_batch_size_per_gpu": int,
    "gradient_accumulation_steps": int,
    "gradient_clipping": float,
    "fp16": {"enabled": bool},
    "bf16": {"enabled": bool},
    "zero_optimization": {
        "stage": (0, 1, 2, 3),
        "offload_optimizer": {"device": ("none", "cpu", "nvme"), "pin_memory": bool},
        "offload_param": {"device": ("none", "cpu", "nvme"), "pin_memory": bool},
        "stage3_gather_16bit_weights_on_model_save": bool,
    },
}
"""Key -> kind, values, or a table of its own; a number may also be "auto", which Accelerate fills in."""

REQUIRED = ("gradient_clipping", "zero_optimization")
"""`gradient_clipping` too: left out, DeepSpeed clips at 1.0 (deepspeed/runtime/constants.py)."""


def faults(config: Mapping[str, object], schema: Mapping[str, object] = SCHEMA, place: str = "") -> list[str]:
    """What is wrong with a configuration, one sentence each; empty for a valid one."""
    found = [] if place else [f"{name} is missing" for name in REQUIRED if name not in config]
    for name, value in config.items():
        kind, where = schema.get(name), f"{place}{name}"
        if kind is None:
            found.append(f"unknown key {where}")
        elif isinstance(kind, Mapping):
            found += faults(value, kind, f"{where}.") if isinstance(value, Mapping) else [f"{where}: {value!r} is no table"]
        elif isinstance(kind, tuple):
            found += [] if value in kind else [f"{where}: {value!r} is none of {', '.join(map(str, kind))}"]
        elif value != AUTO and not _is(value, kind):
            found.append(f"{where}: {value!r} is no {getattr(kind, '__name__', kind)}")
    return found


def _is(value: object, kind: object) -> bool:
    if kind is bool or isinstance(value, bool):
        return isinstance(value, bool) and kind is bool
    return isinstance(value, (int, float)) and value >= 0 and (kind is float or isinstance(value, int))


@dataclass(frozen=True)
class Kept:
    """An optimizer of torch that CPU offload maps to one of DeepSpeed's, with the defaults that the mapping falls back to."""

    name: str
    defaults: Mapping[str, object]


OFFLOADED = (
    Kept("torch.optim.Adam", {"betas": (0.9, 0.999), "eps": 1e-08, "amsgrad": False, "maximize": False}),
    Kept("torch.optim.AdamW", {"betas": (0.9, 0.999), "eps": 1e-08, "amsgrad": False, "maximize": False}),
    Kept("torch.optim.Adagrad", {"eps": 1e-10, "lr_decay": 0, "initial_accumulator_value": 0, "maximize": False}),
)
"""Accelerate rebuilds the optimizer from `lr` and `weight_decay` alone; anything else becomes Adam (accelerate/utils/deepspeed.py)."""


def offload_refusal(optimizer: str, arguments: Mapping[str, object]) -> str:
    """Why CPU offload would not keep an optimizer (its qualified name, its keyword arguments as far as known); empty when it does."""
    kept = next((one for one in OFFLOADED if one.name == optimizer or one.name == f"torch.optim.{optimizer}"), None)
    if kept is None:
        return f"CPU offload replaces {optimizer} by DeepSpeed's CPU Adam"
    for name, value in arguments.items():
        if name in ("lr", "weight_decay", "params", "foreach", "fused"):
            continue
        if name not in kept.defaults or kept.defaults[name] != (tuple(value) if isinstance(value, list) else value):
            return f"CPU offload drops {name}={value!r} of {optimizer}: DeepSpeed's own keeps lr and weight_decay alone"
    return ""
