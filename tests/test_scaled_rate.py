"""`--scale-lr`: at two ranks the training of the original with twice the learning rate, in one process the original's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from script2accel.errors import UsageError
from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.differential import compare, launch
from tests.differential.bench import Bench
from tests.differential.cases import named

SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
loader = DataLoader(TensorDataset(x, x[:, :1].sin()), batch_size=8, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
rate = {rate}
optimizer = torch.optim.Adam(model.parameters(), rate, weight_decay=1e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3, eta_min=rate / 10)
for epoch in range(3):
    model.train()
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, f"{{loss.item():.5f}}")
torch.save(model.state_dict(), "scaled.pt")
"""
ASKED = Options(scale_lr=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("scaled"))
    yield bench
    bench.close()


def test_two_ranks_train_at_twice_the_rate(bench: Bench) -> None:
    case = replace(named("digits_argparse"), argv=(), argv_two=None, files=("scaled.pt",), metric=None)
    result = convert(SCRIPT.format(rate=0.01), ASKED, "train.py")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    assert convert(result.after, ASKED, "train.py").outcome is Outcome.READY
    original = launch.run(bench.warm, SCRIPT.format(rate=0.01).encode(), [()], bench.folder("original"))
    assert not (found := compare.one_process(case, original, launch.run(bench.warm, result.after, [()], bench.folder("one")))), "\n".join(found)
    twice = launch.run(bench.warm, SCRIPT.format(rate=0.02).encode(), [()], bench.folder("twice"), fixed_order=True)
    two = launch.run(bench.warm, result.after, [()], bench.folder("two"), processes=2, divide=2, fixed_order=True)
    assert not (found := compare.processes(case, twice, two)), "\n".join(found)


@pytest.mark.parametrize("more", [{"batch": "global"}, {"strategy": "fsdp2", "tp": 2}])
def test_where_the_batch_does_not_grow(more: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="scale-lr"):
        Options.from_mapping({"scale-lr": True, **more})
