"""Roles that the user teaches: marks at line ends, the table of names, what contradicts the evidence, and where it is said that they would help."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from script2accel import Options, convert
from script2accel.analysis.marks import read
from script2accel.errors import UsageError
from script2accel.knowledge.teaching import ROLES
from script2accel.report.text import roles, summary
from script2accel.result import Outcome, Result
from script2accel.source import Source
from script2accel.workflow.check import ready
from script2accel.workflow.convert import convert_project
from script2accel.workflow.notebook import convert_notebook
from tests.cli_support import call
from tests.conftest import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LOOP = """\
for x, y in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
MARKED = f"""\
import lab
import torch

model = lab.net()  # noqa  # s2a: model
optimizer = lab.steps(model)  # s2a:optimizer
loader = lab.feed()  # s2a: loader  # from the lab
{LOOP}"""
NAMED = """\
import torch
from lab import net
import lab.opt as o
from lab.data import feed as get

model = net()
optimizer = o.steps(model)
loader = get()
"""
TABLE = {"lab.net": "model", "lab.opt.steps": "optimizer", "lab.data.feed": "loader"}


def said(result: Result) -> list[tuple[str, int]]:
    return [(found.id, found.line) for found in result.errors]


def of_lines(text: str) -> dict[tuple[int, str], str]:
    """What the marks of a text say: (line, name) -> role."""
    found = read(Source.parse(text.encode()))
    assert not found.wrong, found.wrong
    return {(mark.line, mark.name): mark.role for mark in found.of.values()}


def wrong(text: str) -> list[tuple[str, int]]:
    return [(found.id, found.line) for found in read(Source.parse(text.encode())).wrong]


# marks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = f()  # s2a: model\n", {(1, "a"): "model"}),
        ("a: object = f()  # s2a: model\n", {(1, "a"): "model"}),
        ("self.a = f(  # s2a: model\n    1)\n", {(1, "self.a"): "model"}),
        ("a = f(\n    1,\n)  # s2a: model\n", {(3, "a"): "model"}),
        ("a, (b, *c) = f()  # s2a: model, optimizer, loader\n", {(1, "a"): "model", (1, "b"): "optimizer", (1, "c"): "loader"}),
        ("a, b = f()  # s2a: -, optimizer\n", {(1, "b"): "optimizer"}),
        ("a = f(); b = g()  # s2a: model, loader\n", {(1, "a"): "model", (1, "b"): "loader"}),
        ("a = b = f()  # s2a: model\n", {(1, "a"): "model"}),
        ("for a, b in f():  # s2a: batch, batch\n    c = 1\n", {(1, "a"): "batch", (1, "b"): "batch"}),
        ("with f() as a, g(), h() as b:  # s2a: model, writer\n    c = 1\n", {(1, "a"): "model", (1, "b"): "writer"}),
        ("def f(a, b): pass  # s2a: model, loader\n", {(1, "a"): "model", (1, "b"): "loader"}),
        ("class A:\n    def f(self, a):  # s2a: model\n        pass\n", {(2, "a"): "model"}),
        ("def f(\n    a,  # s2a: model\n    b=1,  # s2a: loader\n): pass\n", {(2, "a"): "model", (3, "b"): "loader"}),
        ("if (a := f()):  # s2a: model\n    pass\n", {(1, "a"): "model"}),
        ("print('# s2a: model')\na = '''\n# s2a: model\n'''\n", {}),
        ("a = f()\r\nb = g()  # s2a: model\r\n", {(2, "b"): "model"}),
    ],
)
def test_what_a_mark_speaks_of(text: str, expected: dict[tuple[int, str], str]) -> None:
    assert of_lines(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = f()  # s2a: modell\n", [("S2A031", 1)]),
        ("a = f()  # s2a: scaler\n", [("S2A031", 1)]),
        ("a = f()  # s2a:\n", [("S2A031", 1)]),
        ("a = f()\n# s2a: model\n", [("S2A041", 2)]),
        ("import a  # s2a: model\n", [("S2A041", 1)]),
        ("f(a)  # s2a: model\n", [("S2A041", 1)]),
        ("a: int  # s2a: model\n", [("S2A041", 1)]),
        ("def f(*a):  # s2a: model\n    pass\n", [("S2A041", 1)]),
        ("class A:  # s2a: model\n    pass\n", [("S2A041", 1)]),
        ("a, b = f()  # s2a: model\n", [("S2A051", 1)]),
        ("a = f()  # s2a: model, loader\n", [("S2A051", 1)]),
    ],
)
def test_a_mark_that_says_nothing_is_told(text: str, expected: list[tuple[str, int]]) -> None:
    assert wrong(text) == expected


