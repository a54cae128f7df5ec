"""Marks that a user puts at line ends, `# s2a: model`: which names of a file they speak of."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge.teaching import ROLES, listed
from script2accel.source import Source, spelled

UNKNOWN = Message("S2A031", Severity.ERROR, "this mark names no role: `{role}`", "the roles are {roles}; `-` leaves a name to the analysis")
IDLE = Message(
    "S2A041",
    Severity.ERROR,
    "this mark stands on a line that binds nothing",
    "put it at the end of the line of an assignment, of a loop's or `with` statement's header, or of a parameter",
)
COUNT = Message(
    "S2A051",
    Severity.ERROR,
    "this mark names {said} role(s), and the line binds {bound}: {names}",
    "name one role for each, in the order of the text",
)
_MARK = re.compile(r"#\s*s2a:([^#]*)")
_WORD = "s2a:"
_PLAIN = (ast.Assign, ast.AnnAssign, ast.AugAssign)
_HEADERS = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.NamedExpr, ast.arg)
Target = ast.expr | ast.arg


class Mark(NamedTuple):
    """What a mark says of one name."""

    role: str
    line: int
    name: str


@dataclass
class Marks:
    """The marks of one file, by the place that binds what they speak of, and what is wrong with the others."""

    of: dict[ast.AST, Mark] = field(default_factory=dict)
    wrong: list[Diagnostic] = field(default_factory=list)


def read(source: Source) -> Marks:
    """The marks of a file."""
    found = Marks()
    if _WORD not in source.text:
        return found
    said = dict(_comments(source.text))
    plain, headers = _bound(source, said, _PLAIN), _bound(source, said, _HEADERS)
    for line, (column, words) in said.items():
        roles = [word.strip() for word in words.split(",")]
        strange = next((role for role in roles if role != "-" and role not in ROLES), None)
        if strange is not None:
            found.wrong.append(UNKNOWN.at(line, column, role=strange, roles=listed()))
            continue
        targets = plain.get(line) or headers.get(line)
        if not targets:
            found.wrong.append(IDLE.at(line, column))
            continue
        fitting = next((names for names in _choices(targets) if len(names) == len(roles)), None)
        if fitting is None:
            names = [name for target in targets[0] for name in _names(target)]
            spoken = ", ".join(f"`{_spelled(name)}`" for name in names)
            found.wrong.append(COUNT.at(line, column, said=len(roles), bound=len(names), names=spoken))
            continue
        found.of |= {name: Mark(role, line, _spelled(name)) for name, role in zip(fitting, roles, strict=True) if role != "-"}
    return found


def _comments(text: str) -> Iterator[tuple[int, tuple[int, str]]]:
    """The line of every mark, its column and its words."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
            match = _MARK.search(token.string) if token.type == tokenize.COMMENT else None
            if match:
                yield token.start[0], (token.start[1] + match.start() + 1, match[1])
    except (tokenize.TokenError, SyntaxError):
        return  # the parser reads it and the tokenizer doesn't: what follows can't be told from strings


def _bound(source: Source, lines: dict[int, tuple[int, str]], kinds: tuple[type[ast.AST], ...]) -> dict[int, list[list[Target]]]:
    """Marked line -> what the statements on it bind: the targets of each, a list for each that is assigned to."""
    table: dict[int, list[list[Target]]] = {}
    for node in sorted(source.every(*kinds), key=lambda n: (n.lineno, n.col_offset)):
        for line in range(node.lineno, _last(node) + 1):
            if line in lines and (targets := _targets(source, node)):
                table.setdefault(line, []).append(targets)
    return table


def _last(node: Any) -> int:
    """The last line on which a mark speaks of a node: of a block, that of its header."""
    body = getattr(node, "body", None)
    last: int = max(node.lineno, body[0].lineno - 1) if isinstance(body, list) else node.end_lineno
    return last


def _targets(source: Source, node: ast.AST) -> list[Target]:
    match node:
        case ast.Assign(targets=targets):
            return list(targets)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            return [item.optional_vars for item in items if item.optional_vars is not None]
        case ast.arg():
            owner = source.parents[node]
            rest = isinstance(owner, ast.arguments) and node in (owner.vararg, owner.kwarg)
            return [node] if not rest and node.arg not in ("self", "cls") else []
        case ast.AnnAssign(value=None):
            return []
    return [node.target]  # type: ignore[attr-defined]


def _choices(targets: list[list[Target]]) -> Iterator[list[Target]]:
    """The names that a mark can speak of: those of all statements on the line; of `a = b, c = ...`, those of one side."""
    yield [name for own in targets for target in own for name in _names(target)]
    if len(targets) == 1:
        yield from ([name for name in _names(target)] for target in targets[0])


def _names(target: Target) -> list[Target]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for part in target.elts for name in _names(part)]
    return _names(target.value) if isinstance(target, ast.Starred) else [target]


def _spelled(target: Target) -> str:
    return target.arg if isinstance(target, ast.arg) else spelled(target)
