"""Weigh each rank's loss by what counts in its batch: labels that aren't ignored, weights of classes.

Cross entropy with ignored labels divides by the labels that count, with class weights by the sum of their weights. Gradients are averaged over the
ranks, and the average of the ranks' means is not the mean over the global batch where they count unevenly (measured). So each rank's mean is
multiplied by its share: what it counts by what the ranks count on average. In one process the share is 1.
Left alone when the loss sums or gives one value for each sample, when all labels count, and under context parallelism, which counts by itself. Where
the count can't be brought together (in a module, in a loop as long as the batch's sequences), the line is told.
Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.averages import Average, averages
from script2accel.analysis.facts import View
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge, replace_range
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A326", "uneven-mean"
TOLD = Message(
    "S2A336",
    Severity.WARNING,
    "this loss {what}, so that it is a mean over what counts in the rank's own batch, and {problem}: the average of the ranks' means is another "
    "number where they count unevenly",
    'multiply it by `counted / accelerator.reduce(counted, reduction="mean")`, where `counted` is what it divides by',
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares or decisions.options.cp > 1:
        return
    names: dict[tuple[ast.stmt, str], tuple[str, str]] = {}
    for average in averages(facts):
        problem = average.problem or ("" if decisions.may_ask(average.loss) else "the accelerator can't be handed to it")
        if problem:
            yield TOLD.at(average.loss.lineno, average.loss.col_offset + 1, what=average.what, problem=problem)
            continue
        try:
            yield _change(facts, decisions, average, names)
        except CannotEditError as error:
            yield TOLD.at(average.loss.lineno, average.loss.col_offset + 1, what=average.what, problem=f"the count has no place: {error.why}")


def _change(facts: View, decisions: Decisions, average: Average, names: dict[tuple[ast.stmt, str], tuple[str, str]]) -> Change:
    source, loss = facts.source, average.loss
    accelerator = decisions.accelerator(loss, essential=False)
    statement = source.statement(loss)
    key = statement, average.counted + (f"({accelerator}.device)" if average.counted.endswith(".to") else "")
    edits = [ensure_import(source, "", "torch")]
    if key not in names:
        number = len([True for known, _ in names if known is statement])
        names[key] = counted, share = _free(facts, "counted", number), _free(facts, "share", number)
        edits.append(add_before(source, statement, f'{counted} = {key[1]}\n{share} = {counted} / {accelerator}.reduce({counted}, reduction="mean")'))
    counted, share = names[key]
    edits.append(replace_range(source.start(loss), source.start(loss), f"torch.where({counted} > 0, "))
    edits.append(replace_range(source.end(loss), source.end(loss), f", 0.0) * {share}"))
    return Change(CODE, NAME, f"it {average.what}: each rank's mean is weighted by what counts in its batch", loss.lineno, merge(edits), source="R76")


def _free(facts: View, name: str, number: int) -> str:
    """A name that the file doesn't use, another for each loss of a statement."""
    name = f"{name}_{number + 1}" if number else name
    while name in facts.source.names:
        name += "_"
    return name


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
criterion = nn.CrossEntropyLoss(ignore_index=1)

for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
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
criterion = nn.CrossEntropyLoss(ignore_index=1)

for x, y in loader:
    optimizer.zero_grad()
    counted = (y != 1).sum().float()
    share = counted / accelerator.reduce(counted, reduction="mean")
    loss = torch.where(counted > 0, criterion(model(x), y), 0.0) * share
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
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))

for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
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
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]).to(accelerator.device))

for x, y in loader:
    optimizer.zero_grad()
    counted = criterion.weight[y].sum()
    share = counted / accelerator.reduce(counted, reduction="mean")
    loss = torch.where(counted > 0, criterion(model(x), y), 0.0) * share
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
criterion = nn.CrossEntropyLoss(ignore_index=1)

for x, y in loader:
    optimizer.zero_grad()
    loss = 0.0
    for column in range(y.size(0)):
        loss = loss + criterion(model(x[column : column + 1]), y[column : column + 1])
    loss.backward()
    optimizer.step()
""",
        "S2A336",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.fc(x), y, ignore_index=-1)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = model(x, y)
    loss.backward()
    optimizer.step()
""",
        "S2A336",
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
criterion = nn.CrossEntropyLoss(reduction="sum", ignore_index=1)

for x, y in loader:
    optimizer.zero_grad()
    loss = criterion(model(x), y)
    loss.backward()
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
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
