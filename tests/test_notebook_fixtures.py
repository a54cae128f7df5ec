"""Each fixture notebook, converted: golden files, bytes outside of the cells' sources, the check, and the same training.

`fixtures/notebooks/<name>/` holds before.ipynb (and modules beside it), case.toml, and what `pytest --update-golden` writes: after.ipynb, the changed
modules under `after/`, said.txt. The cells run as one script, IPython's lines left out: in one process as they stand, by the real
`notebook_launcher` at one process, and at two that it forks.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from script2accel import Options
from script2accel.notebook import Notebook
from script2accel.report.text import summary
from script2accel.result import Outcome, Result, unified_diff
from script2accel.workflow.files import read as read_file
from script2accel.workflow.project import Project
from tests.cli_support import call
from tests.conftest import FIXTURES
from tests.differential import compare, launch
from tests.differential.bench import Bench
from tests.differential.cases import Case, read
from tests.differential.trace import Run

NOTEBOOKS = FIXTURES / "notebooks"
ENTRY = "train.ipynb"
COUNT = re.compile(rb"num_processes=2\b")
SAID = re.compile(r"^Launching training on .*\n", re.MULTILINE)


@dataclass(frozen=True)
class Book(Case):
    """A fixture notebook; `launched` when its training function is started by `notebook_launcher`."""

    launched: bool = True

    @property
    def beside(self) -> bool:
        """A notebook runs where it stands."""
        return True

    @property
    def modules(self) -> dict[str, bytes]:
        """The modules beside the notebook, by their path."""
        root = NOTEBOOKS / self.name / "before"
        return {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.py"))}

    @property
    def source(self) -> bytes:
        """The notebook."""
        return (NOTEBOOKS / self.name / "before.ipynb").read_bytes()

    @property
    def texts(self) -> Mapping[str, bytes]:
        """The cells as a script, and the modules."""
        return {"train.py": script(self.source), **self.modules}


CASES = [case for path in sorted(NOTEBOOKS.glob("*/case.toml")) if isinstance(case := read(path.parent, Book), Book)]
CONVERTED = [case for case in CASES if case.outcome == Outcome.CONVERTED.value]
LAUNCHED = [case for case in CONVERTED if case.launched]


def name(case: Book) -> str:
    return case.name


def script(raw: bytes) -> bytes:
    """The cells as one script, with stand-ins for IPython's lines."""
    return Notebook.read(raw, ENTRY).joined.encode()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("notebooks"))
    yield bench
    bench.close()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, and the current folder."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def laid_out(case: Book, folder: Path) -> None:
    """The files of a case in a folder."""
    (folder / ENTRY).write_bytes(case.source)
    if case.modules:
        shutil.copytree(NOTEBOOKS / case.name / "before", folder, dirs_exist_ok=True)


def conversion(folder: Path, options: Options) -> dict[str, Result]:
    """What the tool makes of the files in a folder, the notebook first."""
    path = ENTRY
    return {
        Path(file.target).relative_to(folder.resolve()).as_posix(): result for file, result in Project.around(path).convert(read_file(path), options)
    }


def converted(case: Book, folder: Path, **other: object) -> dict[str, bytes]:
    """All texts of a converted case, the cells' first."""
    laid_out(case, folder)
    results = conversion(folder, Options.from_mapping({**case.options, **other}))
    said = [f"{d.path}:{d.line}: {d.id} {d.message}" for result in results.values() for d in result.diagnostics]
    assert {result.outcome for result in results.values()} == {Outcome.CONVERTED}, "\n".join(said)
    return {"train.py": script(results[ENTRY].after), **case.modules, **{p: r.after for p, r in results.items() if p != ENTRY}}


@pytest.mark.parametrize("case", CASES, ids=name)
def test_golden(case: Book, folder: Path, update_golden: bool) -> None:
    laid_out(case, folder)
    results = conversion(folder, Options.from_mapping(case.options))
    said = "".join(summary(result) for result in results.values())
    result = results[ENTRY]
    assert result.outcome.value == case.outcome, said
    home = NOTEBOOKS / case.name
    after, words = home / "after.ipynb", home / "said.txt"
    changed = {path: r.after for path, r in results.items() if r.changed and path != ENTRY}
    if update_golden:
        after.write_bytes(result.after) if result.changed else after.unlink(missing_ok=True)
        shutil.rmtree(home / "after", ignore_errors=True)
        for path, text in changed.items():
            (home / "after" / path).parent.mkdir(parents=True, exist_ok=True)
            (home / "after" / path).write_bytes(text)
        words.write_text(said, encoding="utf-8")
    expected = after.read_bytes() if after.exists() else case.source
    assert result.after == expected, "not as in after.ipynb:\n" + unified_diff(expected, result.after, "after.ipynb")
    held = {p.relative_to(home / "after").as_posix(): p.read_bytes() for p in sorted((home / "after").rglob("*.py"))}
    assert changed == held and said == words.read_text(encoding="utf-8")
    for words_ in case.diagnostics:
        assert words_ in said, said
    assert without_sources(case.source) == without_sources(result.after)


def without_sources(raw: bytes) -> object:
    """A notebook's JSON but for the sources of its code cells."""
    return [{**cell, "source": None} if cell["cell_type"] == "code" else cell for cell in json.loads(raw)["cells"]]


@pytest.mark.parametrize("case", CONVERTED, ids=name)
def test_written_checked_and_taken_back(case: Book, folder: Path) -> None:
    laid_out(case, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    flags = [word for key, value in case.options.items() for word in (f"--{key.replace('_', '-')}", str(value))]
    assert call("convert", "--write", *flags, ENTRY).exit_code == 0
    assert (folder / ENTRY).read_bytes() != case.source
    assert call("check", *flags, ".").exit_code == 0 and call("convert", "--check", *flags, ENTRY).exit_code == 0
    assert call("undo").exit_code == 0 and {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize("case", CONVERTED, ids=name)
def test_one_process(bench: Bench, case: Book, folder: Path) -> None:
    run = launch.run(bench.warm, converted(case, folder, num_processes=1), case.runs(halved=False), bench.folder(case.name), beside=True)
    found = compare.one_process(case, bench.original(case), run)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", LAUNCHED, ids=name)
def test_launched_at_one(bench: Bench, case: Book, folder: Path) -> None:
    texts = converted(case, folder)
    texts["train.py"] = COUNT.sub(b"num_processes=1", texts["train.py"])
    run = quiet(launch.run(bench.warm, texts, case.runs(halved=False), bench.folder(case.name), beside=True))
    found = compare.one_process(case, bench.original(case), run)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("case", LAUNCHED, ids=name)
def test_launched_at_two(bench: Bench, case: Book, folder: Path) -> None:
    texts = converted(case, folder)
    assert COUNT.search(texts["train.py"])
    scratch = bench.folder(case.name)
    run = launch.run(
        bench.cold, texts, case.runs(halved=True), scratch, processes=2, divide=case.divisor(2), fixed_order=True, launches=True, beside=True
    )
    found = compare.processes(case, bench.original(case, fixed_order=True), quiet(run))
    assert not found, "\n".join(found)


def quiet(run: Run) -> Run:
    """A run without what the launcher itself says."""
    return replace(run, ranks=tuple(replace(rank, out=SAID.sub("", rank.out)) for rank in run.ranks))
