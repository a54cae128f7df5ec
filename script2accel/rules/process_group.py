"""Leave the process group to Accelerate.

`init_process_group(...)` goes, and what the script sets in the environment for it; its `timeout` survives as `InitProcessGroupKwargs`.
`destroy_process_group()` becomes `accelerator.end_training()`, which does the same where there is a group.
Left alone: `is_available()` and `is_initialized()`, which answer rightly beside Accelerate.
Source: https://huggingface.co/docs/accelerate/package_reference/kwargs#accelerate.InitProcessGroupKwargs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import group_call
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import remove_statement, replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A503", "process-group"
TANGLED = Message(
    "S2A520", Severity.ERROR, "`{text}` is part of another expression or statement", "put it into a statement of its own, and convert again"
)
SETS = frozenset({"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    joins = False
    for call in facts.calls:
        name = group_call(facts, call)
        if name not in ("init_process_group", "destroy_process_group"):
            continue
        joins = True
        statement = facts.source.statement(call)
        if not isinstance(statement, ast.Expr) or statement.value is not call:
            yield TANGLED.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
        elif name == "destroy_process_group":
            text = f"{decisions.accelerator(call)}.end_training()"
            yield Change(
                CODE, NAME, "the accelerator made the process group, and ends it", call.lineno, replace(facts.source, call, text), source="R88"
            )
        else:
            _timeout(facts, decisions, call)
            decisions.gone.add(statement)
            yield Change(CODE, NAME, "the accelerator makes the process group", call.lineno, remove_statement(facts.source, statement), source="R88")
    if joins or any(group_call(facts.program, call) == "init_process_group" for call in facts.program.calls):
        for node in facts.source.every(ast.stmt):
            if _sets(node):
                decisions.gone.add(node)
                yield Change(CODE, NAME, "the launcher sets it for every process", node.lineno, remove_statement(facts.source, node), source="R88")


def _sets(statement: ast.stmt) -> bool:
    """`os.environ["MASTER_ADDR"] = ...`, `os.environ.setdefault("MASTER_PORT", ...)`."""
    match statement:
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)))]):
            return name in SETS
        case ast.Expr(
            value=ast.Call(func=ast.Attribute(attr="setdefault", value=ast.Attribute(attr="environ")), args=[ast.Constant(value=str(name)), *_])
        ):
            return name in SETS
    return False


def _timeout(facts: View, decisions: Decisions, call: ast.Call) -> None:
    node = next((k.value for k in call.keywords if k.arg == "timeout"), None)
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return
    names = [n for n in walk(node) if isinstance(n, ast.Name)]
    imported = all(o.kind == "external" for n in names for o in facts.machine.at.get(n, NOTHING).objs)
    handler = f"InitProcessGroupKwargs(timeout={facts.source.segment(node) if imported else decisions.reads(node)})"
    if handler not in decisions.handlers:
        decisions.handlers.append(handler)
        decisions.imports["accelerate.utils", "InitProcessGroupKwargs"] = None


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

os.environ["MASTER_PORT"] = "29500"
dist.init_process_group("nccl", timeout=timedelta(hours=1))
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
""",
        """\
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(hours=1))])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.end_training()
""",
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

group = dist.init_process_group("nccl")
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
        "S2A520",
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(dist.is_initialized())
""",
        None,
    ),
]
