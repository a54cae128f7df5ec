"""Backward passes and the steps that belong to them, for an engine that steps within the backward pass.

Such an engine takes the step, zeroes the gradients and forgets them before the next statement runs. So what the script has between its own backward
pass and its step must neither look at weights, gradients and learning rates nor lead past the step, and each pass must have its own step.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.accumulation import Accumulation, accumulations
from script2accel.analysis.facts import FUNCTIONS, LOOPS, Backward, Step, View
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names
from script2accel.source import walk

LEAVES = (ast.Continue, ast.Break, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom, ast.Await)
TOUCHED = ("model", "criterion", "optimizer", "scheduler", "ema")
Fault = tuple[ast.AST, str]


def faults(facts: View) -> Iterator[Fault]:
    """Where a backward pass that steps would be another training, and why."""
    groups = {a.gate: a for a in accumulations(facts) if isinstance(a, Accumulation) and a.gate is not None}
    paired: set[ast.Call] = set()
    for backward in facts.backwards:
        if backward.call.keywords or len(backward.call.args) > int(backward.done or facts.path(backward.call).startswith("torch.autograd")):
            yield backward.call, "this backward pass takes arguments"
            continue
        found = _behind(facts, backward, groups)
        if isinstance(found, Step):
            paired.add(found.call)
            yield from _zeroed(facts, backward, found, groups)
        else:
            yield found
    for step in facts.optimizer_steps:
        if step.given and step.call not in paired:
            yield step.call, "this step takes a closure"
        elif step.call not in paired:
            yield step.call, "no backward pass stands in front of this step, in the same block"
    yield from _gradients(facts)


def _behind(facts: View, backward: Backward, groups: dict[ast.If, Accumulation]) -> Step | Fault:
    """The step of a backward pass: behind it in the same block, or below the gate of a hand-made accumulation there."""
    source = facts.source
    statement = source.statement(backward.call)
    if not isinstance(statement, ast.Expr):
        return backward.call, "this backward pass is part of a longer statement"
    block = source.block(statement)
    for other in block[block.index(statement) + 1 :]:
        step = _step(facts, other)
        if step is not None:
            return step
        if isinstance(other, ast.If) and other in groups:
            for inner in other.body:
                step = _step(facts, inner)
                if step is not None:
                    return step
                if not _harmless(facts, inner):
                    return inner, f"`{_first_line(facts, inner)}` stands between a backward pass and its step"
        elif not _harmless(facts, other):
            return other, f"`{_first_line(facts, other)}` stands between a backward pass and its step"
    return backward.call, "no step stands behind this backward pass, in the same block"


def _step(facts: View, statement: ast.stmt) -> Step | None:
    """The step that a statement is, without a closure."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return next((s for s in facts.optimizer_steps if s.call is value and not s.given), None)


def _harmless(facts: View, statement: ast.stmt) -> bool:
    """Whether a statement would do the same behind the step, and doesn't lead past it."""
    if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
        return True
    if _clips_or_unscales(facts, statement):
        return True
    if isinstance(statement, ast.If) and not statement.orelse and all(_clips_or_unscales(facts, s) for s in statement.body):
        return not any(_touches(facts, n) for n in walk(statement.test))
    return not any(isinstance(n, LEAVES) or _touches(facts, n) for n in walk(statement))


def _clips_or_unscales(facts: View, statement: ast.stmt) -> bool:
    """Whether a statement clips gradients, which the engine does, or unscales them."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    scaler = isinstance(call.func, ast.Attribute) and call.func.attr == "unscale_" and facts.roles.of_node(call.func.value) == "scaler"
    return scaler or any(names.CLIP_NORM.match(p) for p in facts.any_path(call))


def _touches(facts: View, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a place has to do with weights, gradients or learning rates, itself or in the script's own functions that it calls."""
    if isinstance(node, ast.expr) and facts.roles.of_node(node) in TOUCHED:
        return True
    if isinstance(node, ast.Attribute) and node.attr == "grad":
        return True
    if not isinstance(node, ast.Call):
        return False
    for callee in facts.machine.at.get(node.func, NOTHING).objs:
        if callee.kind in ("function", "method", "class", "instance") and callee.site not in seen:
            if not isinstance(callee.site, (*FUNCTIONS, ast.ClassDef)):
                return True
            if any(_touches(facts, n, seen | {callee.site}) for n in walk(callee.site)):
                return True
    return False


def _first_line(facts: View, statement: ast.stmt) -> str:
    return facts.source.segment(statement).splitlines()[0]


# gradients are zeroed for every step -----------------------------------------------------------------------


def _zeroed(facts: View, backward: Backward, step: Step, groups: dict[ast.If, Accumulation]) -> Iterator[Fault]:
    """Whether the gradients that a pass adds to are those of nothing else."""
    if any(facts.source.statement(step.call) in gate.body for gate in groups):
        return  # the rule for hand-made accumulation asks the same of its groups
    source = facts.program.source
    zeros = {source.statement(c): c for c in _zeros(facts) if isinstance(source.statement(c), ast.Expr)}
    first, last = source.statement(backward.call), source.statement(step.call)
    block = source.block(first)
    between = block[block.index(first) : block.index(last)] if last in block else []
    wrong = next((s for s in between if s in zeros), None)
    if wrong is not None:
        yield wrong, "gradients are zeroed between a backward pass and its step"
    elif not _is_zeroed(facts, first, set(zeros), frozenset()):
        yield backward.call, "gradients aren't zeroed for every step (no `zero_grad` without a condition in the loop around it)"


def _zeros(facts: View) -> Iterator[ast.Call]:
    for call in facts.program.calls:
        owner = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad" else None
        if owner is not None and facts.roles.of_node(owner) in ("optimizer", "model"):
            yield call


def _is_zeroed(facts: View, statement: ast.stmt, zeros: set[ast.stmt], seen: frozenset[ast.AST]) -> bool:
    """Whether gradients are zeroed as often as a statement runs."""
    source = facts.program.source
    while True:
        if any(s in zeros for s in source.block(statement)):
            return True
        parent: ast.AST = source.parents[statement]
        while not isinstance(parent, (ast.stmt, ast.Module)):
            parent = source.parents[parent]
        if isinstance(parent, (*LOOPS, ast.Module, ast.ClassDef)):
            return False
        if isinstance(parent, FUNCTIONS):
            calls = facts.callers(parent) if parent not in seen else []
            return bool(calls) and all(_is_zeroed(facts, source.statement(call), zeros, seen | {parent}) for call in calls)
        assert isinstance(parent, ast.stmt)
        statement = parent


def _gradients(facts: View) -> Iterator[Fault]:
    """Looks at gradients: the engine keeps them in parts, and forgets them with the step."""
    for node in facts.source.every(ast.Attribute):
        if node.attr == "grad" and node in facts.machine.at:
            yield node, f"`{facts.source.segment(node)}` looks at gradients, which the engine keeps to itself"
