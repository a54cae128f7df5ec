"""Say what rests on the user's word alone.

A mark (`# s2a: loader`) or an entry of `[tool.script2accel.roles]` tells what an object is that can't be seen to be anything. prepare takes
models, optimizers and loaders of torch, and passes over everything else in silence: the ranks would then train apart, or on the same data.
Left alone when the way in which the object is made, or for a model its use, says the same.
Source: https://huggingface.co/docs/accelerate/package_reference/accelerator
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.constructors import constructed
from script2accel.analysis.facts import View
from script2accel.analysis.values import Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions, ident
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge.teaching import ROLES

CODE, NAME = "S2A261", "taught-role"
ON_TRUST = Message(
    "S2A271",
    Severity.WARNING,
    "that {what} is {thing} is known from you alone ({why}): prepare passes over anything else in silence",
    "make sure that it is one: otherwise the ranks would train apart, or on the same data",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for obj, every in facts.machine.teaching.said.items():
        told = next(iter(every))
        if ident(obj) in decisions.plan.prepared and facts.source.root(told.node) is facts.source.tree and _unseen(facts, obj, told.role):
            line, column = told.node.lineno, told.node.col_offset + 1  # type: ignore[attr-defined]
            yield ON_TRUST.at(line, column, what=told.what, thing=ROLES[told.role], why=told.why)


def _unseen(facts: View, obj: Obj, role: str) -> bool:
    """Whether nothing but the user's word makes an object of a role that prepare takes; that something is iterated over makes no loader."""
    if role == "loader":
        return obj.kind != "instance" and not constructed(obj.path)
    return role == "model" and not facts.roles.seen(obj)[0]


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import feeds
import torch
from torch import nn

loader = feeds.pairs(16)  # s2a: loader
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A271",
    ),
    (
        """\
import feeds
import torch
from torch import nn

loader = feeds.pairs(16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A271",
        {"roles": {"feeds.pairs": "loader"}},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)  # s2a: loader
model = nn.Linear(8, 2)  # s2a: model
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
