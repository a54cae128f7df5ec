"""The part of DeepSpeed's JSON that this tool writes, and which optimizers its CPU offload keeps as they are.

DeepSpeed accepts unknown keys of its configuration in silence, so what is written is checked here (DeepSpeed docs, config-json).
"""

from __future__ import annotations

from collections.abc import Mapping

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


def table(stage: int, clipping: object, offload: str = "none") -> dict[str, object]:
    """The configuration of a ZeRO stage. Batch sizes and accumulation are filled in by `Accelerator.prepare`; `gradient_clipping` always stands
    here, since DeepSpeed clips at 1.0 where it is left out."""
    zero: dict[str, object] = {"stage": stage}
    if offload != "none":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if offload == "all":
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
    if stage == 3:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "gradient_accumulation_steps": AUTO,
        "gradient_clipping": clipping,
        "zero_optimization": zero,
    }


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


OFFLOADED = ("torch.optim.Adam", "torch.optim.AdamW")
"""What CPU offload trains as torch does, parameter groups with their own betas and eps included (measured to 1e-7, deepspeed 0.19.8)."""
KEPT = frozenset({"params", "lr", "betas", "eps", "weight_decay", "foreach", "fused", "capturable", "differentiable"})


def offload_refusal(optimizer: str, arguments: Mapping[str, object]) -> str:
    """Why CPU offload would not keep an optimizer (its name, its keyword arguments as far as known); empty when it does.

    Accelerate gives the parameter groups to DeepSpeed's own Adam (accelerate/utils/deepspeed.py): any other optimizer becomes that, Adagrad
    fails on an argument of it; `maximize` and `decoupled_weight_decay` are ignored, `amsgrad` fails.
    """
    name = optimizer if "." in optimizer else f"torch.optim.{optimizer}"
    if name not in OFFLOADED:
        return f"CPU offload makes DeepSpeed's own Adam of {optimizer}, or fails"
    changed = [f"{key}={value!r}" for key, value in arguments.items() if key not in KEPT and value not in (False, None)]
    return f"CPU offload doesn't keep {', '.join(changed)} of {optimizer}" if changed else ""
