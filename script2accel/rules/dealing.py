"""Let a prepared loader deal out what the script's own samplers and streams give.

A prepared loader runs the sampler on every rank and takes every N-th batch, so all ranks must see one order. A sampler that draws from a global
generator gets the first rank's state in front of each pass. An iterable dataset is read on every rank (`dispatch_batches=False`), each taking its own
samples: dispatching from the first rank fails on strings and on batches of different lengths (measured).
Left alone when torch's own samplers give the order. Refused where ranks would see different orders, or share the data once more.
Source: https://huggingface.co/docs/accelerate/concept_guides/internal_mechanism
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.ordering import Order, loader_part, order_of
from script2accel.analysis.randomness import loop_draws, module_name
from script2accel.analysis.values import Obj
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.knowledge.accelerate import FIRST_STATE
from script2accel.source import walk

CODE, NAME = "S2A244", "dealing"
STREAM = Message(
    "S2A238",
    Severity.ERROR,
    "the dataset of this loader is iterable, and {why}: ranks would get the same data twice, or lose some",
    "use a map-style dataset, or let the stream give the same samples in the same order on every rank, and convert again",
)
OWN_SAMPLER = Message(
    "S2A239",
    Severity.ERROR,
    "`{text}` is a sampler of the script's own, and {why}: ranks would get overlapping data (measured)",
    "draw its order in the first line of `__iter__`, or from a seeded `torch.Generator`, and convert again",
)
UNBATCHED = Message(
    "S2A274",
    Severity.ERROR,
    "this loader doesn't batch (`batch_size=None`): a prepared one loses its order, and fails on several processes (measured)",
    "let it batch, or give it `sampler=BatchSampler(...)`, and convert again",
)
SHARES = Message(
    "S2A284",
    Severity.ERROR,
    "`{text}` cuts out this process's share by itself: prepare would deal it out once more",
    "let it give all samples, in the same order on every process, and convert again",
)
SIZED = Message(
    "S2A544",
    Severity.ERROR,
    "`{text}` makes batches, and has a `batch_size`: Accelerate drops batches of another size, or all behind them (measured)",
    "call the attribute something else, so that whole batches are dealt out as they are, and convert again",
)
WHOLE_BATCHES = Message(
    "S2A554", Severity.NOTE, "the batches of `{text}` are dealt out whole: on several processes that takes Accelerate 1.14 or newer", ""
)
SPLIT = Message(
    "S2A574",
    Severity.ERROR,
    "`--batch global` splits every batch, and `{text}` makes batches of its own",
    "leave the option out, and let the sampler make batches for one process",
)
READ_BY_ALL = Message(
    "S2A564",
    Severity.NOTE,
    "the dataset is iterable: every process reads it whole, and takes its own samples (`dispatch_batches=False`)",
    "where reading is dear, `dispatch_batches=True` reads on the main process only; it takes tensors of equal shape",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    seen: set[tuple[ast.AST, str]] = set()
    for loader in facts.loaders:
        site = loader.site
        if not isinstance(site, ast.Call) or not decisions.is_prepared(loader) or not names.LOADER.match(loader.path):
            continue
        here = facts.source.root(site) is facts.source.tree
        if here:
            yield from _unbatched(site, loader)
            yield from _stream(facts, decisions, site, loader)
        for key, place in (("sampler", 3), ("batch_sampler", 4)):
            for obj in loader_part(loader, key, place):
                if obj.kind == "instance":
                    yield from _sampler(facts, decisions, loader, obj, key, seen)


def _unbatched(site: ast.Call, loader: Obj) -> Iterator[Diagnostic]:
    size = loader.arguments[1] if len(loader.arguments) > 1 else loader.keywords.get("batch_size")
    whole = any(o.path.endswith(".BatchSampler") for o in loader_part(loader, "sampler", 3))
    if size is not None and any(o.kind == "const" and o.name is None for o in size.objs) and not whole:
        yield UNBATCHED.at(site.lineno, site.col_offset + 1)


def _stream(facts: View, decisions: Decisions, site: ast.Call, loader: Obj) -> Iterator[Diagnostic]:
    for dataset in loader_part(loader, "dataset", 0):
        if foreign := _foreign(dataset):
            yield STREAM.at(site.lineno, site.col_offset + 1, why=f"`{foreign}` reads and shares it by itself")
        elif dataset.kind == "instance" and dataset.base is not None and facts.machine.reaches(dataset.base, names.ITERABLE_DATASET_BASE):
            why = _disorder(order_of(facts, dataset))
            if why:
                yield STREAM.at(site.lineno, site.col_offset + 1, why=why)
            else:
                decisions.loader_arguments["dispatch_batches"] = "False"
                yield READ_BY_ALL.at(site.lineno, site.col_offset + 1)


def _disorder(order: Order) -> str:
    if order.shares is not None:
        return f"it takes this process's share by itself (line {getattr(order.shares, 'lineno', 0)})"
    if order.unknown is not None:
        return f"what orders it can't be seen (line {getattr(order.unknown, 'lineno', 0)})"
    return f"it draws from {order.draws[0]}'s global generator" if order.draws else ""


def _foreign(dataset: Obj) -> str:
    """The name of a stream that a library reads: WebDataset's, or `load_dataset(..., streaming=True)`, through what is called on it."""
    probe: Obj | None = dataset
    while probe is not None:
        path = probe.path
        if names.FOREIGN_STREAM.match(path):
            return path
        if path == "datasets.load_dataset":
            asked = probe.keywords.get("streaming")
            return f"{path}(streaming=True)" if asked is not None and any(o.kind != "const" or o.name for o in asked.objs) else ""
        probe = probe.base
    return ""


