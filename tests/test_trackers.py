"""`--trackers`: the same calls reach the same tracker, in one process and once for two, in the same directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from script2accel.options import Options
from script2accel.result import Outcome
from script2accel.workflow.convert import convert
from tests.differential import compare, launch
from tests.differential.cases import named

ASKED = Options(trackers=True)
NUMBERS = Options(trackers=True, reduce_train_metrics=True)
HEAD = """\
import argparse
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
{imports}

torch.manual_seed(0)
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(6, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
BOARD = (
    HEAD.format(imports="from torch.utils.tensorboard import SummaryWriter")
    + """

def train(writer, epoch):
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        step = epoch * len(loader) + i
        writer.add_scalar("loss/item", loss.item(), step)
        writer.add_scalar(f"loss/{epoch}", loss.detach(), global_step=step)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--logs", default="runs/first")
    args = parser.parse_args()
    writer = SummaryWriter(args.logs, flush_secs=30)
    writer.add_graph(model, x)
    for epoch in range(2):
        train(writer, epoch)
        writer.add_scalar("lr", np.float32(optimizer.param_groups[0]["lr"]), epoch)
        writer.add_scalars("both", {"epoch": epoch, "square": torch.tensor([epoch**2])}, epoch)
    torch.save(model.state_dict(), "model.pt")
    writer.close()


if __name__ == "__main__":
    main()
"""
)
RUN = (
    HEAD.format(imports="import wandb")
    + """
settings = {"lr": 0.1, "layers": [6, 2]}
run = wandb.init(
    entity="us",
    project="demo",
    config=settings,
)
wandb.watch(model)
for epoch in range(2):
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(a), b)
        loss.backward()
        optimizer.step()
        wandb.log({"loss": loss.item(), "epoch": epoch})
    run.log({"seen": epoch}, step=epoch * 100)
    wandb.log({"pic": wandb.Image(x[0])}, commit=False)
torch.save(model.state_dict(), "model.pt")
wandb.finish()
"""
)
FAKE_BOARD = '''\
"""Stands for the package that torch's writer needs: the writer itself writes lines of JSON."""

import json
import os
import sys
import types

__version__ = "2.0.0"


class SummaryWriter:
    def __init__(self, log_dir=None, comment="", purge_step=None, max_queue=10, flush_secs=120, filename_suffix=""):
        os.makedirs(log_dir, exist_ok=True)
        self.file = open(os.path.join(log_dir, "events.jsonl"), "w")
        self.say("open", os.path.normpath(str(log_dir)), flush_secs)

    def say(self, *words):
        self.file.write(json.dumps(words) + "\\n")

    def add_scalar(self, tag, scalar_value, global_step=None, walltime=None):
        self.say("scalar", tag, round(float(scalar_value), 4), global_step)

    def add_scalars(self, main_tag, tag_scalar_dict, global_step=None, walltime=None):
        self.say("scalars", main_tag, {key: float(value) for key, value in tag_scalar_dict.items()}, global_step)

    def add_graph(self, model, input_to_model=None):
        self.say("graph", type(model).__name__)

    def flush(self):
        self.file.flush()

    def close(self):
        self.say("close")
        self.file.close()


def module(name, **held):
    made = sys.modules[name] = types.ModuleType(name)
    made.__dict__.update(held)


module("torch.utils.tensorboard.writer", SummaryWriter=SummaryWriter, FileWriter=object)
module("tensorboard.summary")
module("tensorboard.summary.writer")
module("tensorboard.summary.writer.record_writer", RecordWriter=object)
'''
FAKE_RUN = """\
import json

run = None


class Image:
    def __init__(self, data):
        pass


class Run:
    def __init__(self, arguments):
        self.file = open("run.jsonl", "w")
        self.say("init", arguments)

    def say(self, *words):
        self.file.write(json.dumps(words) + "\\n")
        self.file.flush()

    def log(self, data, step=None, commit=None):
        self.say("log", {k: "image" if isinstance(v, Image) else round(v, 4) for k, v in data.items()}, step, commit)

    def finish(self):
        self.say("finish")


def init(**arguments):
    global run
    run = Run(dict(sorted(arguments.items())))
    return run


def log(*args, **kwargs):
    run.log(*args, **kwargs)


def watch(model):
    run.say("watch", type(model).__name__)


def finish():
    run.finish()
"""


def _packages(name: str, text: str) -> Mapping[str, bytes]:
    meta = f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0.0\n"
    return {f"{name}/__init__.py": text.encode(), f"{name}-2.0.0.dist-info/METADATA": meta.encode()}


BESIDE = {"board": _packages("tensorboard", FAKE_BOARD), "run": _packages("wandb", FAKE_RUN)}
SCRIPTS = {"board": (BOARD, "runs/first/events.jsonl"), "run": (RUN, "run.jsonl")}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_same_reaches_the_tracker(name: str, tmp_path: Path) -> None:
    source, file = SCRIPTS[name]
    result = convert(source, NUMBERS, "train.py")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    assert b"accelerator.log(" in result.after and b"accelerator.end_training()" in result.after
    assert convert(result.after, NUMBERS, "train.py").outcome is Outcome.READY
    case = replace(named("digits_argparse"), argv=(), argv_two=None, files=(file,), metric=None)

    def run(text: bytes, folder: str, processes: int = 1, fixed_order: bool = False) -> compare.Run:
        texts = {"train.py": text, **BESIDE[name]}
        return launch.run(launch.Cold(), texts, [()], tmp_path / folder, processes=processes, divide=processes, fixed_order=fixed_order)

    assert not (found := compare.one_process(case, run(source.encode(), "plain"), run(result.after, "one"))), "\n".join(found)
    fixed, two = run(source.encode(), "fixed", fixed_order=True), run(result.after, "two", 2, True)
    assert not (found := compare.processes(case, fixed, two)), "\n".join(found)


LEFT = {
    "no directory": ('SummaryWriter("runs/a")', "SummaryWriter()"),
    "no known directory": ('SummaryWriter("runs/a")', "SummaryWriter(None)"),
    "two of them": ('SummaryWriter("runs/a")', 'SummaryWriter("runs/a")\nother = SummaryWriter("runs/b")'),
    "many of them": ('writer = SummaryWriter("runs/a")', 'for fold in range(2):\n    writer = SummaryWriter("runs/a")'),
    "one of a kind that isn't known": ("from torch.utils.tensorboard import", "from tensorboardX import"),
    "a choice": ('SummaryWriter("runs/a")', 'SummaryWriter("runs/a") if x is not None else None'),
}
LOOP = """
writer = SummaryWriter("runs/a")
for step, (a, b) in enumerate(loader):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(a), b)
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss.item(), step)
"""
PLAIN = HEAD.format(imports="from torch.utils.tensorboard import SummaryWriter") + LOOP


@pytest.mark.parametrize("name", LEFT)
def test_what_has_no_counterpart_stays_and_is_named(name: str) -> None:
    before, after = LEFT[name]
    assert before in PLAIN
    result = convert(PLAIN.replace(before, after), ASKED, "train.py")
    assert "S2A743" in [d.id for d in result.diagnostics]
    assert b"log_with" not in result.after and b"accelerator.log(" not in result.after


def test_only_what_ends_the_script_ends_training() -> None:
    closed = PLAIN + 'writer.close()\ntorch.save(model.state_dict(), "m.pt")\n'
    after = convert(closed, ASKED, "train.py").after.decode()
    assert "end_training" not in after and "    writer.close()" in after and 'writer = accelerator.get_tracker("tensorboard", unwrap=True)' in after
    assert "end_training" in convert(PLAIN + "writer.close()\n", ASKED, "train.py").after.decode()


def test_without_the_option_nothing_changes_hands() -> None:
    assert b'SummaryWriter("runs/a") if accelerator.is_main_process else None' in convert(PLAIN, Options(), "train.py").after


def test_where_nothing_is_tracked() -> None:
    bare = PLAIN.replace('writer = SummaryWriter("runs/a")\n', "").replace('    writer.add_scalar("loss", loss.item(), step)\n', "")
    result = convert(bare, ASKED, "train.py")
    assert result.outcome is Outcome.CONVERTED and "S2A763" in [d.id for d in result.diagnostics]
