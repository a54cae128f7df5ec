"""Show one progress bar.

`tqdm(...)` gets `disable=not accelerator.is_local_main_process`; an own `disable` is kept beside it.
Left alone in classes without an accelerator, and where it is there already.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/execution#execute-on-one-process
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import add_argument, wrap_expression
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic
from script2accel.knowledge import torch as names

CODE, NAME = "S2A704", "progress-bar"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        path = facts.path(call)
        if not names.PROGRESS.match(path) or path.startswith("progress.") or facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue
        if not decisions.may_ask(call):
            continue
        if decisions.method_of(call) and not decisions.is_global(call) and not decisions.class_has(call):
            continue
        own = next((k.value for k in call.keywords if k.arg == "disable"), None)
        if own is not None and "main_process" in facts.source.segment(own):
            continue
        quiet = f"not {decisions.accelerator(call, essential=False)}.is_local_main_process"
        edits = wrap_expression(facts.source, own, "(", f") or {quiet}") if own is not None else add_argument(facts.source, call, f"disable={quiet}")
        yield Change(CODE, NAME, "one progress bar per machine", call.lineno, edits, essential=False, source="R33")


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in tqdm(loader, desc="train"):
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
from tqdm import tqdm

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in tqdm(loader, desc="train", disable=not accelerator.is_local_main_process):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import trange

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in trange(3, disable=not sys.stderr.isatty()):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        """\
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from tqdm import trange

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in trange(3, disable=(not sys.stderr.isatty()) or not accelerator.is_local_main_process):
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
from accelerate import Accelerator

accelerator = Accelerator()
from tqdm import tqdm

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in tqdm(loader, disable=not accelerator.is_local_main_process):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
        None,
    ),
]
