"""Let weights that are frozen at first be synchronised once they train.

DistributedDataParallel synchronises the parameters that train when the model is wrapped: those that are thawed later would keep each rank's
own gradient, and the ranks would drift apart (measured). They are thawed while prepare wraps the model, frozen again behind it, and DDP is
told that a step may leave parameters unused. The same is told where a part is frozen later: DDP would wait for its gradients (measured).
Left alone when nothing is thawed behind prepare, or a whole model is frozen and thawed in turn, as GANs do.
Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.freezing import Setting, moments, settings
from script2accel.analysis.values import Obj
from script2accel.change.edits import CannotEditError, add_before, add_behind, merge
from script2accel.change.plan import Change
from script2accel.decisions import Decisions, Prepare, ident
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A575", "freezing"
THAWED = Message(
    "S2A585",
    Severity.ERROR,
    "weights that are frozen when the model is prepared are thawed here: their gradients would not be synchronised between ranks (measured)",
    "freeze them behind prepare, with `DistributedDataParallelKwargs(find_unused_parameters=True)`",
)
UNUSED = Message(
    "S2A595",
    Severity.NOTE,
    "weights are frozen or thawed here while the model trains: DDP is told to look for unused parameters (`find_unused_parameters=True`)",
    "",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    every = list(settings(facts))
    for model in facts.models if every else ():
        mine = [s for s in every if model in s.models]
        prepare = next((p for p in decisions.plan.prepares if any(o.inner is model or ident(o) == ident(model) for _, o in p.items)), None)
        if not mine or (prepare is None and decisions.plan.prepares):
            continue
        limit = _limit(facts, model, prepare)
        if limit is None:
            continue
        later = [s for s in mine if any(m > limit and not _within(facts, s, prepare) for m in moments(facts, s))]
        thaws = [s for s in later if True in s.values]
        frozen = _frozen_at(facts, mine, limit, prepare)
        if thaws and frozen:
            yield from _thawed(facts, decisions, model, prepare, thaws[0])
        elif prepare is not None and any(False in s.values and not s.whole for s in later):
            yield from _unused(facts, decisions, later)


def _limit(facts: View, model: Obj, prepare: Prepare | None) -> float | None:
    """The moment in the run at which a model is prepared."""
    order = facts.machine.order
    if prepare is not None:
        return order[prepare.anchor] - (0 if prepare.behind else 0.5) if prepare.anchor in order else None
    calls = [facts.source.statement(n) for what, n in facts.machine.uses.get(model, ()) if what == "prepare"] if _own(facts, model) else []
    return min((order[s] for s in calls if s in order), default=None)


def _own(facts: View, model: Obj) -> bool:
    """Whether a model is prepared in this file."""
    return any(facts.source.root(n) is facts.source.tree for what, n in facts.machine.uses.get(model, ()) if what == "prepare")


def _within(facts: View, setting: Setting, prepare: Prepare | None) -> bool:
    """Whether a setting stands inside the statement that prepare comes behind."""
    return prepare is not None and any(p is prepare.anchor for p in facts.program.source.ancestors(setting.statement))


def _frozen_at(facts: View, mine: list[Setting], limit: float, prepare: Prepare | None) -> bool:
    """Whether some weights can be frozen when the model is prepared."""
    order = facts.machine.order
    earlier = [s for s in mine if any(m < limit for m in moments(facts, s)) or _within(facts, s, prepare)]
    freezes = [order.get(s.statement, 0) for s in earlier if False in s.values]
    thaws = [order.get(s.statement, 0) for s in earlier if s.values == {True} and s.whole]
    return bool(freezes) and max(freezes) > max(thaws, default=-1)


def _thawed(facts: View, decisions: Decisions, model: Obj, prepare: Prepare | None, thaw: Setting) -> Iterator[Change | Diagnostic]:
    told = facts.source.root(thaw.statement) is facts.source.tree
    if prepare is None:
        if told:
            yield THAWED.at(thaw.statement.lineno, thaw.statement.col_offset + 1)
        return
    if facts.source.root(prepare.anchor) is not facts.source.tree:
        return
    path = next(path for path, o in prepare.items if ident(o) == ident(model))
    held, each = (next(n for n in (name, name + "_weights", name + "_at_first") if n not in facts.source.names) for name in ("frozen", "weight"))
    listed = f"{held} = [{each} for {each} in {path}.parameters() if not {each}.requires_grad]"
    loop = f"for {each} in {held}:\n\t{each}.requires_grad_({{}})"
    decisions.ddp_arguments["find_unused_parameters"] = "True"
    add = add_behind if prepare.behind else add_before
    try:
        edits = merge(
            [
                add(facts.source, prepare.anchor, f"{listed}\n{loop.format(True)}", rank=-3),
                add(facts.source, prepare.anchor, loop.format(False), rank=3),
            ]
        )
    except CannotEditError:
        yield THAWED.at(prepare.anchor.lineno)
        return
    reason = f"DDP synchronises what trains when it is wrapped: these weights are thawed later (line {thaw.statement.lineno})"
    yield Change(CODE, NAME, reason, prepare.anchor.lineno, edits)


def _unused(facts: View, decisions: Decisions, later: list[Setting]) -> Iterator[Diagnostic]:
    decisions.ddp_arguments["find_unused_parameters"] = "True"
    first = next((s for s in later if facts.source.root(s.statement) is facts.source.tree), None)
    if first is not None:
        yield UNUSED.at(first.statement.lineno, first.statement.col_offset + 1)


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
for p in model[0].parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    if epoch == 1:
        for p in model.parameters():
            p.requires_grad = True
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate import DistributedDataParallelKwargs

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
for p in model[0].parameters():
    p.requires_grad = False
accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
frozen = [weight for weight in model.parameters() if not weight.requires_grad]
for weight in frozen:
    weight.requires_grad_(True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for weight in frozen:
    weight.requires_grad_(False)

for epoch in range(2):
    if epoch == 1:
        for p in model.parameters():
            p.requires_grad = True
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
for p in model[0].parameters():
    p.requires_grad = False
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        None,
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
model.requires_grad_(False)
model.weight.requires_grad = True
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    for p in model.parameters():
        p.requires_grad = epoch > 0
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.cross_entropy(model(x), y))
        optimizer.step()
""",
        "S2A585",
    ),
]
