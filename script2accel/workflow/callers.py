"""Scripts outside of a conversion that call what it changes, and scripts that start what a module defines."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import PurePosixPath

from script2accel.analysis.program import Program, Read
from script2accel.errors import SourceError
from script2accel.source import Source

MOST_RE_EXPORTS = 4  # modules that hand a name on, one after the other
MOST_ABOVE = 6  # modules that import one another, up to the script that a user starts


def outside_callers(changed: list[ast.AST], program: Program, read: Read, paths: Iterable[str]) -> dict[str, str]:
    """Path -> the changed function or class that the file imports, for files that the program doesn't hold."""
    names = {getattr(unit, "name", ""): program.of(unit) for unit in changed}
    names.pop("", None)
    mine = {source.path for source in program.sources}
    renamed = {
        alias.asname
        for s in program.sources
        for n in s.nodes
        if isinstance(n, ast.ImportFrom)
        for alias in n.names
        if alias.name in names and alias.asname
    }
    words = re.compile(rb"\b(" + b"|".join(re.escape(name.encode()) for name in {*names, *renamed}) + rb")\b") if names else None
    found: dict[str, str] = {}
    for path in paths if words is not None else ():
        if path in mine:
            continue
        raw = read(path)
        if raw is None or not words.search(raw):  # type: ignore[union-attr]
            continue
        try:
            source = Source.parse(raw, path)
        except SourceError:
            continue
        name = _calls(source, names, program)
        if name:
            found[path] = name
    return found


def _calls(source: Source, names: dict[str, Source], program: Program) -> str:
    """The first changed name that a file imports, or reaches through an imported module."""
    other = Program([source], program.read)
    modules: dict[str, str] = {}
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom):
            target = other.resolve(source, node.module or "", node.level)
            for alias in node.names:
                wanted = [n.id for n in source.every(ast.Name)] if alias.name == "*" else [alias.name]
                found = next((name for word in wanted if target is not None and (name := _behind(other, target, word, names))), "")
                if found:
                    return found
                below = other.resolve(source, f"{node.module}.{alias.name}" if node.module else alias.name, node.level)
                if below is not None:
                    modules[alias.asname or alias.name] = below.path
        elif isinstance(node, ast.Import):
            for alias in node.names:
                target = other.resolve(source, alias.name)
                if target is not None:
                    modules[alias.asname or alias.name] = target.path
    for node in source.nodes:
        held = other.load(modules[text]) if isinstance(node, ast.Attribute) and (text := ast.unparse(node.value)) in modules else None
        if isinstance(node, ast.Attribute) and held is not None and (found := _behind(other, held, node.attr, names)):
            return found
    return ""


def _behind(program: Program, module: Source, name: str, names: dict[str, Source], depth: int = 0) -> str:
    """The changed name that a module gives out as `name`: its own, or one that it imports (a package's `__init__`); '' where it is none."""
    if name in names and names[name].path == module.path:
        return name
    for node in module.nodes if depth < MOST_RE_EXPORTS else ():
        if not isinstance(node, ast.ImportFrom):
            continue
        inner = next((alias.name for alias in node.names if (alias.asname or alias.name) == name or alias.name == "*"), None)
        below = program.resolve(module, node.module or "", node.level) if inner is not None else None
        if below is not None and below is not module:
            found = _behind(program, below, name if inner == "*" else str(inner), names, depth + 1)
            if found:
                return found
    return ""


def starters(path: str, read: Read, paths: Iterable[str]) -> list[str]:
    """The scripts that import a module, by way of others or not, and that nobody imports; those that use Accelerate first."""
    importers = Importers(read, tuple(paths))
    found: dict[str, Source] = {}
    seen, level = {path}, importers.of(path)
    for _ in range(MOST_ABOVE):
        fresh = [source for source in level if source.path not in seen]
        seen |= {source.path for source in fresh}
        level = []
        for source in fresh:
            above = importers.of(source.path)
            level += above
            if not above:
                found[source.path] = source
    return sorted(found, key=lambda name: (b"accelerate" not in found[name].raw, name))


class Importers:
    """Who imports what among the files of a project; a file is parsed once, and only if it mentions the module."""

    def __init__(self, read: Read, paths: tuple[str, ...]) -> None:
        self.read, self.paths = read, paths
        self._parsed: dict[str, Source | None] = {}

    def of(self, path: str) -> list[Source]:
        """The files that import a module by a statement of their own."""
        home = PurePosixPath(path)
        word = (home.parent.name if home.stem == "__init__" else home.stem).encode()
        mention = [other for other in self.paths if other != path and word in (self.read(other) or b"")]
        return [source for other in mention if (source := self._source(other)) is not None and _imports(source, path, self.read)]

    def _source(self, path: str) -> Source | None:
        if path not in self._parsed:
            try:
                self._parsed[path] = Source.parse(self.read(path) or b"", path)
            except SourceError:
                self._parsed[path] = None
        return self._parsed[path]


def _imports(source: Source, path: str, read: Read) -> bool:
    program = Program([source], read)

    def reaches(module: str, level: int = 0) -> bool:
        target = program.resolve(source, module, level)
        return target is not None and target.path == path

    for node in source.nodes:
        if isinstance(node, ast.Import) and any(reaches(alias.name) for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if reaches(module, node.level) or any(reaches(f"{module}.{a.name}".lstrip("."), node.level) for a in node.names):
                return True
    return False
