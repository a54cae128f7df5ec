"""Parts that are found by name: what is followed into tables, decorators and settings, and what is refused there."""

from __future__ import annotations

import pytest

from script2accel import Options, convert
from script2accel.analysis.texts import taken_apart
from script2accel.report.text import summary
from script2accel.result import Outcome, Result
from script2accel.workflow.convert import convert_project

HEAD = "import sys\nimport torch\nfrom torch import nn\nfrom torch.utils.data import DataLoader, TensorDataset\n"
MAIN = """\


def main():
    data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = {loss}
        loss.backward()
        optimizer.step()


main()
"""
MEASURES = """\


def plain(model, x):
    return model(x).mean()


def shifted(model, x):
    return (model(x) + torch.ones(2, device="cuda")).mean()
"""


def said(result: Result) -> list[str]:
    return [f"{found.id} {found.message}" for found in result.errors]


def roles(result: Result) -> dict[str, str]:
    return {line.name: line.role for line in result.roles}


def test_functions_of_one_table_all_take_the_accelerator() -> None:
    table = 'TABLE = {"plain": plain, "shifted": shifted}\n'
    result = convert(HEAD + MEASURES + table + MAIN.format(loss="TABLE[sys.argv[1]](model, x)"))
    assert result.outcome is Outcome.REFUSED and "this call can't be followed" in said(result)[0]
    named = MAIN.format(loss="measure(model, x)").replace("    model = nn", "    measure = TABLE[sys.argv[1]]\n    model = nn")
    result = convert(HEAD + MEASURES + table + named)
    assert result.outcome is Outcome.CONVERTED, summary(result)
    for line in (b"def plain(accelerator, model, x):", b"def shifted(accelerator, model, x):", b"measure(accelerator, model, x)"):
        assert line in result.after


@pytest.mark.parametrize("other", ["nn.functional.mse_loss", "lambda model, x: model(x).mean()"])
def test_a_call_that_may_call_what_takes_no_accelerator_is_refused(other: str) -> None:
    table = f'TABLE = {{"other": {other}, "shifted": shifted}}\n'
    named = MAIN.format(loss="measure(model, x)").replace("    model = nn", "    measure = TABLE[sys.argv[1]]\n    model = nn")
    found = said(convert(HEAD + MEASURES + table + named))
    assert any(words.startswith("S2A227 `shifted` needs the accelerator") and "which doesn't take it" in words for words in found), found


WRAPPED = """\


def timed(function):
    def run({parameters}):
        {body}
        return function({parameters})

    return run


@timed
def shifted(model, x):
    return (model(x) + torch.ones(2, device="cuda")).mean()
"""


@pytest.mark.parametrize(
    ("parameters", "body", "passes"),
    [
        ("*args, **kwargs", "print('a call')", True),
        ("model, x", "print('a call')", False),
        ("*args", "print(args[0].training)", False),
        ("model, *args", "model.train()", False),
    ],
)
def test_a_decorator_must_pass_on_one_more_argument(parameters: str, body: str, passes: bool) -> None:
    result = convert(HEAD + WRAPPED.format(parameters=parameters, body=body) + MAIN.format(loss="shifted(model, x)"))
    refused = [words for words in said(result) if words.startswith("S2A227") and "its decorator `timed`" in words]
    assert bool(refused) is not passes, summary(result)
    assert (b"def shifted(accelerator, model, x):" in result.after) is passes


def test_a_decorator_that_wraps_is_not_followed_and_one_that_registers_is() -> None:
    text = f"""{HEAD}
NETS = {{}}


def keep(cls):
    NETS[cls.__name__] = cls
    return cls


def wrap(function):
    def inner(*args):
        NETS["wrong"] = torch.optim.SGD
        return function(*args)

    return inner


@keep
class Net(nn.Module):
    def forward(self, x):
        return x


@wrap
def other():
    pass


net = NETS[sys.argv[1]]()
"""
    assert roles(convert(text + MAIN.format(loss="model(x).mean()")))["net"] == "model"


