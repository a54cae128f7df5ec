"""Batches sliced by hand: a loop over the places of the data, whose index tells which rows a batch takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import FUNCTIONS, Facts, Forward, TrainLoop
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names

LENGTHS = frozenset({"len", "size", "shape", "numel"})
SHOWING = frozenset({"info", "debug", "warning", "set_description", "set_postfix", "set_postfix_str", "write", "append"})
JUMPS = (ast.Break, ast.Continue, ast.Return)


@dataclass(frozen=True, eq=False)
class Sliced:
    """A `for index in range(...)` that slices the batches of a training loop: itself, or the loop of a generator that it reads.

    `stop` and `step` are the range's (no step: the index counts batches); `draws` are the statements that draw the order of the rows between
    passes; `problem` is (place, why) where the rows can't be dealt out to several processes.
    """

    train: TrainLoop
    loop: ast.For
    call: ast.Call
    index: str
    stop: ast.expr
    step: ast.expr | None
    draws: tuple[ast.stmt, ...] = ()
    problem: tuple[ast.AST, str] | None = None


def sliced_loops(facts: Facts) -> list[Sliced]:
    """Every training loop without a loader whose batches are slices, in the order of the text."""
    found = []
    for train in facts.train_loops:
        loops = _index_loops(facts, train) if not train.loaders else []
        ranges = [(loop, r) for loop in loops if (r := _range(facts, loop)) is not None]
        if len(ranges) == 1 and len(loops) == 1:
            (loop, (call, index, stop, step)) = ranges[0]
            draws = tuple(dict.fromkeys(facts.source.statement(d) for d in _orders(facts, train, loop)))
            problem = _Judge(facts, train, loop, index, stop).problem(draws)
            found.append(Sliced(train, loop, call, index, stop, step, draws, problem))
    return found


def _index_loops(facts: Facts, train: TrainLoop) -> list[ast.For]:
    """The loops over a range whose index the losses are computed from: the training loop, or that of a generator which it reads."""
    found: dict[ast.For, None] = {}
    for backward in train.backwards:
        for node, obj in facts.machine.drawn_into(backward.loss):
            ranged = isinstance(node, ast.For) and obj.path in ("range", "tqdm.trange")
            if ranged and (node is train.loop or (_yields(facts, node) and facts.runs_in(train.loop, node))):
                found[node] = None  # type: ignore[index]
    return list(found)


def _yields(facts: Facts, node: ast.AST) -> bool:
    """Whether a place stands in a generator that something reads."""
    function = facts.function(node)
    return any(obj.name == "generator" and obj.site is function for _, obj in facts.machine.drawings.values())


def _range(facts: Facts, loop: ast.For) -> tuple[ast.Call, str, ast.expr, ast.expr | None] | None:
    """(the call of range, the index, stop, step) of a loop over the places of the data, through enumerate and progress bars."""
    target, call = loop.target, loop.iter
    while isinstance(call, ast.Call) and facts.path(call) not in ("range", "tqdm.trange"):
        if facts.path(call) == "enumerate" and isinstance(target, ast.Tuple) and len(target.elts) == 2:
            target = target.elts[1]
        elif not names.PROGRESS.match(facts.path(call)):
            return None
        if not call.args:
            return None
        call = call.args[0]
    if not isinstance(call, ast.Call) or not isinstance(target, ast.Name) or any(isinstance(a, ast.Starred) for a in call.args):
        return None
    match call.args:
        case [stop] | [ast.Constant(value=0), stop]:
            return (call, target.id, stop, None) if _counts_batches(facts, stop) or _slices_by(facts, loop, target.id, stop) else None
        case [ast.Constant(value=0), stop, step]:
            return call, target.id, stop, step
    return None


def _counts_batches(facts: Facts, stop: ast.expr) -> bool:
    """Whether a number is the length of some data, or that divided: so many rows or batches, not so many steps."""
    values = facts.program.assigned.get(ast.unparse(stop), []) if isinstance(stop, (ast.Name, ast.Attribute)) else [stop]
    if values and all(_length(value) for value in values):
        return True
    parts = list(_meaning(facts, stop))
    divided = any(isinstance(p, ast.BinOp) and isinstance(p.op, (ast.FloorDiv, ast.Div)) for p in parts)
    return divided and any((isinstance(p, ast.Name) and p.id in LENGTHS) or (isinstance(p, ast.Attribute) and p.attr in LENGTHS) for p in parts)


def _slices_by(facts: Facts, loop: ast.For, index: str, stop: ast.expr) -> bool:
    """Whether the loop takes `[index * size : ...]` of something, and its end is something divided by that size."""
    sizes = {ast.unparse(p.right) for p in _meaning(facts, stop) if isinstance(p, ast.BinOp) and isinstance(p.op, (ast.FloorDiv, ast.Div))}
    for node in ast.walk(loop):
        match node:
            case ast.Slice(lower=ast.BinOp(left=left, op=ast.Mult(), right=right)):
                texts = {ast.unparse(left), ast.unparse(right)}
                if index in texts and texts & sizes:
                    return True
    return False


def _length(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="len"), args=[_]) | ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=0)]):
            return True
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=0)):
            return True
    return False


def _meaning(facts: Facts, node: ast.expr, depth: int = 0) -> Iterator[ast.AST]:
    """Every node of an expression and of what is assigned to the names in it."""
    for part in ast.walk(node):
        yield part
        if isinstance(part, (ast.Name, ast.Attribute)) and depth < 4:
            for value in facts.program.assigned.get(ast.unparse(part), ()):
                yield from _meaning(facts, value, depth + 1)


def leaves(facts: Facts, *nodes: ast.expr | None) -> frozenset[str]:
    """The names and attributes that expressions are computed from, through assignments."""
    parts = [p for node in nodes if node is not None for p in _meaning(facts, node)]
    return frozenset(ast.unparse(p) for p in parts if isinstance(p, (ast.Name, ast.Attribute))) - {"len", "int", "max", "min", "math", "math.ceil"}


def _orders(facts: Facts, train: TrainLoop, loop: ast.For) -> Iterator[ast.Call]:
    """The draws that order the rows anew for each pass: in a loop, and outside of the loop over the batches."""
    for backward in train.backwards:
        for mark in sorted(facts.machine.marks_of(backward.loss), key=lambda m: getattr(m, "lineno", 0)):
            around = facts.all_loops(mark)
            if isinstance(mark, ast.Call) and around and loop not in around and train.loop not in around:
                yield mark


class _Judge:
    """Whether the batches of one loop can be dealt out to several processes."""

    def __init__(self, facts: Facts, train: TrainLoop, loop: ast.For, index: str, stop: ast.expr) -> None:
        self.facts, self.train, self.loop, self.index = facts, train, loop, index
        self.counts = leaves(facts, stop)
        self.forwards = [f for f in facts.forwards if facts.inside(train.loop, f.call) and not quiet(facts, f.call)]

    def problem(self, draws: tuple[ast.stmt, ...]) -> tuple[ast.AST, str] | None:
        """The first thing that is in the way."""
        for look in (self._shared, self._carried, self._cut_short, self._horizon):
            found = look()
            if found is not None:
                return found
        for draw in draws:
            if ordered(draw) is None or self.facts.function(draw) is not self.facts.function(self.loop):
                return draw, "the order of the rows is drawn in a way that can't be made equal on all processes"
        return _strays(self.facts, self.loop.body, self.index)

    def _shared(self) -> tuple[ast.AST, str] | None:
        """A loop that also evaluates would be dealt out there too."""
        facts = self.facts
        for backward in self.train.backwards:
            for parent in facts.source.ancestors(backward.call):
                if parent is self.train.loop:
                    break
                if isinstance(parent, ast.If):
                    return parent, "the same loop runs without training too, and there every process must see all rows"
        if self.loop is self.train.loop:
            return None
        function = facts.function(self.loop)
        endless = any(isinstance(loop, ast.While) for loop in facts.loops(self.loop))
        for node, obj in facts.machine.drawings.values():
            if obj.name == "generator" and obj.site is function:
                if node is not self.train.loop and not facts.inside(self.train.loop, node):
                    return self.loop, "other loops read the same generator"
                if isinstance(node, ast.Call) and not endless:
                    return node, "as many batches are asked for as one process makes of the data"
        return None

    def _carried(self) -> tuple[ast.AST, str] | None:
        """What one batch hands on to the next, other than through the weights."""
        facts = self.facts
        for loop in dict.fromkeys((self.loop, self.train.loop)):
            wanted = self._wanted(loop)
            targets = _expression(loop.target) if isinstance(loop, (ast.For, ast.AsyncFor)) else ()
            first = {text: "store" for _, text, _ in targets}
            for what, text, node in _events(loop.body):
                first.setdefault(text, what)
                if what == "store" and first[text] == "load" and text in wanted:
                    return node, f"`{text}` is carried from one batch to the next"
        for cls in sorted(facts.module_classes, key=lambda c: c.lineno):
            if (state := _state(cls)) is not None:
                return state, f"`{cls.name}` keeps `{ast.unparse(state)}` from one batch to the next"
        for forward in self.forwards:
            function = facts.function(forward.call)
            if function is not facts.function(self.train.loop) and (state := _state(function)) is not None:
                return state, f"`{ast.unparse(state)}` is kept from one batch to the next"
        return None

    def _wanted(self, loop: ast.For | ast.AsyncFor | ast.While) -> set[str]:
        """The names and attributes from which a loop's text computes batches and what models are given."""
        inside = set(ast.walk(loop))
        calls = [f.call for f in self.forwards if f.call in inside]
        calls += [c for c in self.facts.calls if c in inside and any(self.facts.inside(c, f.call) or self._runs(c, f) for f in self.forwards)]
        given = [a for c in calls for a in (*c.args, *(k.value for k in c.keywords))]
        given += [n.value for n in inside if isinstance(n, (ast.Yield, ast.YieldFrom)) and n.value is not None]
        return _reads_into(loop, given)

    def _runs(self, call: ast.Call, forward: Forward) -> bool:
        function = self.facts.function(forward.call)
        return any(call is c for c in self.facts.callers(function))

    def _cut_short(self) -> tuple[ast.AST, str] | None:
        """A jump that depends on the rows at hand: the last batches differ in size."""
        for loop in dict.fromkeys((self.loop, self.train.loop)):
            wanted = self._wanted(loop) | {self.index}
            for node in (n for s in loop.body for n in ast.walk(s)):
                jumps = isinstance(node, ast.If) and any(isinstance(n, JUMPS) for s in (*node.body, *node.orelse) for n in ast.walk(s))
                if isinstance(node, ast.If) and jumps and wanted & {text for _, text, _ in _expression(node.test)}:
                    return node, f"`{ast.unparse(node.test)}` leaves out batches, and not the same ones on each process"
        return None

    def _horizon(self) -> tuple[ast.AST, str] | None:
        """A scheduler that steps with the batches and was told how many one process makes."""
        facts = self.facts
        for step in facts.scheduler_steps:
            for scheduler in step.objs if facts.inside(self.train.loop, step.call) else ():
                site = scheduler.site
                given = [*site.args, *(k.value for k in site.keywords)][1:] if isinstance(site, ast.Call) else []
                if site is not None and leaves(facts, *given) & self.counts:
                    return site, "the scheduler's horizon is a number of batches of one process"
        return None


