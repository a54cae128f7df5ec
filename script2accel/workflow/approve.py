"""Approval hunk by hunk: which changes a hunk shows, what falls when one is refused. Asks through a callback; prints nothing."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass

from script2accel.change.plan import Change
from script2accel.errors import InternalError, SourceError
from script2accel.notebook import Notebook
from script2accel.result import Result
from script2accel.source import Source
from script2accel.workflow.discover import NOTEBOOK

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


@dataclass(frozen=True)
class Hunk:
    """A piece of the diff and the changes (indexes into the result's `changes`) whose edits it shows."""

    text: str
    changes: tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """What is asked: a hunk, its number among the remaining result's hunks, the reasons that it has."""

    hunk: Hunk
    number: int
    total: int
    reasons: tuple[Change, ...]


@dataclass(frozen=True)
class Approved:
    """What is left after the answers; `quit` when the user wants to see no further file."""

    result: Result
    quit: bool = False


Ask = Callable[[Question], str]  # answers y, n, a, d or q
Tell = Callable[[tuple[Change, ...]], None]  # hears of the changes that fell with a refused hunk


def approve(result: Result, ask: Ask, tell: Tell) -> Approved:
    """Ask about every hunk in turn. A refused hunk takes its changes with it, and whatever needs them: the rest is asked anew."""
    accepted: set[int] = set()
    refused: set[int] = set()
    fallen: frozenset[int] = frozenset()
    left, answer = result, ""
    while answer not in ("a", "q"):
        index = [i for i in range(len(result.changes)) if i not in fallen]  # where `left.changes` stand among `result.changes`
        pieces = [Hunk(hunk.text, tuple(index[i] for i in hunk.changes)) for hunk in hunks(left)]
        number = next((n for n, hunk in enumerate(pieces) if not accepted.issuperset(hunk.changes)), None)
        if number is None:
            break
        hunk = pieces[number]
        answer = ask(Question(hunk, number + 1, len(pieces), tuple(result.changes[i] for i in hunk.changes)))
        if answer == "y":
            accepted.update(hunk.changes)
        elif answer != "a":
            said_no = set(hunk.changes) if answer == "n" else set(index) - accepted
            refused |= said_no
            left, now = result.without(frozenset(refused))
            dragged = sorted(set(now) - fallen - (said_no - accepted))
            fallen, accepted = frozenset(now), accepted - set(now)
            if dragged:
                tell(tuple(result.changes[i] for i in dragged))
    return Approved(verified(left), answer == "q")


def verified(result: Result) -> Result:
    """The result, when its new text is Python; anything else is our bug, and nothing may be written."""
    if result.changed:
        try:
            if result.path.endswith(NOTEBOOK):
                Source.parse(Notebook.read(result.after, result.path).joined.encode(), result.path)
            else:
                Source.parse(result.after, result.path)
        except SourceError as error:
            raise InternalError(f"the new text would not be Python ({error})") from None
    return result


def hunks(result: Result) -> tuple[Hunk, ...]:
    """The hunks of the result's diff; every change belongs to at least one, every hunk has at least one."""
    blocks = re.split(r"^(?=@@ )", result.diff(), flags=re.MULTILINE)[1:]
    if not blocks:
        return ()
    starts = result.plan.source.starts if result.plan else []
    spans = [_source_lines(result, *_touched(block)) for block in blocks]
    shown = [{i for i, change in enumerate(result.changes) if change.touches(starts, *span)} for span in spans]
    for i, change in enumerate(result.changes):
        if not any(i in changes for changes in shown):
            shown[min(range(len(spans)), key=lambda n: _distance(spans[n], change.line))].add(i)
    for n, changes in enumerate(shown):
        if not changes and result.changes:
            changes.add(min(range(len(result.changes)), key=lambda i: _distance(spans[n], result.changes[i].line)))
    return tuple(Hunk(block, tuple(sorted(changes))) for block, changes in zip(blocks, shown, strict=True))


def _touched(block: str) -> tuple[int, int]:
    """First and last line of the old text that a hunk changes; an insertion touches both its neighbours."""
    header, *lines = block.split("\n")
    match = _HEADER.match(header)
    if match is None:
        raise InternalError(f"not a hunk: {header!r}")
    at = int(match[1]) + (match[2] == "0")
    first, last = 0, 0
    for line in lines:
        if line[:1] in ("-", "+"):
            first = first or (at if line[0] == "-" else at - 1)
            last = at
        at += line[:1] in ("-", " ")
    return max(first, 1), last


def _source_lines(result: Result, first: int, last: int) -> tuple[int, int]:
    """A diff's lines end at line feeds only, a source's also at carriage returns: from the one count to the other."""
    if result.plan is None or "\r" not in result.plan.source.text:
        return first, last
    source = result.plan.source
    starts = [0, *(match.end() for match in re.finditer("\n", source.text))]
    end = starts[last] if last < len(starts) else len(source.text)
    low = starts[min(first, len(starts)) - 1]
    return bisect_right(source.starts, low), bisect_right(source.starts, max(low, end - 1))


def _distance(span: tuple[int, int], line: int) -> int:
    return max(span[0] - line, line - span[1], 0)
