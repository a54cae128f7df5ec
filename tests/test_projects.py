"""Each fixture project, converted: golden files, the second run, the check, the command line (all files or none), and the same training.

`after/` beside a project holds the files that change and no others; said.txt is what is said of all of them. `pytest --update-golden` rewrites
both; read the diff before you commit it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from script2accel.options import Options
from script2accel.report.text import summary
from script2accel.result import Outcome, Result, unified_diff
from script2accel.workflow.check import ready
from script2accel.workflow.convert import convert_project
from tests.cli_support import call
from tests.demands import OUR_BUG, touched_without_edit
from tests.differential import compare
from tests.differential.bench import Bench
from tests.differential.cases import PROJECTS, Project, projects

CASES = projects()
CONVERTED = [case for case in CASES if case.outcome == Outcome.CONVERTED.value]
REFUSED = [case for case in CASES if case.outcome == Outcome.REFUSED.value]
STARTED = [run for case in CONVERTED for run in (case, *case.others())]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("projects"))
    yield bench
    bench.close()


@pytest.fixture
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of a project, marked as one, and the current folder; the name is that of the indirect parameter."""
    shutil.copytree(PROJECTS / request.param / "before", tmp_path, dirs_exist_ok=True)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def name(case: Project) -> str:
    return case.name


def conversion(case: Project, texts: Mapping[str, bytes] | None = None) -> list[Result]:
    """What the tool makes of a project's files, given its entries."""
    files = case.texts if texts is None else texts
    return convert_project({path: files[path] for path in case.entries}, Options.from_mapping(case.options), files.get, lambda: sorted(files))


def converted(case: Project) -> Mapping[str, bytes]:
    """All files of a project, the changed ones as they would be written."""
    results = conversion(case)
    said = [f"{d.path}:{d.line}: {d.id} {d.message}" for result in results for d in result.diagnostics]
    assert {result.outcome for result in results} == {Outcome.CONVERTED}, "\n".join(said)
    return case.start({**case.texts, **{result.path: result.after for result in results}})


def python_files(root: Path) -> dict[str, bytes]:
    """Every Python file below a folder, by its path."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.py"))}


def expected(case: str) -> dict[str, bytes]:
    """What a project's files must be in the end."""
    return {**python_files(PROJECTS / case / "before"), **python_files(PROJECTS / case / "after")}


def told(results: Iterable[Result]) -> str:
    """The summaries of all files."""
    return "".join(summary(result) for result in results)


@pytest.mark.parametrize("case", CASES, ids=name)
def test_golden(case: Project, update_golden: bool) -> None:
    results = conversion(case)
    assert results[0].outcome.value == case.outcome, told(results)
    assert not [d for result in results for d in result.diagnostics if d.id.startswith(OUR_BUG)], told(results)
    changed = {result.path: result for result in results if result.changed}
    assert (case.outcome == "converted") == bool(changed)
    for result in changed.values():
        assert not touched_without_edit(result)
    after, words = PROJECTS / case.name / "after", PROJECTS / case.name / "said.txt"
    if update_golden:
        shutil.rmtree(after, ignore_errors=True)
        for path, result in changed.items():
            (after / path).parent.mkdir(parents=True, exist_ok=True)
            (after / path).write_bytes(result.after)
        words.write_text(told(results), encoding="utf-8")
    golden = python_files(after)
    assert sorted(golden) == sorted(changed)
    for path, result in changed.items():
        assert result.after == golden[path], "not as in after/:\n" + unified_diff(golden[path], result.after, path)
    assert told(results) == words.read_text(encoding="utf-8")
    assert set(case.also) <= set(changed)


@pytest.mark.parametrize("case", CONVERTED, ids=name)
def test_the_second_run_changes_nothing_and_the_check_passes(case: Project) -> None:
    again = conversion(case, converted(case))
    assert not [result.path for result in again if result.changed], told(again)
    assert all(ready(result) for result in again), told(again)


@pytest.mark.parametrize("case", REFUSED, ids=name)
def test_refused(case: Project) -> None:
    results = conversion(case)
    said = [f"{d.id} {d.message}" for result in results for d in result.errors]
    assert case.diagnostics, "a refusal is tested by its reason"
    for words in case.diagnostics:
        assert any(words in line for line in said), f"no error says {words!r}: {said}"


# the same training -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", STARTED, ids=name)
def test_one_process(bench: Bench, case: Project) -> None:
    found = compare.one_process(case, bench.original(case), bench.one(case, started(case)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", [case for case in STARTED if case.two], ids=name)
def test_two_processes(bench: Bench, case: Project) -> None:
    found = compare.processes(case, bench.original(case, fixed_order=True), bench.two(case, started(case)))
    assert not found, "\n".join(found)


def started(case: Project) -> Mapping[str, bytes]:
    """A converted project as one of its scripts is started: that which was asked for, or one that was converted with it."""
    whole = next(found for found in CONVERTED if found.name == case.name.partition(":")[0])
    return case.start(converted(whole))


# the command line ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("folder", "entry"), [(case.name, case.entries[0]) for case in CONVERTED], indirect=["folder"], ids=map(name, CONVERTED))
def test_write_check_and_undo(folder: Path, entry: str, request: pytest.FixtureRequest) -> None:
    before = python_files(folder)
    assert call("convert", entry, "--check").exit_code == 1
    assert python_files(folder) == before
    assert call("convert", entry, "--write").exit_code == 0
    case = request.node.callspec.params["folder"]
    assert python_files(folder) == expected(case)
    assert call("check", entry).exit_code == 0
    for path in (p for p, text in python_files(folder).items() if text != before.get(p)):
        assert call("check", path).exit_code == 0, path  # as pre-commit names them
    again = call("convert", entry, "--write")
    assert again.exit_code == 0 and python_files(folder) == expected(case)
    undone = call("undo")
    assert undone.exit_code == 0 and python_files(folder) == before, undone.stdout


@pytest.mark.parametrize("folder", ["engine_helpers"], indirect=True)
def test_a_module_comes_with_the_script_that_imports_it(folder: Path) -> None:
    assert call("convert", "engine.py", "--write").exit_code == 0
    assert python_files(folder) == expected("engine_helpers")
    (folder / "train.py").write_bytes(b"import engine\n")
    alone = call("check", "engine.py")
    assert alone.exit_code == 1 and "engine.py:" in alone.stdout, "no script trains with it any more"


@pytest.mark.parametrize(("folder", "entry"), [(case.name, case.entries[0]) for case in REFUSED], indirect=["folder"], ids=map(name, REFUSED))
def test_nothing_is_written_of_what_is_refused(folder: Path, entry: str) -> None:
    before = python_files(folder)
    assert call("convert", entry, "--write").exit_code == 1
    assert python_files(folder) == before and not (folder / ".script2accel").exists()


@pytest.mark.parametrize(("folder", "entry"), [(case.name, case.entries[0]) for case in CONVERTED], indirect=["folder"], ids=map(name, CONVERTED))
def test_one_diff_for_all_files_is_taken_by_git(folder: Path, entry: str, request: pytest.FixtureRequest) -> None:
    shown = call("convert", entry, "--show-diff")
    assert shown.exit_code == 0
    done = subprocess.run(
        ["git", "apply"], input=shown.stdout_bytes, capture_output=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)}
    )
    assert done.returncode == 0, done.stderr
    assert python_files(folder) == expected(request.node.callspec.params["folder"])


@pytest.mark.parametrize("folder", ["base_trainer"], indirect=True)
@pytest.mark.parametrize("victim", ["train.py", "trainer/trainer.py", "base/base_trainer.py"])
@pytest.mark.parametrize("how", ["hard link", "read-only"])
def test_all_files_or_none(folder: Path, victim: str, how: str) -> None:
    before = python_files(folder)
    if how == "hard link":
        os.link(folder / victim, folder / "second_name.txt")
    else:
        (folder / victim).chmod(0o444)
    result = call("convert", "train.py", "--write")
    assert result.exit_code == 1 and victim in result.stderr, result.stderr
    assert python_files(folder) == before
    assert call("undo").exit_code == 2, "there is nothing to take back"


@pytest.mark.parametrize("folder", ["shared_helper"], indirect=True)
def test_a_directory_is_converted_from_its_entries(folder: Path) -> None:
    result = call("convert", ".", "--write")
    assert result.exit_code == 0, result.stdout + result.stderr
    assert python_files(folder) == expected("shared_helper")
    assert call("check", ".").exit_code == 0


@pytest.mark.parametrize("folder", ["base_trainer", "engine_helpers", "trainer_elsewhere", "utils_package"], indirect=True)
def test_a_directory_finds_the_script_that_starts_the_training(folder: Path, request: pytest.FixtureRequest) -> None:
    assert call("convert", ".", "--write").exit_code == 0
    assert python_files(folder) == expected(request.node.callspec.params["folder"])


@pytest.mark.parametrize("folder", ["caller_in_the_way"], indirect=True)
def test_a_directory_with_a_caller_that_is_refused_stays_as_it_was(folder: Path) -> None:
    before = python_files(folder)
    result = call("convert", ".", "--write")
    assert result.exit_code == 1 and "S2A013" in result.stdout and "penalty.py" in result.stdout
    assert python_files(folder) == before


def test_there_are_enough_projects() -> None:
    assert len(CONVERTED) >= 10 and len(REFUSED) >= 2
    assert all(2 <= len(python_files(PROJECTS / case.name / "before")) <= 8 for case in CASES)
