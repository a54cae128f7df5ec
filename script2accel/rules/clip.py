"""Clip gradients through the accelerator.

`torch.nn.utils.clip_grad_norm_` sees gradients that are still scaled under fp16, and shards under FSDP; `accelerator.clip_grad_norm_` unscales
and reduces first.
Left alone when it already goes through the accelerator, or a DeepSpeed engine of the script clips for itself. Refused where it
stands in front of the backward pass.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#gradient-clipping
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.gradients import before, behind
from script2accel.change.edits import replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A203", "clip"
EXTRA = Message(
    "S2A213",
    Severity.ERROR,
    "`{argument}` of the gradient clip has no counterpart in Accelerate",
    "drop the argument, or clip without it, and convert again",
)
EARLY = Message(
    "S2A408",
    Severity.WARNING,
    "gradients are clipped in front of the backward pass that makes them: nothing of this step is clipped, before or after the conversion",
    "clip between the backward pass and the step with `accelerator.clip_grad_norm_` if it is to clip",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    engine = decisions.options.zero > 0 and decisions.options.parallelism == "in-script"
    for call in facts.calls if not engine else ():
        paths = facts.any_path(call)
        norm = any(names.CLIP_NORM.match(path) for path in paths)
        if not norm and not any(names.CLIP_VALUE.match(path) for path in paths):
            continue
        if facts.in_train_loop(call) and not before(facts, call) and behind(facts, call) == "backward":
            yield EARLY.at(call.lineno, call.col_offset + 1)
            continue
        extra = next((k.arg for k in call.keywords if k.arg not in ("parameters", "max_norm", "norm_type", "clip_value")), None)
        if extra is not None:
            yield EXTRA.at(call.lineno, call.col_offset + 1, argument=extra)
            continue
        function = f"{decisions.accelerator(call)}.{'clip_grad_norm_' if norm else 'clip_grad_value_'}"
        edits = replace(facts.source, call.func, function)
        yield Change(CODE, NAME, "gradients are clipped after they are unscaled and reduced", call.lineno, edits, source="R14" if norm else "R15")


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
    nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
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
    accelerator.clip_grad_norm_(model.parameters(), max_norm=1.0)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_value_
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.nn.utils import clip_grad_value_
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
    accelerator.clip_grad_value_(model.parameters(), 0.5)
    optimizer.step()
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
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
""",
        "S2A213",
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
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
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
from accelerate import Accelerator

accelerator = Accelerator()

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
        None,
    ),
]
