"""Gradient accumulation by hand: the gate in front of the optimizer step, how it counts, and where the loss is divided."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, LOOPS, Backward, Facts, Loop, Step, TrainLoop
from script2accel.analysis.homes import Homes
from script2accel.analysis.precision import definition
from script2accel.analysis.values import NOTHING, Obj
from script2accel.source import walk

Linear = dict[str, int]  # symbol ("" is the constant, "i" the count, "n" the loader's length, "k" the group's size) -> coefficient


@dataclass(frozen=True, eq=False)
class Problem:
    """Something about a hand-made accumulation that isn't followed; `kind` names the message."""

    node: ast.AST
    kind: str
    why: str = ""


@dataclass(frozen=True, eq=False)
class Accumulation:
    """A loop whose optimizer steps once for a group of batches: behind a gate, or (`gate` is None) behind the loop, which makes one group.

    `size` is the group's size as the gate reads it; `ends`: a group also ends with the loader; `restarts`: the count starts anew with each run of the
    loop, and `start` is what Accelerate's own count must start with.
    """

    train: TrainLoop
    gate: ast.If | None
    size: ast.expr
    ends: bool
    restarts: bool
    start: int
    steps: tuple[Step, ...]
    flag: ast.stmt | None  # a name for the gate's test, that nothing else reads


def accumulates(facts: Facts) -> bool:
    """Whether the script already accumulates through Accelerate."""
    return any(
        isinstance(c.func, ast.Attribute) and c.func.attr == "accumulate" and facts.roles.of_node(c.func.value) == "accelerator"
        for c in facts.program.calls
    )


def accumulations(facts: Facts) -> list[Accumulation | Problem]:
    """Every hand-made accumulation whose steps stand in the file at hand, and what of it isn't followed."""
    found: dict[ast.AST, Accumulation | Problem] = {}
    for step in facts.optimizer_steps:
        result = _of_step(facts, step)
        if result is None:
            continue
        key: ast.AST = (result.gate or result.train.loop) if isinstance(result, Accumulation) else result.node
        known = found.get(key)
        if isinstance(known, Accumulation) and isinstance(result, Accumulation):
            result = Accumulation(**{**known.__dict__, "steps": (*known.steps, *result.steps)})
        found[key] = result
    by_loop: dict[ast.AST, ast.If | None] = {}
    for result in list(found.values()):
        if isinstance(result, Accumulation) and by_loop.setdefault(result.train.loop, result.gate) is not result.gate:
            node = result.gate or result.train.loop
            found[node] = Problem(node, "gate", "a second gate stands in the same loop")
    return list(found.values())


def _of_step(facts: Facts, step: Step) -> Accumulation | Problem | None:
    loops = facts.all_loops(step.call)
    backwards = facts.program.backwards_in(loops)
    train = facts.program.first_train_loop(loops)
    if train is None:
        own = facts.loops(step.call)
        deeper = [b for b in backwards if facts.function(b.call) is facts.function(step.call) and set(own) < set(facts.loops(b.call))]
        return _inner(facts, step, deeper, own) if deeper and own else None
    inner = [b for b in train.backwards if facts.function(b.call) is facts.function(step.call) and set(facts.loops(b.call)) - set(loops)]
    if inner:
        return _inner(facts, step, inner, loops)
    gates = list(_gates(facts, step, train))
    if not gates:
        return None
    if len(gates) > 1:
        return Problem(step.call, "gate", "several conditions stand around the step")
    gate = gates[0]
    if facts.function(gate) is not facts.function(train.loop) or not isinstance(train.loop, (ast.For, ast.AsyncFor)):
        return Problem(gate, "gate", "the condition stands in another function than the loop over the batches")
    if facts.program.source.of(gate).is_elif(gate):
        return Problem(gate, "gate", "it is an `elif`")
    return _read(facts, step, train, gate)


def _inner(facts: Facts, step: Step, backwards: list[Backward], outside: list[Loop]) -> Accumulation | Problem:
    """Several backward passes in an inner loop come to one step: `for _ in range(k)` makes a group of k, parts of one batch stay what they are."""
    inner = [loop for b in backwards for loop in facts.loops(b.call) if loop not in outside]
    train = next((t for t in facts.program.train_loops if t.loop in inner and set(t.backwards) == set(backwards)), None)
    if len(set(inner)) == 1 and train is not None and not any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in walk(train.loop)):
        match train.loop:
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[size])) if isinstance(
                size, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript)
            ):
                return Accumulation(train, None, size, False, False, 0, (step,), None)
    return Problem(step.call, "chunks" if all(_chunks(facts, loop) for loop in inner) else "micro")


