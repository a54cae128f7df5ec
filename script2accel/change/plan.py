"""Edits, changes and the plan that decides which of them stand; rendering them into new text.

An edit names places of the ORIGINAL text. Changes are all-or-none; a change falls with what it needs; two changes that
claim the same text contest, the later one falls, and the plan says so.
"""

from __future__ import annotations

import ast
import bisect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from script2accel.source import Source

_END = re.compile(r"\r\n|\n")
_LONE = re.compile(r"(?<!\r)\n")  # as rules write it; what they copy from the file has its endings already


class Splice(NamedTuple):
    """Replace text[start:end]. With start == end it inserts; `after` binds an insertion to what stands before it."""

    start: int
    end: int
    text: str
    after: bool = False


class Lines(NamedTuple):
    """Whole lines of new code, at the indentation given, before (or behind) a line of the original; lower `rank` stands first."""

    line: int
    text: str
    behind: bool = False
    rank: int = 0


class Wrap(NamedTuple):
    """Put original lines first..last under a header line, one step deeper."""

    first: int
    last: int
    header: str


class Remove(NamedTuple):
    """Drop original lines first..last."""

    first: int
    last: int


class Unwrap(NamedTuple):
    """Take original lines first..last out of a block: what stands at `deep` goes back to `margin`."""

    first: int
    last: int
    margin: str
    deep: str


Edit = Splice | Lines | Wrap | Remove | Unwrap


@dataclass(frozen=True)
class Change:
    """Edits that only make sense together, with the reason that the user reads.

    `line` is where it is reported. `essential` changes of a file stand or fall together (dropping one would make a
    wrong conversion); the others can be refused alone. `source` names the documented transformation.
    """

    rule: str
    name: str
    message: str
    line: int
    edits: tuple[Edit, ...]
    essential: bool = True
    needs: frozenset[str] = frozenset()
    gives: frozenset[str] = frozenset()
    source: str = ""

    def touches(self, starts: Sequence[int], first: int, last: int) -> bool:
        """Whether one of the edits lies in original lines first..last."""
        return any(first <= low <= last or first <= high <= last or low <= first <= high for low, high in self.spans(starts))

    def spans(self, starts: Sequence[int]) -> list[tuple[int, int]]:
        """Original lines (first, last) of each edit."""
        spans = []
        for edit in self.edits:
            if isinstance(edit, Splice):
                spans.append((bisect.bisect_right(starts, edit.start), bisect.bisect_right(starts, max(edit.start, edit.end - 1))))
            elif isinstance(edit, Lines):
                spans.append((edit.line, edit.line))
            else:
                spans.append((edit.first, edit.last))
        return spans


@dataclass
class Plan:
    """The changes that stand for one source, in the order of the rules that made them."""

    source: Source
    applied: list[Change] = field(default_factory=list)
    contested: list[tuple[Change, Change]] = field(default_factory=list)

    @classmethod
    def close(cls, source: Source, changes: Iterable[Change]) -> Plan:
        """Refuse contests, then whatever needed a refused change, until nothing falls."""
        plan = cls(source)
        claimed: dict[int, list[tuple[Splice, Change]]] = {}
        for change in changes:
            claims = [
                (edit, range(source.line_of(edit.start), source.line_of(edit.end - 1) + 1))
                for edit in change.edits
                if isinstance(edit, Splice) and edit.end > edit.start
            ]
            winner = next(
                (owner for edit, lines in claims for line in lines for other, owner in claimed.get(line, ()) if _contest(edit, other)), None
            )
            if winner is not None:
                plan.contested.append((change, winner))
                continue
            plan.applied.append(change)
            for edit, lines in claims:
                for line in lines:
                    claimed.setdefault(line, []).append((edit, change))
        kept, _ = plan.keep(plan.applied, frozenset())
        plan.applied = list(kept)
        return plan

    def keep(self, changes: Sequence[Change], refused: frozenset[int]) -> tuple[tuple[Change, ...], tuple[int, ...]]:
        """The changes that stand when some (indexes into `changes`) are refused, and the indexes of all that fell."""
        fallen = set(refused)
        while True:
            if any(changes[i].essential for i in fallen):
                fallen |= {i for i, change in enumerate(changes) if change.essential}
            given = {name for i, change in enumerate(changes) if i not in fallen for name in change.gives}
            more = {i for i, change in enumerate(changes) if i not in fallen and not change.needs <= given}
            if not more:
                break
            fallen |= more
        used = {name for i, change in enumerate(changes) if i not in fallen for name in change.needs}
        only_served = {i for i, c in enumerate(changes) if i not in fallen and c.gives and not c.essential and fallen and not c.gives & used}
        fallen |= only_served
        return tuple(change for i, change in enumerate(changes) if i not in fallen), tuple(sorted(fallen))

    def render(self, changes: Iterable[Change] | None = None) -> bytes:
        """The file's new bytes with the given changes (all that stand, by default)."""
        changes = self.applied if changes is None else list(changes)
        edits = list(dict.fromkeys(edit for change in changes for edit in change.edits))
        if not edits:
            return self.source.raw
        return self.source.encode(_render(self.source, edits))


