"""Take the DistributedSampler out: a prepared loader deals out batches itself.

Its `shuffle` (on unless it says otherwise) and `drop_last` move to the DataLoader; its `seed` becomes the loaders' `data_seed` with
seedable samplers, so that every epoch has the order that the sampler gave it: one process sees the very same batches, several the same
samples in every step. `sampler.set_epoch(e)` becomes `loader.set_epoch(e)`. Where the sampler's name is used in other ways, a plain sampler
takes its place.
Left alone: samplers that aren't distributed.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#prepare-pytorch-objects
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from script2accel.analysis.facts import Facts, View
from script2accel.analysis.homes import Homes
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import add_argument, drop_argument, ensure_import, merge, remove_statement, replace, replace_range
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions, ident
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A504", "distributed-sampler"
CHOICE = Message(
    "S2A522",
    Severity.ERROR,
    "the DistributedSampler's `{text}` isn't a constant: what its loader must do can't be written down",
    "take the sampler out, give the DataLoader what it decides, and convert again",
)
ORDER = Message(
    "S2A523",
    Severity.WARNING,
    "the samplers' seeds differ or aren't constants: the loaders shuffle with the script's own random state, in another order than the samplers did",
    "",
)
LENGTH = Message(
    "S2A524",
    Severity.ERROR,
    "`{text}` counts one rank's share of the samples, and the sampler is gone",
    "count through the dataset (`len(dataset)`) and `accelerator.num_processes`, and convert again",
)
LAST = Message(
    "S2A525",
    Severity.NOTE,
    "`drop_last` of the sampler left out less than one sample per rank; the loader's leaves out its last incomplete batch",
    "",
)
WHOLE = Message(
    "S2A535",
    Severity.WARNING,
    "`drop_last` of an evaluation's sampler goes with it: where its samples don't fill all ranks' last batches, the first ones are counted twice",
    "take a number of samples that the processes and the batch size divide, or gather with `accelerator.gather_for_metrics`",
)
SAME = Message(
    "S2A526", Severity.NOTE, "the order of samples changes from epoch to epoch now: without `set_epoch` the sampler repeated the first one", ""
)
READ = Message("S2A527", Severity.ERROR, "`{text}` reads the DistributedSampler, which is taken out", "take this use out, and convert again")
REASON = "a prepared loader deals out batches itself: a second share would lose half of the data (measured)"


@dataclass(eq=False)
class _Sampler:
    """One DistributedSampler call: what it decides, and where it goes."""

    call: ast.Call
    obj: Obj
    shuffle: bool
    drop_last: bool
    seed: int | None
    loaders: list[Obj] = field(default_factory=list)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    program = facts.program
    every = _samplers(program)
    mine = [s for s in every if s.call in facts.calls]
    if every:
        yield from _seed(facts, decisions, every, mine)
    for sampler in mine:
        bad = _unclear(sampler.call)
        if bad is not None:
            yield CHOICE.at(bad.value.lineno, bad.value.col_offset + 1, text=facts.source.segment(bad))
            continue
        trains = {o for loop in facts.program.train_loops for o in loop.loaders}
        if sampler.drop_last and not any(o in trains for o in sampler.loaders):
            sampler.drop_last = False  # an evaluation counts every sample
            yield WHOLE.at(sampler.call.lineno, sampler.call.col_offset + 1)
        elif sampler.drop_last:
            yield LAST.at(sampler.call.lineno, sampler.call.col_offset + 1)
        yield from _taken_out(facts, decisions, sampler)
    if every:
        yield from _epochs(facts, decisions, every)
        yield from _reads(facts, every)


def _samplers(facts: Facts) -> list[_Sampler]:
    found = []
    for call in facts.calls:
        if not names.DISTRIBUTED_SAMPLER.match(facts.path(call)):
            continue
        for obj in facts.machine.at.get(call, NOTHING).objs:
            if obj.site is call:
                loaders = [
                    reader
                    for reader in facts.machine.world.table.values()
                    if reader.kind == "made" and names.LOADER.match(reader.path) and obj in reader.keywords.get("sampler", NOTHING).objs
                ]
                found.append(_Sampler(call, obj, _flag(call, "shuffle", 3, True), _flag(call, "drop_last", 5, False), _seed_of(call), loaders))
    return found


def _given(call: ast.Call, name: str, index: int) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), call.args[index] if len(call.args) > index else None)


def _flag(call: ast.Call, name: str, index: int, default: bool) -> bool:
    node = _given(call, name, index)
    return bool(node.value) if isinstance(node, ast.Constant) else default


def _seed_of(call: ast.Call) -> int | None:
    node = _given(call, "seed", 4)
    return 0 if node is None else node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else None


def _unclear(call: ast.Call) -> ast.keyword | None:
    """An argument that decides about the order and isn't a constant."""
    return next((k for k in call.keywords if k.arg is None or (k.arg in ("shuffle", "drop_last") and not isinstance(k.value, ast.Constant))), None)


