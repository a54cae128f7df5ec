"""What a launch takes with it: who reads what the launched processes change, or give back, is refused, and nobody else."""

from __future__ import annotations

import pytest

from script2accel import Options
from script2accel.result import Result
from script2accel.workflow.convert import convert

SCRIPT = """\
import copy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(64, 6)
data = TensorDataset(x, (x.sum(1) > 0).long())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 2)

    def forward(self, x):
        return self.fc(x)


class Meter:
    def __init__(self):
        self.values = []

    def add(self, value):
        self.values.append(value)

    def mean(self):
        return sum(self.values)


{front}


def train({params}):
    {first}
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        {end}
    torch.save(model.state_dict(), "m.pt")


{call}
{behind}
"""


def cells(**given: str) -> str:
    """A notebook's cells with something of its own at each place."""
    return SCRIPT.format(**{"front": "", "params": "", "first": "pass", "model": "Net()", "end": "pass", "call": "train()", "behind": "", **given})


def launched(text: str, processes: int = 2) -> Result:
    return convert(text, Options(num_processes=processes), "cells.ipynb")


def ids(result: Result) -> set[str]:
    return {found.id for found in result.diagnostics}


LOST: list[dict[str, str]] = [
    {"front": "h = []", "end": "h.append(1)", "behind": "print(h)"},
    {"front": "h = []", "first": "global h", "end": "h += [1]", "behind": "print(h)"},
    {"front": "h = []", "params": "q", "end": "q += [1]", "call": "train(h)", "behind": "print(h)"},
    {"front": "h = {}", "params": "q", "end": "q['a'] = 1", "call": "train(h)", "behind": "print(h)"},
    {"front": "h = {'a': []}", "end": "h['a'].append(1)", "behind": "print(h)"},
    {"front": "h = {'a': []}", "end": "h['a'].append(1)", "behind": "print(h['a'])"},
    {"front": "h = []\ng = h", "end": "h.append(1)", "behind": "print(g)"},
    {"front": "h = {'a': 1}", "end": "del h['a']", "behind": "print(h)"},
    {"front": "h = []", "end": "list(map(h.append, [1]))", "behind": "print(h)"},
    {"front": "h = []\nadd = h.append", "end": "add(1)", "behind": "print(h)"},
    {"front": "h = {}", "first": "global h", "end": "h |= {'a': 1}", "behind": "print(h)"},
    {"front": "import heapq\nh = []", "end": "heapq.heappush(h, 1)", "behind": "print(h)"},
    {"front": "it = iter([1, 2])", "end": "next(it)", "behind": "print(next(it))"},
    {"front": "from collections import Counter\nc = Counter()", "end": "c.update([1])", "behind": "print(c)"},
    {"front": "from collections import defaultdict\nc = defaultdict(list)", "end": "c['a'].append(2)", "behind": "print(c)"},
    {"front": "from types import SimpleNamespace\ncfg = SimpleNamespace(lr=1)", "end": "cfg.lr = 2", "behind": "print(cfg.lr)"},
    {"front": "best = 0", "first": "global best", "end": "best = loss.item()", "behind": "print(best)"},
    {"front": "best = 0", "first": "global best", "end": "best = 1", "behind": "def show():\n    print(best)\n\n\nshow()"},
    {"front": "z = 0", "first": "global z", "end": "(z := 5)", "behind": "print(z)"},
    {"front": "class C:\n    n = 0", "end": "C.n = 3", "behind": "print(C.n)"},
    {"front": "m = Meter()", "end": "m.add(1)", "behind": "print(m.mean())"},
    {"front": "m = Meter()", "end": "m.best = 1", "behind": "print(m.best)"},
    {"front": "m = Meter()", "end": "setattr(m, 'b', 1)", "behind": "print(m.b)"},
    {"front": "w = torch.zeros(3)", "end": "w.add_(1)", "behind": "print(w)"},
    {"front": "w = torch.zeros(3)", "end": "w[0] = 1", "behind": "print(w)"},
    {"front": "w = torch.zeros(3)", "params": "q", "end": "q += 1", "call": "train(w)", "behind": "print(w)"},
    {"front": "h = []\n\n\ndef log(store, v):\n    store.append(v)", "end": "log(h, 1)", "behind": "print(h)"},
    {"front": "h = []\nlog = lambda v: h.append(v)", "end": "log(1)", "behind": "print(h)"},
    {"front": "h = []\n\n\ndef log(v):\n    h.append(v)", "params": "f", "end": "f(1)", "call": "train(log)", "behind": "print(h)"},
    {"front": "net = Net()", "model": "net", "behind": "print(net)"},
    {"front": "net = Net()", "params": "n", "model": "n", "call": "train(net)", "behind": "net.eval()"},
    {"front": "h = []", "end": "h.append(1); print(h)", "call": "train()\ntrain()"},
    {"front": "net = Net()", "model": "net", "call": "train()\ntrain()"},
    {"front": "h = []", "end": "h.append(1)", "call": "for i in range(2):\n    train()\n    print(h)"},
    {"front": "r = {}", "params": "k", "end": "r[k] = 1", "call": "for i in range(2):\n    train(i)", "behind": "print(r)"},
]
KEPT: list[dict[str, str]] = [
    {"front": "h = []", "end": "h.append(1)"},
    {"front": "net = Net()", "model": "net"},
    {"front": "net = Net()\nprint(net)", "behind": "net.load_state_dict(torch.load('m.pt'))"},
    {"end": "m = Meter(); m.add(1)", "behind": "m = Meter()\nm.add(2)\nprint(m.mean())"},
    {"front": "m = Meter()\nm.add(0)", "end": "k = Meter(); k.add(1)", "behind": "print(m.values)"},
    {"front": "m = Meter()", "end": "print(m.mean())", "behind": "print(m.values)"},
    {"front": "cfg = {'lr': 1}", "end": "print(cfg['lr'])", "behind": "print(cfg)"},
    {"front": "from types import SimpleNamespace\ncfg = SimpleNamespace(lr=1)", "end": "print(cfg.lr)", "behind": "print(cfg.lr)"},
    {"behind": "print(len(data))"},
    {"call": "for i in range(2):\n    h = []\n    train()\n    print(h)"},
    {"call": "train()\ntrain()"},
]


