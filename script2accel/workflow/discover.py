"""From the paths of a command line to the files to read; what is no regular file is told, and never opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

STDIN = "-"
NOTEBOOK = ".ipynb"
SKIPPED = frozenset(
    {".git", ".hg", ".svn", ".ipynb_checkpoints", ".script2accel", ".venv", "venv", "site-packages", "node_modules", "build", "__pycache__"}
)
_VENV_MARKS = ("pyvenv.cfg", "conda-meta")
_KINDS = (
    (stat.S_ISFIFO, "a fifo"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


@dataclass(frozen=True)
class Found:
    """A file to read, or a path that can't be (`problem`); `named` when the user wrote it himself."""

    path: str
    problem: str = ""
    named: bool = True


def discover(paths: Iterable[str]) -> Iterator[Found]:
    """The files behind the paths, each once, in the order given; a directory's in sorted order."""
    seen: set[str] = set()
    for path in paths:
        for found in _behind(path):
            key = found.path if found.path == STDIN else os.path.realpath(found.path)
            if found.problem or key not in seen:
                seen.add(key)
                yield found


def problem(path: str) -> str:
    """Why a path can't be opened as a regular file; empty when it can. Looks at it, doesn't open it."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError) as error:
        return reason(error)
    return "" if stat.S_ISREG(mode) else f"{_kind(mode)}, not a regular file"


def reason(error: OSError | ValueError) -> str:
    """An operating system's error in words."""
    if isinstance(error, OSError):
        if error.errno == errno.ELOOP:
            return "a loop of symbolic links"
        if error.errno == errno.ENOENT:
            return "no such file or directory"
        return (error.strerror or str(error)).lower()
    return str(error)


def _behind(path: str) -> Iterator[Found]:
    if path == STDIN:
        yield Found(path)
    elif os.path.isdir(path):
        yield from _directory(path)
    else:
        yield Found(path, problem(path))


def _directory(top: str) -> Iterator[Found]:
    failed: list[OSError] = []
    empty = True
    for folder, folders, names in os.walk(top, onerror=failed.append):
        folders[:] = sorted(name for name in folders if name not in SKIPPED and not _venv(os.path.join(folder, name)))
        for name in sorted(names):
            if name.endswith((".py", NOTEBOOK)) and not name.startswith(".#"):  # an editor's lock is a dangling link of that name
                empty = False
                path = os.path.join(folder, name)
                yield Found(path, problem(path), named=False)
    for error in failed:
        yield Found(str(error.filename), reason(error), named=False)
    if empty and not failed:
        yield Found(top, "no Python files or notebooks in this directory")


def _venv(folder: str) -> bool:
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in _VENV_MARKS)


def _kind(mode: int) -> str:
    return next((words for test, words in _KINDS if test(mode)), "a directory" if stat.S_ISDIR(mode) else "something else")
