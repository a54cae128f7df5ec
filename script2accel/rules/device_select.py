"""Take out the choice of a GPU that the launcher makes.

`torch.cuda.set_device(...)` and `os.environ["CUDA_VISIBLE_DEVICES"] = ...` in the code would send every process to the same card.
Left alone when the environment is only read, and for calls that measure or tune (`cudnn.benchmark`, `memory_allocated`).
Source: https://huggingface.co/docs/accelerate/basic_tutorials/launch#using-accelerate-launch
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import remove_statement
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic
from script2accel.knowledge import torch as names

CODE, NAME = "S2A104", "device-select"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for statement in facts.source.every(ast.Expr, ast.Assign):
        if _chooses(facts, statement):
            edits = remove_statement(facts.source, statement)
            decisions.gone.add(statement)
            yield Change(CODE, NAME, "the launcher gives each process its GPU", statement.lineno, edits, source="R02")


def _chooses(facts: View, statement: ast.Expr | ast.Assign) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            return any(names.SET_DEVICE.match(path) for path in facts.any_path(call))
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value="CUDA_VISIBLE_DEVICES"))]):
            return True
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.environ["CUDA_VISIBLE_DEVICES"] = "1"
torch.cuda.set_device(0)
torch.backends.cudnn.benchmark = True
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
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

torch.backends.cudnn.benchmark = True
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
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

print(os.environ.get("CUDA_VISIBLE_DEVICES"), torch.cuda.memory_allocated())
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
