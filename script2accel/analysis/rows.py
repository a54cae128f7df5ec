"""What rows of data are computed from: names and attributes, read and set in the text of loops."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.source import walk

MOST_NAMES = 64


def meaning(facts: Facts, node: ast.expr) -> Iterator[ast.AST]:
    """Every node of an expression, and of what is assigned to the names in it, each name looked up once."""
    waiting: list[ast.expr] = [node]
    seen: set[str] = set()
    while waiting:
        for part in walk(waiting.pop()):
            yield part
            if isinstance(part, (ast.Name, ast.Attribute)) and len(seen) < MOST_NAMES and (text := ast.unparse(part)) not in seen:
                seen.add(text)
                waiting += facts.program.assigned.get(text, ())


def leaves(facts: Facts, *nodes: ast.expr | None) -> frozenset[str]:
    """The names and attributes that expressions are computed from, through assignments."""
    parts = [p for node in nodes if node is not None for p in meaning(facts, node)]
    return frozenset(ast.unparse(p) for p in parts if isinstance(p, (ast.Name, ast.Attribute))) - {"len", "int", "max", "min", "math", "math.ceil"}


def ordered(statement: ast.stmt) -> ast.Name | ast.Attribute | None:
    """What a statement that draws an order leaves it in, if it is one thing."""
    match statement:
        case ast.Assign(targets=[ast.Name() | ast.Attribute() as order]):
            return order
        case ast.Expr(value=ast.Call(func=ast.Attribute(attr="shuffle") | ast.Name(id="shuffle"), args=[ast.Name() | ast.Attribute() as order])):
            return order
    return None


def text_of(node: ast.AST) -> str | None:
    """The name or attribute that an expression is, or is an item of."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else None


def events(body: list[ast.stmt]) -> Iterator[tuple[str, str, ast.AST]]:
    """Loads and stores of names and attributes in the order in which they happen."""
    for statement in body:
        match statement:
            case ast.Assign(targets=targets, value=value):
                yield from reads_and_stores(value)
                for target in targets:
                    yield from reads_and_stores(target)
                    yield from (("store", str(text_of(n)), n) for n in walk(target) if isinstance(n, ast.Subscript) and text_of(n) is not None)
            case ast.AugAssign(target=target, value=value):
                yield from reads_and_stores(value)
                if (text := text_of(target)) is not None:
                    yield "load", text, target
                    yield "store", text, target
            case ast.For(target=target, iter=source, body=inner, orelse=rest):
                yield from reads_and_stores(source)
                yield from reads_and_stores(target)
                yield from events([*inner, *rest])
            case ast.If(test=test, body=inner, orelse=rest) | ast.While(test=test, body=inner, orelse=rest):
                yield from reads_and_stores(test)
                yield from events([*inner, *rest])
            case ast.With(items=items, body=inner):
                for item in items:
                    yield from reads_and_stores(item.context_expr)
                yield from events(inner)
            case ast.Try(body=inner, handlers=handlers, orelse=rest, finalbody=last):
                yield from events([*inner, *rest, *(s for h in handlers for s in h.body), *last])
            case _ if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
                yield from reads_and_stores(statement)


def reads_and_stores(node: ast.AST) -> Iterator[tuple[str, str, ast.AST]]:
    """("load" or "store", text, node) of each name and attribute below a node."""
    for inner in walk(node):
        if isinstance(inner, (ast.Name, ast.Attribute)):
            yield ("store" if isinstance(inner.ctx, ast.Store) else "load"), ast.unparse(inner), inner


def closure(loop: ast.AST, wanted: set[str]) -> set[str]:
    """The names and attributes from which, in a loop's text, some others are computed, with these."""
    wanted = set(wanted)
    growing = True
    while growing:
        before = len(wanted)
        for node in walk(loop):
            if isinstance(node, (ast.Assign, ast.AugAssign)):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if wanted & {text for t in targets for inner in walk(t) if (text := text_of(inner)) is not None}:
                    wanted |= {text for _, text, _ in reads_and_stores(node.value)}
        growing = len(wanted) > before
    return wanted
