"""Let a moving average of the weights follow the unwrapped model.

The copy is made from the plain model, in front of prepare, and stays unprepared; its update gets `accelerator.unwrap_model(model)`, so that
names and tensors are those that the copy has. Parameters are equal on all ranks, so the averages are too.
Left alone when the update reads nothing of a prepared model.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#model
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import moves
from script2accel.analysis.facts import View
from script2accel.change.edits import CannotEditError, add_before, wrap_expression
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A210", "moving-average"
SHARDED = Message("S2A247", Severity.NOTE, "this reads the whole weights: right under DDP, not under FSDP or ZeRO-3, whose ranks hold parts", "")


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for arg in sorted((a for a in facts.machine.plain if facts.source.root(a) is facts.source.tree), key=lambda a: a.lineno):  # type: ignore[attr-defined]
        if isinstance(arg, ast.Call) or (isinstance(arg, ast.Attribute) and arg.attr == "module"):
            continue  # unwrapped already, or by the rule that takes the wrapper off
        edits = wrap_expression(facts.source, arg, f"{decisions.accelerator(arg)}.unwrap_model(", ")")  # type: ignore[arg-type]
        yield Change(CODE, NAME, "only weights are read here: those of the inner model", arg.lineno, edits, source="R17")  # type: ignore[attr-defined]
        yield SHARDED.at(arg.lineno, arg.col_offset + 1)  # type: ignore[attr-defined]
    if decisions.plan.prepares:
        yield from _placed(facts, decisions)


def _placed(facts: View, decisions: Decisions) -> Iterator[Change]:
    """A copy made in front of prepare in a script that moves nothing: the model goes to the device first, so that its copy is there too."""
    moved = {o.inner for move in moves(facts.program) for o in facts.machine.at[move.receiver].objs}
    for call in facts.calls:
        if facts.path(call) != "copy.deepcopy" or not call.args or facts.in_module(call):
            continue
        models = [o for o in facts.roles.objects(call.args[0], "model") if o.kind != "prepared" and decisions.is_prepared(o)]
        if not models or any(m in moved for m in models):
            continue
        statement = facts.source.statement(call)
        try:
            edits = add_before(facts.source, statement, f"{facts.source.segment(call.args[0])}.to({decisions.accelerator(call)}.device)")
        except CannotEditError:
            continue
        yield Change(CODE, NAME, "a copy of the model lies where the model lies", call.lineno, edits, source="R05")


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(8, 2).to(device)
average = copy.deepcopy(model).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def update(average, model, decay):
    with torch.no_grad():
        now = dict(model.named_parameters())
        for name, mean in average.named_parameters():
            mean.mul_(decay).add_(now[name], alpha=1 - decay)


for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
    update(average, model, 0.99)
""",
        """\
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
accelerator = Accelerator()
device = accelerator.device
model = nn.Linear(8, 2).to(device)
average = copy.deepcopy(model).eval()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)


def update(average, model, decay):
    with torch.no_grad():
        now = dict(model.named_parameters())
        for name, mean in average.named_parameters():
            mean.mul_(decay).add_(now[name], alpha=1 - decay)


for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    update(average, accelerator.unwrap_model(model), 0.99)
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def count(model):
    return sum(p.numel() for p in model.parameters())


print(count(model))
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        None,
    ),
]
