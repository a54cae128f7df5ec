"""What was converted is noted, said before acting again, and forgotten by undo."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.cli_support import SCRIPT, call, use_toy

RECORD = Path(".script2accel/converted.json")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use_toy(monkeypatch)
    Path("train.py").write_text(SCRIPT)


def test_a_second_conversion_says_what_the_first_did() -> None:
    call("convert", "train.py", "--write", "--batch", "global")
    note = json.loads(RECORD.read_text())["train.py"]
    assert note["written"] == hashlib.sha256(Path("train.py").read_bytes()).hexdigest() and note["options"] == {"batch": "global"}
    again = call("convert", "train.py", "--batch", "global")
    assert again.exit_code == 0
    assert f"converted before  on {note['on']} by script2accel {note['version']}, unchanged since; batch global\n" in again.stderr
    other = call("convert", "train.py", "--mixed-precision", "bf16")
    assert "asked now: mixed-precision bf16; to convert with that, `script2accel undo` first" in other.stderr


def test_an_edited_file_is_told_from_an_untouched_one() -> None:
    call("convert", "train.py", "--write")
    with open("train.py", "a") as stream:
        stream.write("print(1)\n")
    assert "changed since" in call("convert", "train.py").stderr


def test_undo_forgets() -> None:
    call("convert", "train.py", "--write")
    call("undo", "train.py")
    assert json.loads(RECORD.read_text()) == {}
    assert "converted before" not in call("convert", "train.py", "--show-diff").stderr


def test_only_what_was_written_is_noted() -> None:
    call("convert", "train.py", "--show-diff")
    assert not RECORD.exists()
    call("convert", "train.py", "--output", "new.py")
    assert list(json.loads(RECORD.read_text())) == ["new.py"]


def test_a_project_can_be_moved() -> None:
    Path("p/src").mkdir(parents=True)
    Path("p/pyproject.toml").touch()
    Path("p/src/train.py").write_text(SCRIPT)
    call("convert", "p/src/train.py", "--write")
    Path("p").rename("q")
    assert "unchanged since" in call("convert", "q/src/train.py").stderr


@pytest.mark.parametrize("text", ["nonsense", "[]", '{"train.py": {"on": 1}}'])
def test_a_damaged_record_is_one_line_and_nothing_is_written(text: str) -> None:
    RECORD.parent.mkdir()
    RECORD.write_text(text)
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 2 and "damaged; delete it to go on" in result.stderr
    assert Path("train.py").read_text() == SCRIPT
