"""Say once what several processes change by their nature.

Losses that sum over the batch, batch statistics, and training numbers that are one rank's own: they can't be converted away, so they are
named, with their lines.
Left alone: losses that average, normalisation per sample, numbers that are gathered.
Source: https://huggingface.co/docs/accelerate/concept_guides/performance
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.distribution import synchronised_statistics
from script2accel.analysis.facts import TrainLoop, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.analysis.whole import whole_dataset
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A250", "meaning"
SUM = Message(
    "S2A251",
    Severity.WARNING,
    "this training loss sums over the batch; gradients are averaged over the ranks, so with N processes it is 1/N of the sum over the global batch",
    "average over the batch, or multiply the loss by `accelerator.num_processes` in front of the backward pass",
)
BATCH_NORM = Message(
    "S2A252",
    Severity.NOTE,
    "batch statistics are those of each rank's own batch ({count} such layers)",
    "`torch.nn.SyncBatchNorm.convert_sync_batchnorm` before prepare makes them global",
)
ONE_RANK = Message("S2A253", Severity.NOTE, "training numbers that are printed are those of the main process's own batches", "")
WHOLE = Message(
    "S2A254",
    Severity.WARNING,
    "this divides a rank's own sum by the size of the whole dataset: with N processes it shows 1/N",
    "divide by the number of samples that this rank has seen",
)
BESIDE = Message(
    "S2A264",
    Severity.NOTE,
    "this loop reads {count} shuffled loaders side by side: in one process, too, their orders are drawn in another sequence than before",
    "give each its own `generator=torch.Generator().manual_seed(...)` where the order must stay",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares:
        return
    if decisions.options.mixed_precision == "fp16" and len(facts.program.optimizers) > 1:
        yield SCALED.at(facts.optimizer_steps[0].call.lineno if facts.optimizer_steps else 0)
    for call in _sums(facts):
        yield SUM.at(call.lineno, call.col_offset + 1)
    for loop in facts.train_loops:
        if (count := _side_by_side(facts, loop)) > 1:
            yield BESIDE.at(loop.loop.lineno, loop.loop.col_offset + 1, count=count)
    layers = [c for c in facts.calls if names.BATCH_NORM.match(facts.path(c)) and not facts.path(c).endswith("SyncBatchNorm")]
    if layers and not synchronised_statistics(facts):
        yield BATCH_NORM.at(layers[0].lineno, layers[0].col_offset + 1, count=len(layers))
    if decisions.options.reduce_train_metrics:
        return  # said by the rule that brings them together
    for node in facts.source.every(ast.BinOp):
        if isinstance(node.op, ast.Div) and _one_ranks(facts, node.left) and whole_dataset(facts, node.right):
            yield WHOLE.at(node.lineno, node.col_offset + 1)
    marked = next((c for c in facts.calls if facts.path(c) == "print" and any(_one_ranks(facts, a) for a in c.args)), None)
    if marked is not None:
        yield ONE_RANK.at(marked.lineno, marked.col_offset + 1)


def _one_ranks(facts: View, node: ast.expr) -> bool:
    """Whether a value is counted in a loop over one rank's batches; what is drawn in front of all loops is the same on all, or told elsewhere."""
    return any(not isinstance(mark, ast.Call) or facts.all_loops(mark) for mark in facts.machine.marks_of(node))


def _side_by_side(facts: View, loop: TrainLoop) -> int:
    """How many shuffled loaders a training loop reads at a time (not one after another, in several runs)."""
    drawn = {loader for _, loader in loop.draws if _shuffled(loader)}
    parts = 0
    read = [loop.loop.iter] if isinstance(loop.loop, (ast.For, ast.AsyncFor)) else []
    while read:
        part = read.pop()
        if isinstance(part, ast.Call) and facts.path(part) in ("zip", "enumerate"):
            read += part.args
        else:
            parts += any(_shuffled(o) for o in facts.objects(part, "loader") if o not in drawn)
    return len(drawn) + parts


def _shuffled(loader: Obj) -> bool:
    """Whether a loader draws its order from the global generator."""
    shuffle = loader.arguments[2] if len(loader.arguments) > 2 else loader.keywords.get("shuffle", NOTHING)
    return any(o.kind != "const" or o.name for o in shuffle.objs) and "generator" not in loader.keywords


def _sums(facts: View) -> list[ast.Call]:
    """Calls that make a summing loss which training uses: a criterion's constructor, a functional loss."""
    found = []
    for call in facts.calls:
        if not any(names.LOSS_MODULE.match(p) or names.LOSS_FUNCTION.match(p) for p in facts.any_path(call)):
            continue
        if (any(_summing(k) for k in call.keywords) or _sums_by_dict(facts, call)) and _trains(facts, call):
            found.append(call)
    return found


def _summing(keyword: ast.keyword) -> bool:
    match keyword:
        case ast.keyword(arg="reduction", value=ast.Constant(value="sum")):
            return True
        case ast.keyword(arg="size_average", value=ast.Constant(value=False)):
            return True
    return False


def _sums_by_dict(facts: View, call: ast.Call) -> bool:
    """Whether an unpacked dict gives a loss `reduction="sum"`."""
    if not any(k.arg is None for k in call.keywords):
        return False
    given = [(o.keywords.get("reduction", NOTHING), o.keywords.get("size_average", NOTHING)) for o in facts.machine.at.get(call, NOTHING).objs]
    return any(any(o.name == "sum" for o in reduction.objs) or any(o.name is False for o in average.objs) for reduction, average in given)


def _trains(facts: View, call: ast.Call) -> bool:
    """Whether the call's loss, or one of the criterion that it makes, is computed in a training loop."""
    used = [call]
    for obj in facts.machine.at.get(call, NOTHING).objs:
        used += [n for what, n in facts.machine.uses.get(obj, ()) if what == "call" and isinstance(n, ast.Call)]
    return any(facts.in_train_loop(node) and not quiet(facts, node) for node in used)


SCALED = Message(
    "S2A255",
    Severity.ERROR,
    "`--mixed-precision fp16` with several optimizers: Accelerate's one scaler unscales for the first that steps, and the others go wrong (measured)",
    "use bf16, which needs no scaler",
)
EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
labelled = DataLoader(data, batch_size=16, shuffle=True)
unlabelled = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for (x, y), (u, _) in zip(labelled, unlabelled):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y) + model(u).mean()
    loss.backward()
    optimizer.step()
""",
        "S2A264",
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
    loss = nn.functional.cross_entropy(model(x), y, reduction="sum")
    loss.backward()
    optimizer.step()
""",
        "S2A251",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A252",
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
    print(loss.item())
""",
        "S2A253",
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
total = 0.0

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item() * len(x)
print(total / len(loader.dataset))
""",
        "S2A254",
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
