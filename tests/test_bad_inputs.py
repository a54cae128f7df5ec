"""Whatever is given instead of a script: one clear line, the right exit code, the file untouched, and never a hang."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli_support import call, environment

TORCH = b"import torch\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def one_line(name: str, words: str, *, place: str = "") -> None:
    """Both commands say it in one line and exit with 2."""
    shown = name.encode("unicode_escape", "surrogatepass").decode("ascii") if not name.isprintable() else name
    for args in (("convert", "--write", "--", name), ("convert", "--show-diff", "--", name), ("check", "--", name)):
        result = call(*args)
        line = result.stdout if args[0] == "check" else result.stderr
        assert result.exit_code == 2, (args, result.stdout, result.stderr)
        assert line.count("\n") == 1 and line.startswith(f"{shown}{place}:") and ": S2A0" in line and words in line, line
        assert args[0] == "check" or result.stdout == ""
    assert not Path(".script2accel").exists()


TEXTS = {
    "syntax error": (TORCH + b"x = (1,\ny = 2\n", "syntax error", ":2:5"),
    "no torch either": (b"def f(:\n", "syntax error", ":1:7"),
    "indentation": (TORCH + b"if x:\ny = 2\n", "syntax error", ":3:1"),
    "tabs against spaces": (TORCH + b"if x:\n\ty = 2\n        z = 3\n", "syntax error", ":4"),
    "python 2 print": (TORCH + b'print "loss", x\n', "Python 2", ":2"),
    "python 2 except": (TORCH + b"try:\n    pass\nexcept IOError, e:\n    pass\n", "Python 2", ":4"),
    "bad utf-8": (TORCH + b"s = '\xe9'\n", "0xe9 is not utf-8", ":2"),
    "bad utf-8 in a comment": (TORCH + b"# caf\xe9\n", "0xe9 is not utf-8", ":2"),
    "bom and latin-1": (b"\xef\xbb\xbf# coding: latin-1\n" + TORCH, "encoding", ":1"),
    "unknown coding": (b"# coding: klingon\n" + TORCH, "encoding", ":1"),
    "coding of bytes": (b"# coding: base64\n" + TORCH, "encoding", ":1"),
    "coding of text": (b"# coding: rot13\n" + TORCH, "encoding", ":1"),
    "coding with state": (b"# coding: utf-7\n" + TORCH + b"s = '+AGE-'\n", "encoding", ":1"),
    "coding that is undefined": (b"# coding: undefined\n" + TORCH, "encoding", ":1"),
    "coding in two bytes": (b"# coding: utf-16\n" + TORCH, "", ":1"),
    "utf-16": ("\ufeffimport torch\n".encode("utf-16-le"), "UTF-16", ""),
    "null byte": (TORCH + b"x = 1\0\n", "null byte", ":2"),
    "backslash and ctrl-z": (TORCH + b"x = 1 \\\x1a", "syntax error", ":2"),
    "parentheses 250": (TORCH + b"x = " + b"(" * 250 + b"1" + b")" * 250 + b"\n", "nested too deeply", ":2"),
    "surrogate escape": (TORCH + b"x = '\xed\xa0\x80'\n", "0xed is not utf-8", ":2"),
    "notebook named py": (b'{"cells": [], "torch": null\n', "syntax error", ":1"),
    "binary": (b"\x7fELF\x02\x01\x01\0\0\0torch", "null byte", ":1"),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_unreadable_text(kind: str) -> None:
    text, words, place = TEXTS[kind]
    Path("train.py").write_bytes(text)
    one_line("train.py", words, place=place)
    assert Path("train.py").read_bytes() == text and os.listdir() == ["train.py"]


DEEP = {
    "3,000 parentheses": "x = " + "(" * 3000 + "1" + ")" * 3000,
    "sum of 3,000 terms": "x = " + " + ".join(["1"] * 3000),
    "1,000 chained calls": "x = a" + ".b()" * 1000,
    "1,000 nested lists": "x = " + "[" * 1000 + "]" * 1000,
    "3,000 nested calls": "x = " + "f(" * 3000 + ")" * 3000,
    "2,000 unary": "x = " + "-" * 2000 + "1",
    "99 nested blocks": "".join("    " * n + "if x:\n" for n in range(99)) + "    " * 99 + "pass",
    "900 elif": "if x:\n    pass\n" + "elif x:\n    pass\n" * 900,
    "3,000 nested parentheses, open": "x = " + "(" * 3000,
    "sum of 3,000 terms, broken": "x = " + " + ".join(["1"] * 3000) + " +",
    "3,000 adjacent strings": "x = " + "'a' " * 3000,
    "list of 50,000": "x = [" + "1, " * 50000 + "]",
}


@pytest.mark.parametrize("kind", DEEP)
def test_deep_text_costs_neither_the_process_nor_the_day(kind: str) -> None:
    """In a process of its own: LibCST ends it on the first and doesn't return from the second."""
    text = "import torch\n" + DEEP[kind] + "\n"
    Path("train.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "script2accel", "convert", "train.py", "--write"], capture_output=True, text=True, timeout=60, env=environment()
    )
    readable = "99" in kind or "900" in kind or "adjacent" in kind or "50,000" in kind
    assert done.returncode in ((0, 2) if readable else (2,)), done
    assert done.stderr.count("\n") <= 1 and "S2A9" not in done.stderr and Path("train.py").read_text() == text
    if done.returncode == 2:
        assert done.stderr.startswith("train.py:") and ": S2A00" in done.stderr


