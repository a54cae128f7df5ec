"""Reading files without being fooled by what is no file, and replacing them so that no moment holds half a file."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import tempfile
from dataclasses import dataclass

from script2accel.errors import SourceError
from script2accel.workflow.discover import STDIN, problem, reason

LARGEST = 32 * 2**20  # bytes; no script is larger, and a tree of it would not fit in memory
UNREADABLE, NOT_WRITTEN = "S2A001", "S2A007"


@dataclass(frozen=True)
class File:
    """A file as it was read: the name that the user wrote, where it really lies, its bytes."""

    path: str
    target: str
    data: bytes


def read(path: str) -> File:
    """Read a regular file, or stdin for `-`. Raises SourceError in one line; never blocks on a fifo."""
    if path == STDIN:
        return File("<stdin>", "", _stdin())
    why = problem(path)
    if why:
        raise SourceError(why, path=path, id=UNREADABLE)
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise SourceError("not a regular file any more", path=path, id=UNREADABLE)
            data = stream.read(LARGEST + 1)
    except OSError as error:
        raise SourceError(reason(error), path=path, id=UNREADABLE) from None
    if len(data) > LARGEST:
        raise SourceError(f"larger than {LARGEST >> 20} MiB: no script", path=path, id=UNREADABLE)
    return File(path, os.path.realpath(path), data)


def _stdin() -> bytes:
    if sys.stdin is None or sys.stdin.closed:
        raise SourceError("stdin is closed", path="<stdin>", id=UNREADABLE)
    data = sys.stdin.buffer.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise SourceError(f"larger than {LARGEST >> 20} MiB: no script", path="<stdin>", id=UNREADABLE)
    return data


def refuse_unsafe(target: str, expected: bytes | None) -> None:
    """Raise SourceError, saying why, when replacing `target` would lose something. `expected` None: it must not exist."""
    if expected is None:
        if os.path.lexists(target):
            raise SourceError("appeared in the meantime; nothing written", path=target, id=NOT_WRITTEN)
        return
    try:
        status = os.stat(target)
    except OSError as error:
        raise SourceError(f"{reason(error)}; nothing written", path=target, id=NOT_WRITTEN) from None
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
        words = f"has {status.st_nlink} hard links, and replacing it would leave the other names behind; copy it, or use --output"
        raise SourceError(words, path=target, id=NOT_WRITTEN)
    if not status.st_mode & 0o222 or not os.access(target, os.W_OK):
        raise SourceError("is read-only; nothing written", path=target, id=NOT_WRITTEN)
    try:
        now = read(target).data
    except SourceError as error:
        raise SourceError(f"{error.message}; nothing written", path=target, id=NOT_WRITTEN) from None
    if now != expected:
        raise SourceError("changed since it was read; nothing written, run again", path=target, id=NOT_WRITTEN)


def replace(target: str, data: bytes) -> None:
    """Put bytes in the place of a file in one step; an existing file's mode bits (and owner, where allowed) stay."""
    folder = os.path.dirname(target) or "."
    try:
        handle, temporary = tempfile.mkstemp(prefix=".script2accel-", suffix=".tmp", dir=folder)
    except OSError as error:
        raise SourceError(f"can't write in {folder}: {reason(error)}", path=target, id=NOT_WRITTEN) from None
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            _like(target, temporary)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
        sync_folder(folder)
    except OSError as error:
        raise SourceError(f"can't be written: {reason(error)}", path=target, id=NOT_WRITTEN) from None
    finally:
        with contextlib.suppress(FileNotFoundError):  # gone when the rename took place
            os.unlink(temporary)


def sync_folder(folder: str) -> None:
    """Make a rename in a folder last through a power cut."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            with contextlib.suppress(OSError):  # some file systems can't sync a folder; the rename took place all the same
                os.fsync(handle)
        finally:
            os.close(handle)


def _like(target: str, temporary: str) -> None:
    try:
        status = os.stat(target)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        return
    if os.name == "posix" and (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
        with contextlib.suppress(PermissionError):  # only root may give a file away
            os.chown(temporary, status.st_uid, status.st_gid)
    os.chmod(temporary, stat.S_IMODE(status.st_mode))
