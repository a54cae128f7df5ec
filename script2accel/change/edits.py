"""The words that rules speak: each gives the edits for one intention, places taken from the original text."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from script2accel.change.plan import Edit, Lines, Remove, Splice, Unwrap, Wrap
from script2accel.source import Source


class CannotEditError(Exception):
    """The layout of the text doesn't allow the edit (several statements on one line); `node` is where."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


def replace(source: Source, node: ast.AST, text: str) -> tuple[Edit, ...]:
    """Put text in the place of a node."""
    return (Splice(source.start(node), source.end(node), text),)


def replace_range(start: int, end: int, text: str) -> tuple[Edit, ...]:
    """Put text in the place of a range of characters."""
    return (Splice(start, end, text),)


def call_function(source: Source, call: ast.Call, function: str) -> tuple[Edit, ...]:
    """`x.method(a)` -> `function(x, a)`: the receiver becomes the first argument."""
    assert isinstance(call.func, ast.Attribute)
    paren = source.text.index("(", source.end(call.func))
    has_more = bool(call.args or call.keywords)
    start, dot = source.start(call.func), source.dot(call.func)
    return (Splice(start, start, f"{function}("), Splice(dot, paren + 1, ", " if has_more else ""))


def wrap_expression(source: Source, node: ast.expr, before: str, after: str) -> tuple[Edit, ...]:
    """Put text around an expression."""
    return (Splice(source.start(node), source.start(node), before), Splice(source.end(node), source.end(node), after, True))


def add_argument(source: Source, call: ast.Call, text: str, *, first: bool = False) -> tuple[Edit, ...]:
    """Give a call one more argument, at the end (before `**kwargs`) or at the front."""
    every: list[ast.AST] = [*call.args, *(k for k in call.keywords)]
    paren = source.text.index("(", source.outer(call.func)[1])
    if first and every:
        at = paren + 1
        while source.text[at : at + 1] in (" ", "\t"):
            at += 1
        if source.text[at : at + 1] in ("\r", "\n"):  # each argument on a line of its own
            before = source.text[at : len(source.text) - len(source.text[at:].lstrip())]
            indent = before.splitlines()[-1] if before[-1:] not in "\r\n" else ""
            ending = "\r\n" if before.startswith("\r\n") else before[0]
            return (Splice(paren + 1, paren + 1, f"{ending}{indent}{text},", True),)
        return (Splice(paren + 1, paren + 1, text + ", ", True),)
    if not every:
        return (Splice(paren + 1, paren + 1, text, True),)
    star = next((k for k in call.keywords if k.arg is None), None)
    if star is not None:
        at = source.text.rindex("**", 0, source.start(star.value))
        return (Splice(at, at, text + ", "),)
    if len(every) == 1 and isinstance(every[0], ast.GeneratorExp):
        start, end = source.start(every[0]), source.end(every[0])
        if source.text[start] == "(" and start == paren:
            return (Splice(start + 1, start + 1, "("), Splice(end - 1, end - 1, "), " + text, True))
    last = every[-1]
    end = source.outer(last)[1] if isinstance(last, ast.expr) else source.outer(last.value)[1]  # type: ignore[attr-defined]
    return (Splice(end, end, ", " + text, True),)


def drop_argument(source: Source, call: ast.Call, node: ast.expr | ast.keyword) -> tuple[Edit, ...]:
    """Take one argument out of a call, with its comma."""
    every: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    index = every.index(node)
    start, end = _extent(source, node)
    if index + 1 < len(every):
        end = _extent(source, every[index + 1])[0]
    elif index:
        start = _extent(source, every[index - 1])[1]
    else:
        closing = source.text.index(")", end)
        if source.text[end:closing].strip() == ",":
            end = closing
    return (Splice(start, end, ""),)


def _extent(source: Source, node: ast.expr | ast.keyword) -> tuple[int, int]:
    if isinstance(node, ast.keyword):
        value = source.outer(node.value)
        start = source.text.rindex("**", 0, value[0]) if node.arg is None else source.start(node)
        return start, value[1]
    return source.outer(node)


def add_parameter(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, method: bool) -> tuple[Edit, ...]:
    """Give a function one more parameter: the first, behind `self` in a method."""
    arguments = function.args
    paren = source.text.index("(", source.offset(function.lineno, function.col_offset))
    positional = [*arguments.posonlyargs, *arguments.args]
    if method:
        end = source.end(positional[0])
        return (Splice(end, end, f", {name}", True),)
    anything = positional or arguments.vararg or arguments.kwonlyargs or arguments.kwarg
    return (Splice(paren + 1, paren + 1, name + (", " if anything else ""), True),)


