"""Numbers that stand for the whole dataset, not for one rank's part of it."""

from __future__ import annotations

import ast

from script2accel.analysis.facts import Facts
from script2accel.analysis.values import NOTHING
from script2accel.source import walk


def whole_dataset(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression holds the size of a whole dataset: `len(loader.dataset)`, or a name or an entry that was set to it."""
    for inner in walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len" and inner.args:
            arg = inner.args[0]
            if (isinstance(arg, ast.Attribute) and arg.attr in ("dataset", "sampler")) or facts.roles.of_node(arg) in ("dataset", "sampler"):
                return True
        if isinstance(inner, (ast.Name, ast.Attribute, ast.Subscript)):
            lengths = [o for o in facts.machine.at.get(inner, NOTHING).objs if o.path == "len" and o.arguments]
            if any(facts.roles.of(o) in ("dataset", "sampler") for length in lengths for o in length.arguments[0].objs):
                return True
    return False
