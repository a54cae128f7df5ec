"""What was converted: `.script2accel/converted.json` tells for each file when, by which version, with which options, and the hash written.

It is read before a file is converted again, so that this is said and not asked. Undo takes a file's line out.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timezone
from typing import Any

from script2accel.errors import SourceError
from script2accel.options import Options
from script2accel.workflow import files, history

FILE = os.path.join(".script2accel", "converted.json")


@dataclass(frozen=True)
class Record:
    """One conversion: the day (UTC), the version of the tool, the options that weren't defaults, and the SHA-256 of what was written."""

    on: str
    version: str
    options: Mapping[str, object]
    written: str

    def said(self, now: bytes, asked: Options) -> str:
        """The record in words, beside the file's bytes and the options of today."""
        words = f"on {self.on} by script2accel {self.version}, {'unchanged' if digest(now) == self.written else 'changed'} since"
        if self.options:
            words += f"; {_listed(self.options)}"
        if given(asked) != dict(self.options):
            words += f" (asked now: {_listed(given(asked)) or 'no option'}; to convert with that, `script2accel undo` first)"
        return words


def remember(target: str, after: bytes, options: Options, version: str) -> None:
    """Note what was written to a file. Raises SourceError when the record is damaged or can't be written."""
    place, name = _place(target)
    table = _read(place)
    day = datetime.now(timezone.utc).date().isoformat()
    table[name] = asdict(Record(day, version, given(options), digest(after)))
    _write(place, table)


def recall(target: str) -> Record | None:
    """What is noted about a file. Raises SourceError when the record is damaged."""
    place, name = _place(target)
    line = _read(place).get(name)
    return Record(**line) if line is not None else None


def undo(entry: history.Entry) -> None:
    """Restore a file's previous bytes and take out its line. Raises SourceError when the file isn't what was written any more."""
    history.undo(entry)
    place, name = _place(entry.target)
    table = _read(place)
    if table.get(name, {}).get("written") == entry.written:
        del table[name]
        _write(place, table)


def given(options: Options) -> dict[str, object]:
    """The options that differ from their defaults, but for how much is written; as JSON holds them."""
    default = Options()
    values = {one.name: getattr(options, one.name) for one in fields(Options) if one.name != "partial"}
    kept = {name: value for name, value in values.items() if value != getattr(default, name)}
    return json.loads(json.dumps(kept))  # type: ignore[no-any-return]


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def _listed(options: Mapping[str, object]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {_told(value)}" for name, value in options.items())


def _told(value: object) -> str:
    """A value in words; pairs of names and roles as they are written in the table."""
    pairs = isinstance(value, list) and all(isinstance(item, list) for item in value)
    return ", ".join(f"{name} = {role}" for name, role in value) if pairs else str(value)  # type: ignore[attr-defined]


def _place(target: str) -> tuple[str, str]:
    """The record's file, and the name that a file has in it: its path from the project's root, with forward slashes."""
    root = history.project_root(os.path.dirname(target))
    return os.path.join(root, FILE), os.path.relpath(target, root).replace(os.sep, "/")


def _read(place: str) -> dict[str, dict[str, Any]]:
    if not os.path.lexists(place):
        return {}
    try:
        table = json.loads(files.read(place).data)
        for line in table.values():
            Record(**line)
    except (ValueError, TypeError, AttributeError):
        raise SourceError("damaged; delete it to go on", path=place) from None
    return table  # type: ignore[no-any-return]


def _write(place: str, table: Mapping[str, object]) -> None:
    files.replace(place, json.dumps(table, indent=1, sort_keys=True).encode("ascii") + b"\n")
