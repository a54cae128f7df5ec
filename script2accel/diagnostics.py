"""What the tool has to say about one place of a script: id, severity, what was found, what to do, and why it is believed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class Severity(str, Enum):
    """`error` stands in the way of a right conversion; `warning` is converted but must be read; `note` informs."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Evidence:
    """One link of the chain that led to a belief."""

    line: int
    why: str


@dataclass(frozen=True)
class Message:
    """A kind of diagnostic. `text` and `todo` are `str.format` templates; ids are never reused."""

    id: str
    severity: Severity
    text: str
    todo: str = ""

    def at(self, line: int, column: int = 1, *, path: str = "", evidence: tuple[Evidence, ...] = (), **fields: object) -> Diagnostic:
        """The diagnostic of this kind at a place (line and column count from 1)."""
        return Diagnostic(self.id, self.severity, line, column, self.text.format(**fields), self.todo.format(**fields), evidence, path)


@dataclass(frozen=True)
class Diagnostic:
    """A message at a place of a script; lines and columns count from 1, line 0 means the file as a whole."""

    id: str
    severity: Severity
    line: int
    column: int
    message: str
    todo: str = ""
    evidence: tuple[Evidence, ...] = ()
    path: str = ""

    def in_file(self, path: str) -> Diagnostic:
        """The same diagnostic, told of a named file."""
        return replace(self, path=path)