def _seed(facts: View, decisions: Decisions, every: list[_Sampler], mine: list[_Sampler]) -> Iterator[Diagnostic]:
    shuffling = [s for s in every if s.shuffle]
    seeds = {s.seed for s in shuffling}
    if not shuffling:
        return
    if len(seeds) == 1 and None not in seeds:
        decisions.loader_arguments["use_seedable_sampler"] = "True"
        decisions.loader_arguments["data_seed"] = str(seeds.pop())
    elif mine:
        yield ORDER.at(mine[0].call.lineno, mine[0].call.col_offset + 1)
    called = any(isinstance(c.func, ast.Attribute) and c.func.attr == "set_epoch" for c in facts.program.calls)
    if not called and mine and mine[0].shuffle:
        yield SAME.at(mine[0].call.lineno, mine[0].call.col_offset + 1)


# the sampler and its loaders -----------------------------------------------------------------------------


def _taken_out(facts: View, decisions: Decisions, sampler: _Sampler) -> Iterator[Change | Diagnostic]:
    source, call = facts.source, sampler.call
    keyword, whole = _keyword(facts, call)
    if keyword is not None and whole:  # DataLoader(..., sampler=DistributedSampler(...))
        loader = source.parents[keyword]
        assert isinstance(loader, ast.Call)
        yield Change(CODE, NAME, REASON, loader.lineno, _loader(facts, sampler, loader), source="R12")
        return
    assigned = _assignments(facts, sampler)
    calls = [reader.site for reader in sampler.loaders if isinstance(reader.site, ast.Call)]
    if assigned is not None and calls and all(c in facts.calls for c in calls):
        for statement in assigned:
            decisions.gone.add(statement)
            yield Change(CODE, NAME, REASON, statement.lineno, remove_statement(source, statement), source="R12")
        for loader in dict.fromkeys(calls):
            yield Change(CODE, NAME, REASON, loader.lineno, _loader(facts, sampler, loader), source="R12")
        return
    kind = "RandomSampler" if sampler.shuffle else "SequentialSampler"
    data = _given(call, "dataset", 0)
    if data is None:
        yield CHOICE.at(call.lineno, call.col_offset + 1, text=source.segment(call))
        return
    edits = merge([replace(source, call, f"{kind}({source.segment(data)})"), ensure_import(source, "torch.utils.data", kind)])
    yield Change(CODE, NAME, REASON, call.lineno, edits, source="R12")


def _keyword(facts: View, node: ast.expr) -> tuple[ast.keyword | None, bool]:
    """The keyword that an expression is the value of, alone or in a choice against None; and whether nothing else is chosen."""
    parent = facts.source.parents[node]
    while isinstance(parent, ast.IfExp) and node is not parent.test:
        other = parent.orelse if parent.body is node else parent.body
        if not (isinstance(other, ast.Constant) and other.value is None):
            return None, False
        node, parent = parent, facts.source.parents[parent]
    return (parent, True) if isinstance(parent, ast.keyword) and parent.arg == "sampler" else (None, False)


def _assignments(facts: View, sampler: _Sampler) -> list[ast.stmt] | None:
    """The statements that bind the sampler's name, when that name is used for loaders and epochs only."""
    source = facts.source
    value: ast.expr = sampler.call
    parent = source.parents[value]
    if isinstance(parent, ast.IfExp) and isinstance(parent.orelse if parent.body is value else parent.body, ast.Constant):
        value, parent = parent, source.parents[parent]
    if not (isinstance(parent, ast.Assign) and len(parent.targets) == 1 and isinstance(parent.targets[0], (ast.Name, ast.Attribute))):
        return None
    text, scope = ast.unparse(parent.targets[0]), facts.function(parent)
    local = isinstance(parent.targets[0], ast.Name)
    found: list[ast.stmt] = []
    for node in source.nodes:
        if (
            not isinstance(node, (ast.Name, ast.Attribute))
            or ast.unparse(node) != text
            or (local and facts.function(node) is not scope and not isinstance(scope, ast.Module))
        ):
            continue
        statement = source.statement(node)
        if isinstance(node.ctx, ast.Store):
            if not (isinstance(statement, ast.Assign) and len(statement.targets) == 1):
                return None
            if (
                statement is not parent
                and not (isinstance(statement.value, ast.Constant) and statement.value.value is None)
                and not _deals(facts, statement.value)
            ):
                return None
            if _deals(facts, statement.value) and statement is not parent:
                return None  # two of them under one name: a plain sampler takes their place
            found.append(statement)
        elif not _harmless(facts, node, sampler):
            return None
    return found