def _chunks(facts: Facts, loop: Loop) -> bool:
    """Whether a loop runs over as many parts of a batch on every rank: `x.chunk(4)`, `zip(x.split(n), y.split(n))`, `range(k)`."""

    def parts(node: ast.expr | None) -> bool:
        match node:
            case ast.Call(func=ast.Name(id="zip" | "enumerate"), args=args):
                return bool(args) and all(parts(a) for a in args)
            case ast.Call(func=ast.Name(id="range")) | ast.Call(func=ast.Attribute(attr="chunk" | "split")):
                return not facts.machine.marks_of(node.func) or isinstance(node.func, ast.Attribute)
            case ast.Name():
                return parts(definition(facts, node))
        return False

    return isinstance(loop, ast.For) and parts(loop.iter) and not any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in walk(loop))


def _gates(facts: Facts, step: Step, train: TrainLoop) -> Iterator[ast.If]:
    """The conditions around a step that its backward pass doesn't have."""
    source = facts.program.source
    around = [set(source.ancestors(b.call)) for b in train.backwards]
    child: ast.AST = step.call
    for parent in source.ancestors(step.call):
        if parent is train.loop or isinstance(parent, (*FUNCTIONS, *LOOPS)):
            return
        if isinstance(parent, ast.If) and child is not parent.test and not any(parent in above for above in around):
            other = parent.orelse if child in parent.body else parent.body
            if not _steps_too(facts, step, other) and not _constant(facts, train, parent.test):
                yield parent
        child = parent


def _constant(facts: Facts, train: TrainLoop, test: ast.expr) -> bool:
    """Whether a condition is the same for all batches: nothing that it reads is set in the loop, or on objects outside of constructors."""
    stored = {n.id for n in walk(train.loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    for node in walk(test):
        if isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id in stored):
            return False
        if isinstance(node, ast.Attribute):
            stores = [n for n in facts.program.source.every(ast.Attribute) if n.attr == node.attr and isinstance(n.ctx, ast.Store)]
            functions = [facts.function(n) for n in stores]
            if any(not isinstance(f, ast.Module) and f.name != "__init__" for f in functions):
                return False
    said = {name for n in facts.program.source.nodes if isinstance(n, ast.Global) for name in n.names}
    return not any(isinstance(n, ast.Name) and n.id in said for n in walk(test))


def _steps_too(facts: Facts, step: Step, block: list[ast.stmt]) -> bool:
    inside = {n for s in block for n in walk(s)}
    return any(other.call in inside and set(other.objs) & set(step.objs) for other in facts.program.optimizer_steps)


# the gate ------------------------------------------------------------------------------------------------


def _read(facts: Facts, step: Step, train: TrainLoop, gate: ast.If) -> Accumulation | Problem:
    test, flag = gate.test, None
    if isinstance(test, ast.Name):
        value = definition(facts, test)
        if value is None:
            return Problem(gate, "gate", f"`{test.id}` is set in several places")
        statement = facts.program.source.statement(value)
        loads = [n for n in walk(facts.function(gate)) if isinstance(n, ast.Name) and n.id == test.id and isinstance(n.ctx, ast.Load)]
        flag, test = (statement if loads == [gate.test] else None), value
    parts = test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or) else [test]
    reader = _Reader(facts, train)
    size, offset, counter, ends = None, 0, None, False
    last: int | None = None
    for part in parts:
        end = reader.end(part)
        if end is not None:
            ends, last = True, end
            continue
        found = reader.modulo(part) or reader.reset(part, gate)
        if found is None or size is not None:
            return Problem(gate, "gate", "its condition isn't a count of batches modulo a number (and the end of the loader)")
        size, offset, counter = found
    if size is None or counter is None:
        return Problem(gate, "gate", "its condition isn't a count of batches modulo a number")
    count = _count(facts, train, gate, counter)
    if isinstance(count, str):
        return Problem(gate, "gate", count)
    first, restarts = count
    if last is not None and first - 1 + last:
        return Problem(gate, "gate", "it compares the count with the loader's length, and they don't meet at the last batch")
    restarts = restarts or (ends and reader.resets)  # a group that ends with the loader resets the count
    start = _reduced(first + offset - 1, size)
    if ends and not restarts:
        return Problem(gate, "gate", "it ends a group with the loader, and its count goes on: groups of the next epoch would be cut elsewhere")
    if start and not restarts:
        return Problem(gate, "gate", f"its groups don't begin with a batch (the count is off by {start})")
    if ends and len(train.loaders) != 1:
        return Problem(gate, "gate", "the loop runs over several loaders, so where it ends isn't one loader's end")
    return Accumulation(train, gate, size, ends, restarts, start, (step,), flag)


