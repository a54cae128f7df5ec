"""Checkpoints of a training: what a saved table holds, and where what was loaded goes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk

STATEFUL = ("model", "criterion", "optimizer", "scaler")
"""The roles whose state `save_state` keeps by itself; beside them the generators of random numbers, here `random`."""
_FORMATTED = re.compile(r"[^/\\%{}]*$")


@dataclass(frozen=True, eq=False)
class Entry:
    """One entry of a table that is saved. `node` is what stands in the text: a key, a keyword, or a statement that sets it.

    `role` and `objs` tell whose `state_dict()` the entry is; empty for every other value.
    """

    key: object
    node: ast.AST
    value: ast.expr
    role: str = ""
    objs: tuple[Obj, ...] = ()


@dataclass(frozen=True, eq=False)
class Table:
    """A dict that is saved: the expression that makes it, and its entries, those that statements add included."""

    node: ast.Dict | ast.Call
    entries: tuple[Entry, ...]

    def of(self, role: str) -> list[Entry]:
        """The entries that hold states of a role."""
        return [e for e in self.entries if e.role == role]


@dataclass(frozen=True, eq=False)
class Saved:
    """A call of `torch.save` that writes tables of states."""

    call: ast.Call
    target: ast.expr
    tables: tuple[Table, ...]


@dataclass(frozen=True, eq=False)
class Restored:
    """`x.load_state_dict(checkpoint["key"])` of something whose state `save_state` keeps."""

    call: ast.Call
    owner: ast.expr
    role: str
    objs: tuple[Obj, ...]
    key: object


@dataclass(frozen=True, eq=False)
class Loaded:
    """A call of `torch.load` of whose result parts go into models and optimizers.

    `reads` are all places that take one entry (place, key); `strays` are uses of the whole that aren't followed.
    """

    call: ast.Call
    target: ast.expr
    restored: tuple[Restored, ...]
    reads: tuple[tuple[ast.AST, object], ...]
    strays: tuple[ast.AST, ...]

    def roles(self) -> set[str]:
        """The roles that get a state."""
        return {r.role for r in self.restored}


def argument(call: ast.Call, index: int, *names: str) -> ast.expr | None:
    """An argument by its place or name."""
    return call.args[index] if len(call.args) > index else next((k.value for k in call.keywords if k.arg in names), None)


def state_of(facts: Facts, node: ast.expr) -> tuple[str, tuple[Obj, ...]]:
    """Whose state an expression is, `x.state_dict()` or one of two of them: role and objects; ('', ()) for anything else."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="state_dict"), args=[], keywords=[]):
            return _held(facts, owner)
        case ast.IfExp(body=first, orelse=second):
            one, other = state_of(facts, first), state_of(facts, second)
            return one if one[0] and one[0] == other[0] and set(one[1]) == set(other[1]) else ("", ())
        case ast.Call() if facts.path(node) in names.RANDOM_STATE:
            return "random", ()
    return "", ()


def _held(facts: Facts, owner: ast.expr) -> tuple[str, tuple[Obj, ...]]:
    for role in STATEFUL:
        if found := facts.objects(owner, role):
            return role, found
    return "", ()


# saving --------------------------------------------------------------------------------------------------


def saved(facts: Facts) -> list[Saved]:
    """The calls of `torch.save` that write nothing but tables in which a state of a model and one of an optimizer stand."""
    found = []
    for call in facts.calls:
        given, target = argument(call, 0, "obj"), argument(call, 1, "f")
        if facts.path(call) != "torch.save" or given is None or target is None:
            continue
        objs = facts.machine.at.get(given, NOTHING).objs
        tables = [table for o in objs if o.kind == "dict" and (table := _table(facts, o)) is not None]
        if tables and len(tables) == len(objs) and all(t.of("model") and t.of("optimizer") for t in tables):
            found.append(Saved(call, target, tuple(tables)))
    return found


def _table(facts: Facts, obj: Obj) -> Table | None:
    node = obj.site
    entries: list[Entry] = []
    if isinstance(node, ast.Dict):
        entries = [_entry(facts, k.value, k, v) for k, v in zip(node.keys, node.values, strict=True) if isinstance(k, ast.Constant)]
    elif isinstance(node, ast.Call) and not node.args:
        entries = [_entry(facts, k.arg, k, k.value) for k in node.keywords if k.arg is not None]
    else:
        return None
    for stored in facts.source.nodes:
        match stored:
            case ast.Subscript(value=owner, slice=ast.Constant(value=key), ctx=ast.Store()) if obj in facts.machine.at.get(owner, NOTHING).objs:
                statement = facts.source.parents[stored]
                if isinstance(statement, ast.Assign) and statement.targets == [stored]:
                    entries.append(_entry(facts, key, statement, statement.value))
    return Table(node, tuple(entries))


