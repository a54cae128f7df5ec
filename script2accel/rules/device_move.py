"""Drop moves of what Accelerate places; send everything else to the accelerator's device.

prepare moves models, and a prepared loader moves its batches: their `.to(device)` and `.cuda()` go, a dtype stays. What is made in
the script (noise, masks, hidden states, class weights) and modules that aren't prepared keep a move, to `accelerator.device`.
Left alone when the device is a variable that already follows the accelerator, a CPU is asked for, or a batch of the script's own class moves
itself.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#training-loop
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import Move, fixed_device, moves, moves_itself, to_cpu
from script2accel.analysis.distribution import wrappers
from script2accel.analysis.facts import View
from script2accel.analysis.residue import nothing_left
from script2accel.change.edits import merge, remove_statement, replace_range
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge.torch import CUDA_QUERY
from script2accel.source import walk

CODE, NAME = "S2A102", "device-move"
NOWHERE = Message(
    "S2A112",
    Severity.ERROR,
    "`{text}` is moved to a device in the constructor of an nn.Module, which has no accelerator",
    "register it as a buffer (`self.register_buffer`), which moves with the module, and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    source = facts.source
    dropped: list[Move] = []
    for move in moves(facts):
        if decisions.places(move):
            dropped.append(move)
        elif to_cpu(move) or moves_itself(facts, move.receiver):
            continue
        elif move.device is None or fixed_device(facts, move.device):
            device = decisions.device(move.call)
            if device is None:
                yield NOWHERE.at(move.call.lineno, move.call.col_offset + 1, text=source.segment(move.receiver))
                continue
            extra = "".join(f", {part}" for part in move.rest) + (", non_blocking=True" if move.non_blocking else "")
            edits = replace_range(source.dot(move.call.func), source.end(move.call), f".to({device}{extra})")  # type: ignore[arg-type]
            yield Change(
                CODE,
                NAME,
                "made in the script, so Accelerate doesn't move it: it goes to the accelerator's device",
                move.call.lineno,
                edits,
                source="R04",
            )
    yield from _drop(facts, decisions, dropped)


def _drop(facts: View, decisions: Decisions, dropped: list[Move]) -> Iterator[Change]:
    source = facts.source
    by_statement: dict[ast.stmt, list[Move]] = {}
    for move in dropped:
        if move.non_blocking:
            decisions.loader_arguments["non_blocking"] = "True"
        by_statement.setdefault(source.statement(move.call), []).append(move)
    gone = {statement for statement, found in by_statement.items() if _nothing_left(facts, statement, found)}
    decisions.gone |= gone
    blocks = _empty_blocks(facts, gone)
    for block in blocks:
        inner = [s for s in gone if any(p is block for p in source.ancestors(s))]
        gone -= set(inner)
        for statement in inner:
            by_statement.pop(statement)
        yield Change(
            CODE, NAME, "prepare and the prepared loader place models and batches", block.lineno, remove_statement(source, block), source="R04"
        )
    for statement, found in by_statement.items():
        if statement in gone:
            edits: tuple[Edit, ...] = remove_statement(source, statement)
        else:
            edits = merge(_cut(facts, move) for move in found)
        yield Change(CODE, NAME, "prepare and the prepared loader place models and batches", statement.lineno, edits, source="R04")


def _cut(facts: View, move: Move) -> tuple[Edit, ...]:
    rest = f".to({', '.join(move.rest)})" if move.rest else ""
    return replace_range(facts.source.dot(move.call.func), facts.source.end(move.call), rest)  # type: ignore[arg-type]


def _nothing_left(facts: View, statement: ast.stmt, found: list[Move]) -> bool:
    return not any(move.rest for move in found) and nothing_left(
        statement, [move.call for move in found], [c for c in wrappers(facts) if c in walk(statement)]
    )


def _empty_blocks(facts: View, gone: set[ast.stmt]) -> list[ast.If]:
    """`if use_cuda:` blocks of which nothing is left, with tests that only read."""
    found: list[ast.If] = []
    for statement in gone:
        parent = facts.source.parents[statement]
        if (
            isinstance(parent, ast.If)
            and parent not in found
            and not parent.orelse
            and all(s in gone for s in parent.body)
            and _only_reads(facts, parent.test)
        ):
            outer = facts.source.parents[parent]
            if facts.source.alone(parent) and not (isinstance(outer, ast.If) and parent in outer.orelse):
                found.append(parent)
    return found


def _only_reads(facts: View, test: ast.expr) -> bool:
    return all(CUDA_QUERY.match(facts.path(call)) or facts.path(call) == "len" for call in walk(test) if isinstance(call, ast.Call)) and not any(
        isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in walk(test)
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval().cpu()
    torch.save(model.state_dict(), "model.pt")
    model.to(device).train()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
device = accelerator.device
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    model.eval().cpu()
    accelerator.save(accelerator.get_state_dict(model), "model.pt")
    model.to(device).train()
""",
    ),
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
    x, y = x.cuda(), y.cuda()
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
model = nn.Linear(8, 2).to("cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    x, y = x.to("cuda", torch.float32, non_blocking=True), y.to("cuda", non_blocking=True)
    noise = torch.ones(8).to("cuda")
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x + noise), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    x, y = x.to(torch.float32), y
    noise = torch.ones(8).to(accelerator.device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x + noise), y)
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
if torch.cuda.is_available():
    model.cuda()
teacher = nn.Linear(8, 2).cuda().eval()

for x, y in loader:
    with torch.no_grad():
        target = teacher(x.cuda()).argmax(1)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), target)
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
teacher = nn.Linear(8, 2).to(accelerator.device).eval()

for x, y in loader:
    with torch.no_grad():
        target = teacher(x).argmax(1)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), target)
    accelerator.backward(loss)
    optimizer.step()
""",
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
        self.scale = torch.ones(8).cuda()

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
        "S2A112",
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
weights = model.weight.detach().cpu()

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
from torch.utils.data import DataLoader


class Pairs:
    def __init__(self, items):
        self.x = torch.stack([x for x, _ in items])
        self.y = torch.stack([y for _, y in items])

    def cuda(self):
        self.x, self.y = self.x.cuda(), self.y.cuda()
        return self


loader = DataLoader([(torch.ones(8), torch.ones(2))] * 64, batch_size=16, collate_fn=lambda items: Pairs(items))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for pairs in loader:
    pairs = pairs.cuda()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(pairs.x), pairs.y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader
from accelerate import Accelerator


class Pairs:
    def __init__(self, items):
        self.x = torch.stack([x for x, _ in items])
        self.y = torch.stack([y for _, y in items])

    def cuda(self):
        self.x, self.y = self.x.to(accelerator.device), self.y.to(accelerator.device)
        return self


loader = DataLoader([(torch.ones(8), torch.ones(2))] * 64, batch_size=16, collate_fn=lambda items: Pairs(items))
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for pairs in loader:
    pairs = pairs.cuda()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(pairs.x), pairs.y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
]
