"""Save once, on the main process, with the keys that the script's own loading code expects.

`torch.save(state, path)` becomes `accelerator.save(state, path)`, which writes on the main process only; a pickled model is unwrapped first.
File name, format and keys stay what they were. A checkpoint that is loaded into the script gets `map_location="cpu"`, so that the ranks don't all
load it onto the first GPU.
Left alone when a rank guard stands around it, or the target is an open file or buffer.
Source: https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.save
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.checkpoints import awaited
from script2accel.analysis.context import guarded, loads_state
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import add_argument, add_before, merge, replace, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A601", "save"
IN_MODULE = Message(
    "S2A611",
    Severity.ERROR,
    "`torch.save` inside an nn.Module's method: every process would write the file",
    "save from the training code, with `accelerator.save(accelerator.get_state_dict(model), path)`",
)
ARGUMENTS = Message(
    "S2A612",
    Severity.ERROR,
    "`torch.save` with `{argument}`, which `accelerator.save` doesn't take",
    "drop the argument, or write `if accelerator.is_main_process:` around it by hand",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        path = facts.path(call)
        if decisions.plan.states.replaces(call) or decisions.is_state(call):
            continue
        if path == "torch.save" and not guarded(facts, call) and not _into_buffer(facts, call):
            yield _save(facts, decisions, call)
        elif path == "torch.save" and not facts.in_module(call) and (bare := _bare(facts, decisions, call)):
            yield Change(CODE, NAME, "the model without its wrapper is pickled", call.lineno, merge(bare), source="R17")
        elif path == "torch.load" and loads_state(facts, call):
            edits = merge([_on_cpu(facts, call), _behind_save(facts, decisions, call)])
            if edits:
                yield Change(
                    CODE,
                    NAME,
                    "loaded on the CPU, and copied by load_state_dict: the ranks don't share the first GPU",
                    call.lineno,
                    edits,
                    source="R31",
                )


def _save(facts: View, decisions: Decisions, call: ast.Call) -> Change | Diagnostic:
    if facts.in_module(call) and not decisions.is_global(call):
        return IN_MODULE.at(call.lineno, call.col_offset + 1)
    extra = next((k.arg or "**" for k in call.keywords if k.arg not in ("obj", "f")), None) or ("a third argument" if len(call.args) > 2 else None)
    if extra is not None:
        return ARGUMENTS.at(call.lineno, call.col_offset + 1, argument=extra)
    accelerator = decisions.accelerator(call)
    edits: list[tuple[Edit, ...]] = [replace(facts.source, call.func, f"{accelerator}.save")]
    edits += _bare(facts, decisions, call)
    return Change(CODE, NAME, "one file is written once: on the main process", call.lineno, merge(edits), source="R30")


def _bare(facts: View, decisions: Decisions, call: ast.Call) -> list[tuple[Edit, ...]]:
    """Unwrap whole models that are saved, alone or in a dictionary that is written there."""
    given = [*call.args, *(k.value for k in call.keywords)]
    given += [value for node in given if isinstance(node, ast.Dict) for value in node.values]
    models = [
        n for n in given if isinstance(n, (ast.Name, ast.Attribute)) and facts.roles.objects(n, "model") and decisions.prepared_here(n, "model")
    ]
    return [wrap_expression(facts.source, n, f"{decisions.accelerator(call)}.unwrap_model(", ")") for n in models]


def _on_cpu(facts: View, call: ast.Call) -> tuple[Edit, ...]:
    """`map_location="cpu"`: a state is copied into place by load_state_dict wherever that is."""
    if any(k.arg is None for k in call.keywords):
        return ()
    where = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "map_location"), None)
    if where is None:
        return add_argument(facts.source, call, 'map_location="cpu"')
    return () if "cpu" in facts.source.segment(where) or isinstance(where, ast.Lambda) else replace(facts.source, where, '"cpu"')


def _behind_save(facts: View, decisions: Decisions, call: ast.Call) -> tuple[Edit, ...]:
    """Wait for the file: one that this run has saved is complete only when the main process has written it."""
    statement = awaited(facts, call)
    if statement is None or guarded(facts, call):
        return ()
    return add_before(facts.source, statement, f"{decisions.accelerator(call)}.wait_for_everyone()")


def _into_buffer(facts: View, call: ast.Call) -> bool:
    target = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "f"), None)
    objs = facts.machine.at.get(target, NOTHING).objs if target is not None else frozenset()
    return any(o.path in ("open", "io.BytesIO", "io.open") for o in objs)


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

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

with open("pickled.pt", "wb") as file:
    torch.save({"model": model}, file)
""",
        """\
import os
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

with open("pickled.pt" if accelerator.is_main_process else os.devnull, "wb") as file:
    torch.save({"model": accelerator.unwrap_model(model)}, file)
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

torch.save(model.state_dict(), "model.pt")
torch.save(model, "pickled.pt")
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

accelerator.save(accelerator.get_state_dict(model), "model.pt")
accelerator.save(accelerator.unwrap_model(model), "pickled.pt")
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
model.load_state_dict(torch.load("last.pt")["model"])
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
accelerator.save({"model": accelerator.get_state_dict(model), "optimizer": optimizer.state_dict()}, "last.pt")
accelerator.wait_for_everyone()
accelerator.unwrap_model(model).load_state_dict(torch.load("last.pt", map_location="cpu")["model"])
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt", pickle_protocol=4)
""",
        "S2A612",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Linear):
    def keep(self):
        torch.save(self.state_dict(), "model.pt")


def main():
    data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=16)
    model = Net(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    model.keep()


main()
""",
        "S2A611",
    ),
    (
        """\
import io
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
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
""",
        None,
    ),
]