def _reduced(start: int, size: ast.expr) -> int:
    """A start of the count modulo the size, where that is a number; -1 stands for the one before 0."""
    if not isinstance(size, ast.Constant) or not isinstance(size.value, int) or size.value < 1:
        return start
    return -1 if (start + 1) % size.value == 0 and size.value > 1 else start % size.value


class _Reader:
    """Reads conditions over the count of batches."""

    def __init__(self, facts: Facts, train: TrainLoop) -> None:
        self.facts, self.train = facts, train
        self.counters: dict[str, ast.Name] = {}
        self.resets = False

    def modulo(self, node: ast.expr) -> tuple[ast.expr, int, ast.Name] | None:
        """`(i + c) % k == r` as (k, c - r, i)."""
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=ast.BinOp(left=left, op=ast.Mod(), right=size)):
                rest: ast.expr = ast.Constant(0)
            case ast.Compare(left=ast.BinOp(left=left, op=ast.Mod(), right=size), ops=[ast.Eq()], comparators=[rest]):
                pass
            case ast.Compare(left=rest, ops=[ast.Eq()], comparators=[ast.BinOp(left=left, op=ast.Mod(), right=size)]):
                pass
            case _:
                return None
        one, other = self.linear(left, size), self.linear(rest, size)
        if one is None or other is None or one.get("i") != 1 or one.get("n") or other.get("i") or other.get("n"):
            return None
        return size, one.get("", 0) - other.get("", 0), next(iter(self.counters.values()))

    def reset(self, node: ast.expr, gate: ast.If) -> tuple[ast.expr, int, ast.Name] | None:
        """`count == k` where the gate sets `count` to 0: the same as `count % k == 0`."""
        match node:
            case ast.Compare(left=ast.Name(id=name) as counter, ops=[ast.Eq() | ast.GtE()], comparators=[size]) if _increments(self.train, name):
                for statement in gate.body:
                    match statement:
                        case ast.Assign(targets=[ast.Name(id=other)], value=ast.Constant(value=0)) if other == name:
                            self.resets = True
                            return size, 0, counter
        return None

    def end(self, node: ast.expr) -> int | None:
        """`i + c == len(loader)` as c; None where a condition isn't about the last batch of the loop's loader."""
        match node:
            case ast.Name() if (value := definition(self.facts, node)) is not None:
                return self.end(value)
            case ast.Compare(left=left, ops=[ast.Eq() | ast.GtE() as op], comparators=[right]):
                one, other = self.linear(left, None), self.linear(right, None)
                if one is None or other is None:
                    return None
                difference = {key: one.get(key, 0) - other.get(key, 0) for key in {*one, *other}}
                if difference.get("i") == 1 and difference.get("n") == -1:
                    return difference.get("", 0)
                if difference.get("i") == -1 and difference.get("n") == 1 and isinstance(op, ast.Eq):
                    return -difference.get("", 0)
        return None

    def linear(self, node: ast.expr, size: ast.expr | None, depth: int = 0) -> Linear | None:
        """An expression as a sum of the count, the loader's length, the group's size and a constant."""
        if depth > 6:
            return None
        if size is not None and same(self.facts, node, size):
            return {"k": 1}
        match node:
            case ast.Constant(value=int(value)):
                return {"": value}
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
                one, other = self.linear(left, size, depth + 1), self.linear(right, size, depth + 1)
                if one is None or other is None:
                    return None
                sign = 1 if isinstance(op, ast.Add) else -1
                return {key: one.get(key, 0) + sign * other.get(key, 0) for key in {*one, *other}}
            case ast.Call(func=ast.Name(id="len"), args=[loader]):
                objs = {o.inner for o in self.facts.machine.at.get(loader, NOTHING).objs}
                return {"n": 1} if objs and objs <= set(self.train.loaders) else None
            case ast.Name():
                if _counts(self.facts, self.train, node.id):
                    self.counters.setdefault(node.id, node)
                    return {"i": 1} if len(self.counters) == 1 else None
                meant = definition(self.facts, node)
                return self.linear(meant, size, depth + 1) if meant is not None else None
        return None


