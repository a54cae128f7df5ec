"""Which checkpoints of a training become states of the accelerator: `save_state` on every process, and `load_state` behind prepare."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from script2accel.analysis import checkpoints
from script2accel.analysis.checkpoints import Loaded, Restored, Saved, Table
from script2accel.analysis.context import guarded
from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.source import walk

Problem = tuple[ast.AST, str]
TRAINED = ("model", "criterion", "optimizer")


@dataclass(eq=False)
class States:
    """What becomes a state. `kept` are checkpoints that stay files, with the reason; `problems` are places that stand in the way.

    `gone` holds the nodes that go: entries of tables, statements that loaded them. `values`: something else is kept beside the states.
    """

    saves: list[Saved] = field(default_factory=list)
    loads: list[Loaded] = field(default_factory=list)
    kept: list[tuple[Saved, str]] = field(default_factory=list)
    apart: list[Loaded] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    gone: frozenset[ast.AST] = frozenset()
    values: bool = False

    @property
    def tables(self) -> list[Table]:
        """The tables that lose entries."""
        return list(dict.fromkeys(table for save in self.saves for table in save.tables))

    @property
    def keys(self) -> set[object]:
        """The keys of entries that go."""
        return {e.key for table in self.tables for e in table.entries if e.role}

    def takes(self, facts: Facts, node: ast.AST) -> bool:
        """Whether a node stands in something that goes."""
        if self.problems:
            return False
        return node in self.gone or any(parent in self.gone for parent in facts.source.ancestors(node))

    def replaces(self, call: ast.AST) -> bool:
        """Whether a call of `torch.save` becomes one of `save_state`."""
        return not self.problems and any(save.call is call for save in self.saves)

    def restores(self, call: ast.AST) -> bool:
        """Whether a call restores what `load_state` will."""
        return any(r.call is call for load in self.loads for r in load.restored)


def states(facts: Facts) -> States:
    """Decide from the script as it stands."""
    found = States()
    loads = checkpoints.loaded(facts)
    full = [load for load in loads if {"model", "optimizer"} <= load.roles()]
    parts = [load for load in loads if load not in full]
    for save in checkpoints.saved(facts):
        part = next((load for load in parts if checkpoints.same_file(facts, load.target, save.target)), None)
        if part is not None:
            found.kept.append((save, f"line {part.call.lineno} loads a part of it"))
        else:
            found.saves.append(save)
    if not found.saves:
        return found
    found.apart = [load for load in parts if any(checkpoints.same_file(facts, load.target, s.target) is None for s in found.saves)]
    found.loads = full
    found.values = any(_more(table) for table in found.tables)
    for save in found.saves:
        found.problems += _in_the_way_of_saving(facts, save)
    for table in found.tables:
        found.problems += [(node, "what is saved is also used otherwise") for node in checkpoints.other_uses(facts, table)]
    for load in found.loads:
        found.problems += _in_the_way_of_loading(facts, found, load)
    found.gone = frozenset(_gone(facts, found))
    return found


def _more(table: Table) -> bool:
    """Whether a table holds more than states."""
    literal = len(table.node.keys) if isinstance(table.node, ast.Dict) else len(table.node.keywords)
    return any(not e.role for e in table.entries) or sum(not isinstance(e.node, ast.stmt) for e in table.entries) < literal


def _gone(facts: Facts, found: States) -> Iterator[ast.AST]:
    for table in found.tables:
        for entry in table.entries:
            if entry.role:
                yield entry.node if isinstance(entry.node, ast.stmt) else entry.value
    for load in found.loads:
        yield from (restored_in(facts, load, r) for r in load.restored)
        if not found.values:
            yield facts.source.statement(load.call)


def restored_in(facts: Facts, load: Loaded, restored: Restored) -> ast.stmt:
    """The statement that goes with a restoring call: itself, or the `if "key" in checkpoint:` that holds nothing else."""
    statement = facts.source.statement(restored.call)
    parent = facts.source.parents[statement]
    calls = {facts.source.statement(r.call) for r in load.restored}
    if not isinstance(parent, ast.If) or parent.orelse or not all(s in calls for s in parent.body):
        return statement
    if any(node is parent.test and key == restored.key for node, key in load.reads) and not facts.source.of(parent).is_elif(parent):
        return parent
    return statement


def covered(facts: Facts, found: States, prepares: list[tuple[ast.stmt, list[Obj]]]) -> Iterator[Problem]:
    """States and what is prepared aren't the same things: `save_state` and `load_state` are about everything that is prepared."""
    wanted = {o for _, objs in prepares for o in objs if facts.roles.of(o) in TRAINED}
    for anchor, objs in prepares:
        if wanted & set(objs) and facts.all_loops(anchor):
            yield anchor, "prepare runs several times, and `save_state` keeps what all of its runs prepared"
    for table in found.tables:
        yield from _compared(wanted, table.node, [e.objs for e in table.entries if e.role in TRAINED], "saves")
    for load in found.loads:
        yield from _compared(wanted, load.call, [r.objs for r in load.restored if r.role in TRAINED], "loads")


