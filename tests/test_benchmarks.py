"""The benchmark scripts are what they say: whole, valid, of the right length, and converted. No time is asserted."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.conftest import ROOT


def load() -> ModuleType:
    """benchmarks/bench.py as a module."""
    spec = importlib.util.spec_from_file_location("bench", ROOT / "benchmarks" / "bench.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("shape", ["functions", "flat"])
def test_the_scripts_are_converted(shape: str) -> None:
    text = load().SHAPES[shape](1000)
    assert 900 <= text.count("\n") <= 1100
    result = convert(text)
    assert result.outcome is Outcome.CONVERTED, [found.message for found in result.errors]
    assert result.after.count(b"accelerator.backward(") == text.count(".backward()")


def test_the_start_up_table() -> None:
    rows = load().start_up(1)
    assert [row[0] for row in rows[1:3]] == ["python -c 'import click'", "script2accel --help"]


def test_the_growth_table_counts_what_the_conversion_takes() -> None:
    ballast = b"x" * 200_000_000  # what this process holds doesn't count
    rows = load().growth(1, 1000)
    assert rows[0][5] == "MB" and all(5 < int(row[5]) < 150 for row in rows[1:]), rows
    assert ballast
