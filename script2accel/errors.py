"""The exceptions of the project: one root, three leaves. What a user's file contains is a value (a Diagnostic), never an exception."""

from __future__ import annotations


class Script2AccelError(Exception):
    """Root of every error that this package raises on purpose."""


class UsageError(Script2AccelError):
    """The call makes no sense (unknown option, impossible combination): exit code 2."""


class SourceError(Script2AccelError):
    """A file can't be read or isn't Python that can be converted: what and where, in one line."""

    def __init__(self, message: str, *, path: str = "", line: int = 0, column: int = 0, id: str = "S2A001") -> None:
        super().__init__(message)
        self.message, self.path, self.line, self.column, self.id = message, path, line, column, id

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.path, self.line, self.column) if part)
        return f"{place}: {self.message}" if place else self.message


class InternalError(Script2AccelError):
    """Our own bug: exit code 3, nothing written."""
