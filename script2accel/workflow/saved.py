"""Where answers lie: `[tool.script2accel]` of the nearest pyproject.toml, or a script2accel.toml, whose top level is that table."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

from script2accel.errors import SourceError, UsageError
from script2accel.options import Options
from script2accel.workflow import files, history, toml
from script2accel.workflow.answers import KEYS, SIZES, Answers, flag, from_table, problems, propose

OWN, PROJECT = "script2accel.toml", "pyproject.toml"
TABLE = ("tool", "script2accel")


@dataclass(frozen=True)
class Place:
    """A file that holds the table, or will; `text` as it stands, None where the file doesn't exist."""

    target: str
    text: str | None

    @property
    def path(self) -> tuple[str, ...]:
        """The table's own path in that file."""
        return () if os.path.basename(self.target) == OWN else TABLE

    def table(self) -> Mapping[str, object]:
        """The table, empty where there is none. Raises UsageError when it can't be read."""
        return toml.table(toml.parse(self.text, self.target), self.path, self.target) if self.text is not None else {}


def file_in(folder: str) -> str | None:
    """The file of a folder that settings are read from; script2accel.toml before pyproject.toml."""
    places = [os.path.join(folder, name) for name in (OWN, PROJECT)]
    return next(filter(os.path.lexists, places), None)


def nearest(folder: str) -> str | None:
    """The file that settings are read from, in a folder or the next one above that has any."""
    at = os.path.realpath(folder)
    while (found := file_in(at)) is None and os.path.dirname(at) != at:
        at = os.path.dirname(at)
    return found


def place(folder: str = os.curdir) -> Place:
    """Where the answers of a folder's project lie; without any file, a script2accel.toml in the folder."""
    return read(nearest(folder) or os.path.join(os.path.realpath(folder), OWN))


def read(target: str) -> Place:
    """A place by its file's name. Raises UsageError when it isn't readable text."""
    if not os.path.lexists(target):
        return Place(target, None)
    try:
        return Place(target, files.read(target).data.decode("utf-8"))
    except SourceError as error:
        raise UsageError(str(error)) from None
    except UnicodeDecodeError:
        raise UsageError(f"{target}: not UTF-8, so not TOML") from None


def options(where: Place) -> Options:
    """The conversion's options in the table, which the answers share. Raises UsageError on a key that belongs to neither."""
    shared = {flag(one.name) for one in fields(Options)}
    table = where.table()
    try:
        from_table(table)
        return Options.from_mapping({key: value for key, value in table.items() if flag(key) in shared or flag(key) not in KEYS})
    except UsageError as error:
        name = f"{where.target}: [{'.'.join(where.path)}]" if where.path else where.target
        raise UsageError(f"{name}: {error}") from None


def after(where: Place, answers: Answers) -> str:
    """The file's text with the answers in it."""
    return toml.update(where.text or "", where.path, answers.table(), KEYS, where.target)


def write(where: Place, text: str, run: str) -> None:
    """Write the file so that `undo` can take it back."""
    history.write(where.target, None if where.text is None else where.text.encode("utf-8"), text.encode("utf-8"), run)


def combine(saved: Mapping[str, object], given: Mapping[str, object]) -> Answers:
    """What was saved, under what is given now; of the saved answers, those that no longer fit what is given make way for defaults."""
    derived = ("strategy", "hardware", "num_machines", "num_processes", "cluster", "offload")
    data = ("dp_shard", "dp_replicate")
    for dropped in ((), data, (*data, "strategy"), SIZES, (*SIZES, "strategy"), (*SIZES, *derived)):
        answers = propose({**{name: value for name, value in saved.items() if name not in dropped}, **given})
        if not given or not problems(answers):
            return answers
    return propose({**saved, **given})


def load(given: Mapping[str, object], folder: str = os.curdir) -> Answers:
    """The answers that hold in a folder, under flags. Raises UsageError with every reason why they can't be carried out."""
    where = place(folder)
    options(where)  # an unknown key is an error for every command
    answers = combine(from_table(where.table()), given)
    wrong = problems(answers)
    if wrong:
        raise UsageError("; ".join(wrong))
    return answers
