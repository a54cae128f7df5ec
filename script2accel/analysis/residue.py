"""What is left of a statement when calls are taken out of it."""

from __future__ import annotations

import ast
from typing import Any


def _bare(node: Any, moves: set[ast.Call], wrappers: set[ast.Call]) -> Any:
    """A part of a statement as it reads with moves replaced by what is moved, and wrappers by what they wrap."""
    if isinstance(node, list):
        return [_bare(item, moves, wrappers) for item in node]
    if not isinstance(node, ast.AST):
        return node
    if node in moves and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return _bare(node.func.value, moves, wrappers)
    if node in wrappers and isinstance(node, ast.Call):
        return _bare(node.args[0] if node.args else node.keywords[0].value, moves, wrappers)
    return type(node)(**{name: _bare(value, moves, wrappers) for name, value in ast.iter_fields(node)})


def nothing_left(statement: ast.stmt, moves: list[ast.Call], wrappers: list[ast.Call]) -> bool:
    """Whether a statement only moved and wrapped: `x = x.to(device)`, `model = DataParallel(model).cuda()`, `a, b = a.to(d), b.to(d)`."""
    if not isinstance(statement, (ast.Expr, ast.Assign)):
        return False
    match _bare(statement, set(moves), set(wrappers)):
        case ast.Expr(value=ast.Name() | ast.Attribute()):
            return True
        case ast.Assign(targets=[target], value=value):
            return ast.unparse(target) == ast.unparse(value) or _same_container(target, value)
    return False


def _same_container(target: ast.expr, value: ast.expr) -> bool:
    """`batch = {k: v for k, v in batch.items()}`, `batch = [t for t in batch]`, `batch = tuple(t for t in batch)`."""
    name = ast.unparse(target)
    match value:
        case ast.DictComp(
            key=ast.Name(id=k),
            value=ast.Name(id=v),
            generators=[ast.comprehension(target=ast.Tuple(elts=[ast.Name(id=k2), ast.Name(id=v2)]), iter=items, ifs=[])],
        ):
            return (k, v) == (k2, v2) and ast.unparse(items) == f"{name}.items()"
        case ast.ListComp(elt=ast.Name(id=e), generators=[ast.comprehension(target=ast.Name(id=e2), iter=items, ifs=[])]):
            return e == e2 and ast.unparse(items) == name
        case ast.Call(
            func=ast.Name(id="tuple" | "list"),
            args=[ast.GeneratorExp(elt=ast.Name(id=e), generators=[ast.comprehension(target=ast.Name(id=e2), iter=items, ifs=[])])],
        ):
            return e == e2 and ast.unparse(items) == name
    return False