def test_a_wrong_mark_refuses_and_names_the_roles() -> None:
    result = convert(MARKED.replace("s2a: loader", "s2a: loadr"))
    assert result.outcome is Outcome.REFUSED and said(result) == [("S2A031", 6)]
    assert "`loadr`" in result.errors[0].message and all(role in result.errors[0].todo for role in ROLES)


def test_a_wrong_mark_is_told_where_nothing_trains_too() -> None:
    assert said(convert("import torch\nmodel = torch.nn.Linear(1, 1)  # s2a: mdel\n")) == [("S2A031", 2)]


def test_marked_parts_are_converted_and_the_marks_stay() -> None:
    result = convert(MARKED)
    assert result.outcome is Outcome.CONVERTED, summary(result)
    kept = [line for line in MARKED.splitlines() if "s2a:" in line]
    assert [line for line in result.after.decode().splitlines() if "s2a:" in line] == kept
    assert b"model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n" in result.after
    again = convert(result.after)
    assert not again.changed and again.outcome is Outcome.READY and ready(again)
    bare = "".join(line.partition("  #")[0].rstrip() + "\n" for line in MARKED.splitlines())
    assert convert(bare).outcome is Outcome.REFUSED


def test_the_reasons_name_the_marks() -> None:
    result = convert(MARKED)
    assert "6: loader: loader  (marked by the user on line 6)\n" in roles(result)
    assert "    4: model: model  (marked by the user on line 4)\n" in summary(result, explain=True)
    assert "[tool.script2accel.roles] says so of `lab.net`" in summary(convert(NAMED + LOOP, Options(roles=TABLE)), explain=True)  # type: ignore[arg-type]


def test_a_mark_on_a_parameter_and_on_a_loop() -> None:
    text = f"""\
import torch
import lab


def fit(
    model,  # s2a: model
    optimizer,  # s2a: optimizer
    loader,  # s2a: loader
):
{"".join("    " + line for line in LOOP.splitlines(keepends=True))}

net, opt = lab.pair()
feed = lab.feed()
for x in lab.rows():  # s2a: batch
    pass
fit(net, opt, feed)
"""
    result = convert(text)
    found = {(text.splitlines()[line.line - 1], line.name): line.role for line in result.roles}
    assert found["net, opt = lab.pair()", "net"] == "model" and found["net, opt = lab.pair()", "opt"] == "optimizer"
    assert found["for x in lab.rows():  # s2a: batch", "x"] == "batch"
    assert result.outcome is Outcome.CONVERTED, summary(result)
    assert b"net, opt, feed = accelerator.prepare(net, opt, feed)\n" in result.after


def test_an_optimizer_whose_parameters_are_unseen_trains_the_model_that_came_with_it() -> None:
    text = MARKED.replace("model = lab.net()  # noqa  # s2a: model\noptimizer = lab.steps(model)  # s2a:optimizer", "{}")
    together = convert(text.format("model, optimizer = lab.pair()  # s2a: model, optimizer"))
    assert b"model, optimizer, loader = accelerator.prepare(model, optimizer, loader)" in together.after


@pytest.mark.parametrize("other", ["other = torch.nn.Linear(8, 2)", "other = lab.net()  # s2a: model"])
def test_of_two_models_that_an_unseen_optimizer_may_train_none_is_guessed(other: str) -> None:
    text = MARKED.replace("lab.steps(model)", "lab.steps()")
    assert convert(text).outcome is Outcome.CONVERTED
    two = text.replace("loader =", f"{other}\nloader =").replace("model(x)", "model(x) + other(x)")
    assert convert(two).outcome is Outcome.REFUSED


def test_none_is_no_contradiction() -> None:
    text = MARKED.replace("loader =", "late = None  # s2a: ema\nloader =")
    assert convert(text).outcome is Outcome.CONVERTED


