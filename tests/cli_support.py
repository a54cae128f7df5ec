"""A small conversion of our own, so that the tests of the command don't depend on what the rules do."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType

import click.testing
import pytest

from script2accel.change.plan import Change, Edit, Lines, Plan, Splice
from script2accel.diagnostics import Diagnostic, Evidence, Severity
from script2accel.errors import SourceError
from script2accel.options import Options
from script2accel.result import Outcome, Result, RoleLine
from script2accel.source import Source

SCRIPT = """import torch

model = torch.nn.Linear(2, 2).cuda()
a = 1
b = 2
c = 3
d = 4
e = 5
f = 6
g = 7
h = 8
noise = torch.randn(2).cuda()
i = 1
j = 2
k = 3
l = 4
m = 5
n = 6
o = 7
p = 8
loss.backward()
"""


def toy(source: bytes | str, options: Options = Options(), path: str = "train.py") -> Result:  # noqa: B008
    """`.cuda()` goes (each alone may be refused), `loss.backward()` goes through an accelerator (essential), words in comments do the rest."""
    raw = source.encode() if isinstance(source, str) else source
    try:
        parsed = Source.parse(raw, path)
    except SourceError as error:
        found = Diagnostic(error.id, Severity.ERROR, error.line, error.column, error.message)
        return Result(path, Outcome.ERROR, raw, raw, diagnostics=(found,))
    if b"# bug" in raw:
        raise RuntimeError("boom")
    if b"torch" not in raw:
        return Result(path, Outcome.NOT_TRAINING, raw, raw)
    if b"accelerator" in raw:
        return Result(path, Outcome.READY, raw, raw)
    plan = Plan.close(parsed, _changes(parsed))
    if not plan.applied:
        return Result(path, Outcome.NOT_TRAINING, raw, raw)
    person = Diagnostic("S2A299", Severity.ERROR, 3, 1, "`model` is odd", "mend it", (Evidence(3, "made by torch.nn.Linear"),))
    stuck = (person,) if b"# partial" in raw or b"# refuse" in raw else ()
    outcome = Outcome.REFUSED if b"# refuse" in raw else Outcome.PARTIAL if stuck else Outcome.CONVERTED
    keep = outcome is Outcome.CONVERTED or (outcome is Outcome.PARTIAL and options.partial)
    after = plan.render() if keep else raw
    facts = (("global batch", f"{options.batch} {options.seed}"), ("launch", f"accelerate launch {path}"))
    roles = (RoleLine(3, "model", "model", ("made by torch.nn.Linear",)),)
    return Result(path, outcome, raw, after, tuple(plan.applied) if keep else (), stuck, roles, facts, parsed.encoding, plan)


def toy_project(entries: Mapping[str, bytes], options: Options, *_: object) -> list[Result]:
    """Each file on its own."""
    return [toy(raw, options, path) for path, raw in entries.items()]


def _changes(source: Source) -> Iterator[Change]:
    text = source.text
    calls = [at for at in range(len(text)) if text.startswith(".cuda()", at)]
    for at in calls:
        edit = Splice(at, at + 7, ".to(accelerator.device)")
        line = source.line_of(at)
        yield Change(
            "S2A101", "device-move", "moves to the accelerator's device", line, (edit,), False, frozenset({"accelerator"}), frozenset(), "R04"
        )
    backward = text.find("loss.backward()")
    edits: list[Edit] = [Splice(backward, backward + 15, "accelerator.backward(loss)")] if backward >= 0 else []
    if edits:
        yield Change("S2A201", "backward", "goes through the accelerator", source.line_of(backward), tuple(edits), needs=frozenset({"accelerator"}))
    if calls or edits:
        made: tuple[Edit, ...] = (Lines(1, "from accelerate import Accelerator\naccelerator = Accelerator()", True),)
        yield Change("S2A200", "accelerator", "makes the accelerator", 1, made, bool(edits), gives=frozenset({"accelerator"}))


def install() -> None:
    """Put the toy in the place of the real conversion (for a process of its own)."""
    module = ModuleType("script2accel.workflow.convert")
    module.convert, module.convert_project = toy, toy_project  # type: ignore[attr-defined]
    sys.modules["script2accel.workflow.convert"] = module


def use_toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for one test."""
    module = ModuleType("script2accel.workflow.convert")
    module.convert, module.convert_project = toy, toy_project  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "script2accel.workflow.convert", module)


def environment(**more: str) -> dict[str, str]:
    """For a process of its own: it finds this checkout."""
    path = [str(Path(__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path)), **more}


def call(*args: str, input: str | bytes | None = None) -> click.testing.Result:
    """The command line, in this process; stdout and stderr apart."""
    from script2accel.cli import group

    try:
        runner = click.testing.CliRunner(mix_stderr=False)  # type: ignore[call-arg]
    except TypeError:  # click 8.2 keeps them apart always
        runner = click.testing.CliRunner()
    result = runner.invoke(group, args, input=input, prog_name="script2accel")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result