def _strays(facts: Facts, body: list[ast.stmt], index: str, depth: int = 0) -> tuple[ast.AST, str] | None:
    """Where an index, or what is computed from it, does more than choose rows: each process has other indices."""
    tainted = {index}
    growing = True
    while growing:
        growing = False
        for node in (n for s in body for n in ast.walk(s)):
            if not isinstance(node, ast.Name) or node.id not in tainted:
                continue
            if isinstance(node.ctx, ast.Store):
                if node.id == index:
                    return node, f"`{index}` is set again in the loop"
                continue
            kept = _chooses_rows(facts, node, depth)
            if isinstance(kept, set):
                growing = growing or bool(kept - tainted)
                tainted |= kept
            elif kept is not None:
                return kept, f"`{node.id}` does more than choose rows there, and it is another one on each process"
    return None


def _chooses_rows(facts: Facts, node: ast.Name, depth: int) -> ast.AST | set[str] | None:
    """Nothing where a name's use only chooses rows or is printed, the names that it is assigned to, or the place where it does more."""
    child: ast.AST = node
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.Subscript) and child is parent.slice:
            return None
        if isinstance(parent, ast.Call) and child is not parent.func:
            functions = [o.site for o in facts.machine.at.get(parent.func, NOTHING).objs if o.kind in ("function", "method")]
            if functions:
                return _inside_function(facts, parent, child, functions, depth)
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            parts = [p for t in targets for p in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]
            return {p.id for p in parts if isinstance(p, ast.Name)} if all(isinstance(p, ast.Name) for p in parts) else parent
        if isinstance(parent, ast.If) and child is parent.test:
            return None if all(_harmless(facts, s) for s in (*parent.body, *parent.orelse)) else parent
        if isinstance(parent, ast.Expr):
            return None if _harmless(facts, parent) else parent
        if isinstance(parent, ast.stmt):
            return parent
        child = parent
    return node


