"""Changing keys of one TOML table and nothing else: every other byte, comments too, stays where it is.

Only what this tool writes has to be understood: one-line values. What it can't rewrite is refused, since the result is parsed and compared.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping

from script2accel.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEY = re.compile(r"""\s*(?:"([^"\\]*)"|'([^']*)'|([\w-]+))\s*=""", re.ASCII)
_HEADER = re.compile(r"\s*\[")


def parse(text: str, place: str) -> dict[str, object]:
    """A document as tables. Raises UsageError in one line."""
    try:
        document: dict[str, object] = tomllib.loads(text)
        return document
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{place}: not valid TOML: {error}") from None


def table(document: Mapping[str, object], path: tuple[str, ...], place: str) -> Mapping[str, object]:
    """The table at a path; empty where there is none."""
    found: object = document
    for name in path:
        found = found.get(name, {}) if isinstance(found, Mapping) else None
    if not isinstance(found, Mapping):
        raise UsageError(f"{place}: `{'.'.join(path)}` must be a table")
    return found


def update(text: str, path: tuple[str, ...], values: Mapping[str, object], owned: frozenset[str], place: str) -> str:
    """The text with exactly these values under the owned keys of the table at `path` (no path: the top). Other keys stay."""
    before = parse(text, place)
    kept = {key: value for key, value in table(before, path, place).items() if key.replace("_", "-") not in owned}
    end = "\r\n" if "\r\n" in text else "\n"
    lines = text.splitlines(keepends=True)
    first, last = _section(lines, path)
    if first is None and values:
        gap = [] if not lines else [end] if lines[-1].endswith(("\n", "\r")) else [end, end]
        lines += [*gap, f"[{'.'.join(path)}]{end}"]
        first = last = len(lines)
    if first is not None:
        lines[first:last] = _edited(lines[first:last], values, owned, end, top=not path)
    after = "".join(lines)
    wanted = {**kept, **{key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}}
    _compare(before, after, path, wanted, place)
    return after


def _compare(before: dict[str, object], after: str, path: tuple[str, ...], wanted: Mapping[str, object], place: str) -> None:
    """Raise UsageError unless the new text means the old one with the table replaced."""
    try:
        found: object = tomllib.loads(after)
    except tomllib.TOMLDecodeError:
        found = None
    if not isinstance(found, dict) or dict(table(found, path, place)) != dict(wanted) or _without(found, path) != _without(before, path):
        name = f"`{'.'.join(path)}`" if path else "the table"
        raise UsageError(f"{place}: can't change {name} as it is written; give it a header of its own, with one key on each line")


def _without(document: Mapping[str, object], path: tuple[str, ...]) -> Mapping[str, object]:
    """The document less the table, and less the tables that would be empty then."""
    if not path:
        return {}
    rest = dict(document)
    inner = rest.pop(path[0], {})
    left = _without(inner, path[1:]) if isinstance(inner, Mapping) else inner
    return {**rest, path[0]: left} if left else rest


def _section(lines: list[str], path: tuple[str, ...]) -> tuple[int | None, int]:
    """The lines of the table: from behind its header (the top: from the first line) to the next header."""
    headers = [number for number, line in enumerate(lines) if _HEADER.match(line)]
    if not path:
        return 0, headers[0] if headers else len(lines)
    wanted = re.compile(r"\s*\[\s*" + r"\s*\.\s*".join(rf"[\"']?{re.escape(name)}[\"']?" for name in path) + r"\s*\]\s*(#.*)?$")
    for at, number in enumerate(headers):
        if wanted.match(lines[number].rstrip("\r\n")):
            return number + 1, headers[at + 1] if at + 1 < len(headers) else len(lines)
    return None, len(lines)


def _edited(lines: list[str], values: Mapping[str, object], owned: frozenset[str], end: str, *, top: bool) -> list[str]:
    """The section's lines with the values: in place where the key stands, the others behind the last key."""
    left = dict(values)
    found: list[str] = []
    for line in lines:
        match = _KEY.match(line)
        key = next(filter(None, match.groups()), "").replace("_", "-") if match else ""
        if key in left:
            found.append(f"{key} = {_value(left.pop(key))}{_comment(line)}{end}")
        elif key not in owned:
            found.append(line)
    keys = [number for number, line in enumerate(found, 1) if _KEY.match(line)]
    texts = [number for number, line in enumerate(found, 1) if line.strip()]
    size = max(keys, default=0) or (max(texts, default=0) if top else 0)  # a comment below the keys speaks of the next table
    if left and size and not found[size - 1].endswith(("\n", "\r")):
        found[size - 1] += end
    return [*found[:size], *(f"{key} = {_value(value)}{end}" for key, value in left.items()), *found[size:]]


def _comment(line: str) -> str:
    """The comment behind a one-line value, with the blanks before it; a `#` within a string is none."""
    match = re.search(r"""=(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'#])*?(\s*#.*)$""", line.rstrip("\r\n"))
    return match.group(1) if match else ""


def _value(value: object) -> str:
    """A value in TOML; strings and lists of strings are written as in JSON, which is TOML too."""
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=True) if not isinstance(value, (int, float)) else repr(value)
