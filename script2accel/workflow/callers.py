"""Scripts outside of a conversion that call what it changes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from script2accel.analysis.program import Program, Read
from script2accel.errors import SourceError
from script2accel.source import Source


def outside_callers(changed: list[ast.AST], program: Program, read: Read, paths: Iterable[str]) -> dict[str, str]:
    """Path -> the changed function or class that the file imports, for files that the program doesn't hold."""
    names = {getattr(unit, "name", ""): program.of(unit) for unit in changed}
    names.pop("", None)
    mine = {source.path for source in program.sources}
    words = re.compile(rb"\b(" + b"|".join(re.escape(name.encode()) for name in names) + rb")\b") if names else None
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
                holder = names.get(alias.name)
                if target is not None and (
                    (holder is not None and holder.path == target.path) or (alias.name == "*" and any(h.path == target.path for h in names.values()))
                ):
                    found = _mentioned(source, names, target.path) if alias.name == "*" else alias.name
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
        if isinstance(node, ast.Attribute) and node.attr in names and modules.get(ast.unparse(node.value)) == names[node.attr].path:
            return node.attr
    return ""


def _mentioned(source: Source, names: dict[str, Source], path: str) -> str:
    """The first changed name of a starred import that the file reads."""
    return next((n.id for n in source.nodes if isinstance(n, ast.Name) and n.id in names and names[n.id].path == path), "")