def _inside_function(facts: Facts, call: ast.Call, given: ast.AST, functions: list[ast.AST | None], depth: int) -> ast.AST | None:
    """Where a function of the script that is given an index does more with it than choose rows."""
    for function in functions:
        if not isinstance(function, FUNCTIONS) or depth > 2:
            return call
        names_ = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        names_ = names_[1:] if names_[:1] == ["self"] else names_
        keyword = next((k.arg for k in call.keywords if k is given or k.value is given), None)
        place = next((i for i, a in enumerate(call.args) if a is given), None)
        name = keyword or (names_[place] if place is not None and place < len(names_) else None)
        found = _strays(facts, function.body, name, depth + 1) if name is not None else (call, "")
        if found is not None:
            return found[0]
    return None


def _harmless(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a statement sets something, or only shows or collects what it is given."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Pass)):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    path = facts.path(call)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return path == "print" or path.startswith("logging.") or method in SHOWING or names.WRITER_METHODS.match(method) is not None


def ordered(statement: ast.stmt) -> ast.Name | ast.Attribute | None:
    """What a statement that draws an order leaves it in, if it is one thing."""
    match statement:
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as order]):
            return order
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="shuffle") | ast.Name(id="shuffle"), args=[ast.Name() | ast.Attribute() as order])):
            return order
    return None