# contradictions --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a = torch.optim.SGD(net.parameters(), 0.1)  # s2a: model", "`a` is no model, though marked by the user on line {}: it is an optimizer"),
        ("a = torch.nn.Linear(1, 1)  # s2a: loader", "it is a model (made by `torch.nn.Linear`)"),
        ("a = torch.nn.CrossEntropyLoss()  # s2a: model", "it is a criterion (made by `torch.nn.CrossEntropyLoss`)"),
        ("a = torch.zeros(3)  # s2a: model", "it is a tensor, made by `torch.zeros`"),
        ("a = 3  # s2a: loader", "it holds the constant 3"),
        ("a = torch.optim.SGD  # s2a: optimizer", "it holds `torch.optim.SGD` itself"),
        ("a = [net]  # s2a: model", "it holds a list"),
        ("a = Thing()  # s2a: model", "its class `Thing` has no base that could make it one"),
        ("a = Thing()  # s2a: loader", "its class `Thing` has no base that could make it one"),
        ("a = Rows()  # s2a: loader", "its class `Rows` has no base that could make it one"),
        ("a = copy.deepcopy(net)  # s2a: optimizer", "it is an ema (a copy of the model that no optimizer trains)"),
    ],
)
def test_what_contradicts_the_evidence_is_refused_and_both_are_named(line: str, words: str) -> None:
    before = f"""\
import copy
import torch
from torch.utils.data import DataLoader, TensorDataset


class Thing:
    pass


class Rows(torch.utils.data.Dataset):
    pass


loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
net = model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{line}
{LOOP}"""
    result = convert(before)
    number = before.splitlines().index(line) + 1
    assert said(result) == [("S2A061", number)] and result.outcome is Outcome.REFUSED and not result.changed
    assert words.format(number) in result.errors[0].message
    assert convert(before.replace(line, line.partition("  #")[0])).outcome is Outcome.CONVERTED


def test_a_mark_and_the_table_that_contradict_each_other_are_told() -> None:
    result = convert(NAMED.replace("get()", "get()  # s2a: dataset") + LOOP, Options(roles=TABLE))  # type: ignore[arg-type]
    assert {one for one, _ in said(result)} == {"S2A061"} and result.outcome is Outcome.REFUSED
    assert any("[tool.script2accel.roles]" in found.message and "marked" in found.message for found in result.errors)


def test_an_entry_that_contradicts_the_evidence_is_told_where_the_name_is_called() -> None:
    text = "import torch\nnet = torch.nn.Linear(1, 1)\noptimizer = torch.optim.SGD(net.parameters(), 1)\n"
    result = convert(text, Options(roles={"torch.optim.SGD": "model"}))  # type: ignore[arg-type]
    assert said(result) == [("S2A061", 3)] and "what `torch.optim.SGD` gives is no model" in result.errors[0].message


def test_what_is_known_already_is_silent() -> None:
    known = (Path(__file__).parent.parent / "fixtures/scripts/regression_module/before.py").read_text()
    marks = {"DataLoader(": "loader", "optim.SGD(": "optimizer", "optim.Adam(": "optimizer"}
    marked = known
    for word, role in marks.items():
        lines = [line + f"  # s2a: {role}" if word in line and "=" in line and line.endswith(")") else line for line in marked.splitlines()]
        marked = "\n".join(lines) + "\n"
    assert marked != known
    one, other = convert(known), convert(marked)
    assert [found.id for found in one.diagnostics] == [found.id for found in other.diagnostics]
    assert [line.partition("  # s2a")[0] for line in other.after.decode().splitlines()] == one.after.decode().splitlines()


# the table -------------------------------------------------------------------------------------------------


def test_names_are_matched_through_imports() -> None:
    result = convert(NAMED + LOOP, Options(roles=TABLE))  # type: ignore[arg-type]
    assert result.outcome is Outcome.CONVERTED, summary(result)
    assert b"model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n" in result.after
    other = convert(NAMED.replace("from lab import", "from labs import") + LOOP, Options(roles=TABLE))  # type: ignore[arg-type]
    assert other.outcome is Outcome.REFUSED


def project(files: dict[str, str], table: dict[str, str], entry: str = "train.py") -> Result:
    texts = {path: text.encode() for path, text in files.items()}
    return convert_project({entry: texts[entry]}, Options(roles=table), texts.get)[0]  # type: ignore[arg-type]


