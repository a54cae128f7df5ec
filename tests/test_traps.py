"""What documentation and popular recipes get wrong, each looked for in the text that is emitted."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert

HEAD = """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler

train_set = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), torch.zeros(64).long())
test_set = TensorDataset(torch.ones(17, 8), torch.zeros(17).long())
"""
MADE = """\
loader = DataLoader(train_set, batch_size=8, shuffle=True)
test_loader = DataLoader(test_set, batch_size=4)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """\
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
"""
ACCUMULATED = (
    HEAD
    + MADE
    + """\
for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / 2
        loss.backward()
        if (i + 1) % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
"""
)
EPOCH_SCHEDULER = (
    HEAD
    + MADE
    + "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)\nfor epoch in range(2):\n    model.train()\n"
    + STEP
    + "    scheduler.step()\n"
)
HORIZON = (
    HEAD
    + MADE
    + "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=2 * len(loader))\nfor epoch in range(2):\n"
    + STEP
    + "        scheduler.step()\n"
)
EVALUATED = (
    HEAD
    + MADE
    + "for epoch in range(2):\n    model.train()\n"
    + STEP
    + """\
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in test_loader:
            output = model(x)
            correct += (output.argmax(1) == y).sum().item()
    print(correct / len(test_loader.dataset))
"""
)
SAVED = (
    HEAD
    + MADE
    + "for epoch in range(2):\n"
    + STEP
    + '    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")\n'
)
OWN_METHOD = (
    HEAD
    + """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)

    def forward(self, x):
        return self.body(x)

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


loader = DataLoader(train_set, batch_size=8, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = model.loss(x, y)
    loss.backward()
    optimizer.step()
"""
)
SAMPLER = (
    HEAD
    + """\
dist.init_process_group("nccl")
sampler = DistributedSampler(train_set)
loader = DataLoader(train_set, batch_size=8, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
"""
)


def calls(text: str) -> list[str]:
    """Every call of a text, in the order of its lines."""
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.unparse(node) for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset))]


def where(text: str, start: str) -> int:
    """The place of the first call that starts so."""
    return next(index for index, call in enumerate(calls(text)) if call.startswith(start))


def zero_grad_behind_the_step(text: str) -> None:
    inside = text[text.index("accelerator.accumulate(") :]
    assert inside.index("accelerator.backward(") < inside.index("optimizer.step()") < inside.index("optimizer.zero_grad()")
    assert "/ 2" not in inside and "% 2" not in inside


def epoch_scheduler_unprepared(text: str) -> None:
    assert not any("scheduler" in call for call in calls(text) if call.startswith("accelerator.prepare("))


def horizon_of_this_rank(text: str) -> None:
    epoch_scheduler_unprepared(text)
    assert where(text, "accelerator.prepare(") < where(text, "torch.optim.lr_scheduler.OneCycleLR(")


def gathered_in_the_loop(text: str) -> None:
    lines = text.splitlines()
    gather = next(i for i, line in enumerate(lines) if "gather_for_metrics" in line)
    assert lines[gather - 1].strip() == "output = model(x)" and lines[gather + 1].strip().startswith("correct +=")


def state_on_every_rank(text: str) -> None:
    assert "save_state" not in text
    guarded = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If) and "is_main_process" in ast.unparse(node.test)]
    assert not any("get_state_dict" in ast.unparse(part) for node in guarded for part in node.body)


def sampler_gone(text: str) -> None:
    assert not any(call.startswith(("DistributedSampler(", "dist.", "nn.parallel")) for call in calls(text))
    assert "shuffle=True" in text and "loader.set_epoch(epoch)" in text


@pytest.mark.parametrize(
    ("before", "look"),
    [
        (ACCUMULATED, zero_grad_behind_the_step),
        (EPOCH_SCHEDULER, epoch_scheduler_unprepared),
        (HORIZON, horizon_of_this_rank),
        (EVALUATED, gathered_in_the_loop),
        (SAVED, state_on_every_rank),
        (SAMPLER, sampler_gone),
    ],
)
def test_trap(before: str, look: Callable[[str], None]) -> None:
    result = convert(before)
    assert result.outcome is Outcome.CONVERTED, [one.message for one in result.errors]
    look(result.after.decode())


def test_training_past_forward_is_refused() -> None:
    result = convert(OWN_METHOD)
    assert result.outcome is Outcome.REFUSED and [one.id for one in result.errors] == ["S2A214"]


def test_optimizer_state_of_a_sharded_model_is_refused() -> None:
    result = convert(SAVED, Options(strategy="fsdp2", num_processes=2))
    assert result.outcome is Outcome.REFUSED
