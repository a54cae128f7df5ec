"""Where, between a backward pass and its step, a place looks at gradients."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal

from script2accel.analysis.facts import FUNCTIONS, LOOPS, Facts, View
from script2accel.knowledge import torch as names

Event = Literal["backward", "step", ""]


def reads(facts: View) -> Iterator[ast.Attribute]:
    """Reads of gradients' numbers in training, behind a backward pass whose step is still to come."""
    for node in facts.source.every(ast.Attribute):
        if node.attr != "grad" or not isinstance(node.ctx, ast.Load) or node not in facts.machine.at or _only_asks(facts, node):
            continue
        if facts.in_train_loop(node) and not facts.inside_class(node, facts.optimizer_classes) and before(facts, node) == "backward":
            yield node


def _only_asks(facts: View, node: ast.expr) -> bool:
    """Whether a read only asks whether there is a gradient, or empties it."""
    parent = facts.source.parents[node]
    while isinstance(parent, ast.Attribute) and parent.attr in ("data", *names.EMPTIES):
        node, parent = parent, facts.source.parents[parent]
    if isinstance(parent, ast.Call):
        return isinstance(node, ast.Attribute) and node.attr in names.EMPTIES
    return isinstance(parent, ast.Compare) and any(isinstance(o, (ast.Is, ast.IsNot)) for o in parent.ops)


def before(facts: Facts, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> Event:
    """What came last in front of a place, in this turn of its training loop: a backward pass, or a step (or nothing)."""
    for block, index in _levels(facts, node):
        if found := _event(facts, block, range(index - 1, -1, -1), "step"):
            return found
    return _through_callers(facts, node, seen, before)


def behind(facts: Facts, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> Event:
    """What comes first behind a place, in this turn of its training loop."""
    for block, index in _levels(facts, node):
        if found := _event(facts, block, range(index + 1, len(block)), "backward"):
            return found
    return _through_callers(facts, node, seen, behind)


def _levels(facts: Facts, node: ast.AST) -> Iterator[tuple[list[ast.stmt], int]]:
    """The blocks around a place in its function, innermost first, up to the body of a loop that trains."""
    statement: ast.AST = facts.source.statement(node)
    while isinstance(statement, ast.stmt) and not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        block = facts.source.block(statement)
        yield block, next(i for i, s in enumerate(block) if s is statement)
        statement = facts.source.parents[statement]
        while not isinstance(statement, (ast.stmt, ast.Module)):
            statement = facts.source.parents[statement]
        if isinstance(statement, LOOPS) and statement in facts.training_loops:
            return


def _event(facts: Facts, block: list[ast.stmt], order: range, both: Event) -> Event:
    """The first statement, in an order, that runs a backward pass or a step; `both` where it runs both."""
    steps = {i for s in facts.program.optimizer_steps for i in facts.places(block, s.call)}
    backwards = {i for b in facts.program.backwards for i in facts.places(block, b.call)}
    for i in order:
        if i in steps and i in backwards:
            return both
        if i in steps or i in backwards:
            return "step" if i in steps else "backward"
    return ""


def _through_callers(facts: Facts, node: ast.AST, seen: frozenset[ast.AST], look: object) -> Event:
    function = facts.function(node)
    if function in seen or isinstance(function, ast.Module) or any(loop in facts.training_loops for loop in facts.loops(node)):
        return ""
    found = {look(facts, call, seen | {function}) for call in facts.callers(function)}  # type: ignore[operator]
    return "backward" if "backward" in found else "step" if "step" in found else ""
