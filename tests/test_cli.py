"""The command line: modes, exit codes, what goes to stdout and what to stderr."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import SCRIPT, call, environment, use_toy


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use_toy(monkeypatch)


def script(name: str = "train.py", text: str = SCRIPT) -> Path:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_terminal_shows_the_diff_writes_nothing_and_fails() -> None:
    path = script()
    result = call("convert", "train.py")
    assert result.exit_code == 1
    assert result.stdout.startswith("--- a/train.py\n+++ b/train.py\n@@ ")
    assert "--write" in result.stderr and "git apply" in result.stderr
    assert path.read_text() == SCRIPT and os.listdir() == ["train.py"]


def test_show_diff_puts_the_diff_on_stdout_and_the_summary_on_stderr() -> None:
    script()
    result = call("convert", "train.py", "--show-diff")
    assert result.exit_code == 0
    assert all(line[:1] in "+-@ \\" for line in result.stdout.splitlines())
    assert "train.py: can be converted, 4 changes" in result.stderr
    assert "S2A101 device-move x2, lines 3, 12" in result.stderr
    assert "launch        accelerate launch train.py" in result.stderr


def test_write_and_undo() -> None:
    path = script()
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 0 and "train.py: converted, 4 changes" in result.stdout
    assert "accelerator.backward(loss)" in path.read_text()
    again = call("convert", "train.py", "--write")
    assert again.exit_code == 0 and "nothing to convert" in again.stdout
    assert call("undo", "train.py").stdout == "train.py: restored\n"
    assert path.read_text() == SCRIPT


def test_undo_without_path_takes_the_last_run_back() -> None:
    first, second, third = script("a.py"), script("b.py"), script("c.py")
    call("convert", "a.py", "--write")
    call("convert", "b.py", "c.py", "--write")
    result = call("undo")
    assert result.exit_code == 0 and sorted(result.stdout.splitlines()) == ["b.py: restored", "c.py: restored"]
    assert second.read_text() == third.read_text() == SCRIPT != first.read_text()
    assert call("undo").stdout == "a.py: restored\n"
    assert call("undo").exit_code == 2


def test_output_writes_another_file_and_undo_removes_it() -> None:
    path = script()
    result = call("convert", "train.py", "--output", "new.py")
    assert result.exit_code == 0 and "accelerator" in Path("new.py").read_text() and path.read_text() == SCRIPT
    assert call("undo", "new.py").stdout == "new.py: removed\n"
    assert not Path("new.py").exists()


def test_output_keeps_what_stood_there_for_undo() -> None:
    script()
    script("new.py", "old = 1\n")
    assert call("convert", "train.py", "-o", "new.py").exit_code == 0
    call("undo", "new.py")
    assert Path("new.py").read_text() == "old = 1\n"


def test_output_minus_is_stdout() -> None:
    script()
    result = call("convert", "train.py", "-o", "-")
    assert result.exit_code == 0 and result.stdout.startswith("import torch\nfrom accelerate import Accelerator\n")


def test_output_of_several_is_a_usage_error() -> None:
    script("d/a.py"), script("d/b.py")
    assert call("convert", "d", "--output", "x.py").exit_code == 2
    assert not Path("x.py").exists()


def test_a_diff_that_git_would_not_take_here_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    script()
    Path("sub").mkdir()
    assert "current folder" not in call("convert", "train.py", "--show-diff").stderr
    monkeypatch.chdir("sub")
    assert "above the current folder" in call("convert", "../train.py", "--show-diff").stderr


def test_stdin_gives_the_script_or_the_diff() -> None:
    result = call("convert", "-", input=SCRIPT)
    assert result.exit_code == 0 and "accelerator.backward(loss)" in result.stdout and "<stdin>: converted" in result.stderr
    assert call("convert", "-", input="x = 1\n").stdout == "x = 1\n"
    assert call("convert", "-", "--show-diff", input=SCRIPT).stdout.startswith("--- a/<stdin>\n")
    broken = call("convert", "-", input="def f(:\n")
    assert broken.exit_code == 2 and broken.stdout == "" and broken.stderr.startswith("<stdin>:1:7: S2A003 syntax error")


def test_check_fails_when_a_diff_would_be_applied() -> None:
    script()
    result = call("convert", "train.py", "--check")
    assert result.exit_code == 1 and "can be converted" in result.stdout and "@@" not in result.stdout
    assert call("convert", "train.py", "--check", "--show-diff").exit_code == 1
    call("convert", "train.py", "--write")
    assert call("convert", "train.py", "--check").exit_code == 0


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("train.py", "--show-diff", "--write"),
        ("train.py", "--check", "--write"),
        ("train.py", "--output", "x", "--write"),
        ("-", "--write"),
        ("-", "train.py"),
        ("train.py", "--batch", "local"),
        ("train.py", "--mixed-precision", "fp4"),
        ("train.py", "--seed", "x"),
        ("train.py", "--nonsense"),
    ],
)
def test_usage_errors(args: tuple[str, ...]) -> None:
    path = script()
    assert call("convert", *args).exit_code == 2
    assert path.read_text() == SCRIPT


def test_partial_is_written_on_request_only_and_still_needs_a_person() -> None:
    path = script(text=SCRIPT + "# partial\n")
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 1 and "to do: mend it" in result.stdout and "accelerator" not in path.read_text()
    result = call("convert", "train.py", "--write", "--partial")
    assert result.exit_code == 1 and "partly converted" in result.stdout and "accelerator" in path.read_text()


def test_refused_says_why_and_explain_shows_the_evidence() -> None:
    script(text=SCRIPT + "# refuse\n")
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 1 and "train.py:3:1: S2A299 `model` is odd" in result.stdout and "because" not in result.stdout
    result = call("convert", "train.py", "--write", "--explain")
    assert "because line 3: made by torch.nn.Linear" in result.stdout and "3: model: model  (made by torch.nn.Linear)" in result.stdout


def test_our_bug_is_one_line_and_nothing_is_written() -> None:
    bad, good = script("bad.py", SCRIPT + "# bug\n"), script("good.py")
    result = call("convert", "bad.py", "good.py", "--write")
    assert result.exit_code == 3 and good.read_text() == SCRIPT and bad.read_text() == SCRIPT + "# bug\n"
    lines = [line for line in result.stderr.splitlines() if "boom" in line]
    assert len(lines) == 1 and lines[0].startswith("bad.py: S2A999 internal error: RuntimeError: boom") and "report" in lines[0]
    assert "Traceback" not in result.stderr
    assert "Traceback" in call("convert", "bad.py", "--debug").stderr
    assert call("check", "bad.py").exit_code == 3


def test_output_that_is_no_python_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    from script2accel.change.plan import Plan

    path = script()
    monkeypatch.setattr(Plan, "render", lambda self, changes=None: b"def (:\n")
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 3 and "would not be Python" in result.stderr and path.read_text() == SCRIPT


def test_settings_come_from_the_nearest_pyproject_and_flags_win() -> None:
    script("deep/er/train.py")
    Path("pyproject.toml").write_text('[tool.script2accel]\nbatch = "global"\nseed = 1\n')
    assert "global batch  global 1" in call("convert", "deep/er/train.py", "--show-diff").stderr
    assert "global batch  global 7" in call("convert", "deep/er/train.py", "--show-diff", "--seed", "7").stderr
    assert "global batch  per-device 1" in call("convert", "deep/er/train.py", "--show-diff", "--batch", "per-device").stderr
    Path("deep/pyproject.toml").write_text("")
    assert "global batch  per-device None" in call("convert", "deep/er/train.py", "--show-diff").stderr


@pytest.mark.parametrize("table", ["[tool.script2accel]\nbach = 1\n", "[tool.script2accel]\nseed = 'x'\n", "[tool", "tool.script2accel = 1", "\xff"])
def test_a_wrong_table_is_a_usage_error(table: str) -> None:
    path = script()
    Path("pyproject.toml").write_bytes(table.encode("latin-1"))
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 2 and "pyproject.toml" in result.stderr and path.read_text() == SCRIPT


def test_directories_are_searched_and_strangers_only_counted() -> None:
    script("p/train.py"), script("p/sub/util.py", "x = 1\n"), script("p/.git/hook.py"), script("p/build/lib.py"), script("p/env/a.py")
    Path("p/env/pyvenv.cfg").touch()
    result = call("convert", "p", "--show-diff")
    assert result.exit_code == 0 and result.stdout.count("+++") == 1
    assert "1 file of the directory is no training script" in result.stderr and "util.py" not in result.stderr


def test_a_file_is_taken_once() -> None:
    script("p/train.py")
    assert call("convert", "p", "p/train.py", "./p/train.py", "--show-diff").stdout.count("+++") == 1


def test_check_text() -> None:
    script()
    result = call("check", "train.py")
    assert result.exit_code == 1
    assert result.stdout.splitlines()[1:3] == [
        "train.py:3:30: S2A101 moves to the accelerator's device",
        "train.py:12:23: S2A101 moves to the accelerator's device",
    ]
    call("convert", "train.py", "--write")
    ready = call("check", "train.py")
    assert ready.exit_code == 0 and ready.stdout == ""


def test_check_json() -> None:
    script(text=SCRIPT + "# refuse\n")
    result = call("check", "train.py", "--output-format", "json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1 and result.stderr == ""
    assert document["version"] == 1 and document["files"][0]["outcome"] == "refused" and document["files"][0]["ready"] is False
    assert document["files"][0]["findings"][0] == {
        "id": "S2A299",
        "severity": "error",
        "line": 3,
        "column": 1,
        "message": "`model` is odd",
        "todo": "mend it",
        "evidence": [{"line": 3, "why": "made by torch.nn.Linear"}],
    }


def test_check_github() -> None:
    script("a,b.py", SCRIPT + "# refuse\n")
    result = call("check", "a,b.py", "--output-format", "github")
    assert result.stdout == "::error file=a%2Cb.py,line=3,col=1,title=S2A299::`model` is odd; mend it\n"


def test_check_never_passes_what_it_could_not_read() -> None:
    script("ok.py", "x = 1\n"), script("bad.py", "x = (\n")
    assert call("check", "ok.py").exit_code == 0
    for output in ("text", "json", "github"):
        assert call("check", "ok.py", "bad.py", "--output-format", output).exit_code == 2
        assert call("check", "ok.py", "missing.py", "--output-format", output).exit_code == 2


def test_roles() -> None:
    script()
    assert call("roles", "train.py").stdout == "3: model: model  (made by torch.nn.Linear)\n"
    assert call("roles", "missing.py").exit_code == 2


def test_colour_follows_the_terminal_and_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from script2accel.report import style

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert style.wanted(Terminal()) and not style.wanted(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not style.wanted(Terminal())
    monkeypatch.setenv("NO_COLOR", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not style.wanted(Terminal())


def test_library_api() -> None:
    import script2accel

    assert script2accel.__version__ == "0.1.0" and dir(script2accel) == ["Options", "Result", "__version__", "check", "convert"]
    assert script2accel.check(SCRIPT)[0].id == "S2A200"
    assert script2accel.convert(SCRIPT).changed
    with pytest.raises(AttributeError):
        script2accel.nothing  # noqa: B018


def _seconds(*args: str) -> float:
    """Processor time, which other work on the machine disturbs less than the clock."""
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *args], check=True, stdout=subprocess.DEVNULL, env=environment())
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime


def test_help_costs_little_more_than_click() -> None:
    """Interleaved, the best of each: at most 1.5 times `import click`."""
    pairs = [(_seconds("-c", "import click"), _seconds("-m", "script2accel", "--help")) for _ in range(8)]
    click_alone, ours = (min(column) for column in zip(*pairs, strict=True))
    assert ours <= 1.5 * click_alone, f"{ours / click_alone:.2f}"


def test_help_imports_no_analysis() -> None:
    code = "import sys; sys.argv = ['script2accel', '--help']\nimport script2accel.cli as c\ntry: c.main()\nexcept SystemExit: pass\n"
    code += "print([m for m in sys.modules if m.startswith(('libcst', 'torch', 'script2accel.'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]).stdout
    assert "['script2accel.cli']" in out
    assert all(word in out for word in ("convert", "check", "roles", "rule", "undo", "Exit codes"))


def test_every_command_of_the_table_exists_and_helps() -> None:
    from script2accel.cli import COMMANDS

    for name in COMMANDS:
        result = call(name, "--help")
        assert result.exit_code == 0 and f"script2accel {name}" in result.stdout and "--debug" in result.stdout
    assert call("transmogrify").exit_code == 2 and call("--version").stdout == "script2accel 0.1.0\n"
