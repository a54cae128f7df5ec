"""Leave scripts alone that another library runs, starts or searches with.

Horovod, DeepSpeed, Fabric and Ignite start and join processes, or run the loop, themselves: Accelerate beside them would do so a second time.
A search for settings (Optuna, Ray Tune, a sweep) draws each trial's settings in the process that asks: every rank would train another model.
Left alone: searches that only read results, and libraries that are imported for something else.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.frameworks import at_work
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge.frameworks import FRAMEWORKS, SEARCHES

CODE, NAME = "S2A805", "framework"
RUN = Message(
    "S2A815",
    Severity.ERROR,
    "this script trains by {name}, which runs the loop or joins the processes itself: Accelerate beside it would do so a second time",
    "stay with {name}, or write the loop plainly, without it, and convert again",
)
SEARCH = Message(
    "S2A825",
    Severity.ERROR,
    "{name} draws the settings of each trial in the process that asks for them: on several ranks every rank would train another model",
    "run each trial as a command of its own (`accelerate launch train.py --lr ...`), and convert the script that trains",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for message, table in ((RUN, FRAMEWORKS), (SEARCH, SEARCHES)):
        found = at_work(facts, table) if facts.program.backwards else None
        if found is not None and facts.source.root(found[1]) is facts.source.tree:
            yield message.at(found[1].lineno, found[1].col_offset + 1, name=found[0].name)  # type: ignore[attr-defined]


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import horovod.torch as hvd
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

hvd.init()
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        "S2A815",
    ),
    (
        """\
import optuna
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def objective(trial):
    loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=trial.suggest_float("lr", 1e-4, 1e-1))
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


optuna.create_study().optimize(objective, n_trials=3)
""",
        "S2A825",
    ),
    (
        """\
import torch
from pytorch_lightning import seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

seed_everything(1)
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        None,
    ),
]