MADE = {
    "pkg/__init__.py": "from .parts import net as build_net\nfrom .fast import feed\n",
    "pkg/parts.py": """\
import registry


def net():
    return registry.find("net")()


class Maker:
    def loader(self):
        return registry.find("loader")()

    @classmethod
    def steps(cls, parameters):
        return registry.find("steps")(parameters)
""",
}
USE = "import torch\nimport pkg\nfrom pkg import parts as p\n\nmodel = {}\noptimizer = {}\nloader = {}\n" + LOOP


@pytest.mark.parametrize(
    ("made", "table"),
    [
        (("p.net()", "p.Maker.steps(model.parameters())", "p.Maker().loader()"), {"pkg.parts.Maker.loader": "loader"}),
        (
            ("pkg.build_net()", "p.Maker.steps(model)", "pkg.feed()"),
            {"pkg.build_net": "model", "pkg.parts.Maker.steps": "optimizer", "pkg.feed": "loader"},
        ),
        (("p.net()", "p.Maker.steps(model.parameters())", "pkg.fast.feed()"), {"pkg.fast.feed": "loader"}),
        (("p.net()", "p.Maker.steps(model.parameters())", "pkg.feed()"), {"pkg.fast.feed": "loader"}),
    ],
)
def test_functions_classes_and_methods_of_the_project_are_matched(made: tuple[str, str, str], table: dict[str, str]) -> None:
    files = {**MADE, "train.py": USE.format(*made)}
    assert project(files, {}).outcome is Outcome.REFUSED
    result = project(files, table)
    assert result.outcome is Outcome.CONVERTED, summary(result)
    assert b"model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n" in result.after


def test_functions_of_the_script_itself_are_matched() -> None:
    text = MARKED.replace("  # s2a: loader", "").replace("loader = lab.feed()", "def rows():\n    return lab.feed()\n\n\nloader = rows()")
    assert project({"train.py": text}, {}).outcome is Outcome.REFUSED
    assert project({"train.py": text}, {"train.rows": "loader"}).outcome is Outcome.CONVERTED
    assert project({"jobs/train.py": text}, {"jobs.train.rows": "loader"}, "jobs/train.py").outcome is Outcome.CONVERTED
    assert project({"train.py": text}, {"other.rows": "loader"}).outcome is Outcome.REFUSED