def _compared(wanted: set[Obj], node: ast.AST, held: list[tuple[Obj, ...]], does: str) -> Iterator[Problem]:
    found = [o for objs in held for o in objs]
    if set(found) != wanted:
        yield node, f"it {does} the states of some things, and the accelerator those of all that is prepared"
    elif any(len(objs) > 1 for objs in held) or len(found) != len(set(found)):
        yield node, "it can't be seen which model or optimizer an entry belongs to"


# what stands in the way ----------------------------------------------------------------------------------


def _in_the_way_of_saving(facts: Facts, save: Saved) -> Iterator[Problem]:
    call, statement = save.call, facts.source.statement(save.call)
    more = len(call.args) > 2 or any(k.arg not in ("obj", "f") for k in call.keywords)
    if more or not isinstance(statement, ast.Expr) or statement.value is not call:
        yield call, "the call isn't a statement of its own, or has more arguments"
    if any(o.path in ("open", "io.open", "io.BytesIO") for o in facts.machine.at.get(save.target, NOTHING).objs):
        yield call, "it is written into an open file"
    yield from _path(facts, save.target)
    if (why := not_everyone(facts, call)) is not None:
        yield call, why
    if facts.in_module(call):
        yield call, "it is saved by a method of the model"


def _path(facts: Facts, target: ast.expr) -> Iterator[Problem]:
    text = ast.unparse(target)
    if any(facts.roles.of_node(n) == "rank" for n in walk(target) if isinstance(n, ast.expr)):
        yield target, f"its path `{text}` differs between processes"


def not_everyone(facts: Facts, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> str | None:
    """Why not every process may come to a place."""
    if guarded(facts, node):
        return "only the main process comes here"
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.ExceptHandler):
            return "only a process in which an exception was raised comes here"
        if isinstance(parent, (ast.If, ast.While, ast.IfExp)) and any(
            facts.roles.of_node(n) == "rank" for n in walk(parent.test) if isinstance(n, ast.expr)
        ):
            return f"`{ast.unparse(parent.test)}` lets some processes come here"
        if isinstance(parent, FUNCTIONS) and parent not in seen:
            calls = facts.callers(parent)
            if not calls:
                return f"nothing is seen to call `{parent.name}`"
            return next((why for call in calls if (why := not_everyone(facts, call, seen | {parent})) is not None), None)
    return None


def _in_the_way_of_loading(facts: Facts, found: States, load: Loaded) -> Iterator[Problem]:
    yield from _path(facts, load.target)
    yield from ((node, "what was loaded is handed on whole") for node in load.strays)
    if (why := not_everyone(facts, load.call)) is not None:
        yield load.call, why
    if any(checkpoints.same_file(facts, load.target, save.target) for save, _ in found.kept):
        yield load.call, "its file is also loaded in part elsewhere"
    if not checkpoints.in_one_function(facts, [load.call, *(r.call for r in load.restored)]):
        yield load.call, "it is loaded in one function, and put into place in another"
        return
    blocks = set()
    for restored in load.restored:
        yield from _restoring(facts, found, load, restored)
        if restored.role in TRAINED:
            blocks.add(id(facts.source.block(restored_in(facts, load, restored))))
    if len(blocks) > 1:
        yield load.call, "model and optimizer are loaded under different conditions"
    whole = {id(r.call.args[0]) for r in load.restored if r.call.args}
    tests = {id(p.test) for r in load.restored if isinstance(p := restored_in(facts, load, r), ast.If)}
    for node, key in load.reads:
        if key in found.keys and id(node) not in whole | tests:
            yield node, f"`{ast.unparse(node)}` is also used otherwise than by `load_state_dict`"
    yield from _rebound(facts, load)


def _restoring(facts: Facts, found: States, load: Loaded, restored: Restored) -> Iterator[Problem]:
    call = restored.call
    if len(call.args) != 1 or call.keywords:
        yield call, "it is loaded with more arguments: a partial load has no counterpart"
    if not isinstance(facts.source.parents[call], ast.Expr):
        yield call, "the result of `load_state_dict` is used"
    entries = [e for table in found.tables for e in table.entries if e.key == restored.key]
    if restored.key is None or not entries:
        yield call, "it isn't seen which entry of the saved table is loaded"
    elif any(e.role != restored.role or not set(e.objs) & set(restored.objs) for e in entries if restored.role != "random"):
        yield call, f"the entry {restored.key!r} isn't saved from what it is loaded into"


def _rebound(facts: Facts, load: Loaded) -> Iterator[Problem]:
    """Names of the path that get another value between the loading and the putting into place."""
    parts = {ast.unparse(n) for n in walk(load.target) if isinstance(n, (ast.Name, ast.Attribute))}
    last = max(r.call.lineno for r in load.restored)
    for node in walk(facts.function(load.call)):
        stored = isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store) and load.call.lineno <= node.lineno <= last
        if stored and ast.unparse(node) in parts:
            yield node, f"`{ast.unparse(node)}` is set anew before the state is put into place"
