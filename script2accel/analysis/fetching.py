"""Files that a script fetches unless they are there: what one process makes and all of them read."""

from __future__ import annotations

import ast

from script2accel.analysis.context import guarded
from script2accel.analysis.facts import Facts
from script2accel.knowledge import torch as names
from script2accel.source import walk

ASKS = frozenset({"exists", "isfile", "isdir", "is_file", "is_dir", "lexists"})


def fetches(facts: Facts) -> frozenset[ast.If]:
    """The `if not os.path.exists(...):` statements in which something is downloaded, outermost, that all processes come to."""
    program = facts.program
    known: frozenset[ast.If] | None = program.__dict__.get("fetching_statements")
    if known is None:
        found = (_asking(program, call) for call in program.calls if names.FETCHES.match(program.path(call)))
        kept = {s for s in found if s is not None and not guarded(program, s) and not _trains(program, s)}
        known = program.__dict__["fetching_statements"] = frozenset(kept)
    return known


def fetched(facts: Facts, node: ast.AST) -> bool:
    """Whether a place stands in such a statement."""
    statements = fetches(facts)
    return bool(statements) and any(parent in statements for parent in facts.source.ancestors(node))


def _asking(facts: Facts, call: ast.Call) -> ast.If | None:
    found = None
    for parent in facts.source.ancestors(call):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            break
        if isinstance(parent, ast.If) and any(_asks(node) for node in walk(parent.test)):
            found = parent
    return found


def _asks(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name in ASKS
    return False


def _trains(facts: Facts, statement: ast.If) -> bool:
    calls = [*(b.call for b in facts.backwards), *(f.call for f in facts.forwards)]
    return any(facts.inside(statement, call) for call in calls)
