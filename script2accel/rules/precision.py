"""Refuse hand-made mixed precision.

`autocast` and `GradScaler` beside Accelerate's own scaler leave weights unchanged or wrong, silently (measured). They are recognised and, for now, left to a person;
`model.half()` on trained weights is reported, since gradient unscaling fails on them.
Left alone: `accelerator.autocast()`.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#mixed-precision
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.analysis.values import NOTHING
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A301", "hand-made-precision"
AUTOCAST = Message(
    "S2A311",
    Severity.ERROR,
    "`{text}`: mixed precision by hand; beside Accelerate's it would be applied twice",
    "take autocast and GradScaler out, convert, and choose the precision with --mixed-precision or in the accelerate config",
)
HALF = Message(
    "S2A312",
    Severity.ERROR,
    "`{text}` makes trained weights half precision: unscaling their gradients fails under fp16",
    "take it out and choose the precision with --mixed-precision",
)
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        if any(names.AUTOCAST.match(p) or names.SCALER.match(p) or p.startswith("apex.amp.") for p in facts.any_path(call)):
            yield AUTOCAST.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
        elif isinstance(call.func, ast.Attribute) and call.func.attr in ("half", "bfloat16") and not facts.in_module(call):
            if any(decisions.is_prepared(o) and facts.roles.of(o) == "model" for o in facts.machine.at.get(call.func.value, NOTHING).objs):
                yield HALF.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call))
    for node in facts.source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for decorator in node.decorator_list:
                objs = facts.machine.at.get(decorator, NOTHING).objs
                if not isinstance(decorator, ast.Call) and any(o.kind == "external" and names.AUTOCAST.match(str(o.name)) for o in objs):
                    yield AUTOCAST.at(decorator.lineno, decorator.col_offset + 1, text=facts.source.segment(decorator))
