"""Download and cache on one process first.

A dataset that downloads itself, or a block that fetches files unless they are there, stands under
`with accelerator.main_process_first():`, so that the other ranks find the files. A dataset class of the script's own that downloads isn't handed
the accelerator, since workers get it pickled: where it is made is wrapped instead.
Left alone when `download` is False or missing, or a guard stands there already.
Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.fetching import fetches
from script2accel.change.edits import CannotEditError, neighbours, wrap_statements
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A604", "download"
SHARED = Message(
    "S2A615",
    Severity.WARNING,
    "every process downloads here at the same time",
    "download before training, or wrap it in `with accelerator.main_process_first():`",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    statements: dict[ast.stmt, None] = {}
    for call in _downloads(facts):
        statement = facts.source.statement(call)
        later = any(isinstance(p, ast.Lambda) for p in facts.source.ancestors(call))
        if decisions.may_ask(call) and isinstance(statement, (ast.Assign, ast.Expr, ast.AnnAssign, ast.Return)) and not later:
            statements[statement] = None
        else:
            yield SHARED.at(call.lineno, call.col_offset + 1)
    for asked in sorted(fetches(facts), key=lambda s: s.lineno):
        if facts.source.root(asked) is facts.source.tree and facts.inside_class(asked, facts.dataset_classes) is None and decisions.may_ask(asked):
            statements[asked] = None
    for run in neighbours(facts.source, list(statements)):
        header = f"with {decisions.accelerator(run[0], essential=False)}.main_process_first():"
        try:
            yield Change(
                CODE,
                NAME,
                "one process downloads, the others wait and read",
                run[0].lineno,
                wrap_statements(facts.source, run, header),
                essential=False,
                source="R29",
            )
        except CannotEditError:
            yield SHARED.at(run[0].lineno)


def _downloads(facts: View) -> Iterator[ast.Call]:
    """The calls of this file that make a dataset which downloads itself, or one of the script's own that does or holds such a dataset."""
    sites = dict.fromkeys((*_made(facts), *(site for asked in fetches(facts) for site in _places(facts, asked))))
    for site in sites:
        if isinstance(site, ast.Call) and facts.program.source.root(site) is facts.source.tree and not _waits(facts, site):
            yield site


def _places(facts: View, node: ast.AST) -> list[ast.AST | None]:
    """Where a dataset in whose class a node stands is made: it is pickled for workers, so it holds no accelerator."""
    own = facts.inside_class(node, facts.dataset_classes)
    return [o.site for cls, objs in facts.machine.instances.items() if cls.site is own for o in objs] if own is not None else []


def _made(facts: View) -> Iterator[ast.AST | None]:
    for call in facts.program.calls:
        flag = next((k.value for k in call.keywords if k.arg == "download"), None)
        asked = flag is not None and not (isinstance(flag, ast.Constant) and not flag.value)
        if not asked or not names.DOWNLOADS.match(facts.path(call)):
            continue
        yield from _places(facts, call) if facts.inside_class(call, facts.dataset_classes) is not None else [call]


def _waits(facts: View, call: ast.Call) -> bool:
    return any(
        isinstance(p, ast.With) and any("main_process_first" in ast.unparse(i.context_expr) for i in p.items) for p in facts.source.ancestors(call)
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import os
import tarfile
import urllib.request
from os.path import exists, join

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fetch(dest="data"):
    folder = join(dest, "images")
    if not exists(folder):
        os.makedirs(dest)
        data = urllib.request.urlopen("https://example.org/images.tgz")
        path = join(dest, "images.tgz")
        with open(path, "wb") as f:
            f.write(data.read())
        with tarfile.open(path) as tar:
            tar.extractall(dest)
        os.remove(path)
    return folder


def main():
    folder = fetch()
    loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
""",
        """\
import os
import tarfile
import urllib.request
from os.path import exists, join

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


def fetch(accelerator, dest="data"):
    folder = join(dest, "images")
    with accelerator.main_process_first():
        if not exists(folder):
            os.makedirs(dest)
            data = urllib.request.urlopen("https://example.org/images.tgz")
            path = join(dest, "images.tgz")
            with open(path, "wb") as f:
                f.write(data.read())
            with tarfile.open(path) as tar:
                tar.extractall(dest)
            os.remove(path)
    return folder


def main():
    accelerator = Accelerator()
    folder = fetch(accelerator)
    loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()


if __name__ == "__main__":
    main()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import datasets


class Pairs(Dataset):
    def __init__(self, root, train):
        self.images = datasets.MNIST(root, train=train, download=True)

    def __len__(self):
        return len(self.images) // 2

    def __getitem__(self, index):
        one, other = self.images.data[2 * index].float(), self.images.data[2 * index + 1].float()
        return one - other, self.images.targets[index]


train = Pairs("data", train=True)
loader = DataLoader(train, batch_size=16, num_workers=2, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
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
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator
from torchvision import datasets


class Pairs(Dataset):
    def __init__(self, root, train):
        self.images = datasets.MNIST(root, train=train, download=True)

    def __len__(self):
        return len(self.images) // 2

    def __getitem__(self, index):
        one, other = self.images.data[2 * index].float(), self.images.data[2 * index + 1].float()
        return one - other, self.images.targets[index]


accelerator = Accelerator()
with accelerator.main_process_first():
    train = Pairs("data", train=True)
loader = DataLoader(train, batch_size=16, num_workers=2, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
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
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

train = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())
test = datasets.MNIST("data", train=False, download=True, transform=transforms.ToTensor())
loader = DataLoader(Subset(train, range(640)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
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
from torch.utils.data import DataLoader, Subset
from accelerate import Accelerator
from torchvision import datasets, transforms

accelerator = Accelerator()
with accelerator.main_process_first():
    train = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())
    test = datasets.MNIST("data", train=False, download=True, transform=transforms.ToTensor())
loader = DataLoader(Subset(train, range(640)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
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
from torch.utils.data import DataLoader, Subset
from torchvision import datasets, transforms

train = datasets.MNIST("data", train=True, download=False, transform=transforms.ToTensor())
loader = DataLoader(Subset(train, range(640)), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

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
import os
import urllib.request

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self, path="rows.pt"):
        self.path = path
        self.fetch()
        self.rows = torch.load(path)

    def fetch(self):
        if not os.path.exists(self.path):
            data = urllib.request.urlopen("https://example.org/rows.pt")
            with open(self.path, "wb") as f:
                f.write(data.read())

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], 0


loader = DataLoader(Rows(), batch_size=16, shuffle=True)
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
import urllib.request

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator


class Rows(Dataset):
    def __init__(self, path="rows.pt"):
        self.path = path
        self.fetch()
        self.rows = torch.load(path)

    def fetch(self):
        if not os.path.exists(self.path):
            data = urllib.request.urlopen("https://example.org/rows.pt")
            with open(self.path, "wb") as f:
                f.write(data.read())

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], 0


accelerator = Accelerator()
with accelerator.main_process_first():
    loader = DataLoader(Rows(), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
]
