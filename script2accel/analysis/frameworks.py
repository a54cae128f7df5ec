"""Which library, if any, runs the training or starts its processes."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from script2accel.analysis.facts import Facts
from script2accel.knowledge.frameworks import Framework


def at_work(facts: Facts, known: Iterable[Framework]) -> tuple[Framework, ast.AST] | None:
    """The first library of a table that a script calls, or derives a class from, and the place."""
    table = tuple(known)
    strangers: set[str] = set()
    for call in facts.calls:
        for path in facts.any_path(call):
            if path in strangers:
                continue
            for framework in table:
                if framework.paths.match(path):
                    return framework, call
            strangers.add(path)
    for cls, bases in facts.machine.bases.items():
        for base in bases:
            for framework in table:
                if cls.site is not None and base.kind == "external" and framework.paths.match(str(base.name)):
                    return framework, cls.site
    return None
