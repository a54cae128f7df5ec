"""What came of one file: the new bytes, the reasons, what is left to a person. Values only; nothing here reads or writes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from enum import Enum

from script2accel.change.plan import Change, Plan
from script2accel.diagnostics import Diagnostic, Severity


class Outcome(str, Enum):
    """How a file ended."""

    READY = "ready"  # accelerate-ready already; nothing to write
    CONVERTED = "converted"  # everything found was converted
    PARTIAL = "partial"  # some of it needs a person
    REFUSED = "refused"  # a right conversion can't be shown
    NOT_TRAINING = "not training"  # no training loop
    ERROR = "error"  # unreadable, not Python, or our own bug


@dataclass(frozen=True)
class RoleLine:
    """One line of `script2accel roles`: the name bound at a line, its role and the reasons."""

    line: int
    name: str
    role: str
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """The outcome of one file.

    `before` and `after` are the file's bytes (equal unless something would be written). `changes` are the applied
    changes in order of their lines; `facts` are (label, text) pairs for the summary (global batch, launch command).
    """

    path: str
    outcome: Outcome
    before: bytes
    after: bytes
    changes: tuple[Change, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    roles: tuple[RoleLine, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    encoding: str = "utf-8"
    plan: Plan | None = field(default=None, repr=False, compare=False)

    @property
    def changed(self) -> bool:
        """Whether there is something to write."""
        return self.after != self.before

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """The diagnostics that stand in the way."""
        return tuple(d for d in self.diagnostics if d.severity is Severity.ERROR)

    def without(self, refused: frozenset[int]) -> tuple[Result, tuple[int, ...]]:
        """The result when the user refuses some of `changes` (by index), and every index that fell with them.

        A change that needs a refused one falls too. When something essential falls, nothing is left of the conversion.
        """
        if self.plan is None:  # a notebook: its changes stand or fall together
            if not refused:
                return self, ()
            return replace(self, outcome=Outcome.REFUSED, after=self.before, changes=()), tuple(range(len(self.changes)))
        kept, fallen = self.plan.keep(self.changes, refused)
        after = self.plan.render(kept)
        outcome = Outcome.PARTIAL if kept else Outcome.REFUSED
        left = tuple(self.changes[i] for i in range(len(self.changes)) if i not in fallen)
        return Result(self.path, outcome, self.before, after, left, self.diagnostics, self.roles, self.facts, self.encoding, self.plan), fallen

    def diff(self, *, context: int = 3) -> str:
        """The unified diff from `before` to `after`, as `git apply` takes it (a patch of bytes: encode it as latin-1)."""
        return unified_diff(self.before, self.after, self.path, context=context)


def unified_diff(before: bytes, after: bytes, path: str, *, context: int = 3) -> str:
    """A valid patch for any bytes: decoded as latin-1 so that no byte is lost, `\\ No newline` lines included."""
    old, new = (_lines(data.decode("latin-1")) for data in (before, after))
    lines = difflib.unified_diff(old, new, quoted(f"a/{path.lstrip('/')}"), quoted(f"b/{path.lstrip('/')}"), n=context)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)


def quoted(name: str) -> str:
    """A file name as git writes it in a patch: quoted where it holds marks of its own, ended by a tab where it holds a blank."""
    text = name.encode("utf-8", "surrogateescape").decode("latin-1")
    if any(mark < " " or mark in '"\\\x7f' for mark in text):
        return '"' + "".join(f"\\{ord(mark):03o}" if not " " <= mark <= "~" or mark in '"\\' else mark for mark in text) + '"'
    return text + "\t" if " " in text else text


def _lines(text: str) -> list[str]:
    """Lines as git counts them: ended by a line feed only (a carriage return belongs to its line)."""
    parts = text.split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines
