"""Say where the samples of a batch meet each other.

A contrastive loss compares each sample with the others of its batch, mixup blends it with a partner: with N processes the others are those of the
rank's own batch, so that the training isn't that of one process with the global batch.
Left alone: losses of each sample on its own, products with weights.
Source: https://huggingface.co/docs/accelerate/concept_guides/performance
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A279", "batch-coupled"
MEET = Message(
    "S2A289",
    Severity.WARNING,
    "the samples of a batch meet each other here: with N processes each meets those of its rank's own batch, not of the global one",
    "keep the batch size on each process (the default), or gather the features of all ranks with their gradients by hand",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares:
        return
    orders = _orders(facts)
    for node in facts.source.every(ast.BinOp, ast.Call, ast.Subscript):
        if _meets(facts, node, orders) and facts.in_train_loop(node) and _of_a_loss(facts, node):
            yield MEET.at(node.lineno, node.col_offset + 1)
            return


def _of_a_loss(facts: View, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a place is the loop's own code, or that of a criterion: in a model it is attention, over a sample's own parts."""
    owner = facts.inside_class(node, facts.module_classes)
    if owner is None:
        function = facts.function(node)
        calls = facts.callers(function) if function not in seen else []
        return all(_of_a_loss(facts, call, seen | {function}) for call in calls)
    made = [o for cls, objs in facts.machine.instances.items() if cls.site is owner for o in objs]
    return bool(made) and all(facts.roles.of(o) == "criterion" for o in made)


def _meets(facts: View, node: ast.AST, orders: set[str]) -> bool:
    match node:
        case ast.BinOp(left=left, op=ast.MatMult(), right=right):
            return _of_batch(facts, left) and _turned(facts, right)
        case ast.Call(func=ast.Attribute(value=owner, attr="mm" | "matmul"), args=[right]) if not facts.path(node):
            return _of_batch(facts, owner) and _turned(facts, right)
        case ast.Call(args=[left, right, *_]) if facts.path(node) in ("torch.mm", "torch.matmul"):
            return _of_batch(facts, left) and _turned(facts, right)
        case ast.Call(args=[left, right, *_]) if facts.path(node) == "torch.cdist":
            return _of_batch(facts, left) and _of_batch(facts, right)
        case ast.Subscript(value=value, slice=ast.Name(id=name) | ast.Tuple(elts=[ast.Name(id=name), *_]), ctx=ast.Load()):
            return name in orders and _of_batch(facts, value)
    return False


def _turned(facts: View, node: ast.expr) -> bool:
    """Whether an expression is a transposed matrix of samples: `x.t()`, `x.T`, `x.transpose(0, 1)`."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="t" | "contiguous"), args=[]):
            return (node.func.attr == "t" and _of_batch(facts, inner)) or _turned(facts, inner)  # type: ignore[attr-defined]
        case ast.Attribute(value=inner, attr="T"):
            return _of_batch(facts, inner)
        case ast.Call(
            func=ast.Attribute(value=inner, attr="transpose" | "permute"),
            args=[ast.Constant(value=0 | 1), ast.Constant(value=0 | 1)],
        ):
            return _of_batch(facts, inner)
    return False


def _of_batch(facts: View, node: ast.expr) -> bool:
    return bool(facts.machine.marks_of(node))


def _orders(facts: View) -> set[str]:
    """Names that hold a random order of the samples of a batch."""
    found = set()
    for call in facts.calls:
        if facts.path(call) in ("torch.randperm", "numpy.random.permutation"):
            statement = facts.source.statement(call)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) and facts.in_train_loop(call):
                found.add(statement.targets[0].id)
    return found


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

for x, _ in loader:
    features = nn.functional.normalize(model(x), dim=1)
    logits = features @ features.t()
    loss = nn.functional.cross_entropy(logits, torch.arange(len(x)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        "S2A289",
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
    order = torch.randperm(x.size(0))
    mixed = 0.7 * x + 0.3 * x[order]
    out = model(mixed)
    loss = 0.7 * nn.functional.cross_entropy(out, y) + 0.3 * nn.functional.cross_entropy(out, y[order])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        "S2A289",
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
weights = torch.ones(8, 8)

for x, y in loader:
    loss = nn.functional.cross_entropy(model(x @ weights.t()), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
