"""Whatever valid Python comes in: no crash, nothing touched without torch, and layout never changes a conversion."""

from __future__ import annotations

import ast
import random
import warnings
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from script2accel.options import Options
from script2accel.result import Outcome, Result
from script2accel.workflow.convert import convert
from tests.conftest import FIXTURES, stdlib_files
from tests.demands import OUR_BUG, demands

# programs out of the whole grammar where hypothesmith is installed; else statements of the standard library stand in
GRAMMAR = import_module("hypothesmith") if find_spec("hypothesmith") else None

STDLIB = stdlib_files()
SAMPLE = random.Random(7).sample(STDLIB, 60)
SCRIPTS = sorted([*(FIXTURES / "scripts").glob("*/before.py"), *(FIXTURES / "roles").glob("*.py")])
QUIET = settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
TOO_DEEP = "S2A004"


def valid(data: bytes) -> bool:
    """Whether the running Python reads the file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def runnable(data: bytes) -> bool:
    """Whether it compiles too: `return` outside a function parses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(data, "script.py", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def untouched(data: bytes) -> Result:
    """Convert what has no training loop: the same bytes, no finding of our own bugs."""
    result = convert(data)
    assert result.after == data and result.before == data and not result.changes
    assert not [found for found in result.diagnostics if found.id.startswith(OUR_BUG)]
    return result


def stdlib_file(path: Path) -> None:
    """A file of the standard library is no training script; one that isn't Python gets one line with its place."""
    data = path.read_bytes()
    result = untouched(data)
    if not valid(data):
        assert result.outcome is Outcome.ERROR and result.errors
    elif result.outcome is Outcome.ERROR:
        assert [found.id for found in result.errors] == [TOO_DEEP]
    else:
        assert result.outcome is Outcome.NOT_TRAINING


@pytest.mark.parametrize("path", SAMPLE, ids=lambda path: path.name)
def test_a_sample_of_the_standard_library(path: Path) -> None:
    stdlib_file(path)


@pytest.mark.slow
def test_the_whole_standard_library() -> None:
    assert len(STDLIB) > 500
    for path in STDLIB:
        stdlib_file(path)


def _statements() -> st.SearchStrategy[str]:
    """Programs out of statements of the standard library, in any order."""
    pool: list[str] = []
    for path in SAMPLE[:15]:
        data = path.read_bytes()
        if valid(data) and len(data) < 20_000:
            text = data.decode("utf-8", "replace")
            pool += [ast.get_source_segment(text, node) or "" for node in ast.parse(text).body]
    return st.lists(st.sampled_from([text for text in pool if text and "torch" not in text]), max_size=8).map(lambda parts: "\n".join(parts) + "\n")


PROGRAMS = GRAMMAR.from_grammar() if GRAMMAR else _statements()


@QUIET
@given(PROGRAMS)
def test_python_without_torch_comes_back_byte_for_byte(text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    result = untouched(data)
    if valid(data) and "torch" not in text:
        assert result.outcome is Outcome.NOT_TRAINING or [found.id for found in result.errors] == [TOO_DEEP]


@QUIET
@given(_statements(), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans(), st.booleans())
def test_layout_comes_back_byte_for_byte(text: str, newline: str, bom: bool, final: bool) -> None:
    body = (text if final else text.rstrip("\n")).replace("\n", newline).encode("utf-8")
    untouched((b"\xef\xbb\xbf" if bom else b"") + body)


@QUIET
@given(st.binary(max_size=200))
def test_any_bytes_come_back(data: bytes) -> None:
    untouched(data)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name if path.name == "before.py" else path.stem)
def test_layout_changes_no_conversion(script: Path) -> None:
    """CRLF and a byte order mark: the conversion is that of the plain file, in the other layout."""
    plain = script.read_bytes()
    expected = convert(plain)
    crlf = convert(plain.replace(b"\n", b"\r\n"))
    assert crlf.after == expected.after.replace(b"\n", b"\r\n") and crlf.outcome is expected.outcome
    marked = convert(b"\xef\xbb\xbf" + plain)
    assert marked.after == b"\xef\xbb\xbf" + expected.after and marked.outcome is expected.outcome


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.parent.name if path.name == "before.py" else path.stem)
def test_broken_off_and_thinned_scripts(script: Path) -> None:
    """A script with statements missing is odd, but never a crash, an output that doesn't compile, or one that isn't final."""
    lines = script.read_bytes().splitlines(keepends=True)
    chance = random.Random(script.as_posix()[-40:])
    variants = [b"".join(lines[: chance.randrange(len(lines))]) for _ in range(3)]
    variants += [b"".join(line for line in lines if chance.random() > 0.06) for _ in range(5)]
    for data in variants:
        if runnable(data):
            wrong = demands(convert(data), Options())
            assert not wrong, "\n".join([*wrong, data.decode()])
        else:
            untouched(data)
