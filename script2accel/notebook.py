"""A Jupyter notebook as one Python text, and that text put back into its cells: every byte outside of a changed cell's source stays.

The JSON is read with the place of every value, so that a cell's source is spliced and nothing is dumped anew. Cells are joined behind marker
comments, and IPython's own lines stand in as numbered `pass` lines; a conversion that lost, doubled or indented a mark can't be put back.
"""

from __future__ import annotations

import ast
import difflib
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]

from script2accel.errors import SourceError

UNREADABLE = "S2A021"
MARK = "# %% script2accel cell "
_MARK = re.compile(rf"^{MARK}(\d+)\n\n", re.MULTILINE)
_STAND_IN = re.compile(r"(?:pass|get_ipython\(\))  # script2accel magic (\d+)$", re.MULTILINE)
_BLANK = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r"[-+.\w]+")
_SHELL = re.compile(r"^\s*(?:!|%(?!%)|\?)|^\s*[\w.%*]+\?{1,2}\s*$|^\s*\w+\s*=\s*[!%]")
_TAKES_OUTPUT = re.compile(r"^\s*\w+\s*=\s*(?=[!%])")
_RUNS_CODE = re.compile(r"^\s*(?:\w+\s*=\s*)?%(?:(?:time|timeit|prun|run|macro|rerun|recall|load|edit|debug)\b|\w.*\w\()")
_NO_PYTHON = re.compile(r"^%%(?:!|(?:bash|sh|script|cmd|system|sx|perl|ruby|html|HTML|javascript|js|latex|markdown|svg|SVG|writefile|file)\b)")
_BODY_IS_PYTHON = re.compile(r"^%%(?:time|capture)\b")
_WRITES = re.compile(r"^%%(?:writefile|file)\s+(?:-a\s+)?(\S+)")
_LETTER = re.compile(r"\\u[0-9a-fA-F]{4}|\\.|[^\\]", re.DOTALL)


_HOLDERS = {3: "worksheets", 4: "cells"}


@dataclass(frozen=True)
class Value:
    """A JSON value and where it stands; `held` are the values inside it, by key or index."""

    start: int
    end: int
    value: object = None
    held: dict[str | int, Value] = field(default_factory=dict)

    def get(self, *keys: str | int) -> object:
        """A plain value below this one, or None."""
        at: Value | None = self
        for key in keys:
            at = at.held.get(key) if at is not None else None
        return at.value if at is not None else None


@dataclass
class Cell:
    """A code cell: its number among all cells (from 1), its source's value, its lines, the Python that stands for them."""

    number: int
    source: Value
    lines: list[str]
    python: str = ""
    first: int = 0  # its first line in the joined text


