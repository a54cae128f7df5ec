"""Decorators of the project that stand in a function's stead, and whether every argument gets through them."""

from __future__ import annotations

import ast

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING
from script2accel.source import walk

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def narrow_decorator(facts: Facts, function: Definition) -> str:
    """The decorator of a function whose wrapper has parameters of its own, so that one more argument doesn't get through, or ''."""
    for decorator in function.decorator_list:
        for obj in facts.machine.at.get(decorator, NOTHING).objs:
            maker = obj.site
            if obj.kind in ("function", "method") and isinstance(maker, FUNCTIONS) and any(not _passes_on(w) for w in _wrappers(facts, maker)):
                return ast.unparse(decorator)
    return ""


def _wrappers(facts: Facts, maker: Definition) -> list[Definition]:
    """The functions that a decorator defines and gives back."""
    given = {node.value.id for node in walk(maker) if isinstance(node, ast.Return) and isinstance(node.value, ast.Name)}
    inner = [node for node in walk(maker) if isinstance(node, FUNCTIONS) and facts.source.scope(node) is maker]
    return [node for node in inner if node.name in given]


def _passes_on(wrapper: Definition) -> bool:
    """Whether a wrapper takes any arguments, and does nothing with them but hand them on."""
    arguments = wrapper.args
    named = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if arguments.vararg is None or named not in ([], ["self"]):
        return False
    reads = [node for node in walk(wrapper) if isinstance(node, ast.Name) and node.id == arguments.vararg.arg]
    handed = {node.value for node in walk(wrapper) if isinstance(node, ast.Starred)}
    return all(node in handed for node in reads)
