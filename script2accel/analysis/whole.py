"""Numbers that stand for the whole dataset, not for one rank's part of it."""

from __future__ import annotations

import ast

from script2accel.analysis.facts import Facts
from script2accel.source import walk


def whole_dataset(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression holds the size of a whole dataset: `len(loader.dataset)`."""
    for inner in walk(node):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "len" and inner.args:
            arg = inner.args[0]
            if (isinstance(arg, ast.Attribute) and arg.attr in ("dataset", "sampler")) or facts.roles.of_node(arg) in ("dataset", "sampler"):
                return True
    return False
