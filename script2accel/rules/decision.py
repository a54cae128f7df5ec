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
from script2accel.analysis.whole import whole_dataset
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge, replace, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Evidence, Message, Severity
from script2accel.knowledge import torch as names_
from script2accel.source import children, walk

CODE, NAME = "S2A702", "decision"
DEEP = 8  # of a longer chain of calls the analysis keeps this much: a method stands for what it gives
APART = Message(
    "S2A215",
    Severity.ERROR,
    "`{test}` differs between ranks and decides about {what}: the ranks would go different ways",
    "make the value equal first (`accelerator.gather(...)`, `accelerator.reduce(...)`, or a flag through `set_trigger`/`check_trigger`)",
)


CHOSEN = Message(
    "S2A715",
    Severity.WARNING,
    "`{test}` differs between ranks and decides about {what}: each rank chooses for its own part of the batch",
    "with one process the whole batch chooses; ask for a number that is equal on all ranks (`accelerator.reduce`) if that matters",
)
SWALLOWED = Message(
    "S2A725",
    Severity.ERROR,
    "an exception of one rank alone is caught here, and training goes on: the other ranks would wait for its gradients",
    "let the exception end the run, or catch it outside of the training loop",
)
LOSS = "the loss"
KEEPING = frozenset({"save", "save_state", "get_state_dict", "save_pretrained", "state_dict", "load_state_dict"})
Decided = tuple[ast.AST, ast.expr, str]


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    yield from _swallowed(facts)
    averaged: list[tuple[str, ast.stmt]] = []
    for node, test, what in _with_guards(facts, list(_decisions(facts))):
        if facts.in_module(node) or facts.inside_class(node, facts.dataset_classes):
            continue
        wanted = [n for n in _marked_names(facts, test) if not _follows(facts, n) and not _covered(facts, n, node, averaged)]
        statement = _top(facts, node)
        marks = facts.machine.marks_of(test)
        names = [n for n in wanted if isinstance(n, ast.Name)]
        inside = _of_one_batch(facts, node, marks)
        turns = isinstance(node, ast.For)  # how often a loop runs can't be averaged
        if not wanted and not inside and not turns:
            continue
        plain = not turns and _plain(facts, node, averaged)
        if inside and not wanted and plain and not _marked_names(facts, test):
            plain = False
        if plain and (found := _together(facts, decisions, node, test, wanted)) is not None:
            yield Change(CODE, NAME, f"it decides about {what}: all ranks ask for the same number", node.lineno, found, source="R90")  # type: ignore[attr-defined]
            continue
        numbers = len(names) == len(wanted) and all(_loss_number(facts, n) if inside else _number(facts, n) for n in names)
        if not plain or not numbers or not names:
            yield _apart(facts, node, test, what, marks)
            continue
        unique = list(dict.fromkeys(n.id for n in names))
        try:
            edits = merge([add_before(facts.source, statement, _averages(facts, decisions, statement, names)), _gathers(facts)])
        except CannotEditError:
            yield _apart(facts, node, test, what, frozenset())
            continue
        averaged += [(name, statement) for name in unique]
        yield Change(CODE, NAME, f"it decides about {what}: averaged over the ranks, so that all decide alike", statement.lineno, edits, source="R90")


def _swallowed(facts: View) -> Iterator[Diagnostic]:
    """Handlers that go on with the next batch when a forward or backward pass fails on this rank (for want of memory, say)."""
    for node in facts.source.every(ast.Try):
        if not any(facts.inside(s, b.call) for s in node.body for b in facts.backwards):
            continue
        if not facts.in_train_loop(node):
            continue
        for handler in node.handlers:
            named = "" if handler.type is None else ast.unparse(handler.type)
            catches = not named or any(word in named for word in ("RuntimeError", "Exception", "OutOfMemory", "ValueError"))
            if catches and not isinstance(handler.body[-1], ast.Raise) and not any(_ends(facts, s) for s in handler.body):
                yield SWALLOWED.at(handler.lineno, handler.col_offset + 1)


