"""The road for a notebook: its cells as one script, the result put back into the cells, every line told as cell and line."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Collection
from dataclasses import replace

from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.errors import SourceError
from script2accel.notebook import Notebook
from script2accel.options import Options
from script2accel.result import Outcome, Result
from script2accel.source import walk
from script2accel.workflow.convert import convert

ACROSS = Message(
    "S2A941", Severity.ERROR, "the cells can't be converted where they stand: {why}", "put the training into one cell, and convert again"
)
WRITTEN = Message(
    "S2A954",
    Severity.ERROR,
    "cell {cell} writes `{name}` (`%%writefile`), a module that is converted: run again, it would put the old one back",
    "import the module from a file that no cell writes, and convert again",
)
LATE = "`{name}` would be used before the cell that imports it"
_LINES = re.compile(r"\blines? \d+(?:(?:, | and )\d+)*")


def convert_notebook(raw: bytes, options: Options, path: str) -> Result:
    """Convert a notebook's cells in place. Reads and writes nothing; never raises on what the text holds."""
    try:
        book = Notebook.read(raw, path)
    except SourceError as error:
        return unreadable(raw, path, error)
    return in_cells(book, convert(script(book), options, path), raw)


def unreadable(raw: bytes, path: str, error: SourceError) -> Result:
    """The result of a notebook that can't be read."""
    said = Diagnostic(error.id, Severity.ERROR, error.line, error.column, error.message, "", (), path)
    return Result(path, Outcome.ERROR, raw, raw, diagnostics=(said,))


def script(book: Notebook) -> bytes:
    """The cells as the bytes of one script."""
    return book.joined.encode("utf-8", "surrogatepass")


def in_cells(book: Notebook, found: Result, raw: bytes, changed: Collection[str] = ()) -> Result:
    """The result of the cells' script as one of the notebook: refused where the new text can't be put back into the cells, or where one of them
    writes a module that is `changed` with it."""
    path, after, extra, outcome = found.path, raw, [], found.outcome
    if found.changed:
        try:
            text = found.after.decode("utf-8")
            late = _late(text)
            if late:
                raise ValueError(LATE.format(name=late))
            after = book.put_back(text)
        except ValueError as error:
            extra, outcome = [ACROSS.at(0, path=path, why=error)], Outcome.REFUSED
    for number, name in book.written_files() if outcome is Outcome.CONVERTED else ():
        if posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) in changed:
            extra, outcome, after = [*extra, WRITTEN.at(0, path=path, cell=number, name=name)], Outcome.REFUSED, raw
    told = tuple([_told(book, d, path) if d.path in ("", path) else d for d in found.diagnostics] + extra)
    changes = tuple(
        replace(c, line=book.place(c.line)[2], edits=(), message=f"{_where(book, c.line)}: {_renumbered(book, c.message)}") for c in found.changes
    )
    roles = tuple(replace(r, line=book.place(r.line)[2], reasons=tuple(_renumbered(book, why) for why in r.reasons)) for r in found.roles)
    return Result(path, outcome, raw, after, changes if after != raw else (), told, roles, found.facts if after != raw else ())


def _told(book: Notebook, found: Diagnostic, path: str) -> Diagnostic:
    if not found.line:
        return replace(found, path=path, message=_renumbered(book, found.message))
    evidence = tuple(replace(e, line=book.place(e.line)[2], why=_renumbered(book, e.why)) for e in found.evidence)
    message = f"{_where(book, found.line)}: {_renumbered(book, found.message)}"
    return replace(found, line=book.place(found.line)[2], column=1, message=message, todo=_renumbered(book, found.todo), evidence=evidence, path=path)


def _where(book: Notebook, line: int) -> str:
    cell, inner, _ = book.place(line)
    return f"cell {cell} line {inner}"


def _renumbered(book: Notebook, text: str) -> str:
    """A sentence about lines of the joined text, told as cells and lines."""
    return _LINES.sub(lambda match: ", ".join(_where(book, int(n)) for n in re.findall(r"\d+", match[0])), text)


def _late(text: str) -> str:
    """A name of Accelerate's that stands above its import: cells run in their order."""
    tree = ast.parse(text)
    imported = {
        alias.asname or alias.name: node.lineno
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "accelerate"
        for alias in node.names
    }
    return next((n.id for n in walk(tree) if isinstance(n, ast.Name) and n.lineno < imported.get(n.id, 0)), "")