@dataclass
class Notebook:
    """A notebook that was read: the JSON text, its code cells, IPython's lines by their number."""

    path: str
    text: str
    cells: list[Cell]
    magics: list[str] = field(default_factory=list)
    joined: str = ""

    @classmethod
    def read(cls, raw: bytes, path: str) -> Notebook:
        """Read a notebook. Raises SourceError in one line for everything that isn't a Python notebook of nbformat 4."""
        try:
            text = raw.decode("utf-8")
            top = json.loads(text)
            tree = _value(text, _BLANK.match(text).end())  # type: ignore[union-attr]
        except (ValueError, RecursionError) as error:
            raise SourceError(f"not a notebook: its JSON can't be read ({error})", path=path, id=UNREADABLE) from None
        if not isinstance(top, dict) or top.get("nbformat") not in (3, 4) or not isinstance(top.get(_HOLDERS[top["nbformat"]]), list):
            raise SourceError(
                "not a notebook of nbformat 3 or 4: `jupyter nbconvert --to notebook` brings older ones up to it", path=path, id=UNREADABLE
            )
        language = tree.get("metadata", "kernelspec", "language") or tree.get("metadata", "language_info", "name") or "python"
        if language != "python":
            raise SourceError(f"the notebook's kernel runs {language}, not Python", path=path, id=UNREADABLE)
        book = cls(path, text, list(_cells(tree, path)))
        if not book.cells:
            raise SourceError("the notebook has no code cells", path=path, id=UNREADABLE)
        for cell in book.cells:
            book._neutral(cell)
        book._join()
        return book

    def _neutral(self, cell: Cell) -> None:
        """The cell's text as Python, IPython's lines replaced by stand-ins."""
        text = "".join(cell.lines)
        parses = _parses(text)
        unknown = text.startswith("%%") and not _BODY_IS_PYTHON.match(text) and not _NO_PYTHON.match(text)
        for index, line in enumerate(text.split("\n")):
            runs = _RUNS_CODE.match(line) or (_SHELL.search(line) and line.endswith("\\")) or (unknown and not index)
            if runs and not parses and not _NO_PYTHON.match(text):
                said = f"cell {cell.number} line {index + 1}: `{line.strip()}` can't be followed; put plain Python in its place"
                raise SourceError(said, path=self.path, id=UNREADABLE)
        if MARK in text or "script2accel magic" in text:
            raise SourceError(f"cell {cell.number}: holds a mark of this tool", path=self.path, id=UNREADABLE)
        if parses:
            cell.python = text
        elif _NO_PYTHON.match(text):
            cell.python = self._stand_in(text)
        else:
            lines = text.split("\n")
            cell.python = "\n".join(
                self._stand_in(line) if _SHELL.search(line) or (not index and line.startswith("%%")) else line for index, line in enumerate(lines)
            )

    def _stand_in(self, text: str) -> str:
        output = _TAKES_OUTPUT.match(text)
        body = text[output.end() :] if output else text.lstrip(" \t")
        self.magics.append(body)
        word = "get_ipython()" if output else "pass"  # what a command prints is a value that nobody knows
        return f"{text[: len(text) - len(body)]}{word}  # script2accel magic {len(self.magics) - 1}"

    def _join(self) -> None:
        line, parts = 1, []
        for cell in self.cells:
            cell.first = line + 2
            ending = "\r\n" if "\r\n" in "".join(cell.lines) else "\n"
            parts.append(f"{MARK}{cell.number}\n\n{cell.python}{ending}")
            line += parts[-1].count("\n")
        self.joined = "".join(parts)

    def place(self, line: int) -> tuple[int, int, int]:
        """Cell, line in the cell, and line of the JSON text, of a line of the joined text."""
        cell = max((c for c in self.cells if c.first <= line), key=lambda c: c.first, default=self.cells[0])
        inner = max(line - cell.first, 0)
        held = cell.source.held.get(min(inner, len(cell.source.held) - 1), cell.source)
        return cell.number, inner + 1, self.text.count("\n", 0, held.start) + 1

    def written_files(self) -> Iterator[tuple[int, str]]:
        """The files that cells write (`%%writefile`): the number of the cell, and the name as it stands there."""
        for cell in self.cells:
            match = _WRITES.match("".join(cell.lines))
            if match is not None:
                yield cell.number, match[1]

    def put_back(self, joined: str) -> bytes:
        """The notebook's bytes with the cells of a new joined text. Raises ValueError where its marks don't stand as they did."""
        pieces = _MARK.split(joined)
        if pieces[0] or [int(n) for n in pieces[1::2]] != [cell.number for cell in self.cells] or joined.count(MARK) != len(self.cells):
            raise ValueError("the change reaches over several cells")
        if [int(n) for n in _STAND_IN.findall(joined)] != list(range(len(self.magics))):
            raise ValueError("the change takes in a line of IPython's")
        out, at = [], 0
        for cell, text in zip(self.cells, pieces[2::2], strict=True):
            ending = "\r\n" if text.endswith("\r\n") and not cell.python.endswith("\r") else "\n"
            new = _STAND_IN.sub(lambda match: self.magics[int(match[1])], text.removesuffix(ending))
            if new != "".join(cell.lines):
                out += [self.text[at : cell.source.start], self._written(cell, new)]
                at = cell.source.end
        return "".join([*out, self.text[at:]]).encode("utf-8")

    def _written(self, cell: Cell, new: str) -> str:
        """A changed source in the form of the old one; lines that stay keep their text."""
        old = self.text[cell.source.start : cell.source.end]
        lines = _lines(new)
        if not cell.source.held:
            kept = _spelled(old)
            return '"' + "".join(w or self._quoted(line, old)[1:-1] for line, w in _taken_over(_lines("".join(cell.lines)), kept, lines)) + '"'
        items = [cell.source.held[i] for i in range(len(cell.source.held))]
        kept = [self.text[v.start : v.end] for v in items]
        written = [w or self._quoted(line, old) for line, w in _taken_over(cell.lines, kept, lines)]
        lead = self.text[cell.source.start + 1 : items[0].start]
        between = self.text[items[0].end : items[1].start] if len(items) > 1 else "," + (lead or " ")
        return "[" + lead + between.join(written) + (self.text[items[-1].end : cell.source.end - 1] if written else "") + "]"

    def _quoted(self, text: str, old: str) -> str:
        return json.dumps(text, ensure_ascii=old.isascii() and "\\u" in old)


