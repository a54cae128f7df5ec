"""Scale the learning rate with the number of processes, where the user asks for it.

With N processes the global batch is N times as large; `--scale-lr` multiplies the learning rate by `accelerator.num_processes`, where the optimizer
is made, and the rates that a scheduler is given in absolute numbers.
Left alone without the flag. Refused where the script computes the rate from the number of processes itself, and where a rate can't be seen: set by
hand, a default, parameter groups with rates of their own, schedulers that aren't known.
Source: https://huggingface.co/docs/accelerate/concept_guides/performance#learning-rates
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.values import Obj
from script2accel.change.edits import wrap_expression
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A319", "scaled-rate"
REASON = "asked for by --scale-lr: the global batch grows with the number of processes"
UNSEEN = Message(
    "S2A329",
    Severity.ERROR,
    "--scale-lr: {why}",
    "multiply the learning rate by `accelerator.num_processes` by hand, and convert without --scale-lr",
)
ALREADY = Message(
    "S2A339",
    Severity.ERROR,
    "--scale-lr: `{text}` is computed from the number of processes, or from what holds it; how it grows can't be told",
    "convert without --scale-lr where the script scales it already",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.options.scale_lr or not decisions.plan.prepares:
        return
    for node in facts.source.nodes:
        match node:
            case ast.Constant(value="lr") if not _only_read(facts, node):
                yield _unseen(node, "a learning rate is set by its name here, by hand or for a group of parameters")
            case ast.Call(func=ast.Name(id="dict") | ast.Attribute(attr="update" | "setdefault"), keywords=given) if any(
                k.arg == "lr" for k in given
            ):
                yield _unseen(node, "a learning rate is set by its name here, by hand or for a group of parameters")
    for optimizer in facts.program.optimizers:
        call = optimizer.site
        if isinstance(call, ast.Call) and facts.program.source.root(call) is facts.source.tree:
            yield from _of_optimizer(facts, decisions, call)
    made = dict.fromkeys(o.inner for step in facts.program.scheduler_steps for o in step.objs)
    for scheduler in made:
        call = scheduler.site
        if isinstance(call, ast.Call) and facts.program.source.root(call) is facts.source.tree:
            yield from _of_scheduler(facts, decisions, call, scheduler)


def _only_read(facts: View, node: ast.AST) -> bool:
    parent = facts.source.parents[node]
    return isinstance(parent, ast.Subscript) and isinstance(parent.ctx, ast.Load)


def _unseen(node: ast.AST, why: str) -> Diagnostic:
    return UNSEEN.at(getattr(node, "lineno", 0), getattr(node, "col_offset", 0) + 1, why=why)


def _of_optimizer(facts: View, decisions: Decisions, call: ast.Call) -> Iterator[Change | Diagnostic]:
    second = call.args[1] if len(call.args) > 1 and facts.path(call).startswith("torch.optim.") else None
    rate = next((k.value for k in call.keywords if k.arg == "lr"), second)
    if rate is None or any(isinstance(arg, ast.Starred) for arg in call.args):
        yield _unseen(call, "this optimizer takes its default learning rate, or one that can't be seen")
    else:
        yield from _scaled(facts, decisions, rate)


def _of_scheduler(facts: View, decisions: Decisions, call: ast.Call, scheduler: Obj) -> Iterator[Change | Diagnostic]:
    kind = scheduler.path.rpartition(".")[2]
    if kind in names.RELATIVE_SCHEDULERS:
        return
    if kind not in names.ABSOLUTE_RATES:
        yield _unseen(call, "whether this scheduler sets rates in absolute numbers isn't known")
        return
    for name, position in names.ABSOLUTE_RATES[kind].items():
        rate = next((k.value for k in call.keywords if k.arg == name), call.args[position] if len(call.args) > position else None)
        if rate is not None and not (isinstance(rate, ast.Constant) and not rate.value):
            yield from _scaled(facts, decisions, rate)


def _scaled(facts: View, decisions: Decisions, rate: ast.expr) -> Iterator[Change | Diagnostic]:
    if _grows(facts, rate, 0):
        yield ALREADY.at(rate.lineno, rate.col_offset + 1, text=facts.source.segment(rate))
        return
    if isinstance(rate, (ast.List, ast.Tuple, ast.ListComp)):
        yield _unseen(rate, "several rates are given")
        return
    bare = isinstance(rate, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.Call))
    before, after = ("", "") if bare else ("(", ")")
    edits = wrap_expression(facts.source, rate, before, f"{after} * {decisions.accelerator(rate)}.num_processes")
    yield Change(CODE, NAME, REASON, rate.lineno, edits, source="R46")


def _grows(facts: View, rate: ast.expr, depth: int) -> bool:
    """Whether a rate is computed from the number of processes, where it is written or where what it reads is set."""
    for node in walk(rate):
        if isinstance(node, ast.expr) and (facts.roles.of_node(node) == "world size" or "num_processes" in ast.unparse(node)):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and depth < 3:
            text = ast.unparse(node)
            added = [n.value for n in facts.program.source.every(ast.AugAssign) if ast.unparse(n.target) == text]
            if any(_grows(facts, value, depth + 1) for value in (*facts.program.assigned.get(text, ()), *added) if value is not rate):
                return True
    return False


EXAMPLES: list[tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=4)

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

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * accelerator.num_processes, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1 * accelerator.num_processes, total_steps=4)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    scheduler.step()
""",
        {"scale_lr": True},
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
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
        {},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters())

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A329",
        {"scale_lr": True},
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
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] = group["lr"] * 0.99
""",
        "S2A329",
        {"scale_lr": True},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
import torch.distributed as dist

rate = 0.1 * dist.get_world_size()
optimizer = torch.optim.SGD(model.parameters(), lr=rate)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A339",
        {"scale_lr": True},
    ),
]
