"""Let Accelerate run the backward pass.

`loss.backward()` knows nothing of gradient scaling and of accumulation; `accelerator.backward(loss)` does, and takes the place of
`scaler.scale(loss).backward()` too. Arguments are passed on, by their names.
Left alone when it already goes through the accelerator, or isn't a tensor's.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#training-loop
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import Backward, View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import call_function, merge, replace
from script2accel.change.plan import Change, Edit, Splice
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A202", "backward"
SEVERAL = Message(
    "S2A285",
    Severity.ERROR,
    "`{text}` starts at several tensors: `accelerator.backward` takes one loss",
    "sum the losses, and call `backward` on the sum",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for backward in facts.backwards:
        if backward.done or facts.in_module(backward.call):
            continue
        call, accelerator = backward.call, decisions.accelerator(backward.call)
        if _several(facts, call):
            yield SEVERAL.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call)[:60])
            continue
        if facts.path(call).startswith("torch.autograd"):
            edits = replace(facts.source, call.func, f"{accelerator}.backward")
        elif isinstance(call.func, ast.Attribute) and backward.loss is not call.func.value:
            edits = _unscaled(facts, backward, f"{accelerator}.backward(")
        else:
            edits = call_function(facts.source, call, f"{accelerator}.backward")
        edits = merge([edits, *_named(facts, call)])
        yield Change(CODE, NAME, "the accelerator runs the backward pass: it scales and synchronises gradients", call.lineno, edits, source="R06")


def _several(facts: View, call: ast.Call) -> bool:
    """Whether a backward pass starts at several tensors, or its arguments can't be told apart."""
    whole = facts.path(call).startswith("torch.autograd")
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        return True
    return whole and (
        not call.args or any(o.kind in ("list", "tuple") for o in facts.machine.at.get(call.args[0], NOTHING).objs) or bool(call.args[1:])
    )


def _named(facts: View, call: ast.Call) -> Iterator[tuple[Edit, ...]]:
    """`loss.backward(one)` -> `gradient=one`: the accelerator passes on keywords only."""
    if facts.path(call).startswith("torch.autograd"):
        return
    for arg, name in zip(call.args, names.BACKWARD_ARGUMENTS, strict=False):
        start = facts.source.outer(arg)[0]
        yield (Splice(start, start, f"{name}="),)


def _unscaled(facts: View, backward: Backward, function: str) -> tuple[Edit, ...]:
    """`scaler.scale(loss).backward(a)` -> `function(loss, a)`."""
    source, call = facts.source, backward.call
    start, end = source.outer(backward.loss)
    paren = source.text.index("(", source.end(call.func))
    more = ", " if call.args or call.keywords else ""
    return (Splice(source.start(call), start, function), Splice(end, paren + 1, more))


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

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    torch.autograd.backward(loss)
    optimizer.step()
""",
        """\
import torch
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
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.sum().backward(gradient=None)
    optimizer.step()
""",
        """\
import torch
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
    accelerator.backward(loss.sum(), gradient=None)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
        None,
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
    torch.autograd.backward([loss, model.weight.norm()])
    optimizer.step()
""",
        "S2A285",
    ),
    (
        """\
import torch


class Message:
    def backward(self):
        return torch.zeros(1)


Message().backward()
""",
        None,
    ),
]