def _ends(facts: View, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and facts.machine.ends(statement.value)


def _apart(facts: View, node: ast.AST, test: ast.expr, what: str, marks: frozenset[ast.AST]) -> Diagnostic:
    evidence = tuple(Evidence(getattr(m, "lineno", 0), "here each rank gets its own") for m in sorted(marks, key=lambda m: getattr(m, "lineno", 0)))
    message = CHOSEN if what == LOSS else APART
    return message.at(node.lineno, node.col_offset + 1, test=facts.source.segment(test)[:60], what=what, evidence=evidence)  # type: ignore[attr-defined]


def _gathers(facts: View) -> tuple[Edit, ...]:
    return ensure_import(facts.source, "accelerate.utils", "gather_object")


def _averages(facts: View, decisions: Decisions, statement: ast.stmt, names: list[ast.Name]) -> str:
    """Lines that set each name to what one process would have: the mean over the ranks, or the sum of their shares of the whole dataset."""
    accelerator = decisions.accelerator(statement)
    lines = []
    for name in {n.id: n for n in names}.values():
        share = "" if _share(facts, name) else f" / {accelerator}.num_processes"
        lines.append(f"{name.id} = sum(gather_object([{name.id}])){share}")
    return "\n".join(lines)


def _share(facts: View, name: ast.Name) -> bool:
    """Whether a number is a rank's own sum divided by the size of the whole dataset."""
    for node in walk(facts.function(name)):
        match node:
            case ast.Assign(targets=[ast.Name(id=target)], value=ast.BinOp(op=ast.Div(), right=size)):
                pass
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Div(), value=size):
                pass
            case _:
                continue
        if target == name.id and whole_dataset(facts, size):
            return True
    return False


def _together(facts: View, decisions: Decisions, node: ast.AST, test: ast.expr, wanted: list[ast.expr]) -> tuple[Edit, ...] | None:
    """A test that all ranks answer alike: of the mean of a loss, or of a clock when the first of them says so."""
    if not isinstance(node, (ast.If, ast.While)) or not wanted:
        return None
    marks = facts.machine.marks_of(test)
    if marks and all(isinstance(m, ast.Call) and names_.CLOCK.match(facts.path(m)) for m in marks):
        decisions.accelerator(node)
        word = "any" if isinstance(node, ast.If) else "all"
        return merge([wrap_expression(facts.source, test, f"{word}(gather_object([", "]))"), _gathers(facts)])
    losses = [_loss(facts, n) for n in wanted]
    if isinstance(node, ast.While) or any(n is None for n in losses):
        return None
    accelerator = decisions.accelerator(node)
    return merge([replace(facts.source, n, f'{accelerator}.reduce({n.id}.detach(), reduction="mean")') for n in losses if n is not None])


def _loss(facts: View, node: ast.expr) -> ast.Name | None:
    """The name of a scalar loss that a part of a test asks for: `loss`, `loss.item()`."""
    if isinstance(node, ast.Attribute) and node.attr in ("item", "detach", "data", "isnan", "isinf", "isfinite", "cpu"):
        node = node.value
    if not isinstance(node, ast.Name) or facts.roles.of_node(node) != "loss":
        return None
    objs = facts.machine.at[node].objs
    whole = [b for b in facts.program.backwards if not b.call.keywords and facts.machine.at.get(b.loss, NOTHING).objs & objs]
    return node if whole else None


def _loss_number(facts: View, node: ast.expr) -> bool:
    """Whether a name holds a training loss as a Python number."""
    objs = facts.machine.at.get(node, NOTHING).objs
    return bool(objs) and all(
        o.kind == "made"
        and o.base is not None
        and o.base.kind == "attr"
        and o.base.name == "item"
        and o.base.base is not None
        and facts.roles.of(o.base.base) == "loss"
        for o in objs
    )


def _top(facts: View, node: ast.AST) -> ast.stmt:
    """The statement in front of which a decision can be prepared: for an `elif` the first `if` of its chain."""
    statement = facts.source.statement(node)
    while facts.source.is_elif(statement):
        statement = facts.source.parents[statement]  # type: ignore[assignment]
    return statement


def _with_guards(facts: View, found: list[Decided]) -> list[Decided]:
    """The decisions, and those that they follow from: the tests under which a flag or a count that they ask for is set."""
    known = {node for node, _, _ in found}
    waiting = list(found)
    while waiting:
        _, test, what = waiting.pop()
        for name in _marked_names(facts, test):
            for place, _ in _settings(facts, name) if _follows(facts, name) else ():
                for parent in facts.source.ancestors(place):
                    if isinstance(parent, FUNCTIONS):
                        break
                    if isinstance(parent, (ast.If, ast.While)) and parent not in known and facts.machine.marks_of(parent.test):
                        known.add(parent)
                        found.append((parent, parent.test, what))
                        waiting.append(found[-1])
    return sorted(found, key=lambda item: item[0].lineno)  # type: ignore[attr-defined]


