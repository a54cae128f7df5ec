"""What a name can hold: abstract objects (one per place that makes one) and values (sets of objects, with marks).

A mark is a syntax node that makes a value differ between ranks: the loop over a sharded loader, a clock, a draw.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import NamedTuple


class Obj:
    """One abstract object, interned: the same place always gives the same object.

    `kind` is one of external, module, class, function, method, instance, made (what a call gave), param, attr, item,
    const, tuple, list, dict, iter, expr, prepared. `name` is a dotted path, a parameter's or attribute's name, or a
    constant; `base` the object it comes from; `site` the node that made it; `context` the last calls and phases on the way there.
    """

    __slots__ = ("alone", "arguments", "base", "context", "depth", "keywords", "kind", "name", "number", "site")

    def __init__(self, kind: str, name: object, base: Obj | None, site: ast.AST | None, context: str = "") -> None:
        self.kind, self.name, self.base, self.site, self.context = kind, name, base, site, context
        self.number = 0
        self.depth: int = base.depth + 1 if base is not None else 0
        self.arguments: list[Value] = []
        self.keywords: dict[str | None, Value] = {}
        self.alone = Value(frozenset((self,)), UNMARKED)  # the value that is this object, and nothing else

    def __repr__(self) -> str:
        inner = f" of {self.base!r}" if self.base is not None else ""
        return f"<{self.kind} {self.name or ''}@{getattr(self.site, 'lineno', '-')}{inner}>"

    @property
    def path(self) -> str:
        """The dotted path of an external, or of the external that a `made` object came from; else ''."""
        if self.kind == "external":
            return str(self.name)
        return self.base.path if self.kind == "made" and self.base is not None and self.base.kind == "external" else ""

    @property
    def inner(self) -> Obj:
        """The object without what prepare put around it."""
        return self.base.inner if self.kind == "prepared" and self.base is not None else self


UNMARKED: frozenset[ast.AST] = frozenset()


class Value(NamedTuple):
    """The objects that an expression can give, and what makes it differ between ranks."""

    objs: frozenset[Obj]
    marks: frozenset[ast.AST]

    def join(self, other: Value) -> Value:
        """Either of two values."""
        if self is other or not (other.objs or other.marks) or (other.objs <= self.objs and other.marks <= self.marks):
            return self
        objs = self.objs | other.objs
        if len(objs) > LIMIT:
            objs = frozenset(sorted(objs, key=lambda o: (o.kind in ("const", "expr"), getattr(o.site, "lineno", 0), o.number))[:LIMIT])
        return Value(objs, self.marks | other.marks)

    def marked(self, marks: frozenset[ast.AST]) -> Value:
        """The same value with more marks."""
        return self if not marks or marks <= self.marks else Value(self.objs, self.marks | marks)


LIMIT = 32
NOTHING = Value(frozenset(), UNMARKED)


class World:
    """Interns objects."""

    def __init__(self) -> None:
        self.table: dict[tuple[object, ...], Obj] = {}
        self.prepares = False  # whether anything is prepared

    def obj(self, kind: str, name: object = "", base: Obj | None = None, site: ast.AST | None = None, context: str = "") -> Obj:
        """The object of this kind, name, base and site, made in this context of calls."""
        if base is not None and base.depth > 8:
            return base
        key = (kind, type(name), name, base, site, context)
        found = self.table.get(key)
        if found is None:
            found = self.table[key] = Obj(kind, name, base, site, context)
            found.number = len(self.table)
            self.prepares |= kind == "prepared"
        return found

    def value(
        self, kind: str, name: object = "", base: Obj | None = None, site: ast.AST | None = None, marks: frozenset[ast.AST] = UNMARKED
    ) -> Value:
        """A value of a single object."""
        alone = self.obj(kind, name, base, site).alone
        return Value(alone.objs, marks) if marks else alone


def join_all(values: Sequence[Value]) -> Value:
    """Any of the values."""
    if len(values) == 1:
        return values[0]
    result = NOTHING
    for value in values:
        result = result.join(value)
    return result