@pytest.mark.parametrize(
    ("since", "text"),
    [((3, 12), "def f[T](x: T) -> T:\n    return x\n"), ((3, 12), "type A = int\n"), ((3, 14), "x = t'{torch}'\n")],
)
def test_newer_syntax_is_not_called_broken(since: tuple[int, int], text: str) -> None:
    if sys.version_info >= since:
        pytest.skip("this Python reads it")
    Path("train.py").write_bytes(TORCH + text.encode())
    one_line("train.py", "newer than Python", place=":2")


def test_what_is_no_file() -> None:
    os.mkfifo("pipe.py")
    Path("loop.py").symlink_to("loop.py")
    Path("dangling.py").symlink_to("nowhere.py")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.py")
        one_line("socket.py", "a socket")
    one_line("pipe.py", "a fifo")
    one_line("loop.py", "a loop of symbolic links")
    one_line("dangling.py", "no such file")
    one_line("missing.py", "no such file")
    one_line("missing/train.py", "no such file")
    one_line("/dev/zero", "a device")
    one_line("pipe.py/train.py", "not a directory")
    one_line("x" * 300 + ".py", "too long")


def test_a_fifo_below_a_directory_is_not_opened() -> None:
    Path("d").mkdir()
    os.mkfifo("d/pipe.py")
    result = call("check", "d")
    assert result.exit_code == 2 and result.stdout == "d/pipe.py: S2A001 a fifo, not a regular file\n"


def test_a_directory_without_python() -> None:
    Path("d.py").mkdir()
    Path("d.py/readme.txt").touch()
    one_line("d.py", "no Python files")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"cells": []}', "nbformat 3 or 4"),
        ('{"cells": [', "JSON can't be read"),
        ('{"cells": [], "nbformat": 4}', "no code cells"),
        ('{"cells": [], "nbformat": 4, "metadata": {"kernelspec": {"language": "R"}}}', "runs R, not Python"),
        ('{"cells": [{"cell_type": "code"}], "nbformat": 4}', "cell 1 has no source"),
        ('{"cells": [{"cell_type": "code", "source": "%time f()"}], "nbformat": 4}', "can't be followed"),
    ],
)
def test_a_notebook_that_cannot_be_read(text: str, said: str) -> None:
    Path("train.ipynb").write_text(text)
    one_line("train.ipynb", said)


def test_a_file_that_is_too_large_is_not_read() -> None:
    with open("train.py", "wb") as stream:
        stream.truncate(33 * 2**20)
    one_line("train.py", "larger than 32 MiB")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_read_permission() -> None:
    Path("train.py").write_bytes(TORCH)
    Path("train.py").chmod(0)
    one_line("train.py", "permission denied")


@pytest.mark.parametrize("name", ["new\nline.py", os.fsdecode(b"\xff.py"), "esc\x1b[31m.py"])
def test_an_odd_name_stays_on_one_line(name: str) -> None:
    Path(name).write_bytes(b"x = (\n")
    one_line(name, "syntax error", place=":1:5")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"# no final newline", "doesn't use torch"),
        (b"x = 1\n", "doesn't use torch"),
        (TORCH, "no training loop"),
        (TORCH.replace(b"\n", b"\r") + b"x = 1\r", "no training loop"),
        (b"\xef\xbb\xbf\f" + TORCH, "no training loop"),
    ],
)
def test_nothing_to_do_is_one_line_and_success(text: bytes, words: str) -> None:
    Path("train.py").write_bytes(text)
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 0 and result.stdout.count("\n") == 1 and words in result.stdout and result.stderr == ""
    assert call("check", "train.py").exit_code == 0 and call("check", "train.py").stdout == ""
    assert Path("train.py").read_bytes() == text and os.listdir() == ["train.py"]


def test_a_closed_reader_is_no_traceback() -> None:
    Path("train.py").write_text("import torch\n")
    command = f"{sys.executable} -m script2accel rule | true; {sys.executable} -m script2accel check . --output-format json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment(), timeout=60)
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr
