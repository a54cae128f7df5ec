"""Refuse fp16 where a script looks at gradients between the backward pass and the step.

`--mixed-precision fp16` scales the loss of a script that knew no scaler: until the step its gradients are some ten thousand times too large.
A norm or a threshold of the script's own, a clamp by hand, noise added to them: each would see the scaled numbers, silently.
Left alone: clips of torch (they become Accelerate's, which unscales), reads behind the step, scripts that have a scaler and unscale for themselves.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#gradient-clipping
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import by_hand
from script2accel.analysis.facts import View
from script2accel.analysis.gradients import reads
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A398", "scaled-gradients"
SCALED = Message(
    "S2A428",
    Severity.ERROR,
    "`{text}` is read between the backward pass and the step: under fp16 it is still scaled",
    "use bf16, or clip with `torch.nn.utils`, or look at gradients behind the step",
)
CONFIG = Message(
    "S2A438",
    Severity.NOTE,
    "`{text}` is read between the backward pass and the step: it fits no fp16 in the accelerate config, under which it is still scaled",
    "",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    asked = decisions.options.mixed_precision
    if not decisions.plan.prepares or asked not in ("fp16", None) or _has_scaler(facts):
        return
    told = set()
    averaged = [found.loop for found in by_hand(facts.program)]  # these go
    for node in reads(facts):
        function = facts.function(node)
        if function not in told and not any(facts.inside(loop, node) for loop in averaged):
            told.add(function)
            yield (SCALED if asked else CONFIG).at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))


def _has_scaler(facts: View) -> bool:
    passes = (b.call.func for b in facts.program.backwards)
    return any(isinstance(func, ast.Attribute) and facts.program.scaled(func.value) is not None for func in passes)


SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def clamp(model):
    for part in model.parameters():
        part.grad.data.clamp_(-1, 1)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    {first}
    optimizer.step()
    {last}
"""
EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (SCRIPT.format(first="clamp(model)", last="pass"), "S2A428", {"mixed-precision": "fp16"}),
    (SCRIPT.format(first="total = sum(p.grad.norm() for p in model.parameters())", last="pass"), "S2A428", {"mixed-precision": "fp16"}),
    (SCRIPT.format(first="clamp(model)", last="pass"), "S2A438"),
    (SCRIPT.format(first="nn.utils.clip_grad_norm_(model.parameters(), 1.0)", last="pass"), None, {"mixed-precision": "fp16"}),
    (SCRIPT.format(first="pass", last="print(model.weight.grad.norm())"), None, {"mixed-precision": "fp16"}),
]