def remove_statement(source: Source, statement: ast.stmt) -> tuple[Edit, ...]:
    """Take a statement out, with the comments glued above it; `pass` where it shares its lines."""
    if not source.alone(statement):
        return (Splice(source.start(statement), source.end(statement), "pass"),)
    first = source.line_of(source.start(statement))
    last = source.line_of(max(source.start(statement), source.end(statement) - 1))
    indent = source.indent(statement)
    floor, own = _header_line(source, statement), first
    while first - 1 > floor:
        above = source.line_text(first - 1)
        if not (above.strip().startswith("#") and above.startswith(indent + "#")):
            break
        first -= 1
    return (Remove(own if first == 1 else first, last),)  # what a file begins with speaks of the file


def _header_line(source: Source, statement: ast.stmt) -> int:
    """The line behind which the statement's block starts."""
    parent = source.parents[statement]
    return 0 if isinstance(parent, ast.Module) else source.line_of(source.start(parent))


def add_before(source: Source, statement: ast.stmt, code: str, *, rank: int = 0) -> tuple[Edit, ...]:
    """New lines in front of a statement, at its indentation; the lowest rank stands first. Raises CannotEditError."""
    if not _starts_line(source, statement):
        raise CannotEditError(statement, "a statement that shares its line with others")
    return (Lines(source.line_of(source.start(statement)), _indented(source, statement, code), False, rank),)


def add_behind(source: Source, statement: ast.stmt, code: str, *, rank: int = 0) -> tuple[Edit, ...]:
    """New lines behind a statement, at its indentation. Raises CannotEditError."""
    if not _starts_line(source, statement) or not source.alone(statement):
        raise CannotEditError(statement, "a statement that shares its line with others")
    return (Lines(source.line_of(source.end(statement) - 1), _indented(source, statement, code), True, rank),)


def append(source: Source, statement: ast.stmt, code: str) -> tuple[Edit, ...]:
    """New lines right behind a statement's text: unlike lines that are added behind it, they go where it goes, under a new header too."""
    lines = _indented(source, statement, code).replace("\n", source.newline)
    return (Splice(source.end(statement), source.end(statement), source.newline + lines, True),)


def _starts_line(source: Source, statement: ast.stmt) -> bool:
    start = source.start(statement)
    return not source.is_elif(statement) and not source.text[source.starts[source.line_of(start) - 1] : start].strip()


def _indented(source: Source, statement: ast.stmt, code: str) -> str:
    indent = source.indent(statement)
    return "\n".join(indent + line.replace("\t", source.unit) if line else "" for line in code.split("\n"))


def wrap_statements(source: Source, statements: list[ast.stmt], header: str) -> tuple[Edit, ...]:
    """Put neighbouring statements under one header line (`if ...:` or `with ...:`). Raises CannotEditError."""
    first, last = statements[0], statements[-1]
    for statement in (first, last):
        if not source.alone(statement):
            raise CannotEditError(statement, "a statement that shares its line with others")
    return (Wrap(source.line_of(source.start(first)), source.line_of(source.end(last) - 1), source.indent(first) + header),)


def neighbours(source: Source, statements: list[ast.stmt]) -> Iterator[list[ast.stmt]]:
    """Groups of statements that stand one below the other in one block, so that they can go under one header."""
    wanted = set(statements)
    seen: set[ast.stmt] = set()
    for statement in sorted(statements, key=lambda s: s.lineno):
        if statement in seen:
            continue
        block = source.block(statement)
        run = [statement]
        for following in block[next(i for i, s in enumerate(block) if s is statement) + 1 :]:
            if following not in wanted or not source.alone(following) or not source.alone(statement):
                break
            run.append(following)
        seen |= set(run)
        yield run


def dissolve(source: Source, node: ast.If | ast.With | ast.AsyncWith, block: list[ast.stmt] | None = None) -> tuple[Edit, ...]:
    """Take the header of a block away, and of an `if` all but one of its blocks (the body, unless another is given). Raises CannotEditError."""
    body = node.body if block is None else block
    first, last = source.line_of(source.start(node)), source.line_of(source.end(node) - 1)
    inner, end = source.line_of(source.start(body[0])), source.line_of(source.end(body[-1]) - 1)
    if not source.alone(node) or source.is_elif(node) or not source.alone(body[0]) or not source.alone(body[-1]) or source.is_elif(body[0]):
        raise CannotEditError(node, "a block that shares its lines with others")
    while (
        inner - 1 > first and source.line_text(inner - 1).strip().startswith("#") and source.line_text(inner - 1).startswith(source.indent(body[0]))
    ):
        inner -= 1
    edits: list[Edit] = [Remove(first, inner - 1), Unwrap(inner, end, source.indent(node), source.indent(body[0]))]
    if end < last:
        edits.append(Remove(end + 1, last))
    return tuple(edits)