def _text(node: ast.AST) -> str | None:
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else None


def _events(body: list[ast.stmt]) -> Iterator[tuple[str, str, ast.AST]]:
    """Loads and stores of names and attributes in the order in which they happen."""
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                yield from _expression(value)
                for target in targets:
                    yield from _expression(target)
            case ast.AugAssign(target=target, value=value):
                yield from _expression(value)
                if (text := _text(target)) is not None:
                    yield "load", text, target
                    yield "store", text, target
            case ast.For(target=target, iter=source, body=inner, orelse=rest):
                yield from _expression(source)
                yield from _expression(target)
                yield from _events([*inner, *rest])
            case ast.If(test=test, body=inner, orelse=rest) | ast.While(test=test, body=inner, orelse=rest):
                yield from _expression(test)
                yield from _events([*inner, *rest])
            case ast.With(items=items, body=inner):
                for item in items:
                    yield from _expression(item.context_expr)
                yield from _events(inner)
            case ast.Try(body=inner, handlers=handlers, orelse=rest, finalbody=last):
                yield from _events([*inner, *rest, *(s for h in handlers for s in h.body), *last])
            case _ if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                yield from _expression(statement)


def _expression(node: ast.AST) -> Iterator[tuple[str, str, ast.AST]]:
    for inner in ast.walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)):
            yield ("store" if isinstance(inner.ctx, ast.Store) else "load"), ast.unparse(inner), inner


def _reads_into(loop: ast.AST, given: list[ast.expr]) -> set[str]:
    """The names and attributes from which, in a loop's text, some expressions are computed."""
    wanted = {text for arg in given for _, text, _ in _expression(arg)}
    growing = True
    while growing:
        before = len(wanted)
        for node in ast.walk(loop):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if wanted & {text for t in targets for inner in ast.walk(t) if (text := _text(inner)) is not None}:
                    wanted |= {text for _, text, _ in _expression(node.value)}
        growing = len(wanted) > before
    return wanted


def _state(scope: ast.AST) -> ast.Attribute | None:
    """An attribute of `self` that methods set while they run, and read."""
    methods = [f for f in ast.walk(scope) if isinstance(f, FUNCTIONS) and f.name not in ("__init__", "reset_parameters")]
    attributes = [n for f in methods for n in ast.walk(f) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"]
    read = {n.attr for n in attributes if isinstance(n.ctx, ast.Load)}
    return next((n for n in attributes if isinstance(n.ctx, ast.Store) and n.attr in read), None)


def dealt_by_hand(facts: Facts, train: TrainLoop) -> bool:
    """Whether the batches of a loop follow from the process's place already."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "process_index" for b in train.backwards for node, _ in facts.machine.drawn_into(b.loss)
    )


def divisions(facts: Facts, sliced: Sliced) -> Iterator[ast.BinOp]:
    """Divisions of a process's own sum by the number of all rows or batches."""
    counts = leaves(facts, sliced.stop, sliced.step)
    counted = {n.target.id for n in ast.walk(sliced.train.loop) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    for node in facts.source.nodes:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and facts.machine.marks_of(node.left):
            right = leaves(facts, node.right)
            if right & counts and not right & counted and not facts.machine.marks_of(node.right) and _measures(facts, node.right, sliced):
                yield node


def _measures(facts: Facts, node: ast.expr, sliced: Sliced) -> bool:
    """Whether a number is that of all rows or batches: it reads what the range's end is computed from (not only the batch's size)."""
    ends = leaves(facts, sliced.stop) - (leaves(facts, sliced.step) if sliced.step is not None else frozenset())
    return bool(leaves(facts, node) & ends) and facts.machine.at.get(node, NOTHING) is not NOTHING