def _settings(facts: View, name: ast.expr) -> list[tuple[ast.stmt, ast.expr]]:
    """What sets a name in its function, or an attribute of `self` in its class: the statement, the value."""
    scope: ast.AST = facts.function(name)
    if isinstance(name, ast.Attribute):
        scope = facts.source.scope(scope)
    text = ast.unparse(name)
    found: list[tuple[ast.stmt, ast.expr]] = []
    for node in walk(scope):
        if not isinstance(node, (ast.Assign, ast.AugAssign)):
            continue
        for target in _targets(node):
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple) and len(target.elts) == len(node.value.elts):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            found += [(node, value) for part, value in pairs if ast.unparse(part) == text]
    return found


def _targets(node: ast.Assign | ast.AugAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _decisions(facts: View) -> Iterator[Decided]:
    """(place, the expression that decides, about what) in the order of the text."""
    found: list[Decided] = []
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
    if not any(facts.machine.marks_of(n) for n in walk(node) if isinstance(n, (ast.Name, ast.Attribute))):
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
    if marks and all(isinstance(m, ast.Assign) for m in marks):
        return True  # columns of the data, as many on every rank
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
    for call in _keeping(facts):
        if any(facts.inside(s, call) for s in blocks):
            return "a checkpoint"
    for step in facts.scheduler_steps:
        if any(facts.inside(s, step.call) for s in blocks):
            return "the learning rate"
    if isinstance(node, ast.If) and any(_sets_loss(facts, s) for s in walk(node)):
        return LOSS
    return ""


def _keeping(facts: View) -> list[ast.Call]:
    """The calls that keep weights: they save, or copy a model."""
    known = facts.__dict__
    if "keeping" not in known:
        known["keeping"] = [
            call
            for call in facts.calls
            if facts.path(call) == "torch.save"
            or (isinstance(call.func, ast.Attribute) and call.func.attr in KEEPING)
            or (facts.path(call) == "copy.deepcopy" and call.args and facts.roles.of_node(call.args[0]) == "model")
        ]
    return known["keeping"]  # type: ignore[no-any-return]


def _sets_loss(facts: View, node: ast.AST) -> bool:
    """Whether a statement sets a name from which a backward pass starts in the same function."""
    if not isinstance(node, (ast.Assign, ast.AugAssign)) or not facts.in_train_loop(node):
        return False
    starts = {b.loss.id for b in facts.backwards if isinstance(b.loss, ast.Name) and facts.function(b.call) is facts.function(node)}
    return any(isinstance(t, ast.Name) and t.id in starts for t in _targets(node))


def _synchronises(facts: View) -> bool:
    """Whether a forward pass of a wrapped model talks to the other ranks: where it has buffers to share."""
    known = facts.program.__dict__
    if "synchronises" not in known:
        known["synchronises"] = any(names_.BATCH_NORM.match(facts.path(call)) for call in facts.program.calls)
    return bool(known["synchronises"])


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
        waiting += children(node)


def _marked_names(facts: View, test: ast.expr) -> list[ast.expr]:
    """The smallest names, attributes and calls of an expression that differ between ranks."""
    found: list[ast.expr] = []

    def follow(node: ast.expr) -> None:
        if isinstance(node, (ast.Name, ast.Attribute)):
            if facts.machine.marks_of(node):
                found.append(node)
            return
        before = len(found)
        for child in [c for c in children(node) if isinstance(c, ast.expr)]:
            follow(child)
        if len(found) == before and facts.machine.marks_of(node):
            found.append(node)

    follow(test)
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
            if any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in walk(following)):
                break
    return False


def _follows(facts: View, node: ast.expr) -> bool:
    """Whether a name, or an attribute of `self`, only ever holds constants, counts, and copies of other names: `best = loss`, `bad += 1`."""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    if not (isinstance(node, ast.Name) or own):
        return False
    set_in = _settings(facts, node)
    text = ast.unparse(node)
    scope: ast.AST = facts.function(node) if isinstance(node, ast.Name) else facts.source.scope(facts.function(node))
    bound = [n for n in walk(scope) if isinstance(n, (ast.Name, ast.Attribute)) and isinstance(n.ctx, ast.Store) and ast.unparse(n) == text]
    if not set_in or len(set_in) != len(bound):
        return False  # bound in another way
    return all(
        not facts.machine.marks_of(value)
        or (isinstance(statement, ast.Assign) and (isinstance(value, (ast.Constant, ast.Name)) or _picks(value, text)))
        for statement, value in set_in
    )


