"""Let the accelerator talk between the processes.

`dist.barrier()` becomes `accelerator.wait_for_everyone()`, `all_reduce` and `reduce` `accelerator.reduce`, `all_gather`
`accelerator.gather`, `broadcast` Accelerate's own; `get_rank()` and `get_world_size()` are the accelerator's numbers. They work with one
process as well, where there is no group.
Left alone: questions (`is_initialized`), and loops over parameters that a rule of their own takes out.
Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import by_hand, group_call
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import ensure_import, merge, replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A505", "collective"
PARTS = Message(
    "S2A528",
    Severity.ERROR,
    "`{text}` talks to some of the processes, or doesn't wait: Accelerate has no counterpart",
    "use `accelerator.reduce` or `accelerator.gather` over all processes, and convert again",
)
USED = Message(
    "S2A529",
    Severity.ERROR,
    "the result of `{text}` is used, and the accelerator gives none",
    "put it into a statement of its own, and convert again",
)
NUMBERS = {"get_rank": "process_index", "get_world_size": "num_processes", "get_node_local_rank": "local_process_index"}
OPERATIONS = {"SUM": "sum", "AVG": "mean"}
OVER_RANKS = {"MAX": "amax", "MIN": "amin", "PRODUCT": "prod"}


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    loops = {call for found in by_hand(facts) for call in found.calls}
    for call in facts.calls:
        name = group_call(facts, call)
        if not name or call in loops or decisions.is_gone(call):
            continue
        text = facts.source.segment(call.func)
        place = (call.lineno, call.col_offset + 1)
        if name in NUMBERS:
            if call.args or call.keywords:
                yield PARTS.at(*place, text=text)
                continue
            number = f"{decisions.accelerator(call)}.{NUMBERS[name]}"
            yield Change(
                CODE, NAME, "the accelerator knows its place among the processes", call.lineno, replace(facts.source, call, number), source="R36"
            )
        elif name in ("barrier", "monitored_barrier"):
            yield from _barrier(facts, decisions, call)
        elif name in ("all_reduce", "reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list"):
            if any(k.arg in ("group", "async_op", "device") and not (isinstance(k.value, ast.Constant) and not k.value.value) for k in call.keywords):
                yield PARTS.at(*place, text=text)
            elif not isinstance(facts.source.parents[call], ast.Expr):
                yield USED.at(*place, text=text)
            else:
                yield from _brought_together(facts, decisions, call, name)


def _barrier(facts: View, decisions: Decisions, call: ast.Call) -> Iterator[Change | Diagnostic]:
    if any(k.arg == "group" for k in call.keywords) or call.args:
        yield PARTS.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
        return
    yield Change(
        CODE,
        NAME,
        "every process waits for the others",
        call.lineno,
        replace(facts.source, call, f"{decisions.accelerator(call)}.wait_for_everyone()"),
        source="R28",
    )


def _brought_together(facts: View, decisions: Decisions, call: ast.Call, name: str) -> Iterator[Change | Diagnostic]:
    source = facts.source
    first = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg in ("tensor", "tensor_list", "object_list")), None)
    second = (
        call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg in ("tensor", "obj") and k.value is not first), None)
    )
    if first is None or (name.startswith("all_gather") and second is None):
        yield PARTS.at(call.lineno, call.col_offset + 1, text=source.segment(call.func))
        return
    target = source.segment(first)
    extra = []
    if name in ("all_reduce", "reduce"):
        operation = _operation(call, 1 if name == "all_reduce" else 2)
        if operation in OPERATIONS:
            value = f'{decisions.accelerator(call)}.reduce({target}, reduction="{OPERATIONS[operation]}")'
        elif operation in OVER_RANKS:
            value = f"{decisions.accelerator(call)}.gather({target}[None]).{OVER_RANKS[operation]}(0)"
        else:
            yield PARTS.at(call.lineno, call.col_offset + 1, text=source.segment(call.func))
            return
        text = f"{target} = {value}" if _own(facts, first) else f"{target}.copy_({value})"
    elif name == "all_gather":
        assert second is not None
        text = f"{target}[:] = {decisions.accelerator(call)}.gather({source.segment(second)}[None])"
    elif name == "all_gather_object":
        assert second is not None
        text = f"{target}[:] = gather_object([{source.segment(second)}])"
        extra.append(ensure_import(source, "accelerate.utils", "gather_object"))
    else:
        sender = next((k.value for k in call.keywords if k.arg == "src"), second)
        text = f"{name}({target}, from_process={source.segment(sender) if sender is not None else '0'})"
        extra.append(ensure_import(source, "accelerate.utils", name))
    yield Change(
        CODE,
        NAME,
        "brought together by the accelerator, also where there is one process",
        call.lineno,
        merge([replace(source, call, text), *extra]),
        source="R90",
    )


def _operation(call: ast.Call, index: int) -> str:
    node = next((k.value for k in call.keywords if k.arg == "op"), call.args[index] if len(call.args) > index else None)
    return "SUM" if node is None else node.attr.upper() if isinstance(node, ast.Attribute) else ""


def _own(facts: View, node: ast.expr) -> bool:
    """Whether a name is the function's own variable that nothing else holds: it can be bound anew."""
    if not isinstance(node, ast.Name):
        return False
    scope = facts.function(node)
    if isinstance(scope, ast.Module):
        return True
    arguments = scope.args
    if node.id in {a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)} or node.id in facts.machine.declared.get(
        scope, {}
    ):
        return False
    bound = [n for n in walk(scope) if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)]
    return bool(bound) and all(isinstance(n.value, (ast.Call, ast.BinOp)) for n in bound) and bool(facts.machine.at.get(node, NOTHING).objs)


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

world_size = dist.get_world_size()
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
total = loss.detach().clone()
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(total.item() / world_size)
dist.barrier()
""",
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
world_size = accelerator.num_processes
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
total = loss.detach().clone()
total = accelerator.reduce(total, reduction="sum")
if accelerator.process_index == 0:
    print(total.item() / world_size)
accelerator.wait_for_everyone()
""",
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def worst(value):
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    parts = [torch.zeros_like(value) for _ in range(2)]
    dist.all_gather(parts, value)
    return parts


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(worst(loss.detach()))
""",
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


def worst(value):
    value.copy_(accelerator.gather(value[None]).amax(0))
    parts = [torch.zeros_like(value) for _ in range(2)]
    parts[:] = accelerator.gather(value[None])
    return parts


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
accelerator.print(worst(loss.detach()))
""",
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
total = loss.detach().clone()
dist.all_reduce(total, async_op=True)
""",
        "S2A528",
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
total = loss.detach().clone()
work = dist.all_reduce(total)
""",
        "S2A529",
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
