"""The same road as `convert`, stopped at the plan: what stands between a script and being accelerate-ready."""

from __future__ import annotations

from script2accel.change.plan import Change, Splice
from script2accel.diagnostics import Diagnostic, Severity
from script2accel.options import Options
from script2accel.result import Outcome, Result


def check(source: bytes | str, options: Options | None = None, path: str = "train.py") -> tuple[Diagnostic, ...]:
    """Every finding of a script, in order of the lines; no error among them means accelerate-ready (or no training script)."""
    from script2accel.workflow.convert import convert

    return findings(convert(source, options or Options(), path))


def findings(result: Result) -> tuple[Diagnostic, ...]:
    """Each planned change as an error (the script isn't ready), and every diagnostic, in order of the lines."""
    planned = [_finding(result, change) for change in result.changes]
    told = [found.in_file(result.path) for found in result.diagnostics]
    return tuple(sorted(planned + told, key=lambda found: (found.line, found.column, found.id)))


def ready(result: Result) -> bool:
    """Whether the script needs nothing: accelerate-ready, or no training script, and no error stands."""
    return result.outcome in (Outcome.READY, Outcome.NOT_TRAINING) and not result.errors


def _finding(result: Result, change: Change) -> Diagnostic:
    todo = "run `script2accel convert`"
    return Diagnostic(change.rule, Severity.ERROR, change.line, _column(result, change), change.message, todo, (), result.path)


def _column(result: Result, change: Change) -> int:
    """Where the change's first edit on its line begins, from 1."""
    if result.plan is None:
        return 1
    source = result.plan.source
    starts = [edit.start for edit in change.edits if isinstance(edit, Splice) and source.line_of(edit.start) == change.line]
    return min(starts) - source.starts[change.line - 1] + 1 if starts else 1
