"""Notebooks are converted in their cells, and no byte outside of a changed source changes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from script2accel import Options
from script2accel.errors import SourceError
from script2accel.notebook import Notebook
from script2accel.result import Outcome
from script2accel.source import Source
from script2accel.workflow.notebook import _late, convert_notebook
from tests.cli_support import call
from tests.conftest import PACKAGE

SETUP = """\
%matplotlib inline
!pip list
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)  # caf\u00e9"""
PARTS = """\
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"""
LOOP = """\
%%time
losses = []
for epoch in range(2):
    for x, y in loader:
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())"""
FUNCTION = """\
def train(epochs):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses"""
SHOWN = "print(losses)"
CALLED = "losses = train(2)\nprint(losses)"
MODULE, IN_FUNCTION = [SETUP, PARTS, "%%bash\nls (", LOOP, SHOWN], [SETUP, FUNCTION, CALLED]


def book(sources: list[str], *, lines: bool = True, **form: Any) -> bytes:
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": "# Training\u00e9"}]
    for source in sources:
        held = source.splitlines(keepends=True) if lines else source
        outputs = [{"data": {"image/png": "iVBORw0KGgo=\n"}, "output_type": "display_data"}]
        cells.append({"execution_count": 1, "outputs": outputs, "cell_type": "code", "source": held, "metadata": {"a": 1.50e3}})
    return (json.dumps({"nbformat": 4, "metadata": {"kernelspec": {"language": "python"}}, "cells": cells}, **form) + "\n").encode()


FORMS: list[dict[str, Any]] = [{"indent": 1, "ensure_ascii": False}, {"indent": 1}, {"separators": (",", ":")}, {"lines": False, "indent": 4}]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("sources", [MODULE, IN_FUNCTION], ids=["module", "function"])
def test_only_sources_change_and_twice_is_once(sources: list[str], form: dict[str, Any]) -> None:
    raw = book(sources, **form)
    result = convert_notebook(raw, Options(), "train.ipynb")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    assert any(found.id == "S2A821" for found in result.diagnostics)
    before, after = json.loads(raw), json.loads(result.after)
    new = ["".join(cell["source"]) for cell in after["cells"] if cell["cell_type"] == "code"]
    dumped = book(new, **form)
    assert result.after == dumped  # the forms above are those of a plain dump, so every other byte is shown to stay
    assert [{**cell, "source": 0} for cell in before["cells"]] == [{**cell, "source": 0} for cell in after["cells"]]
    again = convert_notebook(result.after, Options(), "train.ipynb")
    assert again.outcome is Outcome.READY and again.after == result.after and not again.errors


@pytest.mark.parametrize("sources", [MODULE, IN_FUNCTION], ids=["module", "function"])
def test_the_cells_train_as_they_did(sources: list[str]) -> None:
    raw = book(sources)
    result = convert_notebook(raw, Options(), "train.ipynb")
    outs = []
    for data in (raw, result.after):
        script = Notebook.read(data, "train.ipynb").joined
        outs.append(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=PACKAGE.parent).stdout)
    assert outs[0] == outs[1] and outs[0].startswith("[0.")


def test_bytes_of_odd_notebooks_stay() -> None:
    raw = b'{ "nbformat":4,\r\n"cells" : [ {"cell_type":"code" ,"source":[ "x = \\u00e9\\n" ,\n"?x" ] } ]\t}'
    read = Notebook.read(raw, "x.ipynb")
    assert read.put_back(read.joined) == raw
    changed = read.put_back(read.joined.replace("x = \u00e9\n", "x = \u00e9\ny = 1\n"))
    assert changed == raw.replace(b'\\n" ,\n', b'\\n" ,\n"y = 1\\n" ,\n')


@pytest.mark.parametrize("lines", [True, False])
def test_spelling_of_lines_that_stay_is_kept(lines: bool) -> None:
    odd = rb"x = \u0022\u00e9\u003c\/\ud83d\ude00\u0022\u000a"
    raw = book([SETUP, PARTS, LOOP], lines=lines)
    raw = raw.replace(b'"%matplotlib', b'"' + odd + (b'", "' if lines else b"") + b"%matplotlib")
    result = convert_notebook(raw, Options(), "train.ipynb")
    assert result.outcome is Outcome.CONVERTED and odd in result.after and b"import Accelerator" in result.after


def test_line_endings_of_json_and_of_sources_are_kept() -> None:
    sources = [source.replace("\n", "\r\n") for source in (SETUP, PARTS, LOOP.replace("%%time\n", ""))]
    raw = book(sources, lines=False, indent=1).replace(b"\n", b"\r\n").rstrip()
    result = convert_notebook(raw, Options(), "train.ipynb")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    assert result.after.count(b"\n") == result.after.count(b"\r\n") == raw.count(b"\n") and result.after.endswith(b"}")
    new = ["".join(cell["source"]) for cell in json.loads(result.after)["cells"]]
    assert "from accelerate import Accelerator\r\n" in new[1] and "\n" not in new[2].replace("\r\n", "")


