"""When weights are frozen and thawed: in front of the place where their model is prepared, or behind it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj, Value


@dataclass(frozen=True, eq=False)
class Setting:
    """A place that sets `requires_grad` of a model's weights; `values` are those that it can set, `whole` when it reaches all of them."""

    node: ast.expr
    statement: ast.stmt
    models: tuple[Obj, ...]
    values: frozenset[bool]
    whole: bool


def settings(facts: Facts) -> list[Setting]:
    """Every place that freezes or thaws weights of a model."""
    known: list[Setting] | None = facts.program.__dict__.get("settings")
    if known is None:
        known = facts.program.__dict__["settings"] = list(_settings(facts.program))
    return known


def _settings(facts: Facts) -> Iterator[Setting]:
    for source in facts.source.sources:
        for node in source.every(ast.Assign, ast.Call):
            match node:
                case ast.Assign(targets=[ast.Attribute(value=owner, attr="requires_grad")], value=value):
                    pass
                case ast.Call(func=ast.Attribute(value=owner, attr="requires_grad_"), args=given, keywords=named):
                    value = given[0] if given else named[0].value if named else ast.Constant(True)
                case _:
                    continue
            held = facts.machine.at.get(owner, NOTHING)
            models, whole = _reached(facts, held)
            if models:
                statement = facts.source.statement(node)
                whole = whole and not any(isinstance(p, ast.If) for p in _up_to_loop(facts, statement))
                yield Setting(owner, statement, models, _values(facts, value), whole)


def _reached(facts: Facts, held: Value) -> tuple[tuple[Obj, ...], bool]:
    """The models whose weights a value holds, and whether it holds all of their weights."""
    roles = facts.roles
    modules = [o for o in held.objs if roles.of(o) in ("model", "criterion") or o.kind == "attr"]
    direct = [o for o in modules if o.kind != "attr"]
    owners = roles.owners_of_parameters([held])
    found = {roles.whole(o.inner) for o in direct} | set(roles.parameters_of([held]))
    for obj in modules:
        if obj.kind == "attr" and (holder := roles.holder(obj)) is not obj and roles.of(holder) == "model":
            found.add(roles.whole(holder))
    return tuple(found), all(o.inner in found for o in (*modules, *owners))


def _up_to_loop(facts: Facts, statement: ast.stmt) -> Iterator[ast.AST]:
    for parent in facts.source.ancestors(statement):
        if isinstance(parent, (ast.For, *FUNCTIONS)):
            return
        yield parent


def _values(facts: Facts, node: ast.expr) -> frozenset[bool]:
    """What an expression can set: a written truth, or both."""
    if isinstance(node, ast.Constant):
        return frozenset((bool(node.value),))
    objs = facts.machine.at.get(node, NOTHING).objs
    if objs and all(o.kind == "const" and isinstance(o.name, bool) for o in objs):
        return frozenset(bool(o.name) for o in objs)
    return frozenset((True, False))


def moments(facts: Facts, setting: Setting) -> frozenset[int]:
    """When, in the order of the run, a setting takes place: its statement, and the calls of its function."""
    order = facts.machine.order
    found = {order[setting.statement]} if setting.statement in order else set()
    waiting, seen = [facts.function(setting.statement)], set()
    while waiting:
        function = waiting.pop()
        if function in seen or isinstance(function, ast.Module):
            continue
        seen.add(function)
        calls = facts.callers(function)
        if len(calls) < 2:
            continue  # it runs once, around moments that are known
        for call in calls:
            statement = facts.source.statement(call)
            if statement in order:
                found.add(order[statement])
            waiting.append(facts.function(call))
    return frozenset(found)
