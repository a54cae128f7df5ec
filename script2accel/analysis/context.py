"""In what surroundings a place stands: under no_grad, under a rank guard, in the order of the run."""

from __future__ import annotations

import ast

from script2accel.analysis.distribution import proves_main
from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names
from script2accel.source import walk


def quiet(facts: Facts, node: ast.AST, _known: dict[ast.AST, bool] | None = None) -> bool:
    """Whether no gradients are recorded at a place: a no_grad block or decorator around it, or around all its callers."""
    for parent in facts.source.ancestors(node):
        if isinstance(parent, (ast.With, ast.AsyncWith)) and any(_no_grad(facts, item.context_expr) for item in parent.items):
            return True
        if isinstance(parent, FUNCTIONS):
            if any(_no_grad(facts, decorator) for decorator in parent.decorator_list):
                return True
            known = {} if _known is None else _known
            if parent not in known:
                known[parent] = False  # while it is asked: a function that calls itself isn't quiet
                calls = facts.callers(parent)
                known[parent] = bool(calls) and all(quiet(facts, call, known) for call in calls)
            return known[parent]
    return False


def _no_grad(facts: Facts, node: ast.expr) -> bool:
    target = node.func if isinstance(node, ast.Call) else node
    found = any(o.kind == "external" and names.NO_GRAD.match(str(o.name)) for o in facts.machine.at.get(target, NOTHING).objs)
    if found and isinstance(node, ast.Call) and ast.unparse(target).endswith("set_grad_enabled"):
        return bool(node.args) and isinstance(node.args[0], ast.Constant) and node.args[0].value is False
    return found


def guarded(facts: Facts, node: ast.AST, _known: dict[ast.AST, bool] | None = None) -> bool:
    """Whether only the main process comes to a place."""
    child = node
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.If) and (
            (child in parent.body and proves_main(facts, parent.test)) or (child in parent.orelse and proves_main(facts, parent.test, value=False))
        ):
            return True
        if isinstance(parent, ast.IfExp) and (
            (child is parent.body and proves_main(facts, parent.test)) or (child is parent.orelse and proves_main(facts, parent.test, value=False))
        ):
            return True
        if isinstance(child, ast.stmt) and _left_to_main(facts, child):
            return True
        if isinstance(parent, FUNCTIONS):
            if any("on_main_process" in ast.unparse(d) or "on_local_main_process" in ast.unparse(d) for d in parent.decorator_list):
                return True
            known = {} if _known is None else _known
            if parent not in known:
                known[parent] = False
                calls = facts.callers(parent)
                known[parent] = bool(calls) and all(guarded(facts, call, known) for call in calls)
            return known[parent]
        child = parent
    return False


def _left_to_main(facts: Facts, statement: ast.stmt) -> bool:
    """Whether the other processes have left the block in front of a statement: `if rank != 0: return`."""
    known: dict[ast.stmt, bool] = facts.program.__dict__.setdefault("left_to_main", {})
    if statement not in known:
        left = False
        for each in facts.source.block(statement):
            known[each] = left
            left = left or _leaves_to_main(facts, each)
    return known[statement]


def _leaves_to_main(facts: Facts, statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and isinstance(statement.body[-1], (ast.Return, ast.Continue))
        and proves_main(facts, statement.test, value=False)
    )


def runs_layers(facts: Facts, node: ast.Attribute) -> bool:
    """Whether calling an attribute of a model runs layers: a submodule, or a method that calls some (unknown methods count)."""
    functions = [o.site for o in facts.machine.at.get(node, NOTHING).objs if o.kind in ("method", "function")]
    if not functions:
        return True
    return any(_calls_layers(facts, function, frozenset()) for function in functions if isinstance(function, FUNCTIONS))


def _calls_layers(facts: Facts, function: ast.AST, seen: frozenset[ast.AST]) -> bool:
    for call in walk(function):
        if not isinstance(call, ast.Call):
            continue
        for obj in facts.machine.at.get(call.func, NOTHING).objs:
            if facts.roles.of(obj) in ("model", "criterion"):
                return True
            if obj.kind == "method" and obj.site is not None and obj.site not in seen and _calls_layers(facts, obj.site, seen | {function}):
                return True
            if obj.kind == "external" and names.LOSS_FUNCTION.match(str(obj.name)):
                return True
    return False


def loads_state(facts: Facts, call: ast.Call) -> bool:
    """Whether what is loaded, or a part of it, goes into `load_state_dict`."""
    made = {o for o in facts.machine.at.get(call, NOTHING).objs if o.kind == "made"}
    for other in facts.program.calls:
        if isinstance(other.func, ast.Attribute) and other.func.attr == "load_state_dict":
            for arg in other.args:
                for obj in facts.machine.at.get(arg, NOTHING).objs:
                    if obj in made or obj.base in made:
                        return True
    return False