def _lines(text: str) -> list[str]:
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _taken_over(old: list[str], spelled: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    """The new lines, each with the spelling that it had in the JSON, or '' where it is new."""
    for kind, low, high, first, last in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        yield from zip(old[low:high], spelled[low:high], strict=True) if kind == "equal" else ((line, "") for line in new[first:last])


def _spelled(quoted: str) -> list[str]:
    """The lines of a JSON string as they are spelled in it."""
    found = [""]
    for letter in _LETTER.findall(quoted[1:-1]):
        found[-1] += letter
        if letter in ("\\n", "\\u000a", "\\u000A"):
            found.append("")
    return found if found[-1] else found[:-1]


def _every_cell(tree: Value) -> Iterator[Value]:
    """The cells: of a notebook of nbformat 4, or of all sheets of one of nbformat 3."""
    if tree.get("nbformat") == 3:
        for sheet in tree.held["worksheets"].held.values():
            yield from sheet.held["cells"].held.values() if "cells" in sheet.held else ()
    else:
        yield from tree.held["cells"].held.values()


def _cells(tree: Value, path: str) -> Iterator[Cell]:
    for index, cell in enumerate(_every_cell(tree)):
        if cell.get("cell_type") == "code":
            if cell.get("language") not in (None, "python"):
                raise SourceError(f"cell {index + 1} is in {cell.get('language')}, not Python", path=path, id=UNREADABLE)
            source = cell.held.get("input" if tree.get("nbformat") == 3 else "source")
            values = [source.value] if source and isinstance(source.value, str) else [v.value for v in source.held.values()] if source else [None]
            if not all(isinstance(v, str) for v in values):
                raise SourceError(f"not a notebook: cell {index + 1} has no source", path=path, id=UNREADABLE)
            assert source is not None
            yield Cell(index + 1, source, [str(v) for v in values])


def _parses(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _value(text: str, at: int) -> Value:
    """The value that starts at a place of valid JSON."""
    if text[at] == '"':
        value, end = scanstring(text, at + 1)
        return Value(at, end, value)
    if text[at] not in "{[":
        match = _PLAIN.match(text, at)
        assert match is not None
        return Value(at, match.end(), json.loads(match[0]))
    closing, start = "}" if text[at] == "{" else "]", at
    held: dict[str | int, Value] = {}
    at = _skip(text, at + 1)
    while text[at] != closing:
        key: str | int = len(held)
        if closing == "}":
            key, at = scanstring(text, at + 1)
            at = _skip(text, _skip(text, at) + 1)
        held[key] = one = _value(text, at)
        at = _skip(text, one.end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return Value(start, at + 1, None, held)


def _skip(text: str, at: int) -> int:
    return _BLANK.match(text, at).end()  # type: ignore[union-attr]
