"""The YAML that configuration files need: tables, lists and scalars, written so that every reader takes them as they are meant."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

_PLAIN = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_NOT_TEXT = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


def document(value: Mapping[str, object], comments: Sequence[str] = ()) -> str:
    """The text of a document, after its comments."""
    return "".join(f"# {line}\n" if line else "#\n" for line in comments) + "\n".join(_table(value, "")) + "\n"


def _table(value: Mapping[str, object], indent: str) -> Iterator[str]:
    for key, one in value.items():
        yield from _entry(f"{indent}{_scalar(key)}:", one, indent + "  ")


def _entry(head: str, value: object, indent: str) -> Iterator[str]:
    """A key or dash with its value behind or below it."""
    if isinstance(value, Mapping) and value:
        yield head
        yield from _table(value, indent)
    elif isinstance(value, (list, tuple)) and value:
        yield head
        for one in value:
            yield from _item(one, indent)
    elif isinstance(value, str) and "\n" in value:
        yield f"{head} |" + ("" if value.endswith("\n") else "-")
        yield from (f"{indent}{line}" for line in value.splitlines())
    else:
        yield f"{head} {_scalar(value)}"


def _item(value: object, indent: str) -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield from _entry(f"{indent}-", value, indent + "  ")
        return
    first, *others = list(_table(value, indent + "  "))
    yield f"{indent}- {first[len(indent) + 2 :]}"
    yield from others


def _scalar(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT else json.dumps(value)
    if isinstance(value, float):  # YAML 1.1 reads 1e-08 as text, and 1.0e-08 as a number
        whole, exponent, power = repr(value).partition("e")
        return whole + ("" if "." in whole or not exponent else ".0") + exponent + power
    return "{}" if isinstance(value, Mapping) else "[]" if isinstance(value, (list, tuple)) else str(value)
