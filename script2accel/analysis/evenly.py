"""Whether all ranks come to a place equally often, so that they can talk to each other there."""

from __future__ import annotations

import ast

from script2accel.analysis.distribution import is_rank, proves_main
from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.source import walk


def guards(facts: Facts, test: ast.expr) -> bool:
    """Whether a test asks which process this is."""
    return proves_main(facts, test) or any(isinstance(n, ast.expr) and n in facts.machine.at and is_rank(facts, n) for n in walk(test))


def uneven(facts: Facts, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> str:
    """Why ranks may come to a place unequally often, or ''."""
    child = node
    for parent in facts.source.ancestors(node):
        line = getattr(parent, "lineno", 0)
        tested = isinstance(parent, (ast.If, ast.While, ast.IfExp)) and child is not parent.test
        if tested and _parts(facts, parent.test):  # type: ignore[attr-defined]
            return f"not every rank comes here equally often (line {line})"
        if isinstance(parent, ast.For) and child in parent.body and facts.machine.marks_of(parent.iter):
            return f"the loop around it differs between ranks (line {line})"
        if isinstance(parent, (ast.Lambda, ast.comprehension)):
            return f"it runs inside an expression (line {getattr(child, 'lineno', line)})"
        if isinstance(parent, ast.ExceptHandler):
            return f"it is reached by an exception (line {line})"
        if isinstance(child, ast.stmt) and _left(facts, child):
            return "some ranks have left the block above"
        if isinstance(parent, FUNCTIONS):
            if parent in seen:
                return ""
            found = [uneven(facts, call, seen | {parent}) for call in facts.callers(parent)]
            return next((why for why in found if why), "")
        child = parent
    return ""


def _left(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a statement above, in the same block, lets some ranks leave."""
    for above in facts.source.block(statement):
        if above is statement:
            return False
        leaves = isinstance(above, ast.If) and any(isinstance(n, (ast.Return, ast.Continue, ast.Break)) for n in walk(above))
        if leaves and _parts(facts, above.test):  # type: ignore[attr-defined]
            return True
    return False


def _parts(facts: Facts, test: ast.expr) -> bool:
    """Whether a test may come out one way on one rank and the other way on another."""
    return bool(facts.machine.marks_of(test)) or guards(facts, test)
