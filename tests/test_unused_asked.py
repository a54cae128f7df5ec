"""`--find-unused-parameters`: set once, whatever the script says of it."""

from __future__ import annotations

import pytest

from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert

ASKED = Options(find_unused_parameters=True)
HEAD = """\
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

"""
PLAIN = (
    HEAD
    + """\
loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
"""
)
HAND = (
    HEAD
    + """\
dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
sampler = torch.utils.data.distributed.DistributedSampler(data)
loader = DataLoader(data, batch_size=16, sampler=sampler)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2).cuda(rank), device_ids=[rank], find_unused_parameters={own}, bucket_cap_mb=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x.cuda(rank)), y.cuda(rank)).backward()
        optimizer.step()
dist.destroy_process_group()
"""
)


def test_a_plain_script() -> None:
    result = convert(PLAIN, ASKED)
    assert result.outcome is Outcome.CONVERTED
    assert b"Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])" in result.after
    assert convert(result.after, ASKED).outcome is Outcome.READY
    assert b"DistributedDataParallelKwargs" not in convert(PLAIN).after


@pytest.mark.parametrize(("own", "said"), [("False", True), ("True", False)])
def test_what_hand_made_ddp_says(own: str, said: bool) -> None:
    result = convert(HAND.replace("{own}", own), ASKED)
    assert result.outcome is Outcome.CONVERTED, [one.message for one in result.errors]
    assert result.after.count(b"find_unused_parameters=True") == 1 and b"bucket_cap_mb=10" in result.after
    assert any(one.id == "S2A299" for one in result.diagnostics) is said
    kept = convert(HAND.replace("{own}", own))
    assert f"find_unused_parameters={own}".encode() in kept.after


def test_a_sharded_model_has_no_use_for_it() -> None:
    result = convert(PLAIN, Options(find_unused_parameters=True, strategy="fsdp2", num_processes=2))
    assert any(one.id == "S2A309" for one in result.diagnostics)
    assert b"DistributedDataParallelKwargs" not in result.after
