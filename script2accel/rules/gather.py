"""Gather what an evaluation loop counts, batch by batch.

Right behind the model's forward, `gather_for_metrics` collects the result and the targets of all ranks and drops the samples that were repeated to
fill the last batch, so that every counter, list and `len(loader.dataset)` below means what it meant.
Left alone when the loop can't be gathered safely: then each rank runs the whole evaluation over the unprepared loader.
Source: https://huggingface.co/docs/accelerate/quicktour#distributed-evaluation
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import CannotEditError, add_behind
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A701", "gather"
LAYOUT = Message(
    "S2A711",
    Severity.ERROR,
    "the result must be gathered behind this line, which holds several statements",
    "put each statement on a line of its own and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for gather in decisions.plan.gathers:
        if facts.source.root(gather.statement) is not facts.source.tree:
            continue
        joined = ", ".join(gather.names)
        code = f"{joined} = {decisions.accelerator(gather.statement)}.gather_for_metrics(({joined}))"
        try:
            edits = add_behind(facts.source, gather.statement, code)
        except CannotEditError:
            yield LAYOUT.at(gather.statement.lineno)
            continue
        yield Change(CODE, NAME, "metrics over all ranks' samples, each counted once", gather.statement.lineno, edits, source="R39")


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.ones(17, 8), torch.zeros(17).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

model.eval()
right = 0
with torch.no_grad():
    for x, y in test_loader:
        output = model(x)
        right += (output.argmax(1) == y).sum().item()
print(right / len(test_loader.dataset))
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.ones(17, 8), torch.zeros(17).long()), batch_size=16)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()

model.eval()
right = 0
with torch.no_grad():
    for x, y in test_loader:
        output = model(x)
        output, y = accelerator.gather_for_metrics((output, y))
        right += (output.argmax(1) == y).sum().item()
accelerator.print(right / len(test_loader.dataset))
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.ones(17, 8), torch.zeros(17).long()), batch_size=16, collate_fn=list)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

model.eval()
right = 0
with torch.no_grad():
    for x, y in test_loader:
        output = model(x)
        right += (output.argmax(1) == y).sum().item()
print(right / len(test_loader.dataset))
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
test_loader = DataLoader(TensorDataset(torch.ones(17, 8), torch.zeros(17).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

model.eval()
right = 0
with torch.no_grad():
    for x, y in test_loader:
        output = model(x); output = output.float()
        right += (output.argmax(1) == y).sum().item()
print(right / len(test_loader.dataset))
""",
        "S2A711",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.ones(17, 8), torch.zeros(17).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

model.eval()
right = 0
with torch.no_grad():
    for x, y in test_loader:
        pred = model(x).argmax(0)
        right += (pred == y).sum().item()
print(right / len(test_loader.dataset))
""",
        None,
    ),
]
