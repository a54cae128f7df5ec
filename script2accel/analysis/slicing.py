"""Batches sliced by hand: a loop over the places of the data, whose index tells which rows a batch takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import Facts, TrainLoop
from script2accel.analysis.rows import leaves, meaning, ordered
from script2accel.analysis.undealt import Judge
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names
from script2accel.source import walk

__all__ = ["Sliced", "dealt_by_hand", "divisions", "ordered", "sliced_loops"]
LENGTHS = frozenset({"len", "size", "shape", "numel"})


@dataclass(frozen=True, eq=False)
class Sliced:
    """A `for index in range(...)` that slices the batches of a training loop: itself, or the loop of a generator that it reads.

    `stop` and `step` are the range's (no step: the index counts batches); `draws` are the statements that draw the order of the rows between
    passes; `problem` is (place, why) where the rows can't be dealt out to several processes. Where a state is carried along, `columns` is the
    statement that lays the data out in independent columns, and their number as it is given there: then the columns are dealt out.
    """

    train: TrainLoop
    loop: ast.For
    call: ast.Call
    index: str
    stop: ast.expr
    step: ast.expr | None
    draws: tuple[ast.stmt, ...] = ()
    problem: tuple[ast.AST, str] | None = None
    columns: tuple[ast.Assign, ast.expr] | None = None


def sliced_loops(facts: Facts) -> list[Sliced]:
    """Every training loop without a loader whose batches are slices, in the order of the text."""
    found = []
    for train in facts.train_loops:
        loops = _index_loops(facts, train) if not train.loaders else []
        ranges = [(loop, r) for loop in loops if (r := _range(facts, loop)) is not None]
        if len(ranges) == 1 and len(loops) == 1:
            (loop, (call, index, stop, step)) = ranges[0]
            draws = tuple(dict.fromkeys(facts.source.statement(d) for d in _orders(facts, train, loop)))
            judge, columns = Judge(facts, train, loop, index, stop), None
            problem = judge.problem(draws)
            if problem is not None and not draws and loop is train.loop and judge.only_carries():
                columns = _columns(facts, loop, index)
            found.append(Sliced(train, loop, call, index, stop, step, draws, problem if columns is None else None, columns))
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
    parts = list(meaning(facts, stop))
    divided = any(isinstance(p, ast.BinOp) and isinstance(p.op, (ast.FloorDiv, ast.Div)) for p in parts)
    return divided and any((isinstance(p, ast.Name) and p.id in LENGTHS) or (isinstance(p, ast.Attribute) and p.attr in LENGTHS) for p in parts)


def _slices_by(facts: Facts, loop: ast.For, index: str, stop: ast.expr) -> bool:
    """Whether the loop takes `[index * size : ...]` of something, and its end is something divided by that size."""
    sizes = {ast.unparse(p.right) for p in meaning(facts, stop) if isinstance(p, ast.BinOp) and isinstance(p.op, (ast.FloorDiv, ast.Div))}
    for node in walk(loop):
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


def _orders(facts: Facts, train: TrainLoop, loop: ast.For) -> Iterator[ast.Call]:
    """The draws that order the rows anew for each pass: in a loop, and outside of the loop over the batches."""
    for backward in train.backwards:
        for mark in sorted(facts.machine.marks_of(backward.loss), key=lambda m: getattr(m, "lineno", 0)):
            around = facts.all_loops(mark)
            if isinstance(mark, ast.Call) and around and loop not in around and train.loop not in around:
                yield mark


def _columns(facts: Facts, loop: ast.For, index: str) -> tuple[ast.Assign, ast.expr] | None:
    """`data = batchify(source, size)`: where the data that a loop goes through was laid out in `size` columns, if nothing else reads it."""
    bases = {ast.unparse(b) for node in walk(loop) for b in _gone_through(node, index)}
    values = facts.program.assigned.get(next(iter(bases)), []) if len(bases) == 1 else []
    call = values[0] if len(values) == 1 else None
    statement = facts.source.statement(call) if call is not None else None
    if not isinstance(call, ast.Call) or not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name) or call.keywords:
        return None
    name = statement.targets[0].id
    reads = {n for n in facts.source.every(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)} - set(walk(loop))
    if facts.all_loops(statement) or not all(_measured(facts, n) for n in reads):
        return None
    for function in (o.site for o in facts.machine.at[call.func].objs):
        if not isinstance(function, ast.FunctionDef):
            return None
        for node in walk(function):
            match node:
                case ast.Call(
                    func=ast.Attribute(
                        value=ast.Call(
                            func=ast.Attribute(attr="view" | "reshape"), args=[ast.Name(id=size), ast.UnaryOp(operand=ast.Constant(value=1))]
                        ),
                        attr="t" | "transpose",
                    )
                ):
                    places = [i for i, a in enumerate(function.args.args) if a.arg == size]
                    if places and places[0] < len(call.args):
                        return statement, call.args[places[0]]
    return None


def _measured(facts: Facts, node: ast.Name) -> bool:
    """Whether only the length of some data is asked for."""
    match facts.source.parents[node]:
        case ast.Call(func=ast.Name(id="len")) | ast.Attribute(attr="size" | "shape"):
            return True
    return False


def _gone_through(node: ast.AST, index: str) -> Iterator[ast.Name]:
    """What an index runs along: `data[index : ...]`, or `get_batch(data, index)`."""
    match node:
        case ast.Subscript(value=ast.Name() as base, slice=ast.Slice() as rows) if any(isinstance(n, ast.Name) and n.id == index for n in walk(rows)):
            yield base
        case ast.Call(args=[ast.Name() as base, ast.Name(id=name)]) if name == index:
            yield base


def dealt_by_hand(facts: Facts, train: TrainLoop) -> bool:
    """Whether the batches of a loop follow from the process's place already."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "process_index" for b in train.backwards for node, _ in facts.machine.drawn_into(b.loss)
    )


def divisions(facts: Facts, sliced: Sliced) -> Iterator[ast.BinOp]:
    """Divisions of a process's own sum by the number of all rows or batches."""
    counts = leaves(facts, sliced.stop, sliced.step)
    counted = {n.target.id for n in walk(sliced.train.loop) if isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name)}
    for node in facts.source.every(ast.BinOp):
        if isinstance(node.op, ast.Div) and facts.machine.marks_of(node.left):
            right = leaves(facts, node.right)
            if right & counts and not right & counted and not facts.machine.marks_of(node.right) and _measures(facts, node.right, sliced):
                yield node


def _measures(facts: Facts, node: ast.expr, sliced: Sliced) -> bool:
    """Whether a number is that of all rows or batches: it reads what the range's end is computed from (not only the batch's size)."""
    ends = leaves(facts, sliced.stop) - (leaves(facts, sliced.step) if sliced.step is not None else frozenset())
    return bool(leaves(facts, node) & ends) and facts.machine.at.get(node, NOTHING) is not NOTHING
