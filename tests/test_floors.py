"""The floors hold: a module imports from its own floor or lower ones, and no module imports itself in a circle.

    F0 errors, diagnostics, knowledge/*   F1 options, source, parallelism, mesh, plugins   F2 analysis/*, change/*
    F3 decisions, evaluation, birth, construction   F4 rules/*   F5 result, workflow/*, launch/*   F6 report/*   F7 cli/*

Imports under `if TYPE_CHECKING` and inside functions count too. The package's own `__init__` is on F6, `__main__` on top.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conftest import PACKAGE

FLOORS = {
    "errors": 0,
    "diagnostics": 0,
    "knowledge": 0,
    "options": 1,
    "source": 1,
    "notebook": 1,
    "parallelism": 1,
    "mesh": 1,
    "plugins": 1,
    "analysis": 2,
    "change": 2,
    "decisions": 3,
    "evaluation": 3,
    "placing": 3,
    "states": 3,
    "launched": 3,
    "lost": 3,
    "rehearsal": 3,
    "birth": 3,
    "construction": 3,
    "rules": 4,
    "result": 5,
    "workflow": 5,
    "launch": 5,
    "report": 6,
    "cli": 7,
    "__init__": 6,  # the library API: it leads to the road, and commands and reports may ask it for the version
    "__main__": 8,
}
STRANGERS = {("analysis", "change"), ("change", "analysis")}  # they stand on one floor and don't know each other


def faults(root: Path, floors: Mapping[str, int] = FLOORS) -> list[str]:
    """What is wrong with the imports of the package at `root`, one sentence each."""
    modules = {_module(path, root): path for path in sorted(root.rglob("*.py"))}
    edges = {name: sorted(set(_imports(path, name, root.name, modules))) for name, path in modules.items()}
    found = [f"{name}: `{_part(name)}` is on no floor" for name in modules if _part(name) not in floors]
    for name, line, target in ((name, line, target) for name, targets in edges.items() for line, target in targets):
        if floors.get(_part(name), 99) < floors.get(_part(target), -1):
            found.append(f"{name}, line {line}: imports {target} from a higher floor")
        if (_part(name), _part(target)) in STRANGERS:
            found.append(f"{name}, line {line}: {_part(name)} must not know {_part(target)}")
        if _rule(name) and _rule(target) and name != target:
            found.append(f"{name}, line {line}: a rule imports the rule {target}")
    graph = {name: [target for _, target in targets if target != name] for name, targets in edges.items()}
    return found + [f"cycle: {' -> '.join(cycle)}" for cycle in _cycles(graph)]


def _module(path: Path, root: Path) -> str:
    """`rules.device` for `<root>/rules/device.py`, `rules` for its `__init__`, `__init__` for the package's own."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def _part(module: str) -> str:
    return module.split(".")[0]


def _rule(module: str) -> bool:
    """Whether a module holds a rule: what rules share has a name that begins with an underscore."""
    return module.startswith("rules.") and not module.rpartition(".")[2].startswith("_")


def _imports(path: Path, name: str, package: str, modules: Mapping[str, Path]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of the package itself, relative and absolute, `from package import name` resolved."""
    here = [package, *name.split(".")] if name != "__init__" else [package, "__init__"]
    if path.name == "__init__.py" and name != "__init__":
        here.append("__init__")
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == package:
                    yield node.lineno, _known(alias.name.split(".")[1:], modules)
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else []
            full = [*base, *(node.module.split(".") if node.module else [])]
            if full[:1] == [package]:
                for alias in node.names:
                    yield node.lineno, _known([*full[1:], alias.name], modules)


def _known(parts: list[str], modules: Mapping[str, Path]) -> str:
    """The longest prefix that is a module; the package itself when none is."""
    for size in range(len(parts), 0, -1):
        if ".".join(parts[:size]) in modules:
            return ".".join(parts[:size])
    return "__init__"


def _cycles(graph: Mapping[str, list[str]]) -> list[list[str]]:
    """One cycle for each group of modules that import each other in a circle (depth first, iterative enough for a package)."""
    done: set[str] = set()
    found: list[list[str]] = []

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append([*path[path.index(name) :], name])
        elif name not in done:
            for target in graph.get(name, ()):
                visit(target, [*path, name])
            done.add(name)

    for name in graph:
        visit(name, [])
    return found


def test_the_floors_hold() -> None:
    assert not faults(PACKAGE)


def test_there_is_something_to_read() -> None:
    modules = {_module(path, PACKAGE) for path in PACKAGE.rglob("*.py")}
    assert {"errors", "diagnostics", "options", "source", "result", "change.plan"} <= modules


def _tree(root: Path, files: dict[str, str]) -> Path:
    package = root / "house"
    for name, text in {"__init__.py": "", **files}.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    return package


def test_a_right_tree_passes(tmp_path: Path) -> None:
    files = {
        "errors.py": "import os\n",
        "source.py": "from house.errors import E\n",
        "rules/__init__.py": "",
        "rules/a.py": "from .. import source\n",
    }
    assert not faults(_tree(tmp_path, files))


def test_an_upward_import_fails(tmp_path: Path) -> None:
    upward = {
        "plain": "import house.cli.main\n",
        "from": "from house.cli import main\n",
        "relative": "from .cli.main import x\n",
        "typing": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.cli.main import x\n",
        "inside a function": "def f():\n    from house.cli.main import x\n",
        "the package itself": "from house import convert\n",
    }
    for name, text in upward.items():
        package = _tree(tmp_path / name, {"cli/__init__.py": "", "cli/main.py": "x = 1\n", "source.py": text})
        assert any("higher floor" in fault and fault.startswith("source, line") for fault in faults(package)), name


def test_strangers_cycles_and_unknown_floors_fail(tmp_path: Path) -> None:
    strangers = {"analysis/__init__.py": "", "analysis/x.py": "from ..change import y\n", "change/__init__.py": "", "change/y.py": ""}
    package = _tree(tmp_path / "a", strangers)
    assert faults(package) == ["analysis.x, line 1: analysis must not know change"]
    circle = {"report/__init__.py": "", "report/a.py": "from house.report import b\n", "report/b.py": "def f():\n    from . import a\n"}
    package = _tree(tmp_path / "b", circle)
    assert faults(package) == ["cycle: report.a -> report.b -> report.a"]
    package = _tree(tmp_path / "c", {"attic.py": ""})
    assert faults(package) == ["attic: `attic` is on no floor"]
    package = _tree(tmp_path / "d", {"rules/__init__.py": "", "rules/a.py": "from house.rules import b\n", "rules/b.py": ""})
    assert faults(package) == ["rules.a, line 1: a rule imports the rule rules.b"]
