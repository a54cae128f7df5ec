"""Ask a prepared loader for its total batch size.

A prepared loader's `batch_size` is None (measured); `total_batch_size` is that of all ranks together, which a single process would have.
Left alone in front of prepare.
Source: https://huggingface.co/docs/accelerate/package_reference/torch_wrappers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import replace_range
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic

CODE, NAME = "S2A208", "batch-size"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for node in facts.source.every(ast.Attribute):
        if node.attr == "batch_size" and decisions.prepared_here(node.value, "loader"):
            edits = replace_range(facts.source.end(node) - len("batch_size"), facts.source.end(node), "total_batch_size")
            yield Change(CODE, NAME, "a prepared loader has no batch_size of its own", node.lineno, edits, source="R45")


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
seen = 0

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    seen += loader.batch_size
print(seen)
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
seen = 0

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    seen += loader.total_batch_size
accelerator.print(seen)
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
other = DataLoader(data, batch_size=4)
print(other.batch_size)
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
