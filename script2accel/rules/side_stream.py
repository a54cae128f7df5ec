"""Let a CUDA stream of the script's own wait for the batches that a prepared loader places.

A prefetcher copies the next batch on a stream beside the main one, and works on it there. A prepared loader copies it on the main stream:
the other one must wait for that, or it works on what hasn't arrived.
Left alone when no batch of a prepared loader is handled there.
Source: https://huggingface.co/docs/accelerate/package_reference/torch_wrappers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import from_prepared_loader
from script2accel.analysis.facts import View
from script2accel.change.edits import CannotEditError, add_before
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A124", "side-stream"
UNORDERED = Message(
    "S2A134",
    Severity.ERROR,
    "`{text}` works on batches that prepare copies on the main stream: it might not wait for them",
    "give the stream a name, or let the loader prefetch (`num_workers`, `pin_memory`), and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for statement in facts.source.every(ast.With):
        if not any(_handles_batch(facts, s) for s in statement.body):
            continue
        for item in statement.items:
            call = item.context_expr
            if not isinstance(call, ast.Call) or facts.path(call) != "torch.cuda.stream" or len(call.args) != 1 or _waits(facts, statement):
                continue
            try:
                if not isinstance(call.args[0], (ast.Name, ast.Attribute)):
                    raise CannotEditError(call, "the stream has no name")
                edits = add_before(facts.source, statement, f"{ast.unparse(call.args[0])}.wait_stream(torch.cuda.current_stream())")
            except CannotEditError:
                yield UNORDERED.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call))
                continue
            yield Change(
                CODE, NAME, "the prepared loader copies batches on the main stream: this one waits for them", statement.lineno, edits, source="R82"
            )


def _handles_batch(facts: View, statement: ast.stmt) -> bool:
    return any(isinstance(n, (ast.Name, ast.Attribute)) and from_prepared_loader(facts, n) for n in walk(statement))


def _waits(facts: View, statement: ast.stmt) -> bool:
    """Whether the stream waits for the main one right in front of the block."""
    block = facts.source.block(statement)
    index = next(i for i, s in enumerate(block) if s is statement)
    return index > 0 and "wait_stream(torch.cuda.current_stream())" in facts.source.segment(block[index - 1])


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = self.y = None
            return
        with torch.cuda.stream(self.stream):
            self.x = self.x.cuda(non_blocking=True).float().sub_(0.5)
            self.y = self.y.cuda(non_blocking=True)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        self.preload()
        return x, y


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

prefetcher = Prefetcher(loader)
x, y = prefetcher.next()
while x is not None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    x, y = prefetcher.next()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.stream = torch.cuda.Stream()
        self.preload()

    def preload(self):
        try:
            self.x, self.y = next(self.loader)
        except StopIteration:
            self.x = self.y = None
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self.x = self.x.to(accelerator.device, non_blocking=True).float().sub_(0.5)

    def next(self):
        torch.cuda.current_stream().wait_stream(self.stream)
        x, y = self.x, self.y
        self.preload()
        return x, y


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(non_blocking=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

prefetcher = Prefetcher(loader)
x, y = prefetcher.next()
while x is not None:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    x, y = prefetcher.next()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Prefetcher:
    def __init__(self, loader):
        self.loader = iter(loader)
        self.streams = [torch.cuda.Stream()]

    def next(self):
        x, y = next(self.loader)
        with torch.cuda.stream(self.streams[0]):
            return x.cuda(non_blocking=True).float(), y.cuda(non_blocking=True)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=True)
model = nn.Linear(8, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

prefetcher = Prefetcher(loader)
for step in range(4):
    x, y = prefetcher.next()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A134",
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
stream = torch.cuda.Stream()

for x, y in loader:
    x, y = x.cuda(), y.cuda()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    with torch.cuda.stream(stream):
        torch.zeros(8, device="cuda").sum()
""",
        None,
    ),
]
