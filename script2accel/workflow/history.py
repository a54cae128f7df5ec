"""The undo promise: every write leaves the previous bytes in `.script2accel/history`, one file per write.

An entry is one line of JSON and then the previous bytes. It is complete before the script is touched, so a crash leaves
either the old script or a write that can be undone. Its path is told from the project's root, so a project can be moved.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.errors import SourceError, UsageError
from script2accel.workflow import files
from script2accel.workflow.discover import reason

FOLDER = os.path.join(".script2accel", "history")
_ROOT_MARKS = (".git", "pyproject.toml")


@dataclass(frozen=True)
class Entry:
    """One write: where it lies, the run that made it, the script, what was written, what stood there (None: nothing)."""

    place: str
    run: str
    target: str
    written: str
    before: bytes | None


def new_run() -> str:
    """A name for the writes of one command, in order of time."""
    return f"{time.time_ns():020d}-{os.getpid()}"


def write(target: str, before: bytes | None, after: bytes, run: str) -> None:
    """Replace a file (or make it, `before` None) so that it can be undone. Raises SourceError with the reason when it must not be."""
    files.refuse_unsafe(target, before)
    root = project_root(os.path.dirname(target))
    place = _record(root, target, before, after, run)
    try:
        files.refuse_unsafe(target, before)  # once more, right before the rename
        files.replace(target, after)
    except SourceError:
        os.unlink(place)
        raise


def project_root(folder: str) -> str:
    """The nearest folder, from here upwards, that holds a `.git` or a `pyproject.toml`; else the folder itself."""
    at = folder = os.path.realpath(folder)
    while True:
        if any(os.path.lexists(os.path.join(at, mark)) for mark in _ROOT_MARKS):
            return at
        above = os.path.dirname(at)
        if above == at:
            return folder
        at = above


def last(path: str | None) -> list[Entry]:
    """What an undo takes back: a file's last write, or all writes of the last run in a folder's project (newest first)."""
    where = os.path.realpath(path if path is not None else os.curdir)
    folder = os.path.isdir(where)
    entries = sorted(_entries(project_root(where if folder else os.path.dirname(where))), key=lambda entry: entry.place, reverse=True)
    if not folder:
        entries = [entry for entry in entries if entry.target == where][:1]
    if not entries:
        raise UsageError(f"nothing to undo for {path or 'this project'}")
    return [entry for entry in entries if entry.run == entries[0].run]


def undo(entry: Entry) -> None:
    """Restore the previous bytes. Raises SourceError when the file isn't what was written any more."""
    try:
        now = files.read(entry.target).data
    except SourceError as error:
        raise SourceError(f"{error.message}; not undone", path=entry.target, id=files.NOT_WRITTEN) from None
    if _digest(now) != entry.written:
        raise SourceError(f"changed since it was written; not undone (the old text is in {entry.place})", path=entry.target, id=files.NOT_WRITTEN)
    if entry.before is None:
        os.unlink(entry.target)
    else:
        files.refuse_unsafe(entry.target, now)
        files.replace(entry.target, entry.before)
    os.unlink(entry.place)


def _record(root: str, target: str, before: bytes | None, after: bytes, run: str) -> str:
    folder = os.path.join(root, FOLDER)
    head = {"run": run, "path": os.path.relpath(target, root), "written": _digest(after), "created": before is None}
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        ignore = os.path.join(os.path.dirname(folder), ".gitignore")
        if not os.path.lexists(ignore):
            files.replace(ignore, b"*\n")
        number = sum(name.startswith(run) for name in os.listdir(folder))
        place = os.path.join(folder, f"{run}-{number:06d}.undo")
        files.replace(place, json.dumps(head).encode("ascii") + b"\n" + (before or b""))
        os.chmod(place, 0o600)
    except OSError as error:
        words = f"can't keep the previous text in {folder}, so nothing is written: {reason(error)}"
        raise SourceError(words, path=target, id=files.NOT_WRITTEN) from None
    except SourceError as error:
        raise SourceError(f"{error.message}; the previous text can't be kept, so nothing is written", path=target, id=files.NOT_WRITTEN) from None
    return place


def _entries(root: str) -> Iterator[Entry]:
    folder = os.path.join(root, FOLDER)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    for name in names:
        if name.endswith(".undo"):
            yield _entry(root, os.path.join(folder, name))


def _entry(root: str, place: str) -> Entry:
    line, _, before = files.read(place).data.partition(b"\n")
    try:
        head = json.loads(line)
        run, path, written, created = head["run"], head["path"], head["written"], head["created"]
    except (ValueError, KeyError, TypeError):
        raise SourceError("damaged; delete it to go on", path=place) from None
    return Entry(place, run, os.path.realpath(os.path.join(root, path)), written, None if created else before)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
