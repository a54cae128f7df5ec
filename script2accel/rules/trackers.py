"""Track through Accelerate, on request (`--trackers`).

A script's own TensorBoard writer or wandb or trackio run becomes `Accelerator(log_with=...)`, `init_trackers`, `accelerator.log` and `end_training`
where these make the same calls with the same arguments: numbers of one tag, dictionaries. What has no counterpart (graphs, images, `wandb.watch`)
stays, on the main process only, and reads the tracker with `get_tracker(..., unwrap=True)`. The directory stays where it was.
Left alone without the option, and where a tracker isn't the only one, is made several times, names no directory or project, or is of another kind: it
stays the script's own under a guard, and is named.
Source: https://huggingface.co/docs/accelerate/usage_guides/tracking
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.tracking import Log, Tracking
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import add_behind, drop_argument, merge, replace, replace_range
from script2accel.change.plan import Change, Edit, Splice
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A753", "tracker"
STAYS = Message(
    "S2A743",
    Severity.WARNING,
    "--trackers: `{text}` stays the script's own tracker, on the main process only: {why}",
    "rewrite it by hand (`log_with`, `init_trackers`, `accelerator.log`) if Accelerate should hold it",
)
PLAIN = re.compile(r"^[\w.-][\w./ -]*[\w.-]$")
NONE = Message("S2A763", Severity.NOTE, "--trackers: no experiment tracker is seen in this script", "")


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.options.trackers or not decisions.plan.prepares:
        return
    found = decisions.tracked
    for call, why in found.stay:
        if facts.source.root(call) is facts.source.tree:
            yield STAYS.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func), why=why)
    tracking = found.tracking
    if tracking is None:
        if not found.stay and facts.source.tree in {s.tree for s in facts.program.source.entries}:
            yield NONE.at(0)
        return
    here = facts.source.tree
    if facts.source.root(tracking.make) is here:
        yield _make(facts, decisions, tracking)
    for log in tracking.logs:
        if facts.source.root(log.call) is here:
            edits = merge(_log(facts, decisions, tracking.name, log))
            yield Change(CODE, NAME, f"the same call of the {tracking.name} tracker, on the main process only", log.call.lineno, edits, source="R57")
    for call in tracking.ends:
        if facts.source.root(call) is here:
            edits = replace(facts.source, call, f"{decisions.accelerator(call)}.end_training()")
            yield Change(CODE, NAME, "it finishes the trackers", call.lineno, edits, source="R57")


def _make(facts: View, decisions: Decisions, tracking: Tracking) -> Change:
    """`init_trackers` in the place of what made the tracker; the name that held it reads Accelerate's, if anything still needs it."""
    source, call = facts.source, tracking.make
    accelerator = decisions.accelerator(call)
    decisions.arguments["log_with"] = f'"{tracking.name}"'
    project = source.segment(tracking.where)
    if tracking.name == "tensorboard":
        folder, project = _folder(tracking.where, project)
        decisions.arguments["project_dir"] = f'"{folder}"'
    edits = [_call(facts, tracking, f"{accelerator}.init_trackers", project)]
    statement = source.parents[call]
    if isinstance(statement, ast.Assign):
        target = source.segment(statement.targets[0])
        edits.append(replace_range(source.start(statement), source.start(call), ""))
        if tracking.kept:
            edits.append(add_behind(source, statement, f'{target} = {accelerator}.get_tracker("{tracking.name}", unwrap=True)', rank=-1))
    return Change(CODE, NAME, "Accelerate makes the tracker, on the main process only", call.lineno, merge(edits), source="R57")


def _call(facts: View, tracking: Tracking, function: str, project: str) -> tuple[Edit, ...]:
    """The call, with everything but directory or project handed on to the tracker as it stands."""
    source, call = facts.source, tracking.make
    edits = [replace(source, call.func, function)]
    where = next((k for k in call.keywords if k.value is tracking.where), tracking.where)
    paren = source.text.index("(", source.outer(call.func)[1])
    if not tracking.options:
        start = source.start(where)
        edits.append(replace_range(start, source.outer(tracking.where)[1], project))
        return merge(edits)
    edits.append(drop_argument(source, call, where))
    last = tracking.options[-1]
    edits.append(replace_range(paren + 1, paren + 1, f'{project}, init_kwargs={{"{tracking.name}": {{'))
    for option in tracking.options:
        if option.arg is not None:
            edits.append(replace_range(source.start(option), source.outer(option.value)[0], f'"{option.arg}": '))
    edits.append(_insert(source.outer(last.value)[1], "}}", after=True))
    return merge(edits)


