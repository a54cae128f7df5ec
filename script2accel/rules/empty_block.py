"""Take out an `if` of which nothing is left.

`if torch.cuda.device_count() > 1: model = nn.DataParallel(model)` loses its only statement to another rule; where its test only reads, the
`if` goes as a whole.
Left alone when a statement stays in one of its branches, or its test does something.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import remove_statement
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A790", "empty-block"
READS = frozenset({"len", "isinstance", "hasattr", "torch.distributed.is_available", "torch.distributed.is_initialized"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    done: set[ast.stmt] = set()
    for node in facts.source.every(ast.If):  # outer ones come first
        if any(p in done for p in facts.source.ancestors(node)):
            continue
        parent = facts.source.parents[node]
        if isinstance(parent, ast.If) and parent.orelse == [node]:
            continue  # an `elif` goes with its `if`, or stays
        if _empty(facts, decisions, node) and facts.source.alone(node):
            done.add(node)
            yield Change(CODE, NAME, "nothing is left in it", node.lineno, remove_statement(facts.source, node))


def _empty(facts: View, decisions: Decisions, node: ast.stmt) -> bool:
    if node in decisions.gone or isinstance(node, ast.Pass):
        return True
    if not isinstance(node, ast.If) or not _only_reads(facts, node.test):
        return False
    inside = [n for s in (*node.body, *node.orelse) for n in walk(s) if n in decisions.gone]
    return bool(inside) and all(_empty(facts, decisions, s) for s in (*node.body, *node.orelse))


def _asks_text(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("startswith", "endswith", "lower", "upper")


def _only_reads(facts: View, test: ast.expr) -> bool:
    calls = [call for call in walk(test) if isinstance(call, ast.Call)]
    return all(names.CUDA_QUERY.match(facts.path(c)) or facts.path(c) in READS or _asks_text(c) for c in calls) and not any(
        isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in walk(test)
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
if torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
else:
    model = model.cuda()
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
model = nn.Linear(8, 2)
if torch.cuda.device_count() > 1:
    print("several")
    model = nn.DataParallel(model)
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
