"""The files that training runs through: the entry scripts and the modules of the project that they import.

Imports are resolved by name inside the project's folder only, never in site-packages, and nothing is imported: a module is text
that a reader function hands out.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cached_property
from pathlib import PurePosixPath

from script2accel.errors import SourceError
from script2accel.source import Source, Tree

Read = Callable[[str], "bytes | None"]
MOST = 200  # modules of one program
MOST_PARTS = 12  # nested calls of an expression that names a folder


class Program(Tree):
    """Entry scripts and what they import. Paths are relative to the project's root, with forward slashes."""

    def __init__(self, entries: list[Source], read: Read | None = None, taught: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__()
        self.entries, self.read = entries, read
        self.taught = taught  # (dotted name, role): what the user says that calls of it give
        self.parents: dict[ast.AST, ast.AST] = {}
        self.sources: list[Source] = []
        self.by_tree: dict[ast.Module, Source] = {}
        self._loaded: dict[str, Source | None] = {}
        self._extra: dict[Source, list[str]] = {}
        self.scopes: dict[ast.Module, tuple[dict[ast.AST, set[str]], dict[ast.AST, dict[str, str]]]] = {}  # what the machine found, once
        for source in entries:
            self._add(source)
            self._loaded[source.path] = source
        self.tree = entries[0].tree

    def _add(self, source: Source) -> None:
        self.parents.update(source.parents)
        source.parents = self.parents
        self.sources.append(source)
        self.by_tree[source.tree] = source
        self.__dict__.pop("nodes", None)
        self._every.clear()
        self._by_class.clear()

    @cached_property
    def nodes(self) -> list[ast.AST]:  # type: ignore[override]
        """Every node of every file."""
        return [node for source in self.sources for node in source.nodes]

    @property
    def names(self) -> frozenset[str]:
        """Every identifier that one of the files mentions."""
        return frozenset().union(*(source.names for source in self.sources))

    def of(self, node: ast.AST) -> Source:
        """The file that a node stands in."""
        return self.by_tree[self.root(node)]

    def is_entry(self, node: ast.AST) -> bool:
        """Whether a node stands in a script that a user starts."""
        return self.of(node) in self.entries

    # text, by way of the node's file ----------------------------------------------------------------------

    def start(self, node: ast.AST) -> int:
        """Offset of the node's first character in its file."""
        return self.of(node).start(node)

    def end(self, node: ast.AST) -> int:
        """Offset behind the node's last character in its file."""
        return self.of(node).end(node)

    def segment(self, node: ast.AST) -> str:
        """The node's own text."""
        return self.of(node).segment(node)

    def alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself."""
        return self.of(statement).alone(statement)

    # imports ---------------------------------------------------------------------------------------------

    def resolve(self, importer: Source, module: str, level: int = 0) -> Source | None:
        """The project's file behind a module name, as the importer sees it; None for libraries."""
        parts = module.split(".") if module else []
        for folder in self._folders(importer, level):
            for path in (folder.joinpath(*parts).with_suffix(".py") if parts else None, folder.joinpath(*parts, "__init__.py")):
                found = self.load(str(path)) if path is not None else None
                if found is not None:
                    return found
        return None

    def _folders(self, importer: Source, level: int) -> list[PurePosixPath]:
        here = PurePosixPath(importer.path).parent
        if level:
            for _ in range(level - 1):
                here = here.parent
            return [here]
        found: dict[PurePosixPath, None] = {}
        for entry in self.entries:
            folder = PurePosixPath(entry.path).parent
            found[folder] = None
            if entry not in self._extra:
                self._extra[entry] = _path_tricks(entry)
            for extra in self._extra[entry]:
                found[PurePosixPath(_normal(folder, extra))] = None
            for above in folder.parents:
                found[above] = None
        found[PurePosixPath("src")] = None
        return list(found)

    def dotted(self, source: Source) -> list[str]:
        """The names under which the project's scripts can import a file."""
        found = []
        path = PurePosixPath(source.path).with_suffix("")
        for folder in self._folders(source, 0):
            if path.is_relative_to(folder):
                parts = path.relative_to(folder).parts
                found.append(".".join(parts[:-1] if parts[-1:] == ("__init__",) else parts))
        return [*found, "__main__"] if source in self.entries else found

    def load(self, path: str) -> Source | None:
        """A file of the project, parsed once; None where there is none or it can't be read."""
        path = str(PurePosixPath(path))
        if path not in self._loaded:
            self._loaded[path] = None
            raw = self.read(path) if self.read is not None and len(self.sources) < MOST else None
            if raw is not None:
                try:
                    source = Source.parse(raw, path)
                except SourceError:
                    return None
                self._loaded[path] = source
                self._add(source)
        return self._loaded[path]


def _path_tricks(source: Source) -> list[str]:
    """The folders that a script puts on `sys.path`, from its own folder: constants, and what is made of `__file__`."""
    found = []
    values = {s.targets[0].id: s.value for s in source.tree.body if isinstance(s, ast.Assign) and isinstance(s.targets[0], ast.Name)}
    for node in source.nodes:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="path"), attr="append" | "insert"), args=[*_, folder]
            ):
                path = _folder(folder, values)
                found += [path] if path is not None else []
    return found


def _folder(node: ast.expr, values: dict[str, ast.expr], depth: int = 0) -> str | None:
    """A path as an expression makes it (`os.path` or `pathlib`); the script is `./file`, so that its folder is `.`."""
    if depth > MOST_PARTS:
        return None

    def inner(part: ast.expr) -> str | None:
        return _folder(part, values, depth + 1)

    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id="__file__"):
            return "./file"
        case ast.Name(id=name) if name in values:
            return inner(values[name])
        case ast.Call(func=ast.Attribute(attr="join" | "joinpath" as how, value=owner), args=args) if args:
            parts = [inner(part) for part in (args if how == "join" else [owner, *args])]
            return "/".join(str(part) for part in parts) if None not in parts else None
        case ast.Call(func=ast.Attribute(attr="dirname"), args=[path]) | ast.Attribute(value=path, attr="parent"):
            return _above(inner(path), 1)
        case ast.Subscript(value=ast.Attribute(value=path, attr="parents"), slice=ast.Constant(value=int(count))):
            return _above(inner(path), count + 1)
        case ast.Call(func=ast.Attribute(attr="abspath" | "realpath" | "normpath" | "fspath") | ast.Name(id="str" | "Path"), args=[path]):
            return inner(path)
        case ast.Call(func=ast.Attribute(attr="Path"), args=[path]):
            return inner(path)
        case ast.Call(func=ast.Attribute(value=path, attr="resolve" | "absolute" | "as_posix"), args=[]):
            return inner(path)
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            first, second = inner(left), inner(right)
            return f"{first}/{second}" if first is not None and second is not None else None
    return None


def _above(path: str | None, count: int) -> str | None:
    """The folder so many levels above a path."""
    if path is None:
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    for _ in range(count):
        parts = parts[:-1] if parts and parts[-1] != ".." else [*parts, ".."]
    return "/".join(parts) or "."


def _normal(folder: PurePosixPath, extra: str) -> str:
    parts: list[str] = []
    for part in (*folder.parts, *PurePosixPath(extra).parts):
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    return "/".join(parts) or "."
