"""Terminal colours: on for a terminal that wants them, off for pipes, `NO_COLOR` and `TERM=dumb`."""

from __future__ import annotations

import os
from typing import TextIO

_CODES = {"bold": "1", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def wanted(stream: TextIO) -> bool:
    """Whether a stream is to be coloured (https://no-color.org: any value of NO_COLOR but the empty one turns it off)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, name: str, on: bool) -> str:
    """The text in a colour, or as it is."""
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if on and text else text


def plain(text: str) -> str:
    """A path or message on one line: what can't be printed is told by its escape."""
    if text.isprintable():
        return text
    return "".join(mark if mark.isprintable() else mark.encode("unicode_escape", "surrogatepass").decode("ascii") for mark in text)