def drop_parameter(source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> tuple[Edit, ...]:
    """Take a parameter out of a function's signature, with its default and its comma. Raises CannotEditError."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: dict[ast.arg, ast.expr] = dict(zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True))
    defaults |= {a: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    index = next((i for i, a in enumerate(positional) if a.arg == name), None)
    if index is None or (arguments.posonlyargs and index + 1 >= len(arguments.posonlyargs)):
        raise CannotEditError(function, f"its parameter `{name}` can't be taken out alone")
    arg = positional[index]
    start, end = source.start(arg), source.outer(defaults[arg])[1] if arg in defaults else source.end(arg)
    if index + 1 < len(positional):
        return (Splice(start, source.start(positional[index + 1]), ""),)
    if index:
        before = positional[index - 1]
        return (Splice(source.outer(defaults[before])[1] if before in defaults else source.end(before), end, ""),)
    closing = source.text.index(")", end) if not (arguments.vararg or arguments.kwonlyargs or arguments.kwarg) else source.text.index(",", end) + 1
    return (Splice(start, closing, ""),)


def ensure_import(source: Source, module: str, name: str) -> tuple[Edit, ...]:
    """`from module import name`, behind the last import of the file's head; nothing where it stands already.

    Raises CannotEditError when the name is something else in the file.
    """
    head = import_head(source)
    if module and taken(source, module, name):
        raise CannotEditError(taken(source, module, name), f"`{name}` is something else in this file")  # type: ignore[arg-type]
    for statement in head:
        if not isinstance(statement, ast.ImportFrom) or statement.module != module or statement.level:
            continue
        if any(alias.name == name and alias.asname is None for alias in statement.names):
            return ()
    code = f"from {module} import {name}" if module else f"import {name}"
    if not module and any(isinstance(s, ast.Import) and any(a.name == name and a.asname is None for a in s.names) for s in head):
        return ()
    usable = [s for s in head if source.alone(s)]
    first = next((s for s in usable if not (isinstance(s, ast.ImportFrom) and s.module == "__future__")), None)
    if not module and first is not None:
        return (Lines(source.line_of(source.start(first)), code),)
    if usable:
        torch_ones = [s for s in usable if _imports(s, "torch")]
        anchor = (torch_ones or usable)[-1]
        return (Lines(source.line_of(source.end(anchor) - 1), code, True, module.count(".")),)
    body = source.tree.body
    documented = body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)
    if documented and source.alone(body[0]):
        return (Lines(source.line_of(source.end(body[0]) - 1), "\n" + code, True),)
    return (
        (Lines(source.line_of(source.start(body[0])), code + "\n"),)
        if body and _starts_line(source, body[0])
        else (Splice(0, 0, code + source.newline),)
    )


def taken(source: Source, module: str, name: str) -> ast.AST | None:
    """What, other than an import of it from the module, gives a name another meaning in a file."""
    for node in source.every(ast.stmt, ast.Name) if name in source.names else ():
        match node:
            case ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own) | ast.ClassDef(name=own) if own == name:
                return node
            case ast.Name(id=own, ctx=ast.Store()) if own == name:
                return node
            case ast.ImportFrom(module=other, names=aliases) if other != module and not (other or "").startswith("accelerate"):
                if any((alias.asname or alias.name) == name for alias in aliases):
                    return node
    return None


def import_head(source: Source) -> list[ast.stmt]:
    """The import statements at module level."""
    return [s for s in source.tree.body if isinstance(s, (ast.Import, ast.ImportFrom))]


def _imports(statement: ast.stmt, package: str) -> bool:
    if isinstance(statement, ast.ImportFrom):
        return (statement.module or "").split(".")[0] == package and statement.level == 0
    return isinstance(statement, ast.Import) and any(alias.name.split(".")[0] == package for alias in statement.names)


def merge(edits: Iterable[tuple[Edit, ...]]) -> tuple[Edit, ...]:
    """Several edits as one."""
    return tuple(edit for group in edits for edit in group)
