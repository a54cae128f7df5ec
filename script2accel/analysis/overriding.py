"""Code that may set any global of its module, so that what the text sets a name to is a default: `exec(...)`, `globals()[name] = ...`."""

from __future__ import annotations

import ast

from script2accel.source import Source, walk


def sets_any(node: ast.AST) -> bool:
    """Whether running a node may set any global of the module that it stands in."""
    if not isinstance(node, (ast.Call, ast.Subscript)):
        return False
    match node:
        case ast.Call(func=ast.Name(id="exec" | "execfile"), args=args):
            return len(args) < 2 or _is_globals(args[1])
        case ast.Call(func=ast.Attribute(value=owner, attr="update")):
            return _is_globals(owner)
        case ast.Subscript(value=owner, ctx=ast.Store()):
            return _is_globals(owner)
    return False


def overriding(source: Source, module: ast.Module) -> list[ast.stmt]:
    """The statements of a module's body that may set any of its globals, themselves or in a function of the file that they call."""
    functions = source.every(ast.FunctionDef, ast.AsyncFunctionDef)
    setters = {f.name for f in functions if any(sets_any(n) for n in walk(f))}
    body = [s for s in module.body if not isinstance(s, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))]
    return [s for s in body if any(_sets(n, setters) for n in walk(s))]


def _sets(node: ast.AST, setters: set[str]) -> bool:
    return sets_any(node) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in setters)


def _is_globals(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="globals")):
            return True
    return False
