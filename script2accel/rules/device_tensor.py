"""Make tensors on the accelerator's device, not on a hard-coded one.

`torch.zeros(n, device="cuda")`, `map_location="cuda:0"` and `generator=torch.Generator(device="cuda")` name the accelerator's device;
`torch.cuda.FloatTensor(x)` becomes `torch.FloatTensor(x).to(...)`, and `x.type(torch.cuda.FloatTensor)` a `.to` with the dtype.
Left alone when the device is a variable that already follows the accelerator, or the CPU.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import loads_state
from script2accel.analysis.devices import fixed_device, from_prepared_loader, names_device
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import merge, replace, replace_range, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A103", "device-tensor"
DEFAULT = Message(
    "S2A113",
    Severity.ERROR,
    "`{call}` changes where every tensor is made: which of them Accelerate should place can't be seen",
    "remove it and give tensors a device where they are made",
)
INSIDE = Message(
    "S2A114",
    Severity.ERROR,
    "a hard-coded device in the constructor of an nn.Module, which has no accelerator",
    "register the tensor as a buffer (`self.register_buffer`), which moves with the module",
)
REASON = "a tensor is made on a hard-coded device: the accelerator names it"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        for keyword in call.keywords:
            if keyword.arg == "map_location" and loads_state(facts, call):
                continue  # loaded on the CPU, by the save rule
            if keyword.arg in ("device", "map_location") and _hard_coded(facts, keyword.value, call):
                device = decisions.device(call)
                if device is None:
                    yield INSIDE.at(call.lineno, call.col_offset + 1)
                    continue
                yield Change(CODE, NAME, REASON, call.lineno, replace(facts.source, keyword.value, device), source="R02")
        if any(names.SET_DEFAULT.match(path) for path in facts.any_path(call)) and "cuda" in facts.source.segment(call):
            yield DEFAULT.at(call.lineno, call.col_offset + 1, call=facts.source.segment(call))
    yield from _tensor_types(facts, decisions)


def _hard_coded(facts: View, node: ast.expr, call: ast.Call) -> bool:
    if "cpu" in facts.source.segment(node) and "cuda" not in facts.source.segment(node):
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr in names.MOVES:
        return False  # a move
    if facts.path(call) in ("torch.device", "torch.autocast", "torch.amp.autocast", "torch.amp.GradScaler"):
        return False
    return not isinstance(node, ast.Lambda) and names_device(facts, node) and fixed_device(facts, node)


def _tensor_types(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    """`torch.cuda.FloatTensor` where it is called, given to `.type()`, or chosen for a name."""
    for node in facts.source.every(ast.Attribute):
        if not _cuda_type(facts, node):
            continue
        parent = facts.source.parents[node]
        if isinstance(parent, ast.IfExp):
            statement = facts.source.statement(node)
            if isinstance(statement, ast.Assign) and statement.value is parent and isinstance(statement.targets[0], ast.Name):
                yield from _alias(facts, decisions, statement, parent, node)
        elif isinstance(parent, ast.Call) and parent.func is node:
            edits = merge([replace(facts.source, node, f"torch.{node.attr}"), _moved(facts, decisions, parent)])
            yield Change(CODE, NAME, REASON, node.lineno, edits, source="R02")
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr == "type":
            yield Change(CODE, NAME, REASON, node.lineno, _typed(facts, decisions, parent, node.attr), source="R02")
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            yield from _alias(facts, decisions, parent, None, node)


def _cuda_type(facts: View, node: ast.Attribute) -> bool:
    return any(o.kind == "external" and names.CUDA_TENSOR_TYPE.match(str(o.name)) for o in facts.machine.at.get(node, NOTHING).objs)


def _alias(facts: View, decisions: Decisions, statement: ast.Assign, choice: ast.IfExp | None, node: ast.Attribute) -> Iterator[Change]:
    """`Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor`: the name stays, its calls move what they make."""
    edits: list[tuple[Edit, ...]] = [replace(facts.source, choice or node, f"torch.{node.attr}")]
    for call in facts.calls:
        if isinstance(call.func, ast.Name) and _holds(facts, call.func, node.attr):
            edits.append(_moved(facts, decisions, call))
        elif (
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "type"
            and call.args
            and isinstance(call.args[0], ast.Name)
            and _holds(facts, call.args[0], node.attr)
        ):
            edits.append(_typed(facts, decisions, call, node.attr))
    yield Change(CODE, NAME, REASON, statement.lineno, merge(edits), source="R02")


def _holds(facts: View, node: ast.Name, tensor: str) -> bool:
    """Whether a name can hold the CUDA tensor type."""
    return any(o.kind == "external" and o.name == f"torch.cuda.{tensor}" for o in facts.machine.at.get(node, NOTHING).objs)


def _moved(facts: View, decisions: Decisions, call: ast.Call) -> tuple[Edit, ...]:
    return wrap_expression(facts.source, call, "", f".to({decisions.accelerator(call)}.device)")


def _typed(facts: View, decisions: Decisions, call: ast.Call, tensor: str) -> tuple[Edit, ...]:
    dtype = names.TENSOR_DTYPE[tensor.removesuffix("Tensor")]
    assert isinstance(call.func, ast.Attribute)
    placed = from_prepared_loader(facts, call.func.value)  # a batch is there already: only its type changes
    where = "" if placed else f"{decisions.accelerator(call)}.device, "
    return replace_range(facts.source.dot(call.func), facts.source.end(call), f".to({where}torch.{dtype})")


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda(), torch.ones(2, device="cuda"))
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
    loss = nn.functional.cross_entropy(model(x), y, torch.ones(2, device=accelerator.device))
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

Tensor = torch.cuda.FloatTensor if torch.cuda.is_available() else torch.FloatTensor
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.cuda()
weights = Tensor([1.0, 2.0])

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.cuda().type(Tensor)), y.cuda(), weights)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

Tensor = torch.FloatTensor
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
weights = Tensor([1.0, 2.0]).to(accelerator.device)

for x, y in loader:
    optimizer.zero_grad()
    counted = weights[y].sum()
    share = counted / accelerator.reduce(counted, reduction="mean")
    loss = torch.where(counted > 0, nn.functional.cross_entropy(model(x.to(torch.float32)), y, weights), 0.0) * share
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_default_tensor_type("torch.cuda.FloatTensor")
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
        "S2A113",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)
        self.scale = torch.ones(8, device="cuda")

    def forward(self, x):
        return self.fc(x * self.scale)


def main():
    data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=16)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


main()
""",
        "S2A114",
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
mask = torch.ones(2, device="cpu")

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
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


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 2)
    def forward(self, x, labels):
        drop = torch.rand(labels.shape[0], device=labels.device) < 0.1
        return self.a(x) + torch.where(drop, 1, labels)[:, None]


def losses(model, x, kwargs):
    return model(x, **kwargs).mean()


device = 0
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = Net().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = losses(model, x, dict(labels=y))
        loss.backward()
        optimizer.step()
""",
        None,
    ),
]
