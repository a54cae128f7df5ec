"""Approval: which changes a hunk shows, what falls with a refused one, and the whole dialogue on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from script2accel.change.plan import Change
from script2accel.result import Outcome
from script2accel.workflow.approve import Approved, Question, approve, hunks
from tests.cli_support import SCRIPT, call, environment, toy, use_toy

FREE = SCRIPT.replace("loss.backward()\n", "done = 1\n")  # nothing essential: every hunk can be refused alone


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use_toy(monkeypatch)


def dialogue(text: str, answers: str) -> tuple[Approved, list[Question], list[Change]]:
    asked: list[Question] = []
    fell: list[Change] = []

    def ask(question: Question) -> str:
        asked.append(question)
        return answers[len(asked) - 1]

    approved = approve(toy(text), ask, fell.extend)
    assert len(asked) == len(answers)
    return approved, asked, fell


def test_every_hunk_shows_its_changes() -> None:
    result = toy(SCRIPT)
    names = [[f"{result.changes[i].name}:{result.changes[i].line}" for i in hunk.changes] for hunk in hunks(result)]
    assert names == [["device-move:3", "accelerator:1"], ["device-move:12"], ["backward:21"]]


@pytest.mark.parametrize("ending", ["\r\n", "\r"])
def test_line_endings_of_the_source_are_not_those_of_the_diff(ending: str) -> None:
    result = toy(SCRIPT.replace("a = 1\n", "a = 1\ra = 2\ra = 3\ra = 4\n").replace("\n", "\r\n" if ending == "\r\n" else "\n"))
    assert [len(hunk.changes) for hunk in hunks(result)] == [2, 1, 1]
    assert len(hunks(toy(SCRIPT.replace("\n", "\r")))) == 1


def test_yes_to_all_is_the_whole_result() -> None:
    assert (
        dialogue(SCRIPT, "yyy")[0].result.after
        == dialogue(SCRIPT, "a")[0].result.after
        == dialogue(SCRIPT, "yya")[0].result.after
        == toy(SCRIPT).after
    )


def test_a_refused_hunk_leaves_the_others() -> None:
    approved, asked, fell = dialogue(FREE, "yn")
    after = approved.result.after.decode()
    assert "2).to(accelerator.device)" in after and "randn(2).cuda()" in after and fell == []
    assert approved.result.outcome is Outcome.PARTIAL and [question.total for question in asked] == [2, 2]


def test_what_needs_a_refused_change_falls_and_is_told() -> None:
    approved, _, fell = dialogue(FREE, "n")  # the first hunk makes the accelerator
    assert approved.result.outcome is Outcome.REFUSED and not approved.result.changed
    assert [change.line for change in fell] == [12]


def test_an_essential_change_takes_the_conversion_with_it() -> None:
    approved, _, fell = dialogue(SCRIPT, "yyn")
    assert not approved.result.changed and {change.line for change in fell} == {1, 3, 12}


def test_what_served_only_refused_changes_goes_too() -> None:
    text = FREE.replace("Linear(2, 2).cuda()", "Linear(2, 2)")
    approved, _, fell = dialogue(text, "yn")
    assert not approved.result.changed and [change.name for change in fell] == ["accelerator"]


def test_d_and_q_keep_what_was_accepted() -> None:
    for answers in ("yd", "yq"):
        approved, _, _ = dialogue(FREE, answers)
        assert "randn(2).cuda()" in approved.result.after.decode() and approved.result.changed
        assert approved.quit is answers.endswith("q")


COMMAND = "from tests.cli_support import install; install()\nfrom script2accel.cli import main; main()"


def on_terminal(keys: str, *args: str, **more: str) -> tuple[int, str]:
    """Run the command on a pseudo-terminal, type the keys (a line each) as it asks, and return its code and what it showed."""
    main, side = pty.openpty()
    env = environment(TERM="xterm", **more)
    process = subprocess.Popen([sys.executable, "-c", COMMAND, "convert", *args], stdin=side, stdout=side, stderr=side, env=env, close_fds=True)
    os.close(side)
    shown, typed, end = b"", 0, time.monotonic() + 30
    while time.monotonic() < end:
        if not select.select([main], [], [], 0.2)[0]:
            continue
        try:
            data = os.read(main, 65536)
        except OSError:  # the other side is closed
            break
        shown += data
        if shown.count(b"?]? ") > typed and typed < len(keys):
            os.write(main, keys[typed].encode() + b"\n")
            typed += 1
    os.close(main)
    if typed < len(keys):
        process.kill()
    code = process.wait(timeout=30)
    assert typed == len(keys), shown
    return code, shown.decode().replace("\r\n", "\n")


def test_the_dialogue_on_a_terminal() -> None:
    path = Path("train.py")
    path.write_text(FREE)
    code, shown = on_terminal("?h?yn", "train.py")
    assert code == 1 and "train.py: written" in shown and "\x1b[32m+" in shown
    assert "h - decide hunk by hunk" in shown and "(1/2) " in shown and "moves to the accelerator's device" in shown
    assert "randn(2).cuda()" in path.read_text() and "to(accelerator.device)" in path.read_text()
    call("undo", "train.py")
    assert path.read_text() == FREE


def test_no_and_quit_and_all_on_a_terminal() -> None:
    paths = [Path(name) for name in ("a.py", "b.py", "c.py")]
    for path in paths:
        path.write_text(SCRIPT)
    code, shown = on_terminal("nq", *map(str, paths), NO_COLOR="1")
    assert code == 1 and "\x1b" not in shown and all(path.read_text() == SCRIPT for path in paths)
    code, _ = on_terminal("na", *map(str, paths))
    assert code == 1 and [path.read_text() == SCRIPT for path in paths] == [True, False, False]
    code, _ = on_terminal("y", "a.py")
    assert code == 0 and "accelerator" in paths[0].read_text()


def test_a_refused_hunk_says_what_falls_on_a_terminal() -> None:
    path = Path("train.py")
    path.write_text(SCRIPT)
    code, shown = on_terminal("hyyn", "train.py", NO_COLOR="1")
    assert code == 1 and "This falls with it:\n" in shown and "train.py: left as it was" in shown and path.read_text() == SCRIPT