def _folder(where: ast.expr, text: str) -> tuple[str, str]:
    """The directory above, and the name in it, which Accelerate joins: any path may stand for the name."""
    if isinstance(where, ast.Constant) and isinstance(where.value, str) and PLAIN.match(where.value):
        above, _, name = where.value.rpartition("/")
        return (above or "."), f'"{name}"'
    return ".", text


def _log(facts: View, decisions: Decisions, name: str, log: Log) -> Iterator[tuple[Edit, ...]]:
    """Splices between the arguments, which stay where they are."""
    source, call = facts.source, log.call
    yield replace(source, call.func, f"{decisions.accelerator(call)}.log")
    yield from _step(facts, log)
    if log.form == "values":
        return
    tag, value = log.parts
    yield _insert(source.outer(tag)[0], "{", after=False)
    yield replace_range(source.outer(tag)[1], source.outer(value)[0], ": ")
    for number in value.values if isinstance(value, ast.Dict) else [value]:
        yield from _as_number(facts, number)
    yield _insert(source.outer(value)[1], "}", after=True)


def _as_number(facts: View, value: ast.expr) -> Iterator[tuple[Edit, ...]]:
    """A value as a Python number: Accelerate's tracker passes over anything else in silence."""
    if _number(facts, value):
        return
    left, right = facts.source.outer(value)
    if isinstance(value, (ast.Name, ast.Attribute)) and facts.roles.of_node(value) == "loss":
        yield _insert(right, ".item()", after=True)
    else:
        yield merge([_insert(left, "float(", after=False), _insert(right, ")", after=True)])


def _insert(at: int, text: str, *, after: bool) -> tuple[Edit, ...]:
    """Text at an offset, bound to what stands in front of it or behind."""
    return (Splice(at, at, text, after),)


def _step(facts: View, log: Log) -> Iterator[tuple[Edit, ...]]:
    source, step = facts.source, log.step
    if step is None:
        return
    keyword = next((k for k in log.call.keywords if k.value is step), None)
    if keyword is None:
        yield _insert(source.outer(step)[0], "step=", after=False)
    elif keyword.arg != "step":
        yield replace_range(source.start(keyword), source.start(keyword) + len(str(keyword.arg)), "step")


def _number(facts: View, value: ast.expr) -> bool:
    """Whether a value is a Python number already."""
    match value:
        case ast.Constant(value=int() | float()):
            return True
        case ast.Call(func=ast.Name(id="float" | "len" | "int")) | ast.Call(func=ast.Attribute(attr="item"), args=[]):
            return True
        case ast.BinOp(left=left, right=right):
            return _number(facts, left) and _number(facts, right)
        case ast.Name():
            objs = facts.machine.at.get(value, NOTHING).objs
            return bool(objs) and all(o.kind == "made" and o.base is not None and o.base.kind == "attr" and o.base.name == "item" for o in objs)
    return False


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter("runs/first")

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss, step)
writer.close()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(log_with="tensorboard", project_dir="runs")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.init_trackers("first")

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()}, step=step)
accelerator.end_training()
""",
        {"trackers": True},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import wandb

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
wandb.init(project="first", tags=["small"])
wandb.watch(model)

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    wandb.log({"loss": loss.item()})
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
import wandb

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(log_with="wandb")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
accelerator.init_trackers("first", init_kwargs={"wandb": {"tags": ["small"]}})
if accelerator.is_main_process:
    wandb.watch(accelerator.unwrap_model(model))

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    accelerator.log({"loss": loss.item()})
""",
        {"trackers": True},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter("runs/first")

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss, step)
writer.close()
""",
        None,
        {},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.tensorboard import SummaryWriter

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter("runs/train")
other = SummaryWriter("runs/other")
for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss, step)
""",
        "S2A743",
        {"trackers": True},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import math

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(math.pi)
""",
        "S2A763",
        {"trackers": True},
    ),
]
