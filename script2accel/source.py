"""One parsed file: bytes in, text, syntax tree, parents and exact character positions out.

The tree is the standard library's `ast`: it parses fifteen times faster than a concrete tree and gives every node its
place, so edits are made on the text itself and every byte that no edit touches stays what it was.
"""

from __future__ import annotations

import ast
import bisect
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from functools import cached_property
from itertools import chain
from typing import Any, TypeVar, overload

from script2accel.errors import SourceError

MAX_DEPTH = 300  # nodes below one another; deeper text is refused with its line
_NEWLINE = re.compile(r"\r\n|\r|\n")
_PYTHON2 = re.compile(
    r"""^\s*(?:print\s+["'\w%(]|exec\s+["'\w]|raise\s+\w+\s*,\s*\S)|^\s*except\s+[\w.()]+\s*,\s*\w+\s*:|<>|\bur["']|(?<![\w.])0\d+(?!\.)[lL]?\b"""
)

BELOW = "_below"  # the nodes right below a node of a parsed file, on the node itself

Scope = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below a node, in the order of their fields; the contexts and operators that the interpreter shares are none."""
    found = node.__dict__.get(BELOW)
    return _children(node) if found is None else found  # a node that no file was parsed to


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all nodes below it, outer ones first."""
    level = [node]
    for inner in level:
        yield inner
        level += children(inner)