def _entry(facts: Facts, key: object, node: ast.AST, value: ast.expr) -> Entry:
    role, objs = state_of(facts, value)
    return Entry(key, node, value, role, objs)


def other_uses(facts: Facts, table: Table) -> Iterator[ast.AST]:
    """Places that do something else with a saved table than hand it on, add an entry to it or save it."""
    objs = {o for o in facts.machine.at.get(table.node, NOTHING).objs if o.site is table.node}
    for node in facts.source.nodes:
        if not isinstance(node, (ast.Name, ast.Attribute, ast.Dict, ast.Call)) or not objs & facts.machine.at.get(node, NOTHING).objs:
            continue
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            continue
        parent = facts.source.parents[node]
        if isinstance(parent, ast.keyword):
            parent = facts.source.parents[parent]
        match parent:
            case ast.Assign() | ast.AnnAssign() | ast.Return():
                continue
            case ast.Subscript(value=owner, slice=ast.Constant(value=key)) if owner is node:
                if not isinstance(parent.ctx, ast.Load) or not any(e.role and e.key == key for e in table.entries):
                    continue
            case ast.Call() if parent.func is not node and (facts.path(parent) == "torch.save" or _own(facts, parent)):
                continue
        yield node


def _own(facts: Facts, call: ast.Call) -> bool:
    """Whether a call runs a function of the script."""
    objs = facts.machine.at.get(call.func, NOTHING).objs
    return bool(objs) and all(o.kind in ("function", "method", "class") for o in objs)


# loading -------------------------------------------------------------------------------------------------


def loaded(facts: Facts) -> list[Loaded]:
    """The calls of `torch.load` of whose result a part goes into a model or an optimizer."""
    found = []
    for call in facts.calls:
        target = argument(call, 0, "f")
        if facts.path(call) == "torch.load" and target is not None:
            made = frozenset(o for o in facts.machine.at.get(call, NOTHING).objs if o.kind == "made")
            item = _followed(facts, call, target, made)
            if item.restored:
                found.append(item)
    return found


def _followed(facts: Facts, call: ast.Call, target: ast.expr, made: frozenset[Obj]) -> Loaded:
    restored: list[Restored] = []
    reads: list[tuple[ast.AST, object]] = []
    strays: list[ast.AST] = []
    for node in facts.source.every(ast.Name, ast.Attribute, ast.Call):
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            continue
        if not made & facts.machine.at.get(node, NOTHING).objs:
            continue
        parent = facts.source.parents[node]
        match parent:
            case ast.Subscript(value=owner, slice=ast.Constant(value=key), ctx=ast.Load()) if owner is node:
                reads.append((parent, key))
            case ast.Attribute(value=owner, attr="get") if owner is node and _asks(facts, parent) is not None:
                reads.append((facts.source.parents[parent], _asks(facts, parent)))
            case ast.Compare(left=ast.Constant(value=key), ops=[ast.In() | ast.NotIn()], comparators=[owner]) if owner is node:
                reads.append((parent, key))
            case ast.Assign() | ast.AnnAssign() | ast.Return():
                pass
            case ast.Call() if parent.func is not node and _own(facts, parent):
                pass
            case ast.keyword() if _own(facts, facts.source.parents[parent]):  # type: ignore[arg-type]
                pass
            case _:
                strays.append(node)
    for read, asked in reads:
        parent = facts.source.parents[read]
        match parent:
            case ast.Call(func=ast.Attribute(value=owner, attr="load_state_dict")) if read in parent.args:
                role, objs = _held(facts, owner)
                if role:
                    restored.append(Restored(parent, owner, role, objs, asked))
            case ast.Call() if facts.path(parent) in names.RANDOM_STATE_SET:
                restored.append(Restored(parent, parent.func, "random", (), asked))
    restored += [r for r in _whole(facts, made) if r.call not in {x.call for x in restored}]
    return Loaded(call, target, tuple(sorted(restored, key=lambda r: r.call.lineno)), tuple(reads), tuple(strays))


def _asks(facts: Facts, attribute: ast.Attribute) -> object:
    """The key of `checkpoint.get("key", ...)`."""
    call = facts.source.parents[attribute]
    if isinstance(call, ast.Call) and call.func is attribute and call.args and isinstance(call.args[0], ast.Constant):
        return call.args[0].value
    return None