def _contest(one: Splice, other: Splice) -> bool:
    """Whether two edits replace overlapping text that neither encloses, or the same text differently."""
    if one == other or one.end <= other.start or other.end <= one.start:
        return False
    inside = (one.start <= other.start and other.end <= one.end) or (other.start <= one.start and one.end <= other.end)
    return not inside or (one.start, one.end) == (other.start, other.end)


def _render(source: Source, edits: Sequence[Edit]) -> str:
    removed = [edit for edit in edits if isinstance(edit, Remove)]
    gone = {line for edit in removed for line in range(edit.first, edit.last + 1)}
    newline = source.newline
    splices = [edit._replace(text=_LONE.sub(newline, edit.text)) for edit in edits if isinstance(edit, Splice)]
    chunks = _spliced(source, splices, gone)
    for line in gone:
        chunks[line - 1] = ""
    if gone:
        _keep_blocks(source, gone, chunks)
    inserts = sorted((edit for edit in edits if isinstance(edit, Lines)), key=lambda edit: edit.rank)
    wraps = sorted((edit for edit in edits if isinstance(edit, Wrap)), key=lambda edit: edit.last - edit.first)
    front: dict[int, list[str]] = {}
    back: dict[int, list[str]] = {}
    for insert in inserts:
        text = "".join(line + newline if line else newline for line in _END.split(insert.text))
        (back if insert.behind else front).setdefault(insert.line, []).append(text)
    for wrap in wraps:  # inner first: an outer wrap then indents what the inner one made
        if any(line not in gone for line in range(wrap.first, wrap.last + 1)):
            _indent(source, chunks, front, back, wrap)
    for edit in edits:
        if isinstance(edit, Unwrap):
            _dedent(source, chunks, front, back, edit)
    out: list[str] = []
    for number, chunk in enumerate(chunks, 1):
        piece = "".join(front.get(number, ())) + chunk
        tail = "".join(back.get(number, ()))
        last = piece or next((text for text in reversed(out) if text), newline) if tail else ""
        if tail and not last.endswith(("\n", "\r")):
            piece, tail = piece + newline, tail[: -len(newline)]  # behind a last line that has no line ending
        out.append(piece + tail)
    return "".join(out)


def _keep_blocks(source: Source, gone: set[int], chunks: list[str]) -> None:
    """A block that lost all its statements keeps a `pass`."""
    for node in source.every(ast.stmt, ast.ExceptHandler, ast.match_case):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if not isinstance(block, list) or not block or isinstance(node, ast.Module):
                continue
            first, last = source.line_of(source.start(block[0])), source.line_of(source.end(block[-1]) - 1)
            header = source.line_of(source.start(node)) if isinstance(node, ast.stmt) else first - 1
            if first in gone and last in gone and header not in gone and all(line in gone for line in range(first, last + 1)):
                chunks[first - 1] = source.indent(block[0]) + "pass" + source.newline