@pytest.mark.parametrize("given", LOST, ids=str)
def test_what_is_lost_and_read_is_refused(given: dict[str, str]) -> None:
    result = launched(cells(**given))
    assert "S2A844" in ids(result) and not result.changed


@pytest.mark.parametrize("given", KEPT, ids=str)
def test_what_is_not_lost_is_launched(given: dict[str, str]) -> None:
    result = launched(cells(**given))
    assert result.changed and b"notebook_launcher(train, num_processes=2)" in result.after, result.diagnostics


@pytest.mark.parametrize(
    ("params", "call", "text"),
    [
        ("", "train()", "train, num_processes=2"),
        ("a", "train(1)", "train, args=(1,), num_processes=2"),
        ("a, b=2, c=3", "train(b=1, a=0)", "train, args=(0, 1), num_processes=2"),
        ("a, b=2, c=3", "train(0, c=5)", "train, args=(0, 2, 5), num_processes=2"),
        ("a, b", "train(*[1, 2])", "train, args=(*[1, 2],), num_processes=2"),
    ],
)
def test_arguments_go_by_position(params: str, call: str, text: str) -> None:
    result = launched(cells(params=params, call=call))
    assert f"notebook_launcher({text})".encode() in result.after, result.diagnostics


@pytest.mark.parametrize(
    ("params", "call"),
    [
        ("a, *, b=2", "train(1, b=3)"),
        ("a, b=len('x'), c=3", "train(1, c=3)"),
        ("a, **more", "train(1, k=3)"),
        ("a, b", "train(*[1], b=2)"),
        ("a, b", "train(b=print(1), a=print(2))"),
    ],
)
def test_arguments_without_a_position_are_refused(params: str, call: str) -> None:
    assert "S2A864" in ids(launched(cells(params=params, call=call)))


@pytest.mark.parametrize(
    "call",
    [
        "print(train())",
        "if True:\n    x = [train() for _ in range(2)]",
        "def again():\n    train()\n\n\nagain()\ntrain()",
        "from functools import partial\n\nrun = partial(train)\nrun()",
    ],
)
def test_what_can_not_be_launched_trains_in_one_process_or_is_refused(call: str) -> None:
    result = launched(cells(call=call))
    assert b"notebook_launcher" not in result.after and ("S2A814" in ids(result) or not result.changed), (result.diagnostics, result.diff())


def test_the_number_of_batches_counted_in_a_cell_is_no_horizon() -> None:
    front = "dl = DataLoader(data, batch_size=16)\nsteps = 3 * len(dl)"
    end = "optimizer.param_groups[0]['lr'] = 0.1 / steps\n        for x, y in dl:\n            model(x).sum().backward()"
    assert "S2A814" in ids(launched(cells(front=front, end=end)))


def test_one_process_is_asked_for() -> None:
    result = launched(cells(), processes=1)
    assert result.changed and b"notebook_launcher" not in result.after and "S2A821" in ids(result)