def test_nbformat_3_is_read_and_written() -> None:
    cells = [{"cell_type": "code", "language": "python", "metadata": {}, "outputs": [], "collapsed": False, "input": s} for s in MODULE]
    raw = json.dumps(
        {"nbformat": 3, "nbformat_minor": 0, "metadata": {"name": "x"}, "worksheets": [{"cells": cells[:2]}, {"cells": cells[2:]}]}
    ).encode()
    result = convert_notebook(raw, Options(), "train.ipynb")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    sheets = json.loads(result.after)["worksheets"]
    assert "prepare(" in sheets[0]["cells"][1]["input"] and "accelerator.backward" in sheets[1]["cells"][1]["input"]


def test_a_module_that_a_cell_writes_is_not_converted_behind_its_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = LOOP.replace("%%time\n", "").replace("losses = []\n", "").replace("\n", "\n    ")
    module = f"from torch import nn\n\n\ndef run(model, loader, optimizer, device, losses):\n    {engine}\n"
    call_it = "losses = []\nfrom engine import run\nrun(model, loader, optimizer, device, losses)"
    Path("engine.py").write_text(module)
    Path("plain.ipynb").write_bytes(book([SETUP, PARTS, call_it]))
    Path("writes.ipynb").write_bytes(book([SETUP, "%%writefile engine.py\n" + module, PARTS, call_it]))
    assert call("convert", "--check", "plain.ipynb").exit_code == 1
    refused = call("convert", "--write", "writes.ipynb")
    assert refused.exit_code == 1 and "S2A954" in refused.output and Path("engine.py").read_text() == module
    both = call("convert", "--write", "plain.ipynb")  # the other notebook calls the function too, and can't be converted with it
    assert both.exit_code == 1 and Path("engine.py").read_text() == module


def test_a_change_over_several_cells_is_not_put_back() -> None:
    read = Notebook.read(book(["if 1:\n    x = 1", "y = 2"]), "x.ipynb")
    for new in (read.joined.replace("# %%", "    # %%"), read.joined + read.joined, read.joined.replace("# %% script2accel cell 3\n\n", "")):
        with pytest.raises(ValueError, match="several cells"):
            read.put_back(new)


def test_an_import_that_would_come_too_late_is_seen() -> None:
    late = "def f():\n    return Accelerator()\n\n\nfrom accelerate import Accelerator\n"
    assert _late(late) == "Accelerator" and not _late("from accelerate import Accelerator\n\nAccelerator()\n")


@pytest.mark.parametrize("source", ["%time f()", "%%timeit\nf()", "%%heat\nf()", "%snakeviz f()", "!ls \\\nx", "%run train.py"])
def test_magics_that_run_code_are_refused(source: str) -> None:
    result = convert_notebook(book([*MODULE, source]), Options(), "train.ipynb")
    assert result.outcome is Outcome.ERROR and "cell 7 line 1" in result.diagnostics[0].message and not result.changed


def test_what_only_looks_like_a_magic_is_python() -> None:
    source = "!ls\nx = 1  # right?\n# is it?\ny = (7\n % 4)"
    with pytest.raises(SourceError):  # a line within brackets: the whole is refused, not misread
        Source.parse(Notebook.read(book([source]), "x.ipynb").joined.encode())
    assert "x = 1  # right?\n# is it?\n" in Notebook.read(book([source]), "x.ipynb").joined


def test_a_refused_notebook_is_left_whole() -> None:
    result = convert_notebook(book(MODULE), Options(), "train.ipynb")
    left, fallen = result.without(frozenset({0}))
    assert left.after == result.before and not left.changes and len(fallen) == len(result.changes)


def test_findings_name_cell_and_line() -> None:
    leaves = LOOP.replace("        loss.backward()\n", "        if x.max() > 9:\n            break\n        loss.backward()\n")
    raw = book([SETUP, PARTS, leaves], indent=1)
    result = convert_notebook(raw, Options(), "train.ipynb")
    assert result.outcome is Outcome.REFUSED and not result.changed
    found = result.errors[0]
    assert "cell 4 line 8" in found.message and "x.max() > 9" in raw.decode().split("\n")[found.line - 1], found


def test_what_a_command_prints_is_kept() -> None:
    sources = [SETUP, "if True:\n    files = !ls -a\n    !ls", PARTS, LOOP]
    result = convert_notebook(book(sources), Options(), "train.ipynb")
    assert result.outcome is Outcome.CONVERTED and b"files = !ls -a" in result.after


def test_write_and_undo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    raw = book(MODULE, indent=1)
    Path("train.ipynb").write_bytes(raw)
    assert call("convert", "--write", ".").exit_code == 0 and Path("train.ipynb").read_bytes() != raw
    assert call("check", ".").exit_code == 0
    assert call("undo").exit_code == 0 and Path("train.ipynb").read_bytes() == raw
