"""What is left of a statement when calls are taken out of it."""

from __future__ import annotations

import ast
import copy


class _Bare(ast.NodeTransformer):
    """A statement as it reads with moves replaced by what is moved, and wrappers by what they wrap."""

    def __init__(self, moves: set[int], wrappers: set[int]) -> None:
        self.moves, self.wrappers = moves, wrappers

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        place = getattr(node, "_place", None)
        if place in self.moves and isinstance(node.func, ast.Attribute):
            return node.func.value
        if place in self.wrappers:
            return node.args[0] if node.args else node.keywords[0].value
        return node


def nothing_left(statement: ast.stmt, moves: list[ast.Call], wrappers: list[ast.Call]) -> bool:
    """Whether a statement only moved and wrapped: `x = x.to(device)`, `model = DataParallel(model).cuda()`, `a, b = a.to(d), b.to(d)`."""
    twin_statement = copy.deepcopy(statement)
    originals, copies = [n for n in ast.walk(statement) if isinstance(n, ast.Call)], [n for n in ast.walk(twin_statement) if isinstance(n, ast.Call)]
    for original, twin in zip(originals, copies, strict=True):
        twin._place = id(original)  # type: ignore[attr-defined]
    bare = _Bare({id(call) for call in moves}, {id(call) for call in wrappers}).visit(twin_statement)
    match bare:
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
