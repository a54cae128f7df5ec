"""Download and cache on one process first.

A dataset that downloads itself stands under `with accelerator.main_process_first():`, so that the other ranks find the files.
Left alone when `download` is False or missing, or a guard stands there already.
Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
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
    for call in facts.calls:
        if not names.DOWNLOADS.match(facts.path(call)) or _waits(facts, call):
            continue
        flag = next((k.value for k in call.keywords if k.arg == "download"), None)
        if flag is not None and not (isinstance(flag, ast.Constant) and not flag.value):
            statement = facts.source.statement(call)
            if not decisions.may_ask(call):
                yield SHARED.at(call.lineno, call.col_offset + 1)
                continue
            later = any(isinstance(p, ast.Lambda) for p in facts.source.ancestors(call))
            if isinstance(statement, (ast.Assign, ast.Expr, ast.AnnAssign, ast.Return)) and not later:
                statements[statement] = None
            else:
                yield SHARED.at(call.lineno, call.col_offset + 1)
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


def _waits(facts: View, call: ast.Call) -> bool:
    return any(
        isinstance(p, ast.With) and any("main_process_first" in ast.unparse(i.context_expr) for i in p.items) for p in facts.source.ancestors(call)
    )


EXAMPLES: list[tuple[str, str | None]] = [
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
]
