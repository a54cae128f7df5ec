"""Let all ranks decide alike.

A training loss is each rank's own: a best checkpoint, an early stop or a plateau scheduler that asks it would decide differently on each
rank. The number is averaged over the ranks in front of the first decision; with one process it stays what it is, to the bit.
Left alone when the number is gathered, computed on every rank alike, or only printed. Refused where a value of one batch decides
about a backward pass, how often it runs, a step, or the end of a loop.
Source: https://huggingface.co/docs/accelerate/package_reference/utilities
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Evidence, Message, Severity
from script2accel.knowledge import torch as names_

CODE, NAME = "S2A702", "decision"
DEEP = 8  # of a longer chain of calls the analysis keeps this much: a method stands for what it gives
APART = Message(
    "S2A215",
    Severity.ERROR,
    "`{test}` differs between ranks and decides about {what}: the ranks would go different ways",
    "make the value equal first (`accelerator.gather(...)`, `accelerator.reduce(...)`, or a flag through `set_trigger`/`check_trigger`)",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    averaged: list[tuple[str, ast.stmt]] = []
    for node, test, what in _decisions(facts):
        if facts.in_module(node) or facts.inside_class(node, facts.dataset_classes):
            continue
        wanted = [n for n in _marked_names(facts, test) if not _follows(facts, n, averaged) and not _covered(facts, n, node, averaged)]
        statement = facts.source.statement(node)
        marks = facts.machine.marks_of(test)
        names = [n for n in wanted if isinstance(n, ast.Name)]
        inside = _of_one_batch(facts, node, marks)
        turns = isinstance(node, ast.For)  # how often a loop runs can't be averaged
        if not wanted and not inside and not turns:
            continue
        if turns or inside or len(names) != len(wanted) or not all(_number(facts, n) for n in names) or not _plain(facts, node):
            evidence = tuple(
                Evidence(getattr(m, "lineno", 0), "here each rank gets its own") for m in sorted(marks, key=lambda m: getattr(m, "lineno", 0))
            )
            yield APART.at(node.lineno, node.col_offset + 1, test=facts.source.segment(test)[:60], what=what, evidence=evidence)  # type: ignore[attr-defined]
            continue
        unique = list(dict.fromkeys(n.id for n in names))
        accelerator = decisions.accelerator(statement)
        code = "\n".join(f"{name} = sum(gather_object([{name}])) / {accelerator}.num_processes" for name in unique)
        try:
            edits = merge([add_before(facts.source, statement, code), ensure_import(facts.source, "accelerate.utils", "gather_object")])
        except CannotEditError:
            yield APART.at(node.lineno, node.col_offset + 1, test=facts.source.segment(test)[:60], what=what)  # type: ignore[attr-defined]
            continue
        averaged += [(name, statement) for name in unique]
        yield Change(CODE, NAME, f"it decides about {what}: averaged over the ranks, so that all decide alike", statement.lineno, edits, source="R90")


def _decisions(facts: View) -> Iterator[tuple[ast.AST, ast.expr, str]]:
    """(place, the expression that decides, about what) in the order of the text."""
    found: list[tuple[ast.AST, ast.expr, str]] = []
    for node in facts.source.nodes:
        if isinstance(node, (ast.If, ast.While)) and facts.machine.marks_of(node.test) and not _exhausted(facts, node.test):
            what = _at_stake(facts, node)
            if what:
                found.append((node, node.test, what))
        elif isinstance(node, ast.For) and not facts.loaders_of(node) and not _agrees(facts, node.iter):
            what = _at_stake(facts, node)
            if what:
                found.append((node, node.iter, f"how often it comes to {what}"))
    for step in facts.scheduler_steps:
        for arg in (*step.call.args, *(k.value for k in step.call.keywords)):
            if facts.machine.marks_of(arg):
                found.append((step.call, arg, "the learning rate"))
    yield from sorted(found, key=lambda item: item[0].lineno)  # type: ignore[attr-defined]


def _of_one_batch(facts: View, node: ast.AST, marks: frozenset[ast.AST]) -> bool:
    """Whether a value comes from the batch at hand: of a loop over a loader around the place, or of a `next` in such a loop."""
    around = facts.all_loops(node)
    if isinstance(node, ast.While) and any(facts.inside(node, mark) for mark in marks):
        return True
    drawn = {place for train in facts.program.train_loops for place, _ in train.draws}
    return any(mark in around or (mark in drawn and bool(facts.loops(mark)) and set(facts.loops(mark)) <= set(around)) for mark in marks)


def _exhausted(facts: View, test: ast.expr) -> bool:
    """Whether a test asks if a prepared loader is at its end, `batch is None`: all ranks get as many batches."""
    match test:
        case ast.Compare(left=batch, ops=[ast.Is() | ast.IsNot()], comparators=[ast.Constant(value=None)]):
            objs = [o for o in facts.machine.at.get(batch, NOTHING).objs if not (o.kind == "const" and o.name is None)]
            return bool(objs) and all(_dealt(facts, o) for o in objs)
    return False


def _dealt(facts: View, obj: Obj) -> bool:
    """Whether an object is a batch of a prepared loader, a part of one, or what a method of these gave."""
    while True:
        if obj.kind == "prepared":
            return facts.roles.of(obj) == "loader"
        method = obj.base if obj.kind == "made" else None
        if method is not None and method.kind == "attr" and method.base is not None:
            obj = method.base
        elif obj.base is not None and (obj.kind == "item" or (obj.kind == "attr" and obj.depth >= DEEP)):
            obj = obj.base
        else:
            return False


def _agrees(facts: View, node: ast.expr) -> bool:
    """Whether a loop over an expression is as long on every rank: only sizes of batches that are the same on all ranks enter it."""
    if not any(facts.machine.marks_of(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))):
        return True
    match node:
        case ast.Call(func=ast.Name(), args=parts, keywords=[]) if facts.path(node) in ("zip", "enumerate", "range", "reversed", "list"):
            return all(_agrees(facts, part) for part in parts)
        case ast.Call(func=ast.Name(id="len"), args=[batch]):
            return _uniform(facts, batch, 0)
        case ast.Call(func=ast.Attribute(value=batch, attr="size"), args=[ast.Constant(value=int(axis))]):
            return _uniform(facts, batch, axis)
        case ast.Subscript(value=ast.Attribute(value=batch, attr="shape"), slice=ast.Constant(value=int(axis))):
            return _uniform(facts, batch, axis)
        case ast.Call(func=ast.Attribute(value=batch, attr="chunk" | "split"), args=[count], keywords=[]):
            return _agrees(facts, count) and not isinstance(count, ast.List) and _uniform(facts, batch, 0)
        case ast.BinOp(left=left, right=right):
            return _agrees(facts, left) and _agrees(facts, right)
        case ast.Name() | ast.Attribute() | ast.Subscript():
            objs = facts.machine.at.get(node, NOTHING).objs
            return (bool(objs) and all(o.kind in ("list", "tuple", "dict") for o in objs)) or _uniform(facts, node, 0)
    return False


def _uniform(facts: View, batch: ast.expr, axis: int) -> bool:
    """Whether an axis of a batch is as long on every rank: the first, as prepare evens out batches; the others, where samples are alike."""
    marks = facts.machine.marks_of(batch)
    if marks and all(isinstance(m, ast.Call) and names_.RANDOM_FACTORY.match(facts.path(m)) and not facts.all_loops(m) for m in marks):
        return True  # drawn once, in front of all loops: the ranks make the same
    objs = facts.machine.at.get(batch, NOTHING).objs
    return bool(objs) and all(_from_loader(facts, o, samples_alike=axis != 0) for o in objs)


def _from_loader(facts: View, obj: Obj, *, samples_alike: bool) -> bool:
    """Whether an object is a tensor straight from a loader with the default collation (over a TensorDataset, if its samples must be alike)."""
    while obj.kind == "item" and obj.base is not None:
        obj = obj.base
    loader = obj.inner
    if facts.roles.of(obj) != "loader" or {"collate_fn", "batch_sampler"} & set(loader.keywords):
        return False
    dataset = loader.arguments[0] if loader.arguments else loader.keywords.get("dataset", NOTHING)
    return not samples_alike or (bool(dataset.objs) and all(o.path.endswith(".TensorDataset") for o in dataset.objs))


def _at_stake(facts: View, node: ast.If | ast.While | ast.For) -> str:
    blocks = [*node.body, *node.orelse]
    if isinstance(node, ast.While) and (any(b.call for b in facts.backwards if facts.inside(node, b.call))):
        return "how long training runs"
    for backward in facts.backwards:
        if any(facts.inside(s, backward.call) for s in blocks):
            return "a backward pass"
    for step in facts.optimizer_steps:
        if any(facts.inside(s, step.call) for s in blocks):
            return "an optimizer step"
    for forward in facts.forwards if _synchronises(facts) else ():
        if any(o.kind == "prepared" for o in facts.machine.at[forward.call.func].objs) and any(facts.inside(s, forward.call) for s in blocks):
            return "a forward pass of the wrapped model"
    if any(loop in facts.training_loops for loop in facts.all_loops(node)) or facts.function(node) in {
        facts.function(loop) for loop in facts.training_loops
    }:
        for inner in _own(blocks):
            if isinstance(inner, ast.Return) and _trains(facts, node):
                return "the end of a loop"
            if isinstance(inner, (ast.Break, ast.Continue)) and _leaves_training(facts, inner):
                return "the end of a loop"
    for call in facts.calls:
        if (
            facts.path(call) == "torch.save"
            or (isinstance(call.func, ast.Attribute) and call.func.attr in ("save", "save_state", "get_state_dict", "save_pretrained"))
        ) and any(facts.inside(s, call) for s in blocks):
            return "a checkpoint"
    for step in facts.scheduler_steps:
        if any(facts.inside(s, step.call) for s in blocks):
            return "the learning rate"
    return ""


def _synchronises(facts: View) -> bool:
    """Whether a forward pass of a wrapped model talks to the other ranks: where it has buffers to share."""
    return any(names_.BATCH_NORM.match(facts.path(call)) for call in facts.program.calls)


def _leaves_training(facts: View, jump: ast.AST) -> bool:
    """Whether a jump leaves, or skips a turn of, a loop that holds a backward pass, a step, or a forward that synchronises."""
    loops = facts.loops(jump)
    if not loops:
        return False
    if loops[0] in facts.training_loops:
        return True
    places = [*(s.call for s in facts.optimizer_steps), *((f.call for f in facts.forwards) if _synchronises(facts) else ())]
    return any(facts.inside(loops[0], place) for place in places)


def _trains(facts: View, node: ast.AST) -> bool:
    """Whether the function that a return would leave trains: it holds a training loop, a backward pass, a step, a forward pass."""
    function = facts.function(node)
    places = [*facts.training_loops, *(b.call for b in facts.backwards), *(s.call for s in facts.optimizer_steps), *(f.call for f in facts.forwards)]
    return any(facts.function(place) is function for place in places)


def _own(block: list[ast.stmt]) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(block)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def _marked_names(facts: View, test: ast.expr) -> list[ast.expr]:
    """The smallest names, attributes and calls of an expression that differ between ranks."""
    found: list[ast.expr] = []

    def walk(node: ast.expr) -> None:
        if isinstance(node, (ast.Name, ast.Attribute)):
            if facts.machine.marks_of(node):
                found.append(node)
            return
        children = [c for c in ast.iter_child_nodes(node) if isinstance(c, ast.expr)]
        before = len(found)
        for child in children:
            walk(child)
        if len(found) == before and facts.machine.marks_of(node):
            found.append(node)

    walk(test)
    return found


def _covered(facts: View, node: ast.expr, place: ast.AST, averaged: list[tuple[str, ast.stmt]]) -> bool:
    """Whether the name was averaged in front of an earlier statement of the same block, and not set since."""
    if not isinstance(node, ast.Name):
        return False
    for name, statement in averaged:
        if name != node.id:
            continue
        block = facts.source.block(statement)
        index = next(i for i, s in enumerate(block) if s is statement)
        for following in block[index:]:
            if any(p is following for p in (place, *facts.source.ancestors(place))):
                return True
            if any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in ast.walk(following)):
                break
    return False


def _follows(facts: View, node: ast.expr, averaged: list[tuple[str, ast.stmt]]) -> bool:
    """Whether a name only ever holds constants and copies of other names: `best = loss`."""
    if not isinstance(node, ast.Name):
        return False
    scope = facts.function(node)
    assigned = [n.value for n in ast.walk(scope) if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == node.id for t in n.targets)]
    if len(assigned) != sum(isinstance(n, ast.Name) and n.id == node.id and isinstance(n.ctx, ast.Store) for n in ast.walk(scope)):
        return False  # summed up, or bound in another way
    return bool(assigned) and all(
        isinstance(v, (ast.Constant, ast.Name))
        or (isinstance(v, ast.UnaryOp) and isinstance(v.operand, ast.Constant))
        or not facts.machine.marks_of(v)
        or _picks(v, node.id)
        for v in assigned
    )


def _picks(value: ast.expr, name: str) -> bool:
    """`best = max(acc, best)`."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("min", "max")
        and any(isinstance(a, ast.Name) and a.id == name for a in value.args)
    )


