"""Show that what trains is prepared.

Over the run as it will be: every training loop reads a prepared loader, every forward pass in it calls a prepared model, every step is a
prepared optimizer's, no scheduler that steps per epoch is prepared, and no evaluation reads a prepared loader without gathering. What can't
be shown is refused.
Left alone when all of it holds.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#prepare-pytorch-objects
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.distribution import summed_by_hand
from script2accel.analysis.facts import EvalLoop, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge.teaching import hint

CODE, NAME = "S2A220", "proof"
LOADER = Message(
    "S2A221",
    Severity.ERROR,
    "this training loop reads a loader that isn't prepared: every rank would see all the data",
    "prepare the loader in front of the loop, under the name that the loop reads",
)
MODEL = Message(
    "S2A222",
    Severity.ERROR,
    "`{text}` trains a model that isn't prepared: its gradients would not be synchronised",
    "prepare the model before it is handed on, under the name that is called here",
)
OPTIMIZER = Message(
    "S2A223", Severity.ERROR, "`{text}` steps an optimizer that isn't prepared", "prepare the optimizer together with its model{teach}"
)
ONE_RANK = Message(
    "S2A225",
    Severity.ERROR,
    "this evaluation reads a prepared loader and gathers nothing: its numbers would be one rank's ({why})",
    "gather predictions and targets with `accelerator.gather_for_metrics`, or evaluate over a loader that isn't prepared",
)
SCHEDULER = Message(
    "S2A226",
    Severity.ERROR,
    "this scheduler is prepared: it would step once per process at each call (measured)",
    "leave the scheduler out of prepare",
)
AGREEING = frozenset({"gather", "gather_for_metrics", "reduce", "gather_object"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if decisions.plan.problems or not facts.program.optimizer_steps:  # refused already: what isn't prepared follows from it
        return
    for loop in facts.train_loops:
        for loader in loop.loaders:
            places = [loop.loop, *(place for place, read in loop.draws if read is loader)]
            if any(("iterated", place) in facts.machine.uses.get(loader, ()) for place in places):
                yield LOADER.at(loop.loop.lineno, loop.loop.col_offset + 1)
    trained = set(facts.models)
    for forward in facts.forwards:
        raw = [o for o in facts.machine.at.get(forward.call.func, NOTHING).objs if o in trained and o.kind != "prepared"]
        if raw and not quiet(facts, forward.call) and facts.in_train_loop(forward.call) and not _unwrapped(forward.call):
            yield MODEL.at(forward.call.lineno, forward.call.col_offset + 1, text=facts.source.segment(forward.call.func))
    for step in facts.optimizer_steps:
        held = facts.machine.at[step.owner].objs
        if any(o.kind != "prepared" and o not in facts.wrapped_optimizers and facts.roles.of(o) == "optimizer" for o in held):
            teach = hint("model", "what it trains") if not any(_trains_a_model(facts, o) for o in step.objs) else ""
            yield OPTIMIZER.at(step.call.lineno, step.call.col_offset + 1, text=facts.source.segment(step.call), teach=teach)
    gathered, agreements = {g.loop.loop for g in decisions.plan.gathers}, _agreements(facts)
    for evaluation in facts.eval_loops:
        if (
            evaluation.loop not in gathered
            and _reads_prepared(facts, evaluation)
            and evaluation.loop not in agreements
            and not summed_by_hand(facts, evaluation.loop)
        ):
            why = next((p.why for p in decisions.plan.every_rank if p.loop.loop is evaluation.loop), "no gather")
            yield ONE_RANK.at(evaluation.loop.lineno, evaluation.loop.col_offset + 1, why=why)
    for step in facts.scheduler_steps:
        if any(o.kind == "prepared" for o in facts.machine.at[step.owner].objs):
            yield SCHEDULER.at(step.call.lineno, step.call.col_offset + 1)


def _trains_a_model(facts: View, optimizer: Obj) -> bool:
    """Whether it is seen which model an optimizer trains."""
    return any(optimizer in by for by in facts.roles.training.values())


def _unwrapped(call: ast.Call) -> bool:
    return "unwrap_model" in ast.unparse(call.func)


def _reads_prepared(facts: View, evaluation: EvalLoop) -> bool:
    known: dict[str, object] = facts.program.__dict__
    if "prepared_loaders" not in known:
        known["prepared_loaders"] = {o.inner: o for o in facts.machine.uses if o.kind == "prepared" and facts.roles.of(o) == "loader"}
    prepared: dict[Obj, Obj] = known["prepared_loaders"]  # type: ignore[assignment]
    return any(("iterated", evaluation.loop) in facts.machine.uses[prepared[o]] for o in evaluation.loaders if o in prepared)


def _agreements(facts: View) -> set[ast.AST]:
    """What a call that brings the ranks' results together runs within: in its text, or through the callers of its function."""
    if any(facts.path(call) == "accelerate.utils.gather_object" for call in facts.calls):
        return {evaluation.loop for evaluation in facts.eval_loops}
    found: set[ast.AST] = set()
    waiting = [call for call in facts.calls if isinstance(call.func, ast.Attribute) and call.func.attr in AGREEING]
    while waiting:
        call = waiting.pop()
        for outer in (call, *facts.source.ancestors(call)):
            if outer in found:
                break
            found.add(outer)
        waiting += [caller for caller in facts.callers(facts.function(call)) if caller not in found]
    return found


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
        "S2A221",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer, loader = accelerator.prepare(optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
        "S2A222",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, loader = accelerator.prepare(model, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
        "S2A223",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
test_loader = DataLoader(TensorDataset(torch.ones(17, 8), torch.zeros(17).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader, test_loader = accelerator.prepare(model, optimizer, loader, test_loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()

model.eval()
right = 0
with torch.no_grad():
    for x, y in test_loader:
        output = model(x)
        right += (output.argmax(1) == y).sum().item()
print(right / len(test_loader.dataset))
""",
        "S2A225",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
scheduler.step()
""",
        "S2A226",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
        None,
    ),
]
