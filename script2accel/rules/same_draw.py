"""Let every rank make the same data.

Data that is drawn or split without a seed comes out differently on each rank: samples of the one's training part land in the other's
validation part (measured). The ranks take over the first one's random state at the birth of the accelerator; with one process nothing
changes.
Left alone when the script seeds that generator, or draws with a generator of its own.
Source: https://huggingface.co/docs/accelerate/package_reference/utilities
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.randomness import module_name, seeded, setup_draws
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge.accelerate import FIRST_STATE

CODE, NAME = "S2A207", "same-draw"
UNSEEDED = Message(
    "S2A217",
    Severity.ERROR,
    "{what} is drawn here without a seed: each rank would draw its own data",
    "seed it at the start of the script, and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for draw in setup_draws(facts.program):
        what, call, statement = draw.what, draw.call, draw.statement
        if facts.source.root(statement) is not facts.source.tree:
            continue
        text = f"`{facts.program.source.segment(call.func)}`"
        if seeded(facts.program, what) or not _matters(facts, decisions):
            continue
        module = module_name(facts, what)
        if module is None or facts.loops(statement):
            yield UNSEEDED.at(statement.lineno, statement.col_offset + 1, what=text)
            continue
        code, name = FIRST_STATE[what]
        decisions.accelerator(statement)
        try:
            edits = merge(
                [add_before(facts.source, statement, code.format(module=module), rank=-5), ensure_import(facts.source, "accelerate.utils", name)]
            )
        except CannotEditError:
            yield UNSEEDED.at(statement.lineno, statement.col_offset + 1, what=text)
            continue
        yield Change(
            CODE,
            NAME,
            "drawn without a seed: every rank takes the first one's random state, so that all make the same data",
            statement.lineno,
            edits,
            source="R83",
        )


def _matters(facts: View, decisions: Decisions) -> bool:
    return bool(decisions.plan.prepares)


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import synchronize_rng_states

accelerator = Accelerator()
synchronize_rng_states(["torch"])
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=16)
model = nn.Linear(8, 2)
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
from torch.utils.data import DataLoader, TensorDataset, random_split

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
train, _ = random_split(data, [48, 16])
loader = DataLoader(train, batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from accelerate import Accelerator
from accelerate.utils import synchronize_rng_states

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
accelerator = Accelerator()
synchronize_rng_states(["torch"])
train, _ = random_split(data, [48, 16])
loader = DataLoader(train, batch_size=16)
model = nn.Linear(8, 2)
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
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = torch.from_numpy(np.random.rand(64, 8)).float()
loader = DataLoader(TensorDataset(rows, torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

accelerator = Accelerator()
np.random.set_state(broadcast_object_list([np.random.get_state()])[0])
rows = torch.from_numpy(np.random.rand(64, 8)).float()
loader = DataLoader(TensorDataset(rows, torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
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

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=16)
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
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

g = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(64, 8, generator=g), torch.randint(0, 2, (64,), generator=g))
loader = DataLoader(data, batch_size=16)
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
