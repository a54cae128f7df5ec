"""Findings as JSON, for other programs: one document, `version` counted up when a field changes its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterable

from script2accel.diagnostics import Diagnostic
from script2accel.result import Result
from script2accel.workflow.check import findings, ready

VERSION = 1


def document(results: Iterable[Result]) -> str:
    """Every file with its outcome, whether it is ready, its facts and its findings."""
    return json.dumps({"version": VERSION, "files": [_file(result) for result in results]}, indent=2) + "\n"


def _file(result: Result) -> dict[str, object]:
    return {
        "path": result.path,
        "outcome": result.outcome.value,
        "ready": ready(result),
        "facts": dict(result.facts),
        "findings": [_finding(found) for found in findings(result)],
    }


def _finding(found: Diagnostic) -> dict[str, object]:
    return {
        "id": found.id,
        "severity": found.severity.value,
        "line": found.line,
        "column": found.column,
        "message": found.message,
        "todo": found.todo,
        "evidence": [{"line": link.line, "why": link.why} for link in found.evidence],
    }
