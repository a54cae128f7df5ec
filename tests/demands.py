"""What every conversion must keep, whatever rule or fixture made it: told once, used by the rule, golden and fuzz tests."""

from __future__ import annotations

import re
from collections.abc import Mapping

from script2accel.change.plan import Lines, Remove, Splice, Unwrap, Wrap
from script2accel.options import Options
from script2accel.result import Outcome, Result
from script2accel.workflow.convert import convert

OUR_BUG = "S2A9"
_ENDS = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


def options_of(given: Options | Mapping[str, object] | None) -> Options:
    """Options as an example or a case.toml gives them."""
    if isinstance(given, Options):
        return given
    return Options.from_mapping(given or {})


def demands(result: Result, options: Options) -> list[str]:
    """What is wrong with a result: the output must compile, be final, and leave untouched lines alone."""
    wrong = [f"our own bug: {found}" for found in result.diagnostics if found.id.startswith(OUR_BUG)]
    if result.changed != (result.after != result.before) or (result.outcome is Outcome.REFUSED and result.changed):
        wrong.append(f"{result.outcome.value}, and yet something would be written")
    if not result.changed:
        return wrong
    try:
        compile(result.after, result.path, "exec", dont_inherit=True)
    except SyntaxError as error:
        return [*wrong, f"the output doesn't compile: {error}"]
    again = convert(result.after, options, result.path)
    if again.changed:
        wrong.append("a second run changes the output:\n" + again.diff())
    if result.outcome is Outcome.CONVERTED and (again.errors or again.outcome is not Outcome.READY):
        wrong.append(f"a second run says {again.outcome.value}: {[f'{d.line}: {d.id} {d.message}' for d in again.errors]}")
    return wrong + touched_without_edit(result)


def touched_without_edit(result: Result) -> list[str]:
    """Lines that no edit names and that are not in the output, byte for byte and in order; wrapped ones may be indented."""
    if result.plan is None:
        return ["changed, but there is no plan that says how"] if result.changed else []
    source = result.plan.source
    changed: set[int] = set()
    wrapped: set[int] = set()
    for change in result.changes:
        for edit in change.edits:
            if isinstance(edit, Splice):
                changed.update(range(source.line_of(edit.start), source.line_of(max(edit.start, edit.end - 1)) + 1))
            elif isinstance(edit, Remove):
                changed.update(range(edit.first, edit.last + 1))
            elif isinstance(edit, Wrap | Unwrap):
                wrapped.update(range(edit.first, edit.last + 1))
            else:
                assert isinstance(edit, Lines)  # new lines beside an original one change none
    before, after = _ENDS.findall(result.before), iter(_ENDS.findall(result.after))
    for number, line in enumerate(before, 1):
        if number in changed:
            continue
        bare = line.lstrip() if number in wrapped else line
        last = number == len(before)  # new lines behind a last line without an ending give it one
        found = ((new.lstrip() if number in wrapped else new) for new in after)
        if not any(new == bare or (last and new.rstrip() == bare.rstrip()) for new in found):
            return [f"line {number} has no edit and isn't in the output as it was (or not in its place): {line!r}"]
    return []
