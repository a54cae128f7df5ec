"""Deal out batches that the script slices by hand.

`for i in range(0, n, size)` over the rows of the data: all processes go through the range in strides of their number, and each takes a place of its
own; at the end of the data places wrap around to its beginning, as with a prepared loader, so that all make as many steps. An order that is drawn
anew for each pass is the first process's on all of them. With one process nothing changes. Where a hidden state is carried along columns of the
data, each process goes along columns of its own.
Left alone when a DataLoader deals out the batches. Refused when one batch depends on the one before in another way, when
the index does more than choose rows, or when the same loop evaluates too.
Source: https://huggingface.co/docs/accelerate/package_reference/accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.slicing import Sliced, divisions, ordered
from script2accel.change.edits import CannotEditError, add_before, add_behind, ensure_import, merge, replace
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A584", "sliced-batches"
UNDEALT = Message(
    "S2A594",
    Severity.ERROR,
    "batches are sliced by hand (line {loop}), and can't be dealt out to several processes: {why}",
    "let a DataLoader give the batches, or deal out the rows by hand, and convert again",
)
SHARE = Message(
    "S2A724",
    Severity.WARNING,
    "this divides a process's own sum by the number of all rows or batches: with N processes it shows 1/N",
    "divide by what this process has counted",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for sliced in decisions.plan.slices:
        if facts.source.root(sliced.loop) is not facts.source.tree:
            continue
        problem = sliced.problem
        if problem is None and decisions.options.batch == "global":
            problem = sliced.loop, "`--batch global` splits the batches of DataLoaders only"
        if problem is None:
            try:
                yield from _columns(facts, decisions, *sliced.columns) if sliced.columns is not None else _dealt(facts, decisions, sliced)
            except CannotEditError as error:
                problem = sliced.loop, error.why
        if problem is not None:
            node, why = problem
            yield UNDEALT.at(getattr(node, "lineno", 0), getattr(node, "col_offset", 0) + 1, loop=sliced.loop.lineno, why=why)
            continue
        for division in divisions(facts, sliced):
            yield SHARE.at(division.lineno, division.col_offset + 1)


def _columns(facts: View, decisions: Decisions, statement: ast.Assign, size: ast.expr) -> Iterator[Change]:
    """Lay the data out in as many columns as all processes take together, and keep this one's."""
    accelerator = decisions.accelerator(statement)
    name, count = facts.source.segment(statement.targets[0]), _operand(facts.source.segment(size), size)
    first = f"{accelerator}.process_index * {count}"
    own = f"{name} = {name}[:, {first} : {first} + {count}].contiguous()"
    edits = [replace(facts.source, size, f"{count} * {accelerator}.num_processes"), add_behind(facts.source, statement, own)]
    yield Change(
        CODE, NAME, "a state is carried along the columns of the data: each process goes along its own", statement.lineno, merge(edits), source="R79"
    )


def _dealt(facts: View, decisions: Decisions, sliced: Sliced) -> Iterator[Change]:
    accelerator = decisions.accelerator(sliced.loop)
    source = facts.source
    stop, step = _operand(source.segment(sliced.stop), sliced.stop), None
    if sliced.step is not None:
        step = _operand(source.segment(sliced.step), sliced.step)
    stride = f"{accelerator}.num_processes" if step is None else f"{step} * {accelerator}.num_processes"
    start = f"{accelerator}.process_index" if step is None else f"{step} * {accelerator}.process_index"
    first = sliced.loop.body[0]
    edits = [add_before(source, first, f"{sliced.index} = ({sliced.index} + {start}) % {stop}", rank=-20)]
    edits += [_strided(facts, sliced, stride)]
    yield Change(CODE, NAME, "each process slices batches of its own, all make as many steps", sliced.loop.lineno, merge(edits), source="R79")
    for draw in sliced.draws:
        order = ordered(draw)
        assert order is not None
        name = source.segment(order)
        edits = [
            add_behind(source, draw, f"{name} = broadcast_object_list([{name}])[0]"),
            ensure_import(source, "accelerate.utils", "broadcast_object_list"),
        ]
        yield Change(CODE, NAME, "the order of the rows is the first process's on all of them", draw.lineno, merge(edits), source="R83")


def _strided(facts: View, sliced: Sliced, stride: str) -> tuple[Edit, ...]:
    if sliced.step is not None:
        return replace(facts.source, sliced.step, stride)
    only = sliced.call.args[0] if len(sliced.call.args) == 1 else None
    stop = facts.source.segment(sliced.stop)
    return replace(facts.source, sliced.stop, f"{stop}, {stride}" if only is None else f"0, {stop}, {stride}")


def _operand(text: str, node: ast.expr) -> str:
    """An expression as an operand of `*` and `%`."""
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)) else f"({text})"


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for start in range(0, len(rows), 16):
    optimizer.zero_grad()
    loss = model(rows[start : start + 16]).mean()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from accelerate import Accelerator

accelerator = Accelerator()
rows = torch.ones(64, 8).to(accelerator.device)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)

for start in range(0, len(rows), 16 * accelerator.num_processes):
    start = (start + 16 * accelerator.process_index) % len(rows)
    optimizer.zero_grad()
    loss = model(rows[start : start + 16]).mean()
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import numpy as np
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(10):
    order = np.random.permutation(64)
    for number in range(len(rows) // 16):
        optimizer.zero_grad()
        loss = model(rows[order[number * 16 : (number + 1) * 16]]).mean()
        loss.backward()
        optimizer.step()
""",
        """\
import numpy as np
import torch
from torch import nn
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

accelerator = Accelerator()
rows = torch.ones(64, 8).to(accelerator.device)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)

for epoch in range(10):
    order = np.random.permutation(64)
    order = broadcast_object_list([order])[0]
    for number in range(0, len(rows) // 16, accelerator.num_processes):
        number = (number + accelerator.process_index) % (len(rows) // 16)
        optimizer.zero_grad()
        loss = model(rows[order[number * 16 : (number + 1) * 16]]).mean()
        accelerator.backward(loss)
        optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.GRU(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
hidden = torch.zeros(1, 8)

for start in range(0, len(rows), 16):
    output, hidden = model(rows[start : start + 16], hidden.detach())
    optimizer.zero_grad()
    loss = output.mean()
    loss.backward()
    optimizer.step()
""",
        "S2A594",
    ),
    (
        """\
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for start in range(0, len(rows), 16):
    for group in optimizer.param_groups:
        group["lr"] = 0.1 * (1 - start / len(rows))
    optimizer.zero_grad()
    loss = model(rows[start : start + 16]).mean()
    loss.backward()
    optimizer.step()
""",
        "S2A594",
    ),
    (
        """\
import torch
from torch import nn

model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


class Game:
    def play(self, count):
        return torch.ones(count, 8)


game = Game()
for update in range(10):
    rows = game.play(64)
    for start in range(0, len(rows), 16):
        optimizer.zero_grad()
        loss = model(rows[start : start + 16]).mean()
        loss.backward()
        optimizer.step()
""",
        "S2A594",
    ),
    (
        """\
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0.0

for start in range(0, len(rows), 16):
    optimizer.zero_grad()
    loss = model(rows[start : start + 16]).mean()
    loss.backward()
    optimizer.step()
    total += loss.item()
print(total / (len(rows) // 16))
""",
        "S2A724",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = torch.ones(64, 8)
loader = DataLoader(TensorDataset(rows), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for (x,) in loader:
    optimizer.zero_grad()
    loss = model(x).mean()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    for start in range(0, len(rows), 16):
        print(model(rows[start : start + 16]).mean())
""",
        None,
    ),
]
