"""The diff of a result as bytes: a patch that `git apply` takes in the folder where it was made, coloured for terminals."""

from __future__ import annotations

import os

from script2accel.report.style import paint
from script2accel.result import Result, quoted, unified_diff

_COLOURS = (("@@", "cyan"), ("---", "bold"), ("+++", "bold"), ("-", "red"), ("+", "green"))


def patch(result: Result, target: str, *, colour: bool = False) -> bytes:
    """The patch of one file, its paths told from the current folder; `target` is where the file really lies (empty: stdin)."""
    name, top = _names(target) if target else (result.path, "")
    text = unified_diff(result.before, result.after, top or name)
    if top:
        text = f"diff --git {quoted('a/' + top)} {quoted('b/' + top)}\n".replace("\t", "") + text
    return coloured(text, colour).encode("latin-1")


def above_here(target: str) -> bool:
    """Whether a patch of the file can't be applied here, since git takes no path above the current folder."""
    return bool(target) and os.path.relpath(target, os.path.realpath(os.curdir)).startswith(os.pardir + os.sep)


def coloured(text: str, on: bool) -> str:
    """A patch with colours on its lines."""
    if not on:
        return text
    lines = text.split("\n")
    return "\n".join(_painted(line, number < 3) for number, line in enumerate(lines))


def _painted(line: str, head: bool) -> str:
    name = next((colour for mark, colour in _COLOURS if line.startswith(mark) and (head or mark in ("@@", "-", "+"))), "")
    if not name:
        return line
    body = line.rstrip("\r")
    return paint(body, name, True) + line[len(body) :]


def _names(target: str) -> tuple[str, str]:
    """The path from here, and the path from the repository's top where git would misread the first.

    In a folder `sub`, git takes `a/sub/x.py` for `x.py` (a guess that serves patches made at the top), so a file
    `sub/sub/x.py` is named from the top, in git's own form of a patch.
    """
    here = os.path.realpath(os.curdir)
    name = os.path.relpath(target, here).replace(os.sep, "/")
    top = here
    while not os.path.lexists(os.path.join(top, ".git")):
        if top == os.path.dirname(top):
            return name, ""
        top = os.path.dirname(top)
    prefix = os.path.relpath(here, top).replace(os.sep, "/") + "/"
    return name, prefix + name if name.startswith(prefix) else ""
