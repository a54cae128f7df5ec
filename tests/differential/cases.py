"""The fixture scripts, as the differential tests read them from case.toml."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.conftest import FIXTURES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPTS = FIXTURES / "scripts"
PROJECTS = FIXTURES / "projects"


@dataclass(frozen=True)
class Case:
    """One fixture script and how it is run.

    `argv` starts it, `then` starts it again in the same folder (a resumed run). With two processes the batch is halved: by `argv_two`/`then_two`
    where the script has a flag for it, else by the instrument. `files` must be among the files that it writes; all of them are compared.
    `metric` finds the printed lines whose numbers two processes must agree on. `two = false` needs `why_not`. An original that distributes itself
    (`by_hand`) is started as torchrun would start it, with as many processes as the conversion, the same batch each and its own order of samples.
    `own_order`: the order of samples follows from the script's own seeds in original and conversion, so the instrument leaves it alone.
    `prefix` is what a wrapper of the original puts in front of the keys that it saves.
    """

    name: str
    shape: str
    outcome: str
    argv: tuple[str, ...] = ()
    argv_two: tuple[str, ...] | None = None
    then: tuple[str, ...] | None = None
    then_two: tuple[str, ...] | None = None
    files: tuple[str, ...] = ()
    local_files: tuple[str, ...] = ()
    metric: str | None = None
    two: bool = False
    why_not: str = ""
    tolerance: Mapping[str, float] = field(default_factory=dict)
    diagnostics: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    by_hand: bool = False
    own_order: bool = False
    prefix: str = ""

    @property
    def beside(self) -> bool:
        """Whether it runs in the folder that it stands in."""
        return False

    @property
    def source(self) -> bytes:
        """The script's text."""
        return (SCRIPTS / self.name / "before.py").read_bytes()

    @property
    def texts(self) -> Mapping[str, bytes]:
        """The files that the script needs, itself first."""
        return {"train.py": self.source}

    def runs(self, *, halved: bool) -> tuple[tuple[str, ...], ...]:
        """The argument lists, one for each time that the script is started."""
        first = self.argv_two if halved and self.argv_two is not None else self.argv
        again = self.then_two if halved and self.then_two is not None else self.then
        return (first,) if again is None else (first, again)

    def divisor(self, processes: int) -> int:
        """What the instrument divides batch sizes by: nothing where a flag does it, or accelerate splits the batch."""
        return 1 if self.argv_two is not None or self.by_hand or self.options.get("batch") == "global" else processes


@dataclass(frozen=True)
class Project(Case):
    """A fixture of several files: `entries` are converted and the first is run; `also` are the scripts that must be converted with them."""

    entries: tuple[str, ...] = ("train.py",)
    also: tuple[str, ...] = ()

    @property
    def source(self) -> bytes:
        """The entry's text."""
        return self.texts[self.entries[0]]

    @property
    def texts(self) -> Mapping[str, bytes]:
        """Every file of the project by its path, the entry first."""
        root = PROJECTS / self.name.partition(":")[0] / "before"
        found = {path.relative_to(root).as_posix(): path.read_bytes() for path in sorted(root.rglob("*.py"))}
        return self.start(found)

    def start(self, texts: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Files with the entry first, as `launch.run` wants them."""
        entry = self.entries[0]
        return {entry: texts[entry], **texts}

    def others(self) -> tuple[Project, ...]:
        """The same project, started by the scripts that are converted too."""
        return tuple(replace(self, name=f"{self.name}:{path}", entries=(path,), also=(), files=()) for path in self.also)


def read(folder: Path, kind: type[Case] = Case) -> Case:
    """The case of one fixture folder. Raises ValueError on an unknown key or a missing reason."""
    values = tomllib.loads((folder / "case.toml").read_text(encoding="utf-8"))
    unknown = set(values) - set(kind.__dataclass_fields__)
    if unknown:
        raise ValueError(f"{folder.name}/case.toml: unknown key {sorted(unknown)[0]!r}")
    lists = {key: tuple(value) for key, value in values.items() if isinstance(value, list)}
    case = kind(name=folder.name, **{**values, **lists})
    if case.outcome == "converted" and not case.two and not case.why_not:
        raise ValueError(f"{folder.name}/case.toml: `two = false` needs `why_not`")
    if case.metric:
        re.compile(case.metric)
    return case


def every() -> tuple[Case, ...]:
    """All fixture scripts, by name."""
    return tuple(read(path.parent) for path in sorted(SCRIPTS.glob("*/before.py")))


def named(name: str) -> Case:
    """One fixture script."""
    return read(SCRIPTS / name)


def projects() -> tuple[Project, ...]:
    """All fixture projects, by name."""
    cases = (read(path.parent, Project) for path in sorted(PROJECTS.glob("*/case.toml")))
    return tuple(case for case in cases if isinstance(case, Project))