ONE_FOR_ALL = f"""{HEAD}
MAKERS = {{"net": nn.Linear, "steps": torch.optim.SGD, "cost": nn.CrossEntropyLoss}}


def make(name, *args, **kwargs):
    return MAKERS[name.strip("0123456789 ")](*args, **kwargs)


loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = make(sys.argv[1], 8, 2)
optimizer = make(sys.argv[2], model.parameters(), lr=0.1)
cost = make(sys.argv[3])
for x, y in loader:
    optimizer.zero_grad()
    loss = cost(model(x), y)
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""


def test_what_a_registry_of_everything_gives_is_asked_for_and_marks_answer() -> None:
    result = convert(ONE_FOR_ALL)
    assert result.outcome is Outcome.REFUSED and any(words.startswith("S2A291 what `model` holds can't be told") for words in said(result))
    assert "`# s2a: model` or `# s2a: optimizer`" in next(found.todo for found in result.errors if found.id == "S2A291")
    marked = ONE_FOR_ALL
    for made, role in (("[1], 8, 2)", "model"), ("lr=0.1)", "optimizer"), ("[3])", "criterion")):
        marked = marked.replace(f"{made}\n", f"{made}  # s2a: {role}\n")
    taught = convert(marked)
    assert taught.outcome is Outcome.CONVERTED, summary(taught)
    assert b"model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n" in taught.after


def test_a_scheduler_may_be_made_of_a_prepared_optimizer_anywhere() -> None:
    body = MAIN.format(loss="model(x).mean()").replace("    for x", "    plan = lab.plan(optimizer, len(loader))\n    for x")
    body = body.replace("        optimizer.step()\n", "        optimizer.step()\n        plan.step()\n")
    result = convert("import lab\n" + HEAD + body)
    assert result.outcome is Outcome.CONVERTED and b"accelerator.prepare(" in result.after.partition(b"plan =")[0], summary(result)
    assert any(words.startswith("S2A240") for words in said(convert("import lab\n" + HEAD + body.replace("plan.step()", "pass"))))


def test_what_a_configuration_names_is_known_by_its_use() -> None:
    body = MAIN.format(loss="model(x).mean()").replace("torch.optim.SGD(", "hydra.utils.instantiate({}, ")
    assert convert("import hydra\n" + HEAD + body).outcome is Outcome.CONVERTED


def test_modules_of_the_project_are_imported_by_name() -> None:
    files = {
        "train.py": b"import importlib\nimport torch\nnet = importlib.import_module('nets.small').build()\nloss = net(1)\nloss.backward()\n",
        "nets/small.py": b"from torch import nn\n\n\ndef build():\n    return nn.Linear(1, 1)\n",
    }
    assert roles(convert_project({"train.py": files["train.py"]}, Options(), files.get)[0])["net"] == "model"


@pytest.mark.parametrize(
    "made",
    [
        'settings = {"batch_size": None}',
        "settings = dict(batch_size=None)",
        'settings = {}\n    settings["batch_size"] = None',
        'settings = {}\n    settings.update({"batch_size": None})',
        "settings = {}\n    settings.update(batch_size=None)",
        'settings = {**{"batch_size": None}}',
    ],
)
def test_what_a_loader_is_given_in_a_dict_is_seen(made: str) -> None:
    body = MAIN.format(loss="model(x).mean()").replace("DataLoader(data, batch_size=16, shuffle=True)", "DataLoader(data, **settings)")
    result = convert(HEAD + body.replace("    loader =", f"    {made}\n    loader ="))
    assert result.outcome is Outcome.REFUSED and said(result)[0].startswith("S2A274"), summary(result)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ('{"reduction": "sum"}', {"S2A251"}),
        ('{"ignore_index": -1}', {"S2A336"}),
        ('{"label_smoothing": 0.1}', set()),
        ("json.loads(sys.argv[1])", {"S2A336"}),
    ],
)
@pytest.mark.parametrize("made", ["nn.CrossEntropyLoss(**settings)(model(x), y)", "nn.functional.cross_entropy(model(x), y, **settings)"])
def test_what_a_loss_is_given_in_a_dict_is_seen(made: str, settings: str, expected: set[str]) -> None:
    result = convert(HEAD + "import json\n" + MAIN.format(loss=made).replace("    loader =", f"    settings = {settings}\n    loader ="))
    assert {found.id for found in result.diagnostics} & {"S2A251", "S2A336"} == expected, summary(result)


@pytest.mark.parametrize(
    ("text", "method", "args"),
    [
        ("torch.optim.SGD", "rsplit", [".", 1]),
        ("torch.optim.SGD", "split", ["."]),
        ("torch.optim.SGD", "rpartition", ["."]),
        ("torch.nn:Linear", "partition", [":"]),
        ("a.b.c", "split", [".", 1]),
        (" SGD ", "strip", []),
        ("SGD", "lower", []),
    ],
)
def test_texts_are_taken_apart_as_python_does(text: str, method: str, args: list[object]) -> None:
    found = getattr(text, method)(*args)
    assert taken_apart(text, method, args) == (found if isinstance(found, str) else tuple(found))


@pytest.mark.parametrize(("text", "method", "args"), [(3, "split", ["."]), ("a", "split", [""]), ("a", "split", [None]), ("a", "format", ["b"])])
def test_what_isnt_written_stays_unknown(text: object, method: str, args: list[object]) -> None:
    assert taken_apart(text, method, args) is None
