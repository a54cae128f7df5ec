"""Prepare what trains, in one call: models, optimizers, loaders, in that order, under their own names.

prepare wraps the model for gradient synchronisation, shards the loaders over the ranks and places batches. Schedulers are not
prepared: a prepared one steps once per process at each call (measured), and an unprepared one, its horizon computed behind
prepare, is exact under every strategy. Losses without parameters, frozen modules and copies of the model are not prepared either.
Left alone when everything is prepared already.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#prepare-pytorch-objects
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import CannotEditError, add_before, add_behind
from script2accel.change.plan import Change
from script2accel.decisions import Decisions, Prepare
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A201", "prepare"
LAYOUT = Message(
    "S2A211",
    Severity.ERROR,
    "prepare must stand here, and the line holds several statements",
    "put each statement on a line of its own and convert again",
)
EVERY_RANK = Message("S2A212", Severity.NOTE, "this evaluation runs whole on every rank, over the unprepared loader: {why}", "")


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    yield from (p for p in decisions.plan.problems if p.path in ("", facts.source.path))
    for prepare in decisions.plan.prepares:
        if facts.source.root(prepare.anchor) is not facts.source.tree:
            continue
        try:
            yield _change(facts, decisions, prepare)
        except CannotEditError:
            yield LAYOUT.at(prepare.anchor.lineno)
    for plan in decisions.plan.every_rank:
        if facts.source.root(plan.loop.loop) is facts.source.tree:
            yield EVERY_RANK.at(plan.loop.loop.lineno, plan.loop.loop.col_offset + 1, why=plan.why)


def _change(facts: View, decisions: Decisions, prepare: Prepare) -> Change:
    paths = list(dict.fromkeys(path for path, _ in prepare.items))
    call = f"{decisions.accelerator(prepare.anchor)}.prepare"
    joined = ", ".join(paths)
    code = f"{joined} = {call}({joined})"
    if len(code) > 110:
        lines = ",\n\t".join(paths)
        code = f"{joined} = {call}(\n\t{lines},\n)"
    add = add_behind if prepare.behind else add_before
    return Change(
        CODE,
        NAME,
        "models, optimizers and loaders go through prepare, once, before their first use",
        prepare.anchor.lineno,
        add(facts.source, prepare.anchor, code),
        source="R03",
    )


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Coder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 2), nn.Linear(2, 8)

    def encode(self, x):
        return self.encoder(x)

    def decode(self, z):
        return self.decoder(z)


loader = DataLoader(TensorDataset(torch.ones(64, 8)), batch_size=16, shuffle=True)
model = Coder()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for (x,) in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model.decode(model.encode(x)), x).backward()
    optimizer.step()
""",
        "S2A295",
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


class Trainer:
    def __init__(self, data):
        self.loader = DataLoader(data, batch_size=16)
        self.model = nn.Linear(8, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def train(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
        self.scheduler.step()


Trainer(TensorDataset(torch.ones(64, 8), torch.zeros(64).long())).train()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


class Trainer:
    def __init__(self, data):
        self.accelerator = Accelerator()
        self.loader = DataLoader(data, batch_size=16)
        self.model = nn.Linear(8, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(self.model, self.optimizer, self.loader)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)

    def train(self):
        for x, y in self.loader:
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.accelerator.backward(loss)
            self.optimizer.step()
        self.scheduler.step()


Trainer(TensorDataset(torch.ones(64, 8), torch.zeros(64).long())).train()
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
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
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
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=len(loader))

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
""",
        {"batch": "global"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2); optimizer = torch.optim.SGD(model.parameters(), lr=0.1); model.train()

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A211",
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
]