def _plain(facts: View, node: ast.AST) -> bool:
    """Whether every rank comes to the place."""
    return not any(isinstance(p, ast.If) and facts.machine.marks_of(p.test) for p in facts.source.ancestors(node))


def _number(facts: View, node: ast.expr) -> bool:
    """Whether a value is a Python float: an average or a loss's `.item()`."""
    objs = facts.machine.at.get(node, NOTHING).objs
    return bool(objs) and all(_float(facts, o, frozenset()) for o in objs) and any(o.kind != "const" for o in objs)


def _foreign(obj: Obj) -> bool:
    """Whether a value comes out of a call of a library that isn't torch: an environment's reward."""
    probe: Obj = obj
    while probe.kind in ("item", "attr") and probe.base is not None:
        probe = probe.base
    callee = probe.base
    while callee is not None and callee.kind in ("attr", "made") and callee.base is not None:
        callee = callee.base
    return callee is not None and callee.kind == "external" and str(callee.name).split(".")[0] not in ("torch", "torchvision")


def _float(facts: View, obj: Obj, seen: frozenset[Obj]) -> bool:
    if len(seen) > 40:
        return False
    if obj.kind == "const":
        return isinstance(obj.name, (int, float)) and not isinstance(obj.name, bool)
    if obj.kind == "made":
        if obj.base is not None and obj.base.kind == "attr":
            return obj.base.name == "item"
        return obj.path in ("float", "sum", "len", "numpy.mean", "statistics.mean", "numpy.average", "round")
    if obj.kind == "item":
        return _foreign(obj)
    if obj.kind == "expr" and isinstance(obj.site, (ast.BinOp, ast.AugAssign)):
        parts = facts.machine.operands.get(obj.site, [])
        inner = [o for values in parts for value in values for o in value.objs if o is not obj]
        return bool(inner) and all(o in seen or _float(facts, o, seen | {obj}) or o.kind == "attr" for o in inner)
    return False


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
best = 1e9
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = total / len(loader)
    if mean < best:
        best = mean
        torch.save(model.state_dict(), "best.pt")
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import gather_object

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
best = 1e9
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
    mean = total / len(loader)
    mean = sum(gather_object([mean])) / accelerator.num_processes
    if mean < best:
        best = mean
        accelerator.save(accelerator.get_state_dict(model), "best.pt")
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
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    scheduler.step(total / len(loader))
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import gather_object

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
    total = sum(gather_object([total])) / accelerator.num_processes
    scheduler.step(total / len(loader))
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
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    mean = total / len(loader)
    scheduler.step(mean)
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import gather_object

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item()
    mean = total / len(loader)
    mean = sum(gather_object([mean])) / accelerator.num_processes
    scheduler.step(mean)
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
    if loss.item() > 100:
        continue
    loss.backward()
    optimizer.step()
""",
        "S2A215",
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
    for part in x.split(int(y.sum()) + 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(part), y[: len(part)])
        loss.backward()
        optimizer.step()
""",
        "S2A215",
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
best = 1e9
for epoch in range(3):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(total / len(loader))
""",
        None,
    ),
]
