"""The role fixtures: every `# role:` comment is an expectation about the names bound on its line.

    optimizer = SGD(model.parameters())      # role: optimizer
    model, opt = build()                     # role: model, optimizer      in the order of the targets
    for i, (x, y) in enumerate(loader):      # role: none, batch, batch
    def train(args, dl):                     # role: args=none, dl=loader  parameters by name

`none` demands that nothing is claimed about the name; `-` leaves a target unjudged.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from script2accel.result import RoleLine
from tests.conftest import FIXTURES

SCRIPTS = sorted((FIXTURES / "roles").glob("*.py"))
WORDS = (
    "model, criterion, optimizer, scheduler, loader, sampler, dataset, batch, output, loss, device, scaler, rank, world size, ema, writer, "
    "progress bar, accelerator, none"
)
ROLES = frozenset(WORDS.split(", "))
_COMMENT = re.compile(r"#\s*role:\s*(.+?)\s*$")


@dataclass(frozen=True)
class Expectation:
    """What a fixture says of one name bound at one line."""

    line: int
    name: str
    role: str


def expectations(text: str) -> list[Expectation]:
    """Every expectation of a fixture. Raises ValueError where a comment doesn't fit the names of its line."""
    said = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string)):
            said[token.start[0]] = match.group(1)
    bound: dict[int, list[str]] = defaultdict(list)
    for node in ast.walk(ast.parse(text)):
        for line, names in _bindings(node):
            bound[line] += names
    found = []
    for line, words in said.items():
        parts = [part.strip() for part in words.split(",")]
        if all("=" in part for part in parts):
            pairs = [(name.strip(), role.strip()) for name, role in (part.split("=") for part in parts)]
        elif len(parts) == len(bound[line]):
            pairs = list(zip(bound[line], parts, strict=True))
        else:
            raise ValueError(f"line {line}: {len(parts)} roles for the names {bound[line]}")
        if strange := [role for name, role in pairs if role not in ROLES | {"-"} or name not in bound[line]]:
            raise ValueError(f"line {line}: {strange}")
        found += [Expectation(line, name, role) for name, role in pairs if role != "-"]
    return found


def _bindings(node: ast.AST) -> Iterator[tuple[int, list[str]]]:
    """The line and the names that a node binds, in the order of the text."""
    match node:
        case ast.Assign(targets=targets):
            yield node.lineno, [name for target in targets for name in _names(target)]
        case ast.AnnAssign(target=target) | ast.NamedExpr(target=target):
            yield node.lineno, _names(target)
        case ast.For(target=target) | ast.AsyncFor(target=target):
            yield node.lineno, _names(target)
        case ast.With(items=items) | ast.AsyncWith(items=items):
            yield node.lineno, [name for item in items if item.optional_vars for name in _names(item.optional_vars)]
        case ast.FunctionDef(args=args) | ast.AsyncFunctionDef(args=args):
            yield node.lineno, [arg.arg for arg in [*args.posonlyargs, *args.args, *args.kwonlyargs]]


def _names(target: ast.expr) -> list[str]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for element in target.elts for name in _names(element)]
    if isinstance(target, ast.Starred):
        return _names(target.value)
    return [ast.unparse(target)]


def mismatches(expected: Iterable[Expectation], claimed: Iterable[RoleLine]) -> list[str]:
    """Where claims and expectations differ, one sentence each."""
    said: dict[tuple[int, str], dict[str, tuple[str, ...]]] = defaultdict(dict)
    for claim in claimed:
        said[claim.line, claim.name][claim.role] = claim.reasons
    wrong = []
    for want in expected:
        got = said.get((want.line, want.name), {})
        if set(got) != ({want.role} - {"none"}):
            wrong.append(f"line {want.line}: `{want.name}` should be {want.role}, not {got or 'none'}")
    return wrong


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_roles(script: Path) -> None:
    from script2accel.workflow.convert import convert

    raw = script.read_bytes()
    wrong = mismatches(expectations(raw.decode()), convert(raw, path=script.name).roles)
    assert not wrong, f"{script.name}: {len(wrong)} wrong\n" + "\n".join(wrong)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_every_claim_has_a_reason(script: Path) -> None:
    from script2accel.workflow.convert import convert

    roles = convert(script.read_bytes(), path=script.name).roles
    assert not [claim for claim in roles if claim.role not in ROLES - {"none"}]
    assert not [claim for claim in roles if not any(reason.strip() for reason in claim.reasons)]


def test_there_are_enough_fixtures() -> None:
    traps = [script for script in SCRIPTS if script.stem.startswith("trap_")]
    assert len(SCRIPTS) >= 28 and len(traps) >= 8
    spoken = {want.role for script in SCRIPTS for want in expectations(script.read_text())}
    assert spoken == ROLES


def test_expectations_are_read() -> None:
    text = "a = b = 1  # role: model, none\nfor i, (x, self.y) in z:  # role: -, batch, batch\n    pass\ndef f(m, *, n): pass  # role: n=loader\n"
    assert expectations(text) == [
        Expectation(1, "a", "model"),
        Expectation(1, "b", "none"),
        Expectation(2, "x", "batch"),
        Expectation(2, "self.y", "batch"),
        Expectation(4, "n", "loader"),
    ]


@pytest.mark.parametrize("text", ["a = 1  # role: modell\n", "a, b = 1, 2  # role: model\n", "def f(a): pass  # role: b=model\n"])
def test_a_wrong_comment_is_an_error(text: str) -> None:
    with pytest.raises(ValueError):
        expectations(text)


def test_the_comparison_can_fail() -> None:
    expected = [Expectation(1, "a", "model"), Expectation(2, "b", "none")]
    assert not mismatches(expected, [RoleLine(1, "a", "model"), RoleLine(9, "z", "loss")])
    assert len(mismatches(expected, [])) == 1
    assert len(mismatches(expected, [RoleLine(1, "a", "model"), RoleLine(1, "a", "loss")])) == 1
    assert len(mismatches(expected, [RoleLine(1, "a", "model"), RoleLine(2, "b", "loss")])) == 1
