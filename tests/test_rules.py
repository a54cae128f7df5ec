"""Every rule's EXAMPLES are its tests, and every rule is documented, unique and listed in the README.

An example is (before, after) or (before, after, options): `before` is a whole script that the whole tool converts;
`after` is the full text expected, None where this rule must change nothing, or a message id such as "S2A501" where
the rule must speak (and nothing is written, if the message is an error). A rule's `PATH` is the examples' file, where its ending matters.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from script2accel.change.plan import Change, Lines, Plan, Remove, Splice, Wrap
from script2accel.diagnostics import Message, Severity
from script2accel.options import Options
from script2accel.result import Outcome, Result, unified_diff
from script2accel.rules import load
from script2accel.source import Source
from script2accel.workflow.convert import convert
from tests.demands import demands, options_of, touched_without_edit

RULES: list[ModuleType] = list(load())
_ID = re.compile(r"S2A\d{3}")


class Example(NamedTuple):
    """One example of a rule, in one shape."""

    rule: ModuleType
    number: int
    before: str
    after: str | None
    options: Options

    @property
    def label(self) -> str:
        return f"{self.rule.CODE}-{self.rule.NAME}-{self.number}"


def examples(rule: ModuleType) -> list[Example]:
    """The EXAMPLES of a rule with defaults filled in."""
    found = []
    for number, given in enumerate(rule.EXAMPLES):
        before, after, *rest = given
        found.append(Example(rule, number, before, after, options_of(rest[0] if rest else None)))
    return found


def messages(module: ModuleType) -> list[Message]:
    """The kinds of diagnostic that a module owns."""
    return [value for value in vars(module).values() if isinstance(value, Message)]


def check(example: Example) -> list[str]:
    """What is wrong with an example, one text each."""
    result = convert(example.before, example.options, getattr(example.rule, "PATH", "train.py"))
    codes = {change.rule for change in result.changes}
    wrong = demands(result, example.options)
    if example.after is None:
        return wrong + ([f"{example.rule.CODE} changed what it must leave:\n{result.diff()}"] if example.rule.CODE in codes else [])
    if _ID.fullmatch(example.after):
        said = {found.id: found.severity for found in result.diagnostics}
        if example.after not in said:
            return [*wrong, f"says {sorted(said)}, not {example.after}"]
        return wrong + (["refused, and yet changed"] if result.changed and said[example.after] is Severity.ERROR else [])
    if result.after.decode() != example.after:
        wrong.append("not as shown:\n" + unified_diff(example.after.encode(), result.after, "expected"))
        wrong += [f"  {found.line}: {found.id} {found.message}" for found in result.diagnostics]
    if example.rule.CODE not in codes:
        wrong.append(f"no applied change is {example.rule.CODE}'s")
    return wrong


@pytest.mark.parametrize("example", [example for rule in RULES for example in examples(rule)], ids=lambda example: example.label)
def test_example(example: Example) -> None:
    assert not (wrong := check(example)), "\n".join(wrong)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.NAME)
def test_a_rule_is_whole(rule: ModuleType) -> None:
    assert re.fullmatch(r"S2A\d{3}", rule.CODE), rule.CODE
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.NAME), rule.NAME
    lines = (rule.__doc__ or "").strip().splitlines()
    assert lines and "|" not in lines[0] and (len(lines) == 1 or not lines[1].strip()), "the first docstring line stands alone"
    assert callable(rule.rewrite)
    assert any(example.after is not None for example in examples(rule)), "no example in which the rule acts"
    assert any(example.after is None for example in examples(rule)), "no example that the rule must leave alone"


def test_codes_names_and_ids_are_unique() -> None:
    for what in ("CODE", "NAME"):
        counts = Counter(getattr(rule, what) for rule in RULES)
        assert not [value for value, count in counts.items() if count > 1]
    own = {id(message): message for rule in RULES for message in messages(rule)}
    assert not [value for value, count in Counter(message.id for message in own.values()).items() if count > 1]
    assert not [message.id for message in own.values() if not _ID.fullmatch(message.id)]


def test_the_rules_are_in_order_and_there_are_some() -> None:
    assert RULES and [rule.CODE for rule in load()] == [rule.CODE for rule in RULES]


def _rule(**attributes: Any) -> ModuleType:
    rule = ModuleType("made_up")
    rule.__dict__.update({"CODE": "S2A299", "NAME": "made-up", "EXAMPLES": []} | attributes)
    return rule


def test_a_line_that_changes_without_an_edit_is_noticed() -> None:
    before = b"import os\nif os:\n    a = 1\n    b = 2\n"
    source = Source.parse(before)
    edits = (Splice(0, 0, "x = 0; "), Lines(3, "    c = 3"), Wrap(3, 3, "    if x:"), Remove(4, 4))
    changes = (Change("S2A299", "made-up", "", 1, edits),)
    plan = Plan.close(source, changes)
    right = Result("x.py", Outcome.CONVERTED, before, plan.render(), changes, plan=plan)
    assert not touched_without_edit(right)
    assert touched_without_edit(replace(right, after=right.after.replace(b"a = 1", b"a = 2")))
    assert touched_without_edit(replace(right, after=right.after.replace(b"if os:\n", b"if  os:\n")))
    assert touched_without_edit(replace(right, changes=()))


def test_the_check_can_fail() -> None:
    plain = "import os\n"
    for after in ("import sys\n", "import os\n", "S2A999"):
        assert check(Example(_rule(), 0, plain, after, Options()))
    assert not check(Example(_rule(), 0, plain, None, Options()))
    acting = next(example for rule in RULES for example in examples(rule) if example.after and not _ID.fullmatch(example.after))
    assert check(acting._replace(after=None))
    assert check(acting._replace(after=f"{acting.after}# more\n"))