def _sampler(facts: View, decisions: Decisions, loader: Obj, obj: Obj, key: str, seen: set[tuple[ast.AST, str]]) -> Iterator[Change | Diagnostic]:
    site, text = loader.site, str(obj.name)
    assert isinstance(site, ast.Call)
    here = facts.source.root(site) is facts.source.tree
    order = order_of(facts, obj)
    loops = [t.loop for t in facts.program.train_loops if loader in t.loaders] + [e.loop for e in facts.program.eval_loops if loader in e.loaders]
    pulled = any(loader is read for t in facts.program.train_loops for _, read in t.draws)
    why = ""
    if order.unknown is not None:
        why = f"what orders it can't be seen (line {getattr(order.unknown, 'lineno', 0)})"
    elif order.draws and (order.late or pulled):
        why = f"it draws from {order.draws[0]}'s global generator again and again"
    elif "torch" in order.draws and loop_draws(facts.program):
        why = "it draws from torch's global generator, which draws noise in the loop too"
    if order.shares is not None:
        if here:
            yield SHARES.at(site.lineno, site.col_offset + 1, text=text)
        return
    if why:
        if here:
            yield OWN_SAMPLER.at(site.lineno, site.col_offset + 1, text=text, why=why)
        return
    if key == "batch_sampler" and here:
        if decisions.options.batch == "global":
            yield SPLIT.at(site.lineno, site.col_offset + 1, text=text)
            return
        if _has_size(facts, obj):
            yield SIZED.at(site.lineno, site.col_offset + 1, text=text)
            return
        yield WHOLE_BATCHES.at(site.lineno, site.col_offset + 1, text=text)
    for loop in loops:
        if facts.source.root(loop) is facts.source.tree:
            for what in order.draws:
                if (loop, what) not in seen and not _agreed(facts, loop, what):
                    seen.add((loop, what))
                    yield _together(facts, decisions, loop, what, text)


