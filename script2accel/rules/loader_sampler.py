"""Ask the sampler itself, not a prepared loader for it.

A prepared loader is made anew from batches, so its `sampler` is one over the whole dataset, in one process too (measured): the length of a
subset, or `set_epoch`, must be asked of the sampler that the script gave to the loader.
Left alone in front of prepare, and where the loader had no sampler of the script's.
Source: https://huggingface.co/docs/accelerate/package_reference/torch_wrappers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.ordering import loader_part
from script2accel.analysis.values import Obj
from script2accel.change.edits import replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A734", "loader-sampler"
LOST = Message(
    "S2A744",
    Severity.ERROR,
    "`{text}`: a prepared loader's sampler is one over the whole dataset, not the script's (measured)",
    "keep the sampler under a name of its own, ask that, and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for node in facts.source.every(ast.Attribute):
        if node.attr != "sampler" or not decisions.prepared_here(node.value, "loader"):
            continue
        loaders = facts.objects(node.value, "loader")
        own = [o for o in loaders for s in loader_part(o, "sampler", 3) if not names.DISTRIBUTED_SAMPLER.match(s.path)]
        if not own:
            continue
        name = _name(facts, node, own) if len(own) == len(loaders) else None
        if name is None:
            yield LOST.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
            continue
        yield Change(CODE, NAME, "the prepared loader has another sampler", node.lineno, replace(facts.source, node, name), source="R03")


def _name(facts: View, use: ast.Attribute, loaders: list[Obj]) -> str | None:
    """The one name under which, where the sampler is asked for, the script still holds what it gave to the loaders."""
    found: set[str] = set()
    for loader in loaders:
        site = loader.site
        given = next((k.value for k in site.keywords if k.arg == "sampler"), None) if isinstance(site, ast.Call) else None
        if not isinstance(given, ast.Name):
            return None
        scopes = [facts.program.source.scope(n) for n in (given, use)]
        here, there = (facts.machine.owner(scope, given.id) for scope in scopes)
        stores = [n for n in facts.program.source.every(ast.Name) if n.id == given.id and isinstance(n.ctx, ast.Store)]
        if here is not there or sum(facts.machine.owner(facts.program.source.scope(n), n.id) is here for n in stores) != 1:
            return None
        found.add(given.id)
    return found.pop() if len(found) == 1 else None


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
sampler = SubsetRandomSampler(range(48))
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(len(loader.sampler), "rows")
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
sampler = SubsetRandomSampler(range(48))
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.print(len(sampler), "rows")
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, SubsetRandomSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=SubsetRandomSampler(range(48)))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(len(loader.sampler), "rows")
""",
        "S2A744",
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
print(len(loader.sampler), "rows")
""",
        None,
    ),
]
