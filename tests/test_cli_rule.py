"""`script2accel rule`: the list and the pages."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

import script2accel.workflow.convert  # noqa: F401 (before the rules are replaced: it keeps the function that loads them)
from script2accel.diagnostics import Message, Severity
from tests.cli_support import call


@pytest.fixture(autouse=True)
def _rules(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = ModuleType("device_move", "Device moves go.\n\nWhy: Accelerate moves.\nLeft alone when odd.")
    rule.CODE, rule.NAME = "S2A101", "device-move"  # type: ignore[attr-defined]
    rule.ODD = Message("S2A105", Severity.ERROR, "`{name}` is odd", "mend it")  # type: ignore[attr-defined]
    rules = ModuleType("script2accel.rules")
    rules.load = lambda: [rule]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "script2accel.rules", rules)


def test_the_list() -> None:
    assert call("rule").stdout.split()[:5] == ["S2A101", "device-move", "Device", "moves", "go."]
    assert "\nS2A204  accelerator " in call("rule").stdout


@pytest.mark.parametrize("code", ["S2A101", "s2a101", "device-move", "S2A105"])
def test_a_page_by_code_name_or_message(code: str) -> None:
    page = call("rule", code).stdout
    assert page.startswith("S2A101 device-move\n\nDevice moves go.\n\nWhy: Accelerate moves.\nLeft alone")
    assert "S2A105 (error): `{name}` is odd\n      to do: mend it\n" in page


def test_messages_that_belong_to_no_rule_have_a_page() -> None:
    assert "Python 2" in call("rule", "S2A005").stdout
    assert call("rule", "S2A777").exit_code == 2


def test_every_reading_message_of_the_sources_has_a_page() -> None:
    import re
    from pathlib import Path

    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].glob("script2accel/**/*.py"))
    for code in sorted(set(re.findall(r"S2A0\d\d", text))):
        assert call("rule", code).stdout.startswith(code), code


def test_birth_and_the_plan_have_pages() -> None:
    assert "S2A228 (warning)" in call("rule", "S2A204").stdout and call("rule", "S2A228").stdout.startswith("S2A204 accelerator\n\nThe accelerator:")
    for code in ("S2A200", "S2A900", "S2A901", "S2A902"):
        assert call("rule", code).stdout.startswith(f"{code} (error): "), code
