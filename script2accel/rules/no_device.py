"""Give a script that knows no device what it needs on one.

prepare puts the model on the accelerator's device, and a prepared loader its batches. In a script that moves nothing, tensors that are made by
hand and meet them, and models that aren't prepared (a target network), go there too; what comes out is brought to the CPU where it becomes a
NumPy array.
Left alone in scripts that move something themselves, and for what never meets a prepared model.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import moves
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import wrap_expression
from script2accel.change.plan import Change, Splice
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic

CODE, NAME = "S2A105", "no-device"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares or moves(facts.program):
        return
    yield from _tensors(facts, decisions)
    yield from _models(facts, decisions)
    yield from _whole_data(facts, decisions)
    yield from _arrays(facts)


def _tensors(facts: View, decisions: Decisions) -> Iterator[Change]:
    """Tensors that are made on the CPU and come to a model or a loss."""
    machine = facts.machine
    met = {mark for b in facts.program.backwards for mark in machine.made_into(b.loss)}
    for call in facts.program.calls:
        if call in machine.detours or call in facts.forward_calls:
            met |= {mark for a in (*call.args, *(k.value for k in call.keywords)) for mark in machine.made_into(a)}
    for call in facts.calls:
        if machine.making(call) not in met or facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue
        edits = wrap_expression(facts.source, call, "", f".to({decisions.accelerator(call)}.device)")
        yield Change(CODE, NAME, "it meets the prepared model: it goes to the accelerator's device", call.lineno, edits, source="R02")


def _models(facts: View, decisions: Decisions) -> Iterator[Change]:
    """Models that are called beside the prepared ones and aren't prepared themselves."""
    called = {m for f in facts.program.forwards for m in f.models if not decisions.is_prepared(m) and facts.all_loops(f.call)}
    for model in sorted(called, key=lambda m: getattr(m.site, "lineno", 0)):
        site = model.site
        if not isinstance(site, ast.Call) or facts.source.root(site) is not facts.source.tree or facts.in_module(site) or _copied(facts, model):
            continue
        edits = wrap_expression(facts.source, site, "", f".to({decisions.accelerator(site)}.device)")
        yield Change(CODE, NAME, "a model that isn't prepared goes to the accelerator's device by itself", site.lineno, edits, source="R04")


def _whole_data(facts: View, decisions: Decisions) -> Iterator[Change]:
    """What is taken out of a dataset past the loader, and given to a prepared model."""
    for forward in facts.forwards:
        for arg in forward.call.args if decisions.prepared_here(forward.call.func, "model") else ():
            objs = [o for o in facts.machine.at.get(arg, NOTHING).objs if o.kind != "const"]
            if objs and all(_out_of_dataset(facts, o) for o in objs):
                edits = wrap_expression(
                    facts.source,
                    arg,
                    "(" if isinstance(arg, ast.BinOp) else "",
                    f"{')' if isinstance(arg, ast.BinOp) else ''}.to({decisions.accelerator(arg)}.device)",
                )
                yield Change(CODE, NAME, "taken out of the dataset, not dealt by the loader", arg.lineno, edits, source="R04")


def _out_of_dataset(facts: View, obj: Obj) -> bool:
    probe: Obj | None = obj
    while probe is not None and probe.kind in ("attr", "item", "made", "expr"):
        if facts.roles.of(probe) == "dataset":
            return True
        probe = probe.base
    return False


def _copied(facts: View, model: Obj) -> bool:
    return model.path == "copy.deepcopy"


def _arrays(facts: View) -> Iterator[Change]:
    """`.numpy()` of what a model gives or a prepared loader placed: from the CPU."""
    for call in facts.calls:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr != "numpy" or facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue
        if any(_on_device(facts, o) for o in facts.machine.at.get(func.value, NOTHING).objs):
            at = facts.source.dot(func)
            yield Change(CODE, NAME, "NumPy reads from the CPU", call.lineno, (Splice(at, at, ".cpu()", True),), source="R04")


def _on_device(facts: View, obj: Obj) -> bool:
    """Whether an object comes out of a prepared model or loader, and isn't on the CPU yet."""
    probe: Obj | None = obj
    while probe is not None:
        if probe.kind == "prepared" or facts.roles.of(probe) == "loss":
            return True
        if probe.kind == "attr" and probe.name == "cpu":
            return False
        probe = probe.base
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
teacher = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    noisy = x + 0.1 * torch.ones(8)
    with torch.no_grad():
        wanted = teacher(x)
    output = model(noisy)
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(output.data.numpy().mean())
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
accelerator = Accelerator()
teacher = nn.Linear(8, 2).to(accelerator.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    noisy = x + 0.1 * torch.ones(8).to(accelerator.device)
    with torch.no_grad():
        wanted = teacher(x)
    output = model(noisy)
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(output.data.cpu().numpy().mean())
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(8, 2).to(device)
teacher = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    x = x.to(device)
    noisy = x + 0.1 * torch.ones(8, device=device)
    with torch.no_grad():
        wanted = teacher(x)
    output = model(noisy)
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(output.data.cpu().numpy().mean())
""",
        None,
    ),
]