def _whole(facts: Facts, made: frozenset[Obj]) -> Iterator[Restored]:
    """States that come to `load_state_dict` by way of a name, or as the whole file."""
    for call in facts.calls:
        match call:
            case ast.Call(func=ast.Attribute(value=owner, attr="load_state_dict"), args=[given, *_]):
                for obj in facts.machine.at.get(given, NOTHING).objs:
                    if obj in made or obj.base in made:
                        role, objs = _held(facts, owner)
                        if role:
                            yield Restored(call, owner, role, objs, None)
                            break


# files ---------------------------------------------------------------------------------------------------


def same_file(facts: Facts, one: ast.expr, other: ast.expr) -> bool | None:
    """Whether two expressions name the same file: None where it can't be told."""
    first, second = facts.machine.at.get(one, NOTHING).objs, facts.machine.at.get(other, NOTHING).objs
    if first and second and all(o.kind == "const" for o in first | second):
        return bool({_plain(str(o.name)) for o in first} & {_plain(str(o.name)) for o in second})
    if first & second or (ast.unparse(one) == ast.unparse(other) and _simple(one)):
        return True
    tails = _tail(facts, one), _tail(facts, other)
    if None not in tails and tails[0] != tails[1] and not any(a.endswith(b) for a, b in (tails, tails[::-1])):  # type: ignore[union-attr,arg-type]
        return False
    return None


def _plain(path: str) -> str:
    return path.removeprefix("./")


def _simple(node: ast.expr) -> bool:
    return not any(isinstance(n, ast.Name) and n.id != "os" for n in walk(node))


def _tail(facts: Facts, node: ast.expr) -> str | None:
    """What the last part of a path is known to end with."""
    match node:
        case ast.Constant(value=str(text)):
            return _FORMATTED.search(text)[0]  # type: ignore[index]
        case ast.JoinedStr(values=[*_, ast.Constant(value=str(text))]) | ast.BinOp(op=ast.Add() | ast.Div(), right=ast.Constant(value=str(text))):
            return _FORMATTED.search(text)[0]  # type: ignore[index]
        case ast.Call(args=[_, *_, last]) if facts.path(node) == "os.path.join":
            return _tail(facts, last)
        case (
            ast.Call(func=ast.Attribute(value=ast.Constant(value=str(text)), attr="format"))
            | ast.BinOp(left=ast.Constant(value=str(text)), op=ast.Mod())
        ):
            return _FORMATTED.search(text)[0]  # type: ignore[index]
    values = {o.name for o in facts.machine.at.get(node, NOTHING).objs if o.kind == "const" and isinstance(o.name, str)}
    if len(values) == 1 and len(facts.machine.at[node].objs) == 1:
        return _FORMATTED.search(values.pop())[0]  # type: ignore[index]
    return None


PURE_CALLS = frozenset({"os.path.join", "str", "int", "pathlib.Path", "builtins.str", "builtins.int"})


def pure(facts: Facts, node: ast.expr) -> bool:
    """Whether a path may be computed twice: names, texts and their joining."""
    for part in walk(node):
        if isinstance(part, ast.Call) and facts.path(part) not in PURE_CALLS:
            if not (isinstance(part.func, ast.Attribute) and part.func.attr == "format"):
                return False
        elif isinstance(part, (ast.NamedExpr, ast.Await, ast.Yield, ast.Lambda, ast.GeneratorExp, ast.ListComp)):
            return False
    return True


def in_one_function(facts: Facts, nodes: list[ast.AST]) -> bool:
    """Whether places stand in one function."""
    return len({facts.function(n) for n in nodes}) == 1


def awaited(facts: Facts, call: ast.Call) -> ast.stmt | None:
    """The statement in front of which a process that loads must wait: what this run saves is complete only when the main process has written it."""
    order, statement = facts.machine.order, facts.source.statement(call)
    saves = [c for c in facts.program.calls if facts.program.path(c) == "torch.save"]
    if not any(order.get(facts.program.source.statement(c), 0) < order.get(statement, 0) for c in saves):
        return None
    for parent in facts.source.ancestors(statement):
        if isinstance(parent, (*FUNCTIONS, ast.Module)):
            break
        if isinstance(parent, ast.If) and asks_for_file(parent.test):
            statement = parent  # wait before the question, or a rank that asks too early never comes to the waiting
    return statement


def asks_for_file(test: ast.expr) -> bool:
    """Whether a condition looks whether a file is there."""
    return any(isinstance(n, ast.Attribute) and n.attr in ("exists", "isfile", "is_file", "isdir", "is_dir", "listdir", "glob") for n in walk(test))
