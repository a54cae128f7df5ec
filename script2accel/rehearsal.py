"""What the planned edits will do, told to a second abstract run."""

from __future__ import annotations

import ast
from collections.abc import Callable

from script2accel.analysis.facts import Facts, Function
from script2accel.analysis.machine import Machine
from script2accel.analysis.slicing import ordered
from script2accel.analysis.values import NOTHING, Value
from script2accel.evaluation import Gather
from script2accel.placing import Draft, Prepare, ident

Bind = Callable[[Machine], None]


def rehearse(facts: Facts, plan: Draft) -> Machine:
    """Run the script again as if prepare and gather stood in it."""
    before: dict[ast.AST, list[Bind]] = {}
    behind: dict[ast.AST, list[Bind]] = {}
    for prepare in plan.prepares:
        (behind if prepare.behind else before).setdefault(prepare.anchor, []).append(_binder(prepare))
    for gather in plan.gathers:
        behind.setdefault(gather.statement, []).append(_agreement(facts, gather))
    for statement, path in plan.agreements:
        behind.setdefault(statement, []).append(_unmark(facts, statement, path))
    for sliced in plan.slices:
        for draw in sliced.draws if sliced.problem is None else ():
            behind.setdefault(draw, []).append(_unmark(facts, draw, ast.unparse(ordered(draw) or ast.Constant(0))))
        if sliced.columns is not None:
            behind.setdefault(sliced.columns[0], []).append(_marked(facts, sliced.columns[0]))
    machine = Machine(facts.source, before, behind)
    machine.dealt = frozenset(s.loop for s in plan.slices if s.problem is None and s.columns is None)
    return machine.run()


def _binder(prepare: Prepare) -> Bind:
    wanted = {path: {ident(o) for p, o in prepare.items if p == path} for path, _ in prepare.items}

    def bind(machine: Machine) -> None:
        for path, idents in wanted.items():
            for key in _keys(machine, prepare.scope, path):
                old = machine.store.get(key)
                if old is not None:
                    new = frozenset(
                        machine.world.obj("prepared", "", o, None) if o.kind != "prepared" and ident(o) in idents else o for o in old.objs
                    )
                    machine.put(key, Value(new, old.marks))

    return bind


def _keys(machine: Machine, scope: Function, path: str) -> list[tuple[object, object]]:
    """The store's keys of a path in a scope: a name, `self.x`, `name["key"]`."""
    tree = ast.parse(path, mode="eval").body
    match tree:
        case ast.Name(id=name):
            return [(machine.owner(scope, name), name)]
        case ast.Attribute(value=owner, attr=name):
            return [(o, name) for key in _keys(machine, scope, ast.unparse(owner)) for o in machine.store.get(key, NOTHING).objs]
        case ast.Subscript(value=owner, slice=ast.Constant(value=index)):
            return [(o, ("key", index)) for key in _keys(machine, scope, ast.unparse(owner)) for o in machine.store.get(key, NOTHING).objs]
    return []


def _agreement(facts: Facts, gather: Gather) -> Bind:
    scope = facts.source.scope(gather.statement)

    def bind(machine: Machine) -> None:
        for name in gather.names:
            key = (machine.owner(scope, name), name)
            old = machine.store.get(key)
            if old is not None:
                machine.put(key, Value(old.objs, frozenset()))

    return bind


def _unmark(facts: Facts, statement: ast.stmt, path: str) -> Bind:
    """What the script brings together over the ranks itself is the same on all of them."""
    scope = facts.function(statement)

    def bind(machine: Machine) -> None:
        for key in _keys(machine, scope, path):
            old = machine.store.get(key)
            if old is not None:
                machine.put(key, Value(machine.agreed(old).objs, frozenset()))

    return bind


def _marked(facts: Facts, statement: ast.Assign) -> Bind:
    """What is assigned there is each rank's own."""
    scope, path = facts.function(statement), ast.unparse(statement.targets[0])

    def bind(machine: Machine) -> None:
        for key in _keys(machine, scope, path):
            old = machine.store.get(key)
            if old is not None:
                machine.put(key, old.marked(frozenset((statement,))))

    return bind