def _deals(facts: View, node: ast.expr) -> bool:
    return any(names.DISTRIBUTED_SAMPLER.match(o.path) for o in facts.machine.at.get(node, NOTHING).objs)


def _harmless(facts: View, node: ast.expr, sampler: _Sampler) -> bool:
    """Whether a use of the sampler's name goes with it: `sampler=s`, `shuffle=(s is None)`, `s.set_epoch(e)` and the `if` around that."""
    source = facts.source
    parent = source.parents[node]
    keyword, _ = _keyword(facts, node)
    if keyword is not None:
        return source.parents[keyword] in [reader.site for reader in sampler.loaders]
    if isinstance(parent, ast.Attribute) and parent.attr == "set_epoch":
        return True
    for above in source.ancestors(node):
        if isinstance(above, ast.keyword):
            return above.arg == "shuffle" and source.parents[above] in [reader.site for reader in sampler.loaders]
        if isinstance(above, ast.If):
            return _only_epoch(above)
        if isinstance(above, ast.stmt):
            return False
    return False


def _only_epoch(node: ast.If) -> bool:
    match node:
        case ast.If(body=[ast.Expr(value=ast.Call(func=ast.Attribute(attr="set_epoch")))], orelse=[]):
            return True
    return False


def _loader(facts: View, sampler: _Sampler, loader: ast.Call) -> tuple[Edit, ...]:
    """The DataLoader without the sampler, shuffling as it did."""
    source = facts.source
    given = next(k for k in loader.keywords if k.arg == "sampler")
    shuffle = next((k for k in loader.keywords if k.arg == "shuffle"), None)
    edits: list[tuple[Edit, ...]] = []
    if shuffle is not None:
        start, end = source.outer(shuffle.value)
        if source.text[start:end] != str(sampler.shuffle):
            edits.append(replace_range(start, end, str(sampler.shuffle)))
        edits.append(drop_argument(source, loader, given))
    elif sampler.shuffle and len(loader.args) < 3:
        edits.append(replace_range(source.start(given), source.outer(given.value)[1], "shuffle=True"))
    else:
        edits.append(drop_argument(source, loader, given))
    if sampler.drop_last and not any(k.arg == "drop_last" for k in loader.keywords):
        edits.append(add_argument(source, loader, "drop_last=True"))
    return merge(edits)


# epochs --------------------------------------------------------------------------------------------------


def _epochs(facts: View, decisions: Decisions, every: list[_Sampler]) -> Iterator[Change]:
    source, homes = facts.source, Homes(facts.program)
    for call in facts.calls:
        if not (isinstance(call.func, ast.Attribute) and call.func.attr == "set_epoch"):
            continue
        owner = call.func.value
        statement = source.statement(call)
        if isinstance(owner, ast.Attribute) and owner.attr in ("sampler", "batch_sampler") and facts.roles.of_node(owner.value) == "loader":
            loaders = [o.inner for o in facts.roles.objects(owner.value, "loader")]
            if not any(o in s.loaders for s in every for o in loaders):
                continue
            path: str | None = source.segment(owner.value)
        else:
            objs = facts.machine.at.get(owner, NOTHING).objs
            loaders = [reader for s in every if s.obj in objs for reader in s.loaders]
            if not any(s.obj in objs for s in every):
                continue
            path = next(
                (
                    b.path
                    for reader in loaders
                    for b in reversed(homes.bindings(reader, facts.function(call)))
                    if b.path.replace(".", "").isidentifier()
                ),
                None,
            )
        prepared = bool(loaders) and all(ident(o) in decisions.plan.prepared for o in loaders)
        block = source.parents[statement]
        guard = block if isinstance(block, ast.If) and _only_epoch(block) and _asks_sampler(facts, block.test, owner) else None
        if path is None or not prepared:
            gone = guard or statement
            decisions.gone.add(gone)
            yield Change(
                CODE,
                NAME,
                "the loader counts its epochs itself" if prepared else "its loader isn't dealt out, so it has no epochs",
                call.lineno,
                remove_statement(source, gone),
                source="R12",
            )
            continue
        edits = replace_range(source.start(owner), source.end(owner), path)
        if guard is not None:
            edits = merge([replace_range(source.start(guard), source.start(statement), ""), edits])
        yield Change(CODE, NAME, "the prepared loader shuffles by the epoch", call.lineno, edits, source="R12")


