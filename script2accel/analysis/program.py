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


class Program(Tree):
    """Entry scripts and what they import. Paths are relative to the project's root, with forward slashes."""

    def __init__(self, entries: list[Source], read: Read | None = None) -> None:
        self.entries, self.read = entries, read
        self.parents: dict[ast.AST, ast.AST] = {}
        self.sources: list[Source] = []
        self.by_tree: dict[ast.Module, Source] = {}
        self._loaded: dict[str, Source | None] = {}
        self._extra: dict[Source, list[str]] = {}
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

    @cached_property
    def nodes(self) -> list[ast.AST]:
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
    """Constant folders that a script puts on `sys.path`."""
    found = []
    for node in source.nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Attribute(value=ast.Name(id="sys"), attr="path"), attr="append" | "insert"), args=args):
                found += [a.value for a in args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return found


def _normal(folder: PurePosixPath, extra: str) -> str:
    parts: list[str] = []
    for part in (*folder.parts, *PurePosixPath(extra).parts):
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    return "/".join(parts) or "."
