"""Seed with `set_seed`, in place.

Where `random`, `numpy` and `torch` are seeded together with one number, `set_seed(number)` does the same in one line, so the stream of one
process is unchanged. Where noise is drawn in the training loop, the other ranks are seeded apart behind prepare: they'd all draw the first
rank's noise otherwise.
Left alone when only some of the generators are seeded, or with different numbers: the calls do the same on every rank, which is right.
Source: https://huggingface.co/docs/accelerate/concept_guides/performance#setting-the-seed
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.randomness import Seeding, alike, loop_draws, seedings, settled
from script2accel.change.edits import CannotEditError, add_before, add_behind, ensure_import, merge, remove_statement, replace, taken
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A206", "seed"
SAME_NOISE = Message(
    "S2A216",
    Severity.WARNING,
    "noise is drawn here in the training loop, and every rank is seeded alike: all ranks draw the same noise",
    "seed the other ranks apart behind prepare: `set_seed(seed, device_specific=True)`",
)
SAME_BATCHES = Message(
    "S2A294",
    Severity.ERROR,
    "this loop draws its batches, and `{seed}` seeds every rank alike: all ranks would train on the same batches",
    "seed with a number that is known where the model is made, in front of it, and convert again: the other ranks are then seeded apart",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    found = seedings(facts)
    if taken(facts.source, "accelerate.utils", "set_seed"):
        return  # the script's own function seeds, alike on every rank
    for run in _runs(facts, found):
        first, *rest = run
        edits = [replace(facts.source, first.statement, f"set_seed({first.text})")]
        edits += [remove_statement(facts.source, other.statement) for other in rest]
        edits.append(ensure_import(facts.source, "accelerate.utils", "set_seed"))
        yield Change(
            CODE, NAME, "one call seeds random, numpy and torch on every rank", first.statement.lineno, merge(edits), essential=False, source="R44"
        )
    yield from _apart(facts, decisions, found)


def _runs(facts: View, found: list[Seeding]) -> Iterator[list[Seeding]]:
    """Neighbouring seedings with one number that reach random, numpy and torch."""
    by_block: dict[int, list[Seeding]] = {}
    for seeding in found:
        if facts.source.alone(seeding.statement) and not any(facts.path(c) == "set_seed" for c in walk(seeding.statement) if isinstance(c, ast.Call)):
            by_block.setdefault(id(facts.source.block(seeding.statement)), []).append(seeding)
    for group in by_block.values():
        block = facts.source.block(group[0].statement)
        places = [next(i for i, s in enumerate(block) if s is seeding.statement) for seeding in group]
        neighbours = places == list(range(places[0], places[0] + len(places)))
        texts = {seeding.text for seeding in group}
        if neighbours and len(texts) == 1 and {"random", "numpy", "torch"} <= {seeding.what for seeding in group}:
            yield group


def _apart(facts: View, decisions: Decisions, found: list[Seeding]) -> Iterator[Change | Diagnostic]:
    draws = loop_draws(facts.program)
    seeds = alike(facts.program, draws)
    own = [p for p in decisions.plan.prepares if facts.source.root(p.anchor) is facts.source.tree]
    if not draws or not seeds or not own:
        return
    seed = seeds[-1]
    prepare = own[-1]
    sliced = {s.train.loop for s in decisions.plan.slices}
    batches = [loop for loop in facts.train_loops if not loop.loaders and loop.loop not in sliced]
    reachable = isinstance(seed.node, ast.Constant) or seed.scope is prepare.scope or seed.scope is facts.source.tree
    anchor, behind = prepare.anchor, prepare.behind
    if not settled(facts, seeds, anchor) and facts.source.block(seed.statement) is facts.source.block(anchor):
        anchor, behind = seed.statement, True  # the last seeding comes behind prepare
    if (
        not reachable
        or not isinstance(seed.node, (ast.Constant, ast.Name, ast.Attribute))
        or not settled(facts, [s for s in seeds if s.statement is not anchor], anchor)
    ):
        yield from (SAME_BATCHES.at(loop.loop.lineno, loop.loop.col_offset + 1, seed=facts.source.segment(seed.call)) for loop in batches)
        if not batches:
            yield SAME_NOISE.at(draws[0].lineno, draws[0].col_offset + 1)
        return
    accelerator = decisions.accelerator(anchor)
    code = f"if not {accelerator}.is_main_process:\n\tset_seed({seed.text}, device_specific=True)"
    add = add_behind if behind else add_before
    try:
        edits = merge([add(facts.source, anchor, code, rank=5), ensure_import(facts.source, "accelerate.utils", "set_seed")])
    except CannotEditError:
        yield SAME_NOISE.at(draws[0].lineno, draws[0].col_offset + 1)
        return
    yield Change(
        CODE, NAME, f"noise is drawn in the loop (line {draws[0].lineno}): the other ranks draw their own", anchor.lineno, edits, source="R44"
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import numpy as np
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
np.random.seed(1)

for step in range(100):
    optimizer.zero_grad()
    loss = model(rows[np.random.randint(0, 64, 16)]).mean()
    loss.backward()
    optimizer.step()
""",
        """\
import numpy as np
import torch
from torch import nn
from accelerate import Accelerator
from accelerate.utils import set_seed

accelerator = Accelerator()
rows = torch.ones(64, 8).to(accelerator.device)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
np.random.seed(1)
if not accelerator.is_main_process:
    set_seed(1, device_specific=True)

for step in range(100):
    optimizer.zero_grad()
    loss = model(rows[np.random.randint(0, 64, 16)]).mean()
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import numpy as np
import torch
from torch import nn

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(10):
    np.random.seed(epoch)
    for step in range(100):
        optimizer.zero_grad()
        loss = model(rows[np.random.randint(0, 64, 16)]).mean()
        loss.backward()
        optimizer.step()
""",
        "S2A294",
    ),
    (
        """\
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(1)
np.random.seed(1)
torch.manual_seed(1)
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
        """\
import random
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed

set_seed(1)
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
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x + torch.randn(x.shape)), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import set_seed

torch.manual_seed(1)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
if not accelerator.is_main_process:
    set_seed(1, device_specific=True)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x + torch.randn(x.shape).to(accelerator.device)), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def seed(number):
    torch.manual_seed(number * 2)


seed(1)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x + torch.randn(x.shape)), y)
    loss.backward()
    optimizer.step()
""",
        "S2A216",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
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
