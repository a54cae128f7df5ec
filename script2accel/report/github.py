"""Findings as workflow commands of GitHub Actions, which show them at their lines of a pull request.

https://docs.github.com/actions/reference/workflow-commands-for-github-actions
"""

from __future__ import annotations

from collections.abc import Iterable

from script2accel.diagnostics import Diagnostic, Severity

_WORDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}


def commands(found: Iterable[Diagnostic]) -> str:
    """One command for each finding."""
    return "".join(_command(one) + "\n" for one in found)


def _command(one: Diagnostic) -> str:
    place = {"file": one.path, **({"line": one.line, "col": one.column} if one.line else {}), "title": one.id}
    properties = ",".join(f"{name}={_property(str(value))}" for name, value in place.items())
    message = f"{one.message}; {one.todo}" if one.todo else one.message
    return f"::{_WORDS[one.severity]} {properties}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
