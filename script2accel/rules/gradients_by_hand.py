"""Take out gradients that are averaged by hand, and weights that are sent by hand: a prepared model does both.

A loop over the parameters with `all_reduce` on their gradients, divided by the world size, is what prepare's wrapper does in the backward
pass; a loop with `broadcast` on the parameters is what it does when it is made. The loop goes; a function of nothing else goes with its
calls.
Left alone: reductions of anything but gradients. Refused when gradients are summed and not averaged: prepare averages.
Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import by_hand
from script2accel.analysis.facts import View
from script2accel.change.edits import remove_statement
from script2accel.change.plan import Change, Edit, Remove
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A500", "gradients-by-hand"
SUMMED = Message(
    "S2A530",
    Severity.ERROR,
    "gradients are summed over the ranks here and not divided by their number: prepare averages them, so the steps would be smaller",
    "multiply the loss by `accelerator.num_processes` (or the learning rate, with SGD), take the loop out, and convert again",
)
REASON = {
    "gradients": "a prepared model averages its gradients in the backward pass",
    "weights": "prepare sends the first rank's weights to the others",
}


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for found in by_hand(facts.program):
        reason = REASON[found.what]
        if not found.averaged:
            if found.calls[0] in facts.calls:
                yield SUMMED.at(found.loop.lineno, found.loop.col_offset + 1)
            continue
        removed: list[ast.stmt] = [found.loop]
        if found.function is not None:
            sites = facts.callers(found.function)
            statements = [facts.source.statement(site) for site in sites]
            if sites and all(isinstance(s, ast.Expr) and s.value is site for s, site in zip(statements, sites, strict=True)):
                removed = [found.function, *statements]
        for statement in removed:
            if facts.source.root(statement) is facts.source.tree:
                decisions.gone.add(statement)
                yield Change(
                    CODE, NAME, reason, statement.lineno, _with_blank_lines(facts, remove_statement(facts.source, statement), statement), source="R63"
                )


def _with_blank_lines(facts: View, edits: tuple[Edit, ...], statement: ast.stmt) -> tuple[Edit, ...]:
    """A definition goes with the blank lines behind it."""
    if not isinstance(statement, ast.FunctionDef) or not isinstance(edits[0], Remove):
        return edits
    last = edits[0].last
    while last < len(facts.source.starts) and not facts.source.line_text(last + 1).strip():
        last += 1
    return (Remove(edits[0].first, last), *edits[1:])


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def average(model):
    for part in model.parameters():
        dist.all_reduce(part.grad.data)
        part.grad.data /= dist.get_world_size()


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    average(model)
    optimizer.step()
""",
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
for part in model.parameters():
    dist.broadcast(part.data, src=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    for part in model.parameters():
        dist.all_reduce(part.grad)
    optimizer.step()
""",
        "S2A530",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