def spelled(node: ast.expr) -> str:
    """An expression as `ast.unparse` spells it, at once for names with dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, (ast.Name, ast.Attribute)):
        return f"{spelled(node.value)}.{node.attr}"
    return ast.unparse(node)


def _children(node: ast.AST) -> list[ast.AST]:
    found: list[ast.AST] = []
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, ast.AST):
            if not isinstance(value, SHARED):
                found.append(value)
        elif isinstance(value, list):
            found += [item for item in value if isinstance(item, ast.AST) and not isinstance(item, SHARED)]
    return found


SHARED = (ast.expr_context, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
A = TypeVar("A", bound=ast.AST)
B = TypeVar("B", bound=ast.AST)
C = TypeVar("C", bound=ast.AST)
D = TypeVar("D", bound=ast.AST)


class Tree:
    """Questions about the structure around a node, answered from the parents of all nodes."""

    tree: ast.Module
    parents: dict[ast.AST, ast.AST]
    nodes: list[ast.AST]

    def __init__(self) -> None:
        self._every: dict[tuple[type[ast.AST], ...], list[Any]] = {}
        self._by_class: dict[type[ast.AST], list[tuple[int, ast.AST]]] = {}
        self._scopes: dict[ast.AST, Scope] = {}
        self._blocks: dict[ast.AST, dict[ast.stmt, list[ast.stmt]]] = {}
        self._classes: dict[ast.AST, tuple[ast.ClassDef, ...]] = {}

    @overload
    def every(self, a: type[A], /) -> list[A]: ...
    @overload
    def every(self, a: type[A], b: type[B], /) -> list[A | B]: ...
    @overload
    def every(self, a: type[A], b: type[B], c: type[C], /) -> list[A | B | C]: ...
    @overload
    def every(self, a: type[A], b: type[B], c: type[C], d: type[D], /) -> list[A | B | C | D]: ...
    @overload
    def every(self, *kinds: type[ast.AST]) -> list[Any]: ...
    def every(self, *kinds: Any) -> list[Any]:
        """All nodes of some classes, outer ones first."""
        if kinds not in self._every:
            if not self._by_class:
                for place, node in enumerate(self.nodes):
                    self._by_class.setdefault(type(node), []).append((place, node))
            found = [placed for cls, placed in self._by_class.items() if issubclass(cls, kinds)]
            self._every[kinds] = [node for _, node in (sorted(chain(*found)) if len(found) > 1 else chain(*found))]
        return self._every[kinds]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, innermost first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds the node (itself, if it is one)."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def scope(self, node: ast.AST) -> Scope:
        """The function, lambda, class or module whose body the node stands in."""
        if node not in self._scopes:
            self._scopes[node] = self._scope(node)
        return self._scopes[node]

    def _scope(self, node: ast.AST) -> Scope:
        child = node
        for parent in self.ancestors(node):
            if isinstance(parent, ast.Module):
                return parent
            if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and child in parent.body:
                return parent
            if isinstance(parent, ast.Lambda) and child is parent.body:
                return parent
            child = parent
        return self.tree

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.Module:
        """The function (lambdas and classes passed over) or the module that the node runs in."""
        scope: ast.AST = self.scope(node)
        while isinstance(scope, (ast.Lambda, ast.ClassDef)):
            scope = self.scope(scope)
        return scope  # type: ignore[return-value]

    def classes(self, node: ast.AST) -> tuple[ast.ClassDef, ...]:
        """The classes in whose text a node stands, innermost first."""
        around = self.parents.get(node)
        while around is not None and not isinstance(around, ast.stmt):
            around = self.parents.get(around)
        if around is None:
            return ()
        if around not in self._classes:
            outer = self.classes(around)
            self._classes[around] = (around, *outer) if isinstance(around, ast.ClassDef) else outer
        return self._classes[around]

    def block(self, statement: ast.stmt) -> list[ast.stmt]:
        """The list of statements that the statement stands in."""
        parent = self.parents[statement]
        if parent not in self._blocks:
            blocks = [block for name in ("body", "orelse", "finalbody") if isinstance(block := getattr(parent, name, None), list)]
            self._blocks[parent] = {item: block for block in blocks for item in block}
        return self._blocks[parent][statement]

    def root(self, node: ast.AST) -> ast.Module:
        """The module that a node stands in."""
        while node in self.parents:
            node = self.parents[node]
        return node if isinstance(node, ast.Module) else self.tree


class Source(Tree):
    """A file that parsed. Positions are character offsets into `text` (which has no byte order mark); lines count from 1."""

    def __init__(self, raw: bytes, text: str, tree: ast.Module, *, encoding: str, bom: bool, path: str) -> None:
        super().__init__()
        self.raw, self.text, self.tree, self.encoding, self.bom, self.path = raw, text, tree, encoding, bom, path
        self.starts = [0] + [match.end() for match in _NEWLINE.finditer(text)]
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        self._link()

    @classmethod
    def parse(cls, raw: bytes, path: str = "") -> Source:
        """Parse a file. Raises SourceError with line and column, and never anything else, on input that can't be read."""
        text, encoding, bom = decode(raw, path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(text)
        except SyntaxError as error:
            raise _unreadable(error, text, path) from None
        except (RecursionError, MemoryError):
            raise _too_deep(path, _deepest_line(text)) from None
        except ValueError as error:
            raise SourceError(f"not Python text: {error}", path=path, id="S2A002") from None
        return cls(raw, text, tree, encoding=encoding, bom=bom, path=path)

    def encode(self, text: str) -> bytes:
        """The file's bytes for a new text: same encoding, same byte order mark. Raises SourceError where it can't be encoded."""
        try:
            body = text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise SourceError(f"the new text can't be written in {self.encoding}: {error.reason}", path=self.path) from None
        return (b"\xef\xbb\xbf" + body) if self.bom else body

    def _link(self) -> None:
        level: list[ast.AST] = [self.tree]
        depth = 0
        while level:
            if depth > MAX_DEPTH:
                raise _too_deep(self.path, next((node.lineno for node in level if hasattr(node, "lineno")), 0))
            below: list[ast.AST] = []
            for node in level:  # grows: an `elif` is nested in the tree, and no deeper than its `if` for the reader
                self.nodes.append(node)
                held = node.__dict__[BELOW] = _children(node)
                for child in held:
                    self.parents[child] = node
                    (level if type(child) is ast.If and self.is_elif(child) else below).append(child)
            level, depth = below, depth + 1

    @property
    def notebook(self) -> bool:
        """Whether the text stands for the cells of a notebook."""
        return self.path.endswith(".ipynb")

    # places ------------------------------------------------------------------------------------------------

    def offset(self, line: int, column: int) -> int:
        """Character offset of a place as `ast` gives it: line from 1, column in UTF-8 bytes from 0."""
        start = self.starts[line - 1]
        if column == 0 or self.text.isascii():
            return start + column
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return start + len(self.text[start:end].encode("utf-8")[:column].decode("utf-8", "ignore"))

    def start(self, node: ast.AST) -> int:
        """Offset of the node's first character; decorators belong to a definition."""
        decorators = getattr(node, "decorator_list", None)
        if decorators:
            return self.text.rindex("@", 0, self.offset(decorators[0].lineno, decorators[0].col_offset))
        return self.offset(node.lineno, node.col_offset)  # type: ignore[attr-defined]

    def end(self, node: ast.AST) -> int:
        """Offset behind the node's last character."""
        return self.offset(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    def is_elif(self, statement: ast.stmt) -> bool:
        """Whether an `if` is the `elif` of another: no line can stand in front of it, and no header above it."""
        return isinstance(statement, ast.If) and self.text.startswith("elif", self.start(statement))

    def segment(self, node: ast.AST) -> str:
        """The node's own text."""
        return self.text[self.start(node) : self.end(node)]

    def line_of(self, offset: int) -> int:
        """The line, from 1, that holds an offset."""
        return bisect.bisect_right(self.starts, offset)

    def line(self, node: ast.AST) -> int:
        """The line, from 1, where the node starts (0 for the module)."""
        return getattr(node, "lineno", 0)

    def column(self, node: ast.AST) -> int:
        """The column, from 1, where the node starts."""
        return getattr(node, "col_offset", 0) + 1

    def line_text(self, line: int) -> str:
        """A whole line with its line ending."""
        end = self.starts[line] if line < len(self.starts) else len(self.text)
        return self.text[self.starts[line - 1] : end]

    def dot(self, node: ast.Attribute) -> int:
        """Offset of the dot in front of the attribute's name."""
        return self.text.rindex(".", self.end(node.value), self.end(node) - len(node.attr))

    def owner(self, node: ast.Attribute) -> str:
        """The text in front of the dot, its parentheses included."""
        return self.text[self.start(node) : self.dot(node)].rstrip()

    def outer(self, node: ast.expr) -> tuple[int, int]:
        """The node's extent with the parentheses that enclose just it."""
        start, end = self.start(node), self.end(node)
        while True:
            left, right = start - 1, end
            while left >= 0 and self.text[left] in " \t\r\n\\":
                left -= 1
            while right < len(self.text) and self.text[right] in " \t\r\n\\":
                right += 1
            if left < 0 or right >= len(self.text) or self.text[left] != "(" or self.text[right] != ")":
                return start, end
            parent = self.parents.get(node)
            if isinstance(parent, ast.Call) and node is not parent.func and left < self.end(parent) and self.call_paren(parent) == left:
                return start, end
            if isinstance(parent, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.arguments)):
                return start, end
            start, end = left, right + 1

    def call_paren(self, call: ast.Call) -> int:
        return self.text.index("(", self.outer(call.func)[1])

    # layout ------------------------------------------------------------------------------------------------

    @cached_property
    def newline(self) -> str:
        """The line ending that most lines use."""
        counts = {mark: 0 for mark in ("\n", "\r\n", "\r")}
        for match in _NEWLINE.finditer(self.text):
            counts[match.group()] += 1
        return max(counts, key=lambda mark: counts[mark])

    def indent(self, statement: ast.stmt) -> str:
        """The white space in front of the statement's first line."""
        line = self.line_text(self.line_of(self.start(statement)))
        return line[: len(line) - len(line.lstrip(" \t\f"))]

    @cached_property
    def unit(self) -> str:
        """One step of indentation, as the file does it (four spaces where nothing is indented)."""
        for node in self.nodes:
            body = getattr(node, "body", None)
            if isinstance(node, ast.stmt) and isinstance(body, list) and body and body[0].lineno > node.lineno:
                outer, inner = self.indent(node), self.indent(body[0])
                if inner.startswith(outer) and len(inner) > len(outer):
                    return inner[len(outer) :]
        return "    "

    def alone(self, statement: ast.stmt) -> bool:
        """Whether nothing but white space and a comment shares the statement's lines."""
        start, end = self.start(statement), self.end(statement)
        if self.is_elif(statement):
            return False
        before = self.text[self.starts[self.line_of(start) - 1] : start]
        after = self.text[end:]
        rest = _NEWLINE.split(after, maxsplit=1)[0].strip()
        return not before.strip() and (not rest or rest.startswith("#"))

    @cached_property
    def string_lines(self) -> frozenset[int]:
        """Lines that begin inside a string: they must not be indented."""
        found: set[int] = set()
        try:
            opened: list[int] = []
            for token in tokenize.generate_tokens(io.StringIO(self.text, newline="").readline):
                name = tokenize.tok_name[token.type]
                if token.type == tokenize.STRING:
                    found.update(range(token.start[0] + 1, token.end[0] + 1))
                elif name == "FSTRING_START":
                    opened.append(token.start[0])
                elif name == "FSTRING_END":
                    found.update(range(opened.pop() + 1, token.end[0] + 1))
        except (tokenize.TokenError, IndentationError, SyntaxError):
            return frozenset(range(1, len(self.starts) + 1))
        return frozenset(found)

    @cached_property
    def names(self) -> frozenset[str]:
        """Every identifier that the file mentions."""
        found = {node.id for node in self.every(ast.Name)} | {node.arg for node in self.every(ast.arg)}
        found |= {node.name for node in self.every(ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)}
        found |= {(alias.asname or alias.name).split(".")[0] for node in self.every(ast.Import, ast.ImportFrom) for alias in node.names}
        return frozenset(found)


def decode(raw: bytes, path: str = "") -> tuple[str, str, bool]:
    """Text, encoding and whether there is a byte order mark. Raises SourceError."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise SourceError("the file is UTF-16; Python reads UTF-8 (save it as UTF-8)", path=path, id="S2A002")
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise SourceError("the file holds a null byte: not Python text", path=path, line=line, id="S2A002")
    bom = raw.startswith(b"\xef\xbb\xbf")
    body = raw[3:] if bom else raw
    try:
        encoding = tokenize.detect_encoding(io.BytesIO(raw).readline)[0].removesuffix("-sig")
        text = body.decode(encoding)
        if encoding != "utf-8" and text.encode(encoding) != body:
            raise SourceError(f"its encoding {encoding} can't be written back byte for byte; save it as UTF-8", path=path, line=1, id="S2A002")
        return text, encoding, bom
    except SyntaxError as error:
        raise SourceError(f"unknown or invalid encoding: {error}", path=path, line=1, id="S2A002") from None
    except UnicodeDecodeError as error:
        line = body[: error.start].count(b"\n") + 1
        raise SourceError(f"byte 0x{body[error.start]:02x} is not {error.encoding}", path=path, line=line, id="S2A002") from None
    except (LookupError, UnicodeError) as error:  # a codec of bytes or of text, such as base64 or rot13
        raise SourceError(f"unknown or invalid encoding: {error}", path=path, line=1, id="S2A002") from None


def _too_deep(path: str, line: int) -> SourceError:
    return SourceError("an expression is nested too deeply or is too long to be read; split it", path=path, line=line, id="S2A004")


def _deepest_line(text: str) -> int:
    """The line with the most operators and brackets: where text that overflows the parser is."""
    lines = _NEWLINE.split(text)
    return 1 + max(range(len(lines)), key=lambda i: sum(lines[i].count(mark) for mark in "([{+-*/.,"), default=0)


def _unreadable(error: SyntaxError, text: str, path: str) -> SourceError:
    line, column = error.lineno or 0, error.offset or 0
    message = error.msg or "invalid syntax"
    if "too many nested" in message or "parser stack overflow" in message or "too many statically nested" in message:
        return _too_deep(path, line)
    for number, content in enumerate(_NEWLINE.split(text), 1):
        if _PYTHON2.search(content.split("#")[0]) and (number == line or "print" in message or "except" in message):
            return SourceError("this is Python 2 (convert it with 2to3 first)", path=path, line=number, id="S2A005")
    if _newer_python(text):
        import sys

        running = ".".join(map(str, sys.version_info[:2]))
        return SourceError(
            f"syntax newer than Python {running}, which runs this tool; run it with a newer Python", path=path, line=line, column=column, id="S2A006"
        )
    return SourceError(f"syntax error: {message}", path=path, line=line, column=column, id="S2A003")


def _newer_python(text: str) -> bool:
    """Whether LibCST, which knows the grammar of newer versions, reads what this Python doesn't."""
    depth = deepest = terms = longest = 0
    for mark in text:  # what LibCST dies of, or never returns from, must not reach it
        depth += (mark in "([{") - (mark in ")]}")
        terms = 0 if mark == "\n" and depth <= 0 else terms + (mark in "+-*/.,&|")
        deepest, longest = max(deepest, depth), max(longest, terms)
    if deepest > 60 or longest > 400:
        return False
    import libcst

    try:
        libcst.parse_module(text)
    except Exception:  # a parser written in Rust: whatever it raises, the text stays unread
        return False
    return True