def _enumerated(loop: Loop) -> tuple[str, int] | None:
    """The index of `for i, batch in enumerate(loader, start)` or `for i in range(...)` (a progress bar passed over), and where it starts."""
    if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
        return _ranged(loop.target.id, loop.iter)
    if not isinstance(loop, (ast.For, ast.AsyncFor)) or not isinstance(loop.target, ast.Tuple) or not isinstance(loop.target.elts[0], ast.Name):
        return None
    call = loop.iter
    while isinstance(call, ast.Call) and not (isinstance(call.func, ast.Name) and call.func.id == "enumerate"):
        call = call.args[0] if call.args else None  # type: ignore[assignment]
    if not isinstance(call, ast.Call):
        return None
    start = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "start"), None)
    if start is None:
        return loop.target.elts[0].id, 0
    return (loop.target.elts[0].id, start.value) if isinstance(start, ast.Constant) and isinstance(start.value, int) else None


def _ranged(name: str, call: ast.expr) -> tuple[str, int] | None:
    """The index of a loop over `range(n)` or `range(0, n)`, and where it starts."""
    match call:
        case ast.Call(func=ast.Name(id="range" | "trange"), args=[_]):
            return name, 0
        case ast.Call(func=ast.Name(id="range" | "trange"), args=[ast.Constant(value=int(start)), _]):
            return name, start
        case ast.Call(func=ast.Name(id="tqdm"), args=[inner]):
            return _ranged(name, inner)
    return None


def _increments(train: TrainLoop, name: str) -> list[ast.AugAssign]:
    return [
        n
        for n in walk(train.loop)
        if isinstance(n, ast.AugAssign)
        and isinstance(n.target, ast.Name)
        and n.target.id == name
        and isinstance(n.op, ast.Add)
        and isinstance(n.value, ast.Constant)
        and n.value.value == 1
    ]


def _counts(facts: Facts, train: TrainLoop, name: str) -> bool:
    index = _enumerated(train.loop)
    return (index is not None and index[0] == name) or bool(_increments(train, name))


