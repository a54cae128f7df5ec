"""Files: patches that git takes, writes that are whole or not at all, undo, and what is found in a directory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from script2accel.errors import SourceError
from script2accel.workflow import files, history
from script2accel.workflow.discover import discover
from tests.cli_support import SCRIPT, call, environment, use_toy


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    use_toy(monkeypatch)


def git(*args: str, input: bytes | None = None) -> bytes:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CEILING_DIRECTORIES": "/"}
    done = subprocess.run(["git", *args], input=input, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


TEXTS = {
    "plain": SCRIPT.encode(),
    "bom": b"\xef\xbb\xbf" + SCRIPT.encode(),
    "crlf": SCRIPT.replace("\n", "\r\n").encode(),
    "mixed": SCRIPT.replace("\n", "\r\n", 7).encode(),
    "lone carriage returns": SCRIPT.replace("a = 1\n", "a = 1\ra = 2\n").encode(),
    "carriage returns only": SCRIPT.replace("\n", "\r").encode(),
    "tabs": (SCRIPT + "if 1:\n\tloss = 1\n\tloss = loss.cuda()\n").encode(),
    "form feed": SCRIPT.replace("a = 1", "\f\na = 1").encode(),
    "latin-1": b"# -*- coding: latin-1 -*-\n" + (SCRIPT + "s = 'caf\xe9'.cuda()\n").encode("latin-1"),
    "utf-8": (SCRIPT + "s = 'café \u2028 漢'.cuda()\n").encode(),
    "no final newline": SCRIPT.rstrip("\n").encode(),
    "no final newline, last line stays": (SCRIPT + "end = 1").encode(),
    "dashes": (SCRIPT + '"""\n--- a\n+++ b\n@@ -1 +1 @@\n"""; x.cuda()\n--x.cuda()\n').encode(),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_git_applies_the_diff_of_any_text(kind: str) -> None:
    git("init", "-q")
    path = Path("train.py")
    path.write_bytes(TEXTS[kind])
    shown = call("convert", "train.py", "--show-diff")
    assert shown.exit_code == 0 and shown.stdout_bytes
    call("convert", "train.py", "-o", "expected.py")
    git("apply", input=shown.stdout_bytes)
    assert path.read_bytes() == Path("expected.py").read_bytes() != TEXTS[kind]


NAMES = [
    "with space.py",
    "two  spaces .py",
    "ünï.py",
    "漢字.py",
    'quo"te.py',
    "back\\slash.py",
    "new\nline.py",
    "tab\t.py",
    "-dash.py",
    os.fsdecode(b"\xff.py"),
]


@pytest.mark.parametrize("name", NAMES)
def test_git_applies_the_diff_of_any_name(name: str) -> None:
    git("init", "-q")
    path = Path(name)
    path.write_text(SCRIPT)
    git("apply", input=call("convert", "--show-diff", "--", name).stdout_bytes)
    assert "accelerator.backward" in path.read_text()


@pytest.mark.parametrize("repository", [True, False])
@pytest.mark.parametrize(
    ("here", "path"), [(".", "s/s/t.py"), ("s", "t.py"), ("s", "s/t.py"), ("s/s", "t.py"), ("a", "t.py"), ("a", "a/t.py"), ("b b", "b b/t.py")]
)
def test_git_applies_the_diff_in_any_folder(here: str, path: str, repository: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if repository:
        git("init", "-q")
    monkeypatch.chdir(_folders(here))
    for other in ("t.py", "s/t.py", "a/t.py", path):
        Path(other).parent.mkdir(parents=True, exist_ok=True)
        Path(other).write_text(SCRIPT)
    git("apply", input=call("convert", path, "--show-diff").stdout_bytes)
    assert [other for other in ("t.py", "s/t.py", "a/t.py", path) if Path(other).read_text() != SCRIPT] in ([path], [path, path])


def _folders(path: str) -> str:
    os.makedirs(path, exist_ok=True)
    return path


def test_git_applies_the_diff_of_a_link_and_of_several_files() -> None:
    git("init", "-q")
    Path("real").mkdir()
    Path("real/train.py").write_text(SCRIPT)
    Path("other.py").write_text(SCRIPT)
    Path("link.py").symlink_to("real/train.py")
    Path("folder").symlink_to("real")
    git("apply", input=call("convert", "link.py", "folder/train.py", "other.py", os.path.abspath("other.py"), "--show-diff").stdout_bytes)
    assert all("accelerator" in Path(name).read_text() for name in ("real/train.py", "other.py")) and Path("link.py").is_symlink()


def test_a_write_keeps_links_and_mode() -> None:
    target = Path("real.py")
    target.write_text(SCRIPT)
    target.chmod(0o750)
    Path("link.py").symlink_to("real.py")
    assert call("convert", "link.py", "--write").exit_code == 0
    assert Path("link.py").is_symlink() and "accelerator" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    call("undo", "link.py")
    assert target.read_text() == SCRIPT and stat.S_IMODE(target.stat().st_mode) == 0o750
    assert sorted(os.listdir()) == [".script2accel", "link.py", "real.py"]


def _refused(words: str, path: str = "train.py") -> None:
    before = Path(path).read_bytes()
    result = call("convert", path, "--write")
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and words in result.stderr
    assert result.stderr.startswith(f"{path}: S2A007 ") and ": converted" not in result.stdout
    assert Path(path).read_bytes() == before


def test_hard_links_are_refused() -> None:
    Path("train.py").write_text(SCRIPT)
    os.link("train.py", "twin.py")
    _refused("has 2 hard links")
    assert not Path(".script2accel").exists()


def test_a_read_only_file_is_refused() -> None:
    Path("train.py").write_text(SCRIPT)
    Path("train.py").chmod(0o444)
    _refused("is read-only")


def test_a_read_only_folder_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text(SCRIPT)

    def denied(*args: object, **kwargs: object) -> tuple[int, str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", denied)  # root may write everywhere, so the folder can't say no itself
    _refused("permission denied")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission_is_one_line(tmp_path: Path) -> None:
    Path("d").mkdir()
    Path("d/train.py").write_text(SCRIPT)
    Path("d").chmod(0o555)
    try:
        _refused("permission denied", "d/train.py")
    finally:
        Path("d").chmod(0o755)


def test_a_file_that_changed_meanwhile_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text(SCRIPT)
    with pytest.raises(SourceError, match="changed since it was read"):
        history.write(os.path.abspath("train.py"), b"older\n", b"new\n", "run")
    with pytest.raises(SourceError, match="appeared in the meantime"):
        history.write(os.path.abspath("train.py"), None, b"new\n", "run")
    assert Path("train.py").read_text() == SCRIPT and os.listdir() == ["train.py"]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_failing_step_leaves_the_old_file_and_nothing_else(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("train.py").write_text(SCRIPT)
    real = getattr(os, step)
    target = os.path.abspath("train.py")

    def fail(what: object, *args: object, **kwargs: object) -> object:
        if step == "fsync" or target in (what, *args) or (step == "chmod" and str(what).endswith(".tmp")):
            raise OSError(28, "No space left on device")
        return real(what, *args, **kwargs)

    monkeypatch.setattr(os, step, fail)
    _refused("no space left on device")
    left = [name for folder, _, names in os.walk(".") for name in names if name not in ("train.py", ".gitignore")]
    assert left == []


def test_a_killed_write_leaves_the_old_text_or_the_new(tmp_path: Path) -> None:
    path, texts = tmp_path / "train.py", [mark * 300_000 for mark in (b"a", b"b")]
    path.write_bytes(texts[0])
    code = f"from script2accel.workflow.files import replace\nwhile True:\n for mark in b'ab': replace({str(path)!r}, bytes([mark]) * 300_000)"
    for trial in range(6):
        process = subprocess.Popen([sys.executable, "-c", code], env=environment())
        time.sleep(0.3 + trial * 0.013)
        process.kill()
        process.wait()
        assert path.read_bytes() in texts


def test_a_new_file_gets_the_usual_mode() -> None:
    mask = os.umask(0o027)
    try:
        files.replace(os.path.abspath("new.py"), b"x\n")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(os.stat("new.py").st_mode) == 0o640


def test_undo_refuses_what_was_edited_since() -> None:
    path = Path("train.py")
    path.write_text(SCRIPT)
    call("convert", "train.py", "--write")
    path.write_text("edited\n")
    result = call("undo", "train.py")
    assert result.exit_code == 1 and "changed since it was written" in result.stderr and path.read_text() == "edited\n"
    path.unlink()
    assert call("undo", "train.py").exit_code == 1


def test_history_lies_at_the_project_root_and_survives_a_move() -> None:
    Path("p/src").mkdir(parents=True)
    Path("p/pyproject.toml").touch()
    Path("p/src/train.py").write_text(SCRIPT)
    call("convert", "p/src/train.py", "--write")
    assert Path("p/.script2accel/.gitignore").read_text() == "*\n" and not Path("p/src/.script2accel").exists()
    [entry] = Path("p/.script2accel/history").iterdir()
    assert stat.S_IMODE(entry.stat().st_mode) == 0o600
    Path("p").rename("q")
    assert call("undo", "q").exit_code == 0
    assert Path("q/src/train.py").read_text() == SCRIPT and not list(Path("q/.script2accel/history").iterdir())


def test_two_writes_are_undone_one_by_one() -> None:
    path = Path("train.py")
    for number in (1, 2, 3):
        history.write(os.path.abspath(path), path.read_bytes() if path.exists() else None, f"x = {number}\n".encode(), history.new_run())
    for expected in ("x = 2\n", "x = 1\n"):
        call("undo", "train.py")
        assert path.read_text() == expected
    call("undo", "train.py")
    assert not path.exists()


def test_a_damaged_history_entry_is_one_line() -> None:
    Path(".script2accel/history").mkdir(parents=True)
    Path(".script2accel/history/1.undo").write_text("nonsense\n")
    result = call("undo", ".")
    assert result.exit_code == 2 and "damaged" in result.stderr


def test_reading_never_opens_what_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo("pipe.py")
    monkeypatch.setattr(os, "open", lambda *args: pytest.fail("opened"))
    with pytest.raises(SourceError, match="a fifo, not a regular file"):
        files.read("pipe.py")


def test_discovery_skips_what_is_not_the_users() -> None:
    for name in (
        "b.py",
        "a.py",
        "sub/c.py",
        "sub/d.txt",
        ".#lock.py",
        ".git/x.py",
        "v/pyvenv.cfg",
        "v/x.py",
        "node_modules/x.py",
        "__pycache__/x.py",
    ):
        Path("p", name).parent.mkdir(parents=True, exist_ok=True)
        Path("p", name).touch()
    assert [found.path for found in discover(["p"])] == ["p/a.py", "p/b.py", "p/sub/c.py"]
    assert [found.path for found in discover(["p/.git"])] == ["p/.git/x.py"]  # named by the user


def test_discovery_tells_of_odd_entries() -> None:
    Path("p").mkdir()
    os.mkfifo("p/a.py")
    Path("p/b.py").symlink_to("b.py")
    Path("p/c.py").mkdir()
    Path("p/c.py/d.py").touch()
    found = {one.path: one.problem for one in discover(["p"])}
    assert found == {"p/a.py": "a fifo, not a regular file", "p/b.py": "a loop of symbolic links", "p/c.py/d.py": ""}
