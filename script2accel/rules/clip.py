"""Clip gradients through the accelerator.

`torch.nn.utils.clip_grad_norm_` sees gradients that are still scaled under fp16, and shards under FSDP; `accelerator.clip_grad_norm_` unscales
and reduces first.
Left alone when it already goes through the accelerator.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#gradient-clipping
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A203", "clip"
EXTRA = Message(
    "S2A213",
    Severity.ERROR,
    "`{argument}` of the gradient clip has no counterpart in Accelerate",
    "drop the argument, or clip without it, and convert again",
)
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        paths = facts.any_path(call)
        norm = any(names.CLIP_NORM.match(path) for path in paths)
        if not norm and not any(names.CLIP_VALUE.match(path) for path in paths):
            continue
        extra = next((k.arg for k in call.keywords if k.arg not in ("parameters", "max_norm", "norm_type", "clip_value")), None)
        if extra is not None:
            yield EXTRA.at(call.lineno, call.col_offset + 1, argument=extra)
            continue
        function = f"{decisions.accelerator(call)}.{'clip_grad_norm_' if norm else 'clip_grad_value_'}"
        edits = replace(facts.source, call.func, function)
        yield Change(CODE, NAME, "gradients are clipped after they are unscaled and reduced", call.lineno, edits, source="R14" if norm else "R15")
