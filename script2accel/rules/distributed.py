"""Refuse hand-rolled distribution.

`DistributedDataParallel`, `DataParallel`, `DistributedSampler`, process groups, `mp.spawn` and ranks read from the environment shard and
wrap a second time beside prepare. They are recognised and, for now, left to a person.
Left alone: none of it in the script.
Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A501", "hand-made-distribution"
GROUP = Message(
    "S2A511",
    Severity.ERROR,
    "`{text}`: this script distributes itself; beside Accelerate its data would be sharded and its model wrapped twice",
    "take the hand-made distribution out (process group, DistributedDataParallel, DistributedSampler, ranks), so that one process trains, "
    "and convert again",
)
DATA_PARALLEL = Message(
    "S2A512",
    Severity.ERROR,
    "`{text}` splits batches over GPUs inside one process; prepare can't wrap such a model",
    "take DataParallel out (and `.module` with it), and convert again",
)
RANK = Message(
    "S2A513",
    Severity.ERROR,
    "`{text}` is read from the environment: the script decides by its own rank",
    "use `accelerator.process_index`, `accelerator.local_process_index` or `accelerator.num_processes`",
)
SAMPLER = Message(
    "S2A514",
    Severity.ERROR,
    "`{text}` shards the data a second time: half of it would never be seen (measured)",
    "take it out; give its shuffle and drop_last to the DataLoader",
)
ENVIRONMENT = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK"}


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        for path in facts.any_path(call):
            message = _message(path)
            if message is not None:
                yield message.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
                break
    for node in facts.source.nodes:
        name = _environment(node)
        if name is not None:
            yield RANK.at(node.lineno, node.col_offset + 1, text=name)  # type: ignore[attr-defined]


def _message(path: str) -> Message | None:
    if names.DATA_PARALLEL.match(path):
        return DATA_PARALLEL
    if path.endswith("DistributedSampler") and path.startswith("torch."):
        return SAMPLER
    if names.DDP.match(path) or (names.DISTRIBUTED.match(path) and not path.startswith("apex.amp")):
        return None if path.endswith((".is_available", ".is_initialized")) else GROUP
    return None


def _environment(node: ast.AST) -> str | None:
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)), ctx=ast.Load()) if name in ENVIRONMENT:
            return name
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Attribute(attr="environ")), args=[ast.Constant(value=str(name)), *_]) if (
            name in ENVIRONMENT
        ):
            return name
        case ast.Call(func=ast.Attribute(attr="getenv"), args=[ast.Constant(value=str(name)), *_]) if name in ENVIRONMENT:
            return name
    return None


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
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
model = nn.DataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A512",
    ),
    (
        """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ.get("RANK", 0))
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(rank)
""",
        "S2A513",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

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
print(torch.distributed.is_available())
""",
        None,
    ),
]
