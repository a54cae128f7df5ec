"""`--gradient-accumulation-steps` on a script that steps once per batch: the training of the same script with accumulation written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.differential import compare, launch
from tests.differential.bench import Bench
from tests.differential.cases import named

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(88, 6, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
for epoch in range(3):
    model.train()
    for i, (inputs, targets) in enumerate(loader):
"""
PLAIN = (
    HEAD
    + """\
        {zero}.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        scheduler.step()
    print(epoch, f"{{loss.item():.5f}}")
torch.save(model.state_dict(), "asked.pt")
"""
)
BY_HAND = (
    HEAD
    + """\
        loss = nn.functional.mse_loss(model(inputs), targets)
        (loss / 4).backward()
        if (i + 1) % 4 == 0 or i + 1 == len(loader):
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    print(epoch, f"{loss.item():.5f}")
torch.save(model.state_dict(), "asked.pt")
"""
)
FOUR = Options(gradient_accumulation_steps=4)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("asked"))
    yield bench
    bench.close()


@pytest.mark.parametrize("zero", ["optimizer", "model"])
def test_asked_for_is_what_is_written_by_hand(bench: Bench, zero: str) -> None:
    case = replace(named("digits_argparse"), argv=(), argv_two=None, files=("asked.pt",), metric=None)
    result = convert(PLAIN.format(zero=zero), FOUR, "train.py")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    by_hand = launch.run(bench.warm, BY_HAND.encode(), [()], bench.folder("by_hand"))
    assert not (found := compare.one_process(case, by_hand, launch.run(bench.warm, result.after, [()], bench.folder("one")))), "\n".join(found)
    fixed = launch.run(bench.warm, BY_HAND.encode(), [()], bench.folder("fixed"), fixed_order=True)
    two = launch.run(bench.warm, result.after, [()], bench.folder("two"), processes=2, divide=2, fixed_order=True)
    assert not (found := compare.processes(case, fixed, two)), "\n".join(found)


def test_a_scripts_own_number_must_agree() -> None:
    assert convert(BY_HAND, FOUR, "train.py").outcome is Outcome.CONVERTED
    refused = convert(BY_HAND, Options(gradient_accumulation_steps=2), "train.py")
    assert refused.outcome is Outcome.REFUSED and [d.id for d in refused.errors] == ["S2A418"]


def test_one_asks_for_nothing() -> None:
    assert convert(PLAIN.format(zero="optimizer"), Options(gradient_accumulation_steps=1)).after == convert(PLAIN.format(zero="optimizer")).after
