"""Refuse a loop that trains or tests, where it can't be seen which of its loaders it tests over.

A function that both trains and tests is followed for each of its calls where a parameter tells (`training=False`, `optimizer=None`, `"val"`): the
loader that is only tested over stays unprepared then. Where the model's own mode, or whether gradients are wanted, decides about the backward
pass, both loaders would be prepared, and the numbers of the test be those of one rank's part.
Left alone when the loop reads one loader, when no question of its own stands around the backward pass, when it asks for the batch's number.
Source: https://huggingface.co/docs/accelerate/quicktour#distributed-evaluation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, TrainLoop, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A290", "two-modes"
MODES = Message(
    "S2A290",
    Severity.ERROR,
    "`{text}` decides whether this loop trains, and it reads several loaders: over which of them it only tests can't be seen, and the numbers of that"
    " test would be one rank's",
    "let a parameter tell that each caller sets (`training=False`, `optimizer=None`), or test in a loop of its own, and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for train in facts.train_loops:
        read = [o for o in _alternatives(facts, train) if o.kind == "prepared"]
        tests = [test for backward in train.backwards if (test := _mode(facts, train, backward.call)) is not None]
        if len(read) > 1 and tests and len(tests) == len(train.backwards) and facts.source.root(tests[0]) is facts.source.tree:
            yield MODES.at(tests[0].lineno, tests[0].col_offset + 1, text=facts.source.segment(tests[0]))


def _alternatives(facts: View, train: TrainLoop) -> list[Obj]:
    """The loaders of which the loop reads one or another: those that one expression can hold."""
    source = getattr(train.loop, "iter", None)
    held = [facts.roles.objects(n, "loader") for n in walk(source) if isinstance(n, ast.expr)] if source is not None else []
    return max(held, key=len, default=[])


def _mode(facts: View, train: TrainLoop, call: ast.Call) -> ast.expr | None:
    """The question around a backward pass within its loop that isn't about the batches."""
    bound = {n.id for n in walk(train.loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    child: ast.AST = call
    for parent in facts.program.source.ancestors(call):
        if parent is train.loop or isinstance(parent, FUNCTIONS):
            return None
        if isinstance(parent, ast.If) and child is not parent.test and not _of_batches(facts, parent.test, bound):
            return parent.test
        child = parent
    return None


def _of_batches(facts: View, test: ast.expr, bound: set[str]) -> bool:
    """Whether a question asks for what the loop sets (its index, a count, the loss), but for whether that wants gradients."""
    asked = [n.value for n in walk(test) if isinstance(n, ast.Attribute) and n.attr in ("requires_grad", "grad_fn") and isinstance(n.value, ast.Name)]
    return any(isinstance(n, ast.Name) and n.id in bound and n not in asked and facts.machine.at.get(n, NOTHING).objs for n in walk(test))


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, optimizer=None):
    total, correct, n = 0.0, 0, 0
    for data, target in loader:
        with torch.set_grad_enabled(model.training):
            out = model(data)
            loss = nn.functional.cross_entropy(out, target)
        if model.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(data)
        correct += (out.argmax(1) == target).sum().item()
        n += len(data)
    return total / n, correct / n


x = torch.ones(96, 8)
y = torch.zeros(96).long()
train = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    loss, acc = run_epoch(model, train, optimizer)
    model.eval()
    with torch.no_grad():
        test_loss, test_acc = run_epoch(model, test, optimizer)
    print(f"{epoch} {loss:.4f} {acc:.4f}")
    print(f"test {test_loss:.4f} {test_acc:.4f}")
""",
        "S2A290",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, optimizer=None):
    total, correct, n = 0.0, 0, 0
    for data, target in loader:
        with torch.set_grad_enabled(model.training):
            out = model(data)
            loss = nn.functional.cross_entropy(out, target)
        if loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(data)
        correct += (out.argmax(1) == target).sum().item()
        n += len(data)
    return total / n, correct / n


x = torch.ones(96, 8)
y = torch.zeros(96).long()
train = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    loss, acc = run_epoch(model, train, optimizer)
    model.eval()
    with torch.no_grad():
        test_loss, test_acc = run_epoch(model, test, optimizer)
    print(f"{epoch} {loss:.4f} {acc:.4f}")
    print(f"test {test_loss:.4f} {test_acc:.4f}")
""",
        "S2A290",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, optimizer, training):
    total, correct, n = 0.0, 0, 0
    for data, target in loader:
        with torch.set_grad_enabled(training):
            out = model(data)
            loss = nn.functional.cross_entropy(out, target)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(data)
        correct += (out.argmax(1) == target).sum().item()
        n += len(data)
    return total / n, correct / n


x = torch.ones(96, 8)
y = torch.zeros(96).long()
train = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    loss, acc = run_epoch(model, train, optimizer, True)
    model.eval()
    with torch.no_grad():
        test_loss, test_acc = run_epoch(model, test, optimizer, False)
    print(f"{epoch} {loss:.4f} {acc:.4f}")
    print(f"test {test_loss:.4f} {test_acc:.4f}")
""",
        None,
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def run_epoch(model, loader, optimizer, training):
    training = training and optimizer is not None
    total, correct, n = 0.0, 0, 0
    for data, target in loader:
        with torch.set_grad_enabled(training):
            out = model(data)
            loss = nn.functional.cross_entropy(out, target)
        if training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total += loss.item() * len(data)
        correct += (out.argmax(1) == target).sum().item()
        n += len(data)
    return total / n, correct / n


x = torch.ones(96, 8)
y = torch.zeros(96).long()
train = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
test = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    model.train()
    loss, acc = run_epoch(model, train, optimizer, True)
    model.eval()
    with torch.no_grad():
        test_loss, test_acc = run_epoch(model, test, optimizer, False)
    print(f"{epoch} {loss:.4f} {acc:.4f}")
    print(f"test {test_loss:.4f} {test_acc:.4f}")
""",
        "S2A290",
    ),
]