def _asks_sampler(facts: View, test: ast.expr, owner: ast.expr) -> bool:
    text = ast.unparse(owner)
    for node in walk(test):
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node) == text:
            return True
        if any(names.DISTRIBUTED_SAMPLER.match(str(o.name)) for o in facts.machine.at.get(node, NOTHING).objs if o.kind == "external"):
            return True
    return isinstance(test, ast.Call) and facts.path(test) == "hasattr"


def _left_out(facts: View, call: ast.Call) -> ast.Compare | None:
    """The test whether a sampler leaves samples out: `len(loader.sampler) * world_size < len(loader.dataset)`."""
    product = facts.source.parents[call]
    test = facts.source.parents[product]
    match test:
        case ast.Compare(
            left=ast.BinOp(op=ast.Mult()) as left,
            ops=[ast.Lt()],
            comparators=[ast.Call(func=ast.Name(id="len"), args=[ast.Attribute(attr="dataset")])],
        ) if left is product:
            return test
    return None


def _dead(facts: View, call: ast.Call, test: ast.expr) -> bool:
    """Whether a place stands in a block that only runs when a test, now false, is true."""
    for parent in facts.source.ancestors(call):
        if isinstance(parent, ast.If) and (
            parent.test is test
            or (isinstance(parent.test, ast.BoolOp) and isinstance(parent.test.op, ast.And) and any(p is test for p in parent.test.values))
        ):
            return not any(n is call for n in walk(parent.test))
    return False


def _reads(facts: View, every: list[_Sampler]) -> Iterator[Change | Diagnostic]:
    """`len(sampler)`, `len(loader.sampler)` and other questions to a sampler that is gone."""
    done: set[ast.expr] = set()
    for call in facts.calls:
        if facts.path(call) == "len" and len(call.args) == 1:
            arg = call.args[0]
            objs = facts.machine.at.get(arg, NOTHING).objs
            through = (
                isinstance(arg, ast.Attribute)
                and arg.attr == "sampler"
                and any(o.inner in s.loaders for s in every for o in facts.roles.objects(arg.value, "loader"))
            )
            left_out = _left_out(facts, call) if through else None
            if left_out is not None:
                yield Change(
                    CODE, NAME, "a prepared loader leaves no samples out", call.lineno, replace(facts.source, left_out, "False"), source="R12"
                )
                done.add(left_out)
            elif (through or any(s.obj in objs for s in every)) and not any(_dead(facts, call, test) for test in done):
                yield LENGTH.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call))
    for node in facts.source.nodes:
        if not (isinstance(node, ast.Attribute) and node.attr in ("num_replicas", "rank", "num_samples", "total_size", "epoch")):
            continue
        if any(s.obj in facts.machine.at.get(node.value, NOTHING).objs for s in every):
            yield READ.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(data, batch_size=16, shuffle=(sampler is None), sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    loader.set_epoch(epoch)
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=False, drop_last=True))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    loader.sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, drop_last=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    loader.set_epoch(epoch)
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def build(data):
    sampler = DistributedSampler(data)
    return DataLoader(data, batch_size=16, sampler=sampler), sampler


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader, sampler = build(data)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for epoch in range(2):
    if isinstance(sampler, DistributedSampler):
        sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import RandomSampler


def build(data):
    sampler = RandomSampler(data)
    return DataLoader(data, batch_size=16, sampler=sampler), sampler


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader, sampler = build(data)
model = nn.Linear(8, 2)
accelerator = Accelerator(dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    loader.set_epoch(epoch)
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
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

shuffles = input() == "yes"
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data, shuffle=shuffles))
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A522",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(len(sampler))
""",
        "S2A524",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(sampler.num_replicas)
""",
        "S2A527",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, sampler=RandomSampler(data))
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
