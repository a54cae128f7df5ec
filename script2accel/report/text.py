"""Results in words: the summary of `convert`, the lines of `check`, what `roles` prints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from script2accel.change.plan import Change
from script2accel.diagnostics import Diagnostic, Severity
from script2accel.report.style import paint, plain
from script2accel.result import Outcome, Result

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def finding(found: Diagnostic, *, colour: bool = False) -> str:
    """`file:line:col: ID message`, the form that editors jump by."""
    place = ":".join([plain(found.path), *(str(part) for part in (found.line, found.column) if found.line)])
    word = "warning: " if found.severity is Severity.WARNING else ""
    return f"{place}: {paint(found.id, _COLOURS[found.severity], colour)} {word}{plain(found.message)}"


def findings(found: Iterable[Diagnostic], *, colour: bool = False) -> str:
    """One line for each."""
    return "".join(finding(one, colour=colour) + "\n" for one in found)


def summary(result: Result, *, written: bool = False, explain: bool = False, colour: bool = False) -> str:
    """What became of a file: what was converted, what was not and why and what to do, and the facts that now hold."""
    lines = [paint(headline(result, written=written), "bold", colour)]
    if result.changed:
        lines += _converted(result.changes, explain)
    for one in sorted(result.diagnostics, key=lambda one: (one.line, one.column)):
        if result.outcome is not Outcome.ERROR:
            lines += _told(one.in_file(result.path), explain, colour)
    width = max((len(label) for label, _ in result.facts), default=0)
    lines += [f"  {label:<{width}}  {text}" for label, text in result.facts]
    if explain and result.outcome is not Outcome.ERROR:
        lines += ["  understood:", *(f"    {line}" for line in _roles(result))] if result.roles else []
    return "\n".join(lines) + "\n"


def headline(result: Result, *, written: bool = False) -> str:
    """The one line that says how a file ended."""
    if result.outcome is Outcome.ERROR and result.diagnostics:
        first = result.diagnostics[0]
        return finding(first.in_file(result.path)) + (f"; {first.todo}" if first.todo else "")
    return f"{plain(result.path)}: {_ending(result, written)}"


def roles(result: Result) -> str:
    """What was understood, line by line, each with its reasons."""
    return "".join(line + "\n" for line in _roles(result))


def _ending(result: Result, written: bool) -> str:
    left = len(result.errors)
    places = f"{left} place{'s' * (left != 1)}"
    count = f"{len(result.changes)} change{'s' * (len(result.changes) != 1)}"
    match result.outcome:
        case Outcome.READY:
            return "accelerate-ready already, nothing to convert" if not left else f"uses Accelerate already, but {places} need a person"
        case Outcome.CONVERTED:
            return f"converted, {count}" if written else f"can be converted, {count}"
        case Outcome.PARTIAL if result.changed:
            return f"{'' if written else 'can be '}partly converted, {count}; {places} need a person"
        case Outcome.PARTIAL:
            return f"not converted: {places} need a person (--partial writes the rest)"
        case Outcome.REFUSED:
            return "not converted: a right conversion can't be shown"
        case Outcome.NOT_TRAINING:
            return _not_training(result.before)
    return "not converted"


def _not_training(raw: bytes) -> str:
    if not raw.strip():
        return "empty, nothing to convert"
    return "no training loop in it, nothing to convert" if b"torch" in raw else "doesn't use torch, nothing to convert"


def _converted(changes: Iterable[Change], explain: bool) -> Iterator[str]:
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.rule, change.name), []).append(change)
    for (rule, name), group in groups.items():
        lines = sorted({change.line for change in group})
        where = f"line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        messages = {change.message for change in group}
        reason = f": {group[0].message}" if len(messages) == 1 else ""
        yield f"  {rule} {name}" + (f" x{len(group)}" if len(group) > 1 else "") + f", {where}{reason}"
        if explain:
            yield from (f"      {change.line}: {change.message}" + (f" [{change.source}]" if change.source else "") for change in group)


def _told(one: Diagnostic, explain: bool, colour: bool) -> Iterator[str]:
    yield "  " + finding(one, colour=colour)
    if one.todo:
        yield f"      to do: {one.todo}"
    if explain:
        yield from (f"      because line {link.line}: {link.why}" for link in one.evidence)


def _roles(result: Result) -> Iterator[str]:
    for role in sorted(result.roles, key=lambda role: role.line):
        reasons = f"  ({'; '.join(role.reasons)})" if role.reasons else ""
        yield f"{role.line}: {role.name}: {role.role}{reasons}"