def _picks(value: ast.expr, name: str) -> bool:
    """`best = max(acc, best)`."""
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in ("min", "max")
        and any(isinstance(a, ast.Name) and a.id == name for a in value.args)
    )


def _plain(facts: View, node: ast.AST, averaged: list[tuple[str, ast.stmt]]) -> bool:
    """Whether every rank comes to the place: what stands around it asks for nothing of one rank's own, or for what is averaged by then."""
    return not any(
        isinstance(p, ast.If)
        and facts.machine.marks_of(p.test)
        and not all(_follows(facts, n) or _covered(facts, n, p, averaged) for n in _marked_names(facts, p.test))
        for p in facts.source.ancestors(node)
    )


def _number(facts: View, node: ast.expr) -> bool:
    """Whether a value is a Python float: an average or a loss's `.item()`."""
    objs = facts.machine.at.get(node, NOTHING).objs
    return bool(objs) and all(_float(facts, o, frozenset()) for o in objs) and any(_measured(facts, o, frozenset()) for o in objs)


def _measured(facts: View, obj: Obj, seen: frozenset[Obj]) -> bool:
    """Whether a number comes from a measurement, and isn't only counted up: the mean of counts means nothing."""
    if obj.kind != "expr" or obj in seen or len(seen) > 40:
        return obj.kind in ("made", "item")
    parts = facts.machine.operands.get(obj.site, []) if obj.site is not None else []
    return any(_measured(facts, o, seen | {obj}) for values in parts for value in values for o in value.objs)


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
            return obj.base.name in ("item", "size", "numel")
        return obj.path in ("float", "sum", "len", "numpy.mean", "statistics.mean", "numpy.average", "round")
    if obj.kind == "item":
        return _foreign(obj)
    if obj.kind == "expr" and isinstance(obj.site, (ast.BinOp, ast.AugAssign, ast.UnaryOp)):
        parts = facts.machine.operands.get(obj.site, [])
        inner = [o for values in parts for value in values for o in value.objs if o is not obj]
        return bool(inner) and all(o in seen or _float(facts, o, seen | {obj}) or o.kind == "attr" for o in inner)
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

start = time.time()
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if torch.isnan(loss):
            continue
        loss.backward()
        optimizer.step()
    if time.time() - start > 3600:
        break
""",
        """\
import time

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

start = time.time()
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        if torch.isnan(accelerator.reduce(loss.detach(), reduction="mean")):
            continue
        accelerator.backward(loss)
        optimizer.step()
    if any(gather_object([time.time() - start > 3600])):
        break
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

best, bad = 1e9, 0
for epoch in range(10):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * x.size(0)
    total /= len(loader.dataset)
    if total < best:
        best, bad = total, 0
    else:
        bad += 1
    if bad > 2:
        break
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

best, bad = 1e9, 0
for epoch in range(10):
    total = 0.0
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        total += loss.item() * x.size(0)
    total /= len(loader.dataset)
    total = sum(gather_object([total]))
    if total < best:
        best, bad = total, 0
    else:
        bad += 1
    if bad > 2:
        break
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

many = 0
for epoch in range(10):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if y.float().mean() > 0.5:
            many += 1
    if many > 5:
        break
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
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    if y.sum() > 10:
        loss = loss * 2
    loss.backward()
    optimizer.step()
""",
        "S2A715",
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
    try:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    except RuntimeError as error:
        if "out of memory" not in str(error):
            raise
        torch.cuda.empty_cache()
""",
        "S2A725",
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
    if accelerator.reduce(loss.detach(), reduction="mean").item() > 100:
        continue
    accelerator.backward(loss)
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
import random
from collections import deque

import torch
from torch import nn

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memory = deque(maxlen=500)
for episode in range(50):
    done = False
    while not done:
        memory.append(torch.randn(3))
        done = random.random() < 0.2
    if len(memory) > 20:
        loss = model(torch.stack(random.sample(memory, 8))).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
        "S2A215",
    ),
    (
        """\
import random
from collections import deque

import torch
from torch import nn

model = nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memory = deque(maxlen=500)
for episode in range(50):
    while True:
        memory.append(torch.randn(3))
        if random.random() < 0.2:
            break
    if len(memory) > 20:
        loss = model(torch.stack(random.sample(memory, 8))).pow(2).mean()
        optimizer.zero_grad()
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