def _spliced(source: Source, splices: list[Splice], gone: set[int]) -> list[str]:
    """The text of every original line after the splices; a splice over several lines leaves its text on the first."""
    outer: list[Splice] = []
    replaced = sorted((s for s in splices if s.end > s.start), key=lambda s: (s.start, -s.end))
    for splice in replaced:
        if not (outer and splice.end <= outer[-1].end and splice != outer[-1]):
            outer.append(splice)
    starts = [splice.start for splice in outer]
    ordered = list(outer)
    for splice in splices:
        before = bisect.bisect_left(starts, splice.start) - 1  # the last replacement that starts in front of an insertion
        if splice.start == splice.end and not (before >= 0 and splice.start < outer[before].end):
            ordered.append(splice)
    ordered.sort(key=lambda s: (s.start, s.start != s.end, not s.after))
    ends = [*source.starts[1:], len(source.text)]
    chunks: list[list[str]] = [[] for _ in source.starts]
    at = line = 0

    def copy(upto: int) -> None:
        nonlocal at, line
        while at < upto:
            stop = min(ends[line], upto)
            chunks[line].append(source.text[at:stop])
            at = stop
            if at == ends[line] and line + 1 < len(ends):
                line += 1

    # at one offset: what belongs to the text before comes first, then insertions, then the replacement itself
    ordered.sort(key=lambda s: (s.start, 0 if s.after else 1 if s.start == s.end else 2))
    for splice in ordered:
        if source.line_of(splice.start) in gone:
            continue
        copy(splice.start)
        where = line - 1 if splice.after and line and at == source.starts[line] and splice.start == splice.end else line
        chunks[where].append(splice.text)
        if splice.end > at:
            at = splice.end
            while line + 1 < len(ends) and at >= ends[line]:
                line += 1
    copy(len(source.text))
    return ["".join(chunk) for chunk in chunks]


def _indent(source: Source, chunks: list[str], front: dict[int, list[str]], back: dict[int, list[str]], wrap: Wrap) -> None:
    """Indent the lines of a wrap and put its header in front of them."""
    unit, newline = source.unit, source.newline
    strings = source.string_lines if '"""' in source.text or "'''" in source.text or "\\" in source.text else frozenset()
    fresh = True
    margin = _margin(wrap.header)
    for number in range(wrap.first, wrap.last + 1):
        if number > wrap.first:  # what was put in front of the first statement stays outside
            front[number] = ["".join(_deeper(text, unit)) for text in front.get(number, [])]
        outside = number == wrap.last  # and so does what was put behind the last one, at its own indentation or less
        back[number] = [text if outside and margin.startswith(_margin(text)) else "".join(_deeper(text, unit)) for text in back.get(number, [])]
        chunk = chunks[number - 1]
        if chunk:
            if fresh and number not in strings:
                chunk = "".join(_deeper(chunk, unit))
            elif not fresh or number in strings:
                head, *rest = _LINE.findall(chunk)
                chunk = head + "".join(_deeper("".join(rest), unit))
            chunks[number - 1] = chunk
            fresh = chunk.endswith(("\n", "\r"))
    front.setdefault(wrap.first, []).append(wrap.header + newline)


def _dedent(source: Source, chunks: list[str], front: dict[int, list[str]], back: dict[int, list[str]], edit: Unwrap) -> None:
    """Move the lines of a dissolved block, and what was put between them, one step out."""
    strings = source.string_lines
    extra = len(edit.deep) - len(edit.margin)

    def out(text: str, keep_head: bool = False) -> str:
        lines = _LINE.findall(text)
        return "".join(line if (keep_head and not index) or not line.startswith(edit.deep) else line[extra:] for index, line in enumerate(lines))

    for number in range(edit.first, edit.last + 1):
        front[number] = [out(text) for text in front.get(number, [])]
        chunks[number - 1] = out(chunks[number - 1], number in strings)
        back[number] = [out(text) for text in back.get(number, [])]


def _margin(text: str) -> str:
    return text[: len(text) - len(text.lstrip(" \t"))]


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def _deeper(text: str, unit: str) -> Iterable[str]:
    for line in _LINE.findall(text):
        yield unit + line if line.strip() else line