def _count(facts: Facts, train: TrainLoop, gate: ast.If, counter: ast.Name) -> tuple[int, bool] | str:
    """(what the count is at the gate of the first batch, whether it starts anew with each run of the loop), or why that can't be told."""
    source, loop, name = facts.program.source, train.loop, counter.id
    index = _enumerated(loop)
    stores = [n for n in walk(facts.function(loop)) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    if index is not None and index[0] == name:
        if any(n not in set(walk(loop.target)) for n in stores if any(p is loop for p in source.ancestors(n))):  # type: ignore[union-attr]
            return f"`{name}` is also set in the loop"
        return index[1], True
    steps = _increments(train, name)
    if len(steps) != 1 or source.block(steps[0]) is not loop.body:
        return f"`{name}` isn't counted once for each batch"
    position = next(i for i, s in enumerate(loop.body) if s is steps[0])
    place = next((i for i, s in enumerate(loop.body) if s is gate or any(p is s for p in source.ancestors(gate))), None)
    if place is None:
        return "the gate stands deeper than the count"
    if any(isinstance(n, ast.Continue) for s in loop.body[:position] for n in walk(s)):
        return f"`{name}` isn't counted for batches that are skipped"
    reset = {n for s in gate.body if isinstance(s, ast.Assign) and isinstance(s.value, ast.Constant) and s.value.value == 0 for n in s.targets}
    others = [n for n in stores if source.statement(n) is not steps[0] and n not in reset]
    if len(others) == 2:  # made once, and set back in front of each run of the loop
        others = [n for n in others if set(facts.loops(source.statement(n))) == set(facts.loops(loop)) and facts.loops(loop)]
    owner = facts.machine.owner(source.scope(counter), name)
    if owner is not facts.function(loop):
        return f"`{name}` belongs to another function"
    if len(others) != 1 or any(p is loop for p in source.ancestors(others[0])):
        return f"`{name}` is set in several places"
    made = source.statement(others[0])
    if (
        not isinstance(made, ast.Assign)
        or made.targets != [others[0]]
        or not isinstance(made.value, ast.Constant)
        or not isinstance(made.value.value, int)
    ):
        return f"`{name}` doesn't start with a number that is written here"
    around = set(facts.loops(loop))
    restarts = set(facts.loops(made)) == around
    if not restarts and facts.loops(made):
        return f"`{name}` starts anew in another loop than this one's"
    if not restarts and len(facts.callers(facts.function(loop))) > 1:
        return f"`{facts.function(loop).name}` runs several times, and its count with it"  # type: ignore[union-attr]
    return made.value.value + (1 if position < place else 0), restarts


def begins_group(facts: Facts, found: Accumulation, gate: ast.AST) -> bool:
    """Whether another condition of the loop holds for the first batch of each group."""
    read = _Reader(facts, found.train).modulo(gate.test) if isinstance(gate, ast.If) and not gate.orelse else None
    if read is None or not isinstance(gate, ast.If) or not same(facts, read[0], found.size):
        return False
    count = _count(facts, found.train, gate, read[2])
    return not isinstance(count, str) and _reduced(count[0] + read[1] - 1, found.size) == _reduced(found.start - 1, found.size)


# sameness and names --------------------------------------------------------------------------------------


def same(facts: Facts, one: ast.expr, other: ast.expr) -> bool:
    """Whether two expressions are the same number: the same text in one function, or the same single thing that they hold."""
    source = facts.program.source
    if isinstance(one, ast.Constant) and isinstance(other, ast.Constant):
        return one.value == other.value
    if one in source.parents and other in source.parents and facts.function(one) is facts.function(other) and ast.unparse(one) == ast.unparse(other):
        return isinstance(one, (ast.Name, ast.Attribute, ast.Subscript))
    found, expected = facts.machine.at.get(one, NOTHING).objs, facts.machine.at.get(other, NOTHING).objs
    exact = [o for o in found if o.kind in ("const", "attr", "param", "item")]
    return bool(found) and found == expected and len(found) == 1 and bool(exact)


def path_of(facts: Facts, homes: Homes, obj: Obj, place: ast.AST) -> str | None:
    """How the function around a place names a model."""
    function = facts.function(place)
    for forward in facts.program.forwards:
        if obj in forward.models and facts.function(forward.call) is function and isinstance(forward.call.func, (ast.Name, ast.Attribute)):
            return ast.unparse(forward.call.func)
    bindings = [b.path for b in homes.bindings(obj, function) if "[" not in b.path]
    return bindings[-1] if bindings else None


def trained_in(facts: Facts, train: TrainLoop) -> list[Obj]:
    """The models whose forward runs in a training loop."""
    wanted = list(facts.program.models)
    called = {m for f in facts.program.forwards if train.loop in facts.all_loops(f.call) for m in f.models}
    called |= {m for m in wanted if any(what == "call" and train.loop in facts.all_loops(node) for what, node in facts.machine.uses.get(m, ()))}
    return [m for m in wanted if m in called]


# the loss ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Division:
    """Where the loss of a backward pass is divided by the group's size: `whole` is replaced by `part`; `statement`, if given, only divides and goes.

    `reads` are the other places that read the divided loss, `by` is the divisor.
    """

    backward: Backward
    whole: ast.expr
    part: ast.expr
    by: ast.expr
    statement: ast.stmt | None = None
    reads: tuple[ast.Name, ...] = ()


def division(facts: Facts, train: TrainLoop, backward: Backward, size: ast.expr) -> Division | Problem | None:
    """The division of a loss, a problem where it can't be told apart, None where the loss isn't divided."""
    loss = backward.loss
    direct = _divided(facts, loss, size)
    if direct is not None:
        return Division(backward, loss, *direct)
    if not isinstance(loss, ast.Name):
        return _elsewhere(facts, backward, size)
    function = facts.function(backward.call)
    found = []
    for node in walk(function):
        if getattr(node, "lineno", 0) > backward.call.lineno:
            continue
        match node:
            case ast.AugAssign(target=ast.Name(id=name), op=ast.Div(), value=by) if name == loss.id and same(facts, by, size):
                found.append(Division(backward, node.target, node.target, by, node))
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == loss.id and (parts := _divided(facts, value, size)) is not None:
                alone = isinstance(parts[0], ast.Name) and parts[0].id == name
                found.append(Division(backward, value, *parts, node if alone else None))
    if not found:
        return _elsewhere(facts, backward, size)
    for place in found:
        statement = place.statement or facts.program.source.statement(place.whole)
        outside = set(facts.program.source.ancestors(backward.call))
        apart = [p for p in facts.program.source.ancestors(statement) if p not in outside and isinstance(p, (ast.If, ast.Try, *LOOPS))]
        if not apart:
            continue
        above = apart[0] if len(apart) == 1 and place.statement else None
        if not isinstance(above, ast.If) or above.body != [statement] or above.orelse or not _more_than_one(facts, above.test, size):
            return Problem(statement, "division", "the loss is divided under a condition")
    if len(found) > 1:
        return Problem(backward.call, "division", f"`{loss.id}` is divided in several places")
    reads = _reads(facts, train, found[0], loss.id)
    return reads if isinstance(reads, Problem) else Division(**{**found[0].__dict__, "reads": reads})


def _more_than_one(facts: Facts, test: ast.expr, size: ast.expr) -> bool:
    """`k > 1`: the condition under which dividing by k does something."""
    match test:
        case ast.Compare(left=left, ops=[ast.Gt() | ast.NotEq()], comparators=[ast.Constant(value=1)]):
            return same(facts, left, size)
    return False


def _divided(facts: Facts, node: ast.expr, size: ast.expr) -> tuple[ast.expr, ast.expr] | None:
    match node:
        case ast.BinOp(left=part, op=ast.Div(), right=by) if same(facts, by, size):
            return part, by
        case ast.Call(func=ast.Attribute(value=part, attr="div"), args=[by], keywords=[]) if same(facts, by, size):
            return part, by
        case ast.Call(func=ast.Attribute(value=ast.Name(id="torch"), attr="div"), args=[part, by], keywords=[]) if same(facts, by, size):
            return part, by
    return None


def _elsewhere(facts: Facts, backward: Backward, size: ast.expr) -> Problem | None:
    """Whether the group's size enters the loss in another way than by one division."""
    function = facts.function(backward.call)
    wanted = {n.id for n in walk(backward.loss) if isinstance(n, ast.Name)}
    texts: list[ast.expr] = [backward.loss]
    assigns = [n for n in walk(function) if isinstance(n, (ast.Assign, ast.AugAssign)) and n.lineno <= backward.call.lineno]
    for node in sorted(assigns, key=lambda n: -n.lineno):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(n, ast.Name) and n.id in wanted for t in targets for n in walk(t)):
            texts.append(node.value)
            wanted |= {n.id for n in walk(node.value) if isinstance(n, ast.Name)}
    for text in texts:
        for part in walk(text):
            if isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)) and same(facts, part, size):
                return Problem(backward.call, "division", "the size of a group enters the loss in another way than by one division")
    for obj in facts.machine.at.get(backward.loss, NOTHING).objs:  # a helper that returns the divided loss
        site = obj.site
        if isinstance(site, ast.BinOp) and isinstance(site.op, ast.Div) and _divided(facts, site, size) is not None:
            return Problem(backward.call, "division", "the loss is divided in another function")
    return None