def _has_size(facts: View, obj: Obj) -> bool:
    """Whether instances have a `batch_size`: it is set in the class or one below it, or torch's BatchSampler is below it."""
    assert obj.base is not None
    classes = [obj.base, *facts.machine.ancestors(obj.base)]
    stored = any(
        isinstance(n, ast.Attribute) and n.attr == "batch_size" and isinstance(n.ctx, ast.Store)
        for cls in classes
        if cls.site is not None
        for n in walk(cls.site)
    )
    bases = [base for cls in classes for base in facts.machine.bases.get(cls, ()) if base.kind == "external"]
    return stored or any(str(base.name).endswith("BatchSampler") for base in bases)


def _agreed(facts: View, loop: ast.stmt, what: str) -> bool:
    """Whether the ranks take the first one's state in front of the loop already."""
    block = facts.source.block(loop)
    index = next(i for i, s in enumerate(block) if s is loop)
    text = facts.source.segment(block[index - 1]) if index else ""
    return "synchronize_rng_states" in text if what == "torch" else "broadcast_object_list" in text


def _together(facts: View, decisions: Decisions, loop: ast.stmt, what: str, text: str) -> Change | Diagnostic:
    module = module_name(facts, what)
    failed = OWN_SAMPLER.at(loop.lineno, loop.col_offset + 1, text=text, why=f"no line can be put in front of the loop for {what}'s generator")
    if module is None:
        return failed
    code, name = FIRST_STATE[what]
    decisions.accelerator(loop)
    try:
        edits = merge([add_before(facts.source, loop, code.format(module=module)), ensure_import(facts.source, "accelerate.utils", name)])
    except CannotEditError:
        return failed
    return Change(CODE, NAME, f"`{text}` draws its order: every rank takes the first one's random state", loop.lineno, edits, source="R83")


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Drawn(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.randperm(self.count).tolist())

    def __len__(self):
        return self.count


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=Drawn(64))
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
from torch.utils.data import DataLoader, Sampler, TensorDataset
from accelerate import Accelerator
from accelerate.utils import synchronize_rng_states


class Drawn(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(torch.randperm(self.count).tolist())

    def __len__(self):
        return self.count


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=Drawn(64))
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

synchronize_rng_states(["torch"])
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
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Stream(IterableDataset):
    def __iter__(self):
        for number in range(64):
            yield torch.full((8,), float(number)), number % 2


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(Stream(), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A564",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Drawn(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        for _ in range(self.count):
            yield int(torch.randint(self.count, (1,)))

    def __len__(self):
        return self.count


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=Drawn(64))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A239",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Share(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        return iter(range(torch.distributed.get_rank(), self.count, torch.distributed.get_world_size()))

    def __len__(self):
        return self.count


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=Share(64))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A284",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Groups(Sampler):
    def __init__(self, groups):
        self.groups = groups

    def __iter__(self):
        return iter(self.groups)

    def __len__(self):
        return len(self.groups)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_sampler=Groups([[0, 1, 2], [3, 4]]))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A554",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Groups(Sampler):
    def __init__(self, groups):
        self.groups = groups

    def __iter__(self):
        return iter(self.groups)

    def __len__(self):
        return len(self.groups)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_sampler=Groups([[0, 1, 2], [3, 4]]))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A574",
        {"batch": "global"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Groups(Sampler):
    def __init__(self, groups, batch_size):
        self.groups, self.batch_size = groups, batch_size

    def __iter__(self):
        return iter(self.groups)

    def __len__(self):
        return len(self.groups)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_sampler=Groups([[0, 1, 2], [3, 4]], 3))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A544",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset


class Stream(IterableDataset):
    def __iter__(self):
        for number in torch.randperm(64).tolist():
            yield torch.full((8,), float(number)), number % 2


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(Stream(), batch_size=16)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A238",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=None, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A274",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Sampler, TensorDataset


class Halves(Sampler):
    def __init__(self, count):
        self.count = count

    def __iter__(self):
        yield from range(0, self.count, 2)
        yield from range(1, self.count, 2)

    def __len__(self):
        return self.count


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=Halves(64))
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
