"""Each fixture script, converted, against the files beside it: after.py (absent when nothing is written) and said.txt (the summary).

`pytest --update-golden` rewrites both; read the diff before you commit it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from script2accel.report.text import summary
from script2accel.result import unified_diff
from script2accel.workflow.check import ready
from script2accel.workflow.convert import convert
from tests.conftest import FIXTURES
from tests.demands import demands, options_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CASES = sorted(path.parent for path in (FIXTURES / "scripts").glob("*/before.py"))


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name)
def test_golden(case: Path, update_golden: bool) -> None:
    settings = tomllib.loads((case / "case.toml").read_text())
    options = options_of(settings.get("options"))
    before = (case / "before.py").read_bytes()
    result = convert(before, options, "train.py")
    wrong = demands(result, options)
    assert not wrong, "\n".join(wrong)
    assert result.outcome.value == settings.get("outcome", "converted"), summary(result)
    after, words = case / "after.py", case / "said.txt"
    if update_golden:
        after.write_bytes(result.after) if result.changed else after.unlink(missing_ok=True)
        words.write_text(summary(result), encoding="utf-8")
    expected = after.read_bytes() if after.exists() else before
    assert result.after == expected, "not as in after.py:\n" + unified_diff(expected, result.after, "after.py")
    assert summary(result) == words.read_text(encoding="utf-8")
    assert not result.changed or not result.errors, "converted, and yet an error stands"
    if result.changed:
        assert ready(convert(result.after, options, "train.py"))


def test_there_are_enough_scripts() -> None:
    shapes = {tomllib.loads((case / "case.toml").read_text()).get("shape") for case in CASES}
    assert len(CASES) >= 16 and {"module", "helpers", "globals", "class"} <= shapes