def _reads(facts: Facts, train: TrainLoop, found: Division, name: str) -> tuple[ast.Name, ...] | Problem:
    """The places that read the divided loss, beside the backward pass."""
    source = facts.program.source
    function = facts.function(found.backward.call)
    divider = found.statement or source.statement(found.whole)
    above = source.parents[divider]
    divider = above if isinstance(above, ast.If) and above not in set(source.ancestors(found.backward.call)) else divider
    nodes = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name]
    stores = [source.statement(n) for n in nodes if isinstance(n.ctx, ast.Store)]
    inside = [s for s in stores if any(p is train.loop for p in source.ancestors(s))]
    first = min((s.lineno for s in inside), default=divider.lineno)
    later = sorted((s for s in stores if s.lineno > divider.lineno and s is not found.statement), key=lambda s: s.lineno)
    stop = later[0].lineno if later else 10**9
    if later and source.block(later[0]) is not source.block(divider) and any(p is train.loop for p in source.ancestors(later[0])):
        return Problem(later[0], "division", f"`{name}` is set again under a condition")
    reads = []
    losses = {b.loss for b in facts.program.backwards}
    for node in nodes:
        if not isinstance(node.ctx, ast.Load) or node in losses or any(p is divider for p in source.ancestors(node)):
            continue
        if any(p is train.loop for p in source.ancestors(node)) and node.lineno < first:
            return Problem(node, "division", f"`{name}` of the batch before is read here")
        if divider.lineno < node.lineno <= stop:
            reads.append(node)
    return tuple(reads)
