"""What the README says is tried: its commands run, its tables are those of the code, its diff is the tool's.

`pytest --update-golden` rewrites the generated blocks (diff, rules, refusals).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from script2accel.cli.rule import documented
from script2accel.diagnostics import Message, Severity
from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.rules import load
from script2accel.workflow.convert import convert
from tests.conftest import PACKAGE, ROOT

README = ROOT / "README.md"
Shell = Callable[..., str]


def block(name: str) -> str:
    """The text of the fenced block behind the comment `<!-- name -->`."""
    match = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```", README.read_text(), re.DOTALL)
    assert match, f"no block {name}"
    return match.group(1)


def console() -> list[str]:
    """The commands of the console blocks of `Set up`, one for each block."""
    text = README.read_text().split("## Set up")[1].split("\n## ")[0]
    return [part.strip() for part in re.findall(r"```console\n(.*?)```", text, re.DOTALL)]


def generated(name: str, text: str, update: bool) -> None:
    """Compare a block between `<!-- name -->` and `<!-- /name -->` with its text, or rewrite it."""
    readme = README.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    assert pattern.search(readme)
    if update:
        README.write_text(pattern.sub(lambda match: match[1] + text + match[2], readme))
        return
    found = pattern.search(readme)
    assert found and found.group() == f"<!-- {name} -->\n{text}<!-- /{name} -->", "run pytest --update-golden"


def all_messages() -> list[Message]:
    """Every kind of diagnostic that any module of the package owns, by id."""
    from importlib import import_module

    found: dict[int, Message] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__"):
            module = import_module(".".join(parts))
            found |= {id(value): value for value in vars(module).values() if isinstance(value, Message)}
    return sorted(found.values(), key=lambda message: message.id)


def test_a_message_that_stops_says_what_to_do() -> None:
    assert not [m.id for m in all_messages() if m.severity is Severity.ERROR and m.id[3] != "0" and not m.todo.strip()]


def test_every_rule_and_message_has_a_page() -> None:
    """`script2accel rule ID` knows every id that a user can meet."""
    from click.testing import CliRunner

    from script2accel.cli import group

    ids = {message.id for message in all_messages()} | {rule.CODE for rule in load()} | {rule.NAME for rule in load()}
    unknown = [one for one in sorted(ids) if CliRunner().invoke(group, ["rule", one]).exit_code]
    assert not unknown


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Runs a bash line in a scratch git repository that holds the README's train.py, with `script2accel` on the path."""
    tools, work = tmp_path / "bin", tmp_path / "work"
    tools.mkdir()
    work.mkdir()
    tool = tools / "script2accel"
    tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m script2accel "$@"\n')
    tool.chmod(0o755)
    (work / "train.py").write_text(block("train.py"))
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    env = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)

    def run(line: str, *, code: int = 0, cwd: Path = work) -> str:
        done = subprocess.run(["bash", "-c", "set -o pipefail\n" + line], cwd=cwd, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == code, f"{line}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    return run


def test_the_diff(update_golden: bool) -> None:
    result = convert(block("train.py"))
    assert result.outcome is Outcome.CONVERTED
    generated("diff", f"```diff\n{result.diff()}```\n", update_golden)


def test_the_table_of_rules(update_golden: bool) -> None:
    rows = ["| rule | name | what it does |", "|---|---|---|"]
    rows += [f"| {rule.CODE} | {rule.NAME} | {(rule.__doc__ or '').strip().splitlines()[0]} |" for rule in documented()]
    generated("rules", "\n".join(rows) + "\n", update_golden)


def test_the_table_of_refusals(update_golden: bool) -> None:
    """Messages about reading files (family 0) and our own bugs (family 9) are no refusals of a construct."""
    rows = ["| message | what was found |", "|---|---|"]
    for message in all_messages():
        if message.severity is Severity.ERROR and message.id[3] not in "09":
            text = re.sub(r"\{(\w+)[^}]*\}", "…", message.text).replace("|", r"\|")
            rows.append(f"| {message.id} | {text} |")
    generated("refusals", "\n".join(rows) + "\n", update_golden)


def test_message_ids_are_unique_over_the_package() -> None:
    ids = [message.id for message in all_messages()]
    assert len(ids) == len(set(ids)), sorted(one for one in ids if ids.count(one) > 1)
    assert all(re.fullmatch(r"S2A\d{3}", one) for one in ids)


def test_the_set_up_commands(shell: Shell) -> None:
    """Two, each one line; the long installs aren't run again, what stands behind them is."""
    first, second = console()
    assert "\n" not in first + second
    assert first.startswith("python3 -m venv .venv && .venv/bin/pip install . && .venv/bin/")
    diff = shell(first.split(".venv/bin/")[-1], cwd=ROOT)
    assert diff.startswith("--- a/fixtures/") and "+accelerator = Accelerator(" in diff.replace("    ", "")
    extra = re.search(r"pip install (-e '\.\[test\]')", second)
    assert extra and f"pip install -q {extra[1]}" in (ROOT / ".ci" / "run").read_text()
    command = second.split(".venv/bin/")[-1]
    assert "1 test collected" in shell(f"{command.replace('-n 2 ', '')} --collect-only -q tests/test_readme.py::test_the_diff", cwd=ROOT)


def test_usage(shell: Shell) -> None:
    """Every line of the block, in its order, in one folder."""
    lines = block("usage").strip().splitlines()
    assert len(lines) >= 9
    for line in lines:
        shell(line)


def test_the_converted_script_and_undo(shell: Shell, tmp_path: Path) -> None:
    script = tmp_path / "work" / "train.py"
    before = script.read_bytes()
    shell("script2accel check train.py", code=1)
    shell("script2accel convert train.py --check", code=1)
    shell("script2accel convert train.py", code=1)  # no terminal, no --write: shown, not applied
    assert script.read_bytes() == before
    shell("script2accel convert train.py --write && script2accel check train.py && script2accel convert train.py --check")
    assert script.read_bytes() == convert(before).after
    shell("script2accel undo")
    assert script.read_bytes() == before


def test_exit_codes(shell: Shell, tmp_path: Path) -> None:
    work = tmp_path / "work"
    leaves = block("train.py").replace("        loss.backward()\n", "        if x.max() > 9:\n            break\n        loss.backward()\n")
    (work / "refused.py").write_text(leaves)
    (work / "plain.py").write_text("print('hello')\n")
    (work / "broken.py").write_text("def f(:\n")
    for command in ("convert --write", "check"):
        shell(f"script2accel {command} plain.py")
        shell(f"script2accel {command} refused.py", code=1)
        shell(f"script2accel {command} broken.py", code=2)
        shell(f"script2accel {command} missing.py", code=2)
        shell(f"script2accel {command} --no-such-flag plain.py", code=2)
    assert (work / "refused.py").read_text() == leaves
    (work / "notebook.ipynb").write_text("{}")
    shell("script2accel convert notebook.ipynb", code=2)
    bug = "import sys\nimport script2accel.workflow.convert as road\nfrom script2accel.cli import main\nroad.convert_project = lambda *a: 1 / 0\n"
    for command in ("convert", "check"):
        (work / "bug.py").write_text(f"{bug}sys.argv = ['x', {command!r}, 'train.py']\nmain()\n")
        shell("python bug.py", code=3)
    assert (work / "train.py").read_text() == block("train.py")


def test_the_library(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "work" / "use.py").write_text(block("library"))
    out = shell("python use.py")
    assert out.startswith("converted\n--- a/train.py\n")


def test_the_options_are_those_of_the_command() -> None:
    from script2accel.cli.convert import command

    told = set(re.findall(r"^\| `(--[\w-]+)", README.read_text(), re.MULTILINE))
    real = {option for parameter in command.params if isinstance(parameter, click.Option) for option in parameter.opts if option.startswith("--")}
    assert told == real - {"--debug", "--help"}


def test_the_settings(shell: Shell, tmp_path: Path) -> None:
    settings = tmp_path / "work" / "pyproject.toml"
    settings.write_text(block("settings"))
    shown = shell("script2accel convert train.py --show-diff")
    options = Options(batch="global", mixed_precision="bf16")
    assert shown == convert(block("train.py"), options).diff() != convert(block("train.py")).diff()
    settings.write_text(block("settings") + 'bach = "global"\n')
    shell("script2accel convert train.py --show-diff", code=2)


def test_the_hook() -> None:
    hook = re.search(r"- id: (\S+)", block("hook"))
    assert hook and f"- id: {hook[1]}" in (ROOT / ".pre-commit-hooks.yaml").read_text()


def test_files_that_are_named_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "docs/DESIGN.md"):
        text = (ROOT / document).read_text()
        for name in re.findall(r"`((?:docs|tests|fixtures|benchmarks|script2accel|\.ci)/[\w./]*\w)`", text):
            assert (ROOT / name).exists() or (ROOT / "script2accel" / name).exists(), f"{document} names {name}"
