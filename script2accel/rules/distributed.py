"""Refuse hand-made distribution that has no counterpart.

Sharded models, process groups of some ranks, sends and receives, communication hooks, processes that the script starts itself,
data that it cuts by its rank, and other libraries for distribution: beside prepare they'd shard or average a second time. They are
recognised and left to a person.
Left alone: what other rules convert, and questions (`is_initialized`).
Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import group_call, is_rank, wrapped
from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A501", "hand-made-distribution"
GROUP = Message(
    "S2A511",
    Severity.ERROR,
    "`{text}`: this part of the script's own distribution has no counterpart in Accelerate that is the same",
    "take it out or write it with the accelerator by hand, and convert again",
)
DATA_PARALLEL = Message(
    "S2A512",
    Severity.ERROR,
    "`{text}` splits batches over GPUs inside one process; prepare can't wrap such a model",
    "call the model itself, and convert again",
)
SHARES = Message(
    "S2A513",
    Severity.ERROR,
    "`{text}` cuts out this rank's share of the data by hand; prepare would deal out the rest once more",
    "give the loader the whole dataset, and convert again",
)
HOOK = Message(
    "S2A514",
    Severity.ERROR,
    "`{text}` changes how gradients travel between processes, on a wrapper that is taken out",
    "give `DistributedDataParallelKwargs(comm_hook=...)` to the accelerator by hand",
)
HANDLED = frozenset(
    {
        *("init_process_group", "destroy_process_group", "barrier", "monitored_barrier", "get_rank", "get_world_size", "get_node_local_rank"),
        *("all_reduce", "reduce", "all_gather", "all_gather_object", "broadcast", "broadcast_object_list"),
        *("is_available", "is_initialized", "is_nccl_available", "is_gloo_available", "is_mpi_available", "is_torchelastic_launched"),
        "is_backend_available",
    }
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        for path in facts.any_path(call):
            message = _message(facts, call, path)
            if message is not None:
                yield message.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
                break
        if isinstance(call.func, ast.Attribute) and call.func.attr == "register_comm_hook" and facts.receiver(call, "model"):
            yield HOOK.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
    yield from _shares(facts)


def _message(facts: View, call: ast.Call, path: str) -> Message | None:
    if names.HAND_WRAPPER.match(path):
        return GROUP if wrapped(call) is None else None
    if names.DATA_PARALLEL.match(path):
        return DATA_PARALLEL
    if names.SPAWN.match(path) or names.DISTRIBUTED_SAMPLER.match(path):
        return None
    if names.DDP.match(path) or (names.DISTRIBUTED.match(path) and not path.startswith("apex.amp")):
        return None if path.startswith("torch.distributed.") and (group_call(facts, call) or path.rsplit(".", 1)[-1]) in HANDLED else GROUP
    return None


def _shares(facts: View) -> Iterator[Diagnostic]:
    """Data cut by the rank: `indices[rank::world_size]`, `Partition(data, rank)`, `Subset(data, range(rank, n, world))`."""
    for node in facts.source.every(ast.Subscript, ast.Call):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Slice):
            if any(part is not None and _from_rank(facts, part) for part in (node.slice.lower, node.slice.upper)):
                yield SHARES.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
        elif isinstance(node, ast.Call) and node.func in facts.machine.at and facts.roles.of_node(node) in ("dataset", "loader", "sampler"):
            if names.DISTRIBUTED_SAMPLER.match(facts.path(node)):
                continue
            for arg in (*node.args, *(k.value for k in node.keywords)):
                if _from_rank(facts, arg):
                    yield SHARES.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node.func))
                    break
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("use", "shard")
            and any(_from_rank(facts, a) for a in (*node.args, *(k.value for k in node.keywords)))
        ):
            yield SHARES.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node.func))


def _from_rank(facts: View, node: ast.expr) -> bool:
    """Whether an expression is computed from this process's number (which a device isn't)."""
    return any(isinstance(inner, (ast.Name, ast.Attribute, ast.Call)) and inner in facts.machine.at and is_rank(facts, inner) for inner in walk(node))


EXAMPLES: list[tuple[str, str | None]] = [
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
group = dist.new_group([0, 1])
""",
        "S2A511",
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
    loss = nn.functional.cross_entropy(nn.parallel.data_parallel(model, x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A512",
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
mine = data[dist.get_rank() :: dist.get_world_size()]
loader = DataLoader(mine, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A513",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

model.register_comm_hook(None, print)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A514",
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
    ),
]
