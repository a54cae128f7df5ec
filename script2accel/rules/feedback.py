"""Refuse numbers of one rank's own that come back into its loss.

A weight that follows the losses (BEGAN's `k`, a loss balanced by what it was before) is computed from `.item()` of this rank's batch, and scales
this rank's next loss: the ranks would train by different weights, where one process has one.
Left alone when the number was brought together (`accelerator.reduce`, `gather`), when tensors are carried (a hidden state), and where no DataLoader
deals out the batches.
Source: https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.reduce
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import TrainLoop, View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A269", "loss-feedback"
CARRIED = Message(
    "S2A259",
    Severity.ERROR,
    "`{name}` is computed from one rank's own batches and comes back into the loss (line {used}): the ranks would train by different numbers",
    'bring it together in front of this line (`accelerator.reduce(value, reduction="mean")`), and convert again',
)
HOST = frozenset({"item", "tolist", "numpy"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for train in facts.train_loops if decisions.plan.prepares else ():
        if train.loaders:
            yield from _carried(facts, train)


def _carried(facts: View, train: TrainLoop) -> Iterator[Diagnostic]:
    written, anew = _written(train.loop), _anew(facts, train.loop)
    for backward in train.backwards:
        seen: set[str] = set()
        waiting = [backward.loss]
        while waiting:
            for name in _read(waiting.pop()) - seen:
                seen.add(name)
                fresh = any(line <= backward.call.lineno for line in anew.get(name, ()))
                for value, place in written.get(name, ()):
                    waiting.append(value)
                    if not fresh and place.lineno > backward.call.lineno and _host_number(facts, value):
                        yield CARRIED.at(place.lineno, place.col_offset + 1, name=name, used=backward.call.lineno)
                        return


def _anew(facts: View, loop: ast.AST) -> dict[str, list[int]]:
    """The lines in which a loop sets a name or attribute without reading it: what an earlier turn left is gone."""
    table: dict[str, list[int]] = {}
    for node in walk(loop):
        if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            place, name = facts.source.statement(node), ast.unparse(node)
            if not isinstance(place, ast.AugAssign) and not (isinstance(place, ast.Assign) and name in _read(place.value)):
                table.setdefault(name, []).append(place.lineno)
    return table


def _read(node: ast.expr) -> set[str]:
    """The names and attributes that an expression reads, as written; what is called isn't read."""
    called = {id(call.func) for call in walk(node) if isinstance(call, ast.Call)}
    parts = [n for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute)) and id(n) not in called]
    return {ast.unparse(n) for n in parts}


def _written(loop: ast.AST) -> dict[str, list[tuple[ast.expr, ast.stmt]]]:
    """What a loop assigns to each name or attribute, and where."""
    table: dict[str, list[tuple[ast.expr, ast.stmt]]] = {}
    for node in walk(loop):
        match node:
            case (
                ast.Assign(targets=[ast.Name() | ast.Attribute() as target], value=value)
                | ast.AugAssign(target=ast.Name() | ast.Attribute() as target, value=value)
            ):
                table.setdefault(ast.unparse(target), []).append((value, node))
    return table


def _host_number(facts: View, value: ast.expr) -> bool:
    """Whether an expression takes numbers out of tensors that differ between ranks."""
    for node in walk(value):
        match node:
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in HOST and facts.machine.marks_of(inner):
                return True
            case ast.Call(func=ast.Name(id="float" | "int"), args=[inner]) if facts.machine.marks_of(inner):
                return True
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
k = 0.5

for x, y in loader:
    out = model(x)
    fit = nn.functional.cross_entropy(out, y)
    size = out.pow(2).mean()
    optimizer.zero_grad()
    loss = fit + k * size
    loss.backward()
    optimizer.step()
    gap = size - 0.1 * fit
    k = min(max(k + 0.01 * gap.item(), 0.0), 1.0)
""",
        "S2A259",
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
running = 0.0

for x, y in loader:
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = 0.9 * running + 0.1 * loss.item()
print(running)
""",
        None,
    ),
]