def test_a_base_class_that_nobody_knows_can_be_taught() -> None:
    text = f"""\
import lab
import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(lab.Block):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 2)

    def forward(self, x):
        return self.inner(x)


loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = Net()
optimizer = torch.optim.SGD([p for p in lab.weights(model)], lr=0.1)
{LOOP}"""
    plain, taught = convert(text), convert(text, Options(roles={"lab.Block": "model"}))  # type: ignore[arg-type]
    assert "its class `Net` is an nn.Module" in roles(taught) and "its class `Net` is an nn.Module" not in roles(plain)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"lab.net": "modell"}, "'lab.net' can't be 'modell'; the roles are model, criterion, optimizer"),
        ({"lab.net": 3}, "'lab.net' can't be 3"),
        ({"net": "model"}, "'net' is no dotted name"),
        ({"lab-1.net": "model"}, "'lab-1.net' is no dotted name"),
        ({"lab..net": "model"}, "'lab..net' is no dotted name"),
        ("model", "roles must be a table of dotted names and roles"),
    ],
)
def test_a_wrong_table_names_the_key(table: object, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        Options.from_mapping({"roles": table})


def test_a_name_that_is_not_quoted_is_the_same() -> None:
    assert Options.from_mapping({"roles": {"lab": {"net": "model"}}}).roles == Options(roles={"lab.net": "model"}).roles  # type: ignore[arg-type]


# the settings ----------------------------------------------------------------------------------------------

PYPROJECT = """\
# mine
[tool.script2accel]
batch = "per-device"   # as ever

[tool.script2accel.roles]   # what can't be seen
"lab.net"   =  'model'      # ours
lab.opt.steps = "optimizer"
"lab.data.feed" = "loader"

[tool.other]
x = 1
"""
OWN = '# mine\n[roles]\n"lab.net" = "model"\n"lab.opt.steps" = "optimizer"\n"lab.data.feed" = "loader" # ours\n'


@pytest.mark.parametrize(("name", "text"), [("pyproject.toml", PYPROJECT), ("script2accel.toml", OWN)])
def test_every_command_takes_the_table_and_init_keeps_it(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(NAMED + LOOP)
    Path(name).write_text(text)
    assert "loader: loader  ([tool.script2accel.roles] says so of `lab.data.feed`)" in call("roles", "train.py").stdout
    assert call("convert", "train.py", "--write").exit_code == 0
    assert "accelerator.prepare(model, optimizer, loader)" in Path("train.py").read_text()
    assert call("check", "train.py").exit_code == 0
    assert "lab.net = model" in call("convert", "train.py", "--batch", "global").stderr
    assert call("init", "--no-input", "--hardware", "multi-gpu", "--num-processes", "2").exit_code == 0
    after = Path(name).read_text()
    table = text[text.index("[tool.script2accel.roles]" if "tool" in text else "[roles]") :]
    assert after != text and table in after and "num-processes = 2\n" in after
    for command in (("config",), ("launch", "train.py"), ("mesh",), ("check", "train.py")):
        found = call(*command)
        assert found.exit_code == 0, (command, found.output)


@pytest.mark.parametrize(("name", "text"), [("pyproject.toml", PYPROJECT), ("script2accel.toml", OWN)])
@pytest.mark.parametrize("command", [("convert", "train.py"), ("check", "train.py"), ("roles", "train.py"), ("config",), ("launch", "train.py")])
def test_a_wrong_table_is_an_error_of_every_command(
    name: str, text: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(NAMED + LOOP)
    Path(name).write_text(text.replace('"loader"', '"lodr"'))
    found = call(*command)
    assert found.exit_code == 2
    assert name in found.stderr and "'lab.data.feed' can't be 'lodr'; the roles are model," in found.stderr


def readme(name: str) -> str:
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found
    return found[1]


def test_what_the_readme_shows() -> None:
    assert sorted(of_lines(readme("marks")).values()) == ["batch", "batch", "model", "optimizer"]
    assert Options.from_mapping(tomllib.loads(readme("taught"))["tool"]["script2accel"]).roles
    told = (ROOT / "README.md").read_text().partition("The roles are ")[2].partition(". What contradicts")[0]
    assert all(role in told for role in ROLES)


# notebooks -------------------------------------------------------------------------------------------------


def book(*cells: str) -> bytes:
    made = [{"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": cell} for cell in cells]
    return json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}).encode()


def test_marks_in_cells() -> None:
    head, _, rest = MARKED.partition("optimizer =")
    result = convert_notebook(book("%matplotlib inline\n" + head, "optimizer =" + rest), Options(), "a.ipynb")
    assert result.outcome is Outcome.CONVERTED, summary(result)
    cells = ["".join(cell["source"]) for cell in json.loads(result.after)["cells"]]
    assert "model = lab.net()  # noqa  # s2a: model\n" in cells[0] and "loader = lab.feed()  # s2a: loader  # from the lab\n" in cells[1]
    assert "marked by the user on cell 2 line 2" in roles(result)
    wrong = convert_notebook(book(head, "optimizer =" + rest.replace("s2a: loader", "s2a: loadr")), Options(), "a.ipynb")
    assert [found.id for found in wrong.errors] == ["S2A031"] and wrong.errors[0].message.startswith("cell 2 line 2: ")


# where it would help ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "id", "words"),
    [
        (NAMED + LOOP, "S2A232", "if what `lab.data.feed` gives is a torch.utils.data.DataLoader, say so: `# s2a: loader`"),
        (NAMED + LOOP, "S2A237", "if what `lab.opt.steps` gives is a torch.optim.Optimizer, say so: `# s2a: optimizer`"),
        (NAMED + LOOP.replace("optimizer.zero", "model.zero"), "S2A241", "if `optimizer` is a torch.optim.Optimizer, say so"),
    ],
)
def test_a_refusal_says_that_a_mark_can_tell(text: str, id: str, words: str) -> None:
    found = next(found for found in convert(text).errors if found.id == id)
    assert words in found.todo and "[tool.script2accel.roles]" in found.todo


def test_nothing_is_said_of_marks_where_they_would_not_help() -> None:
    text = (NAMED + LOOP).replace("loader = get()", "loader = [(torch.ones(4, 8), torch.zeros(4).long())] * 3")
    assert "s2a" not in next(found.todo for found in convert(text).errors if found.id == "S2A232")
