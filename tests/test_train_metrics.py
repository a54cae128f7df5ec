"""`--reduce-train-metrics`: what two ranks print of their training is what one process prints with the same joint batch; else it is said."""

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
import math
import sys
import time
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

batch_size = int(sys.argv[1])
torch.manual_seed(0)
x = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
data = TensorDataset(x, (x.sum(1) > 0).long())
loader = DataLoader(data, batch_size=batch_size, shuffle=True)
model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
"""
STEP = """\
    optimizer.zero_grad()
    out = model(a)
    loss = criterion(out, b)
    loss.backward()
    optimizer.step()
"""


def flat(before: str, inside: str, behind: str) -> str:
    """A script whose loop stands at module level, run for two epochs."""
    lines = [before, "for i, (a, b) in enumerate(loader):", STEP.rstrip(), *(f"    {line}" for line in inside.splitlines()), behind]
    body = "\n".join(line for line in lines if line)
    return HEAD + "for epoch in range(2):\n" + "\n".join(f"    {line}" for line in body.splitlines()) + "\n"


COUNTED = "pred = out.argmax(1)\ncorrect += (pred == b).sum().item()\ntotal += b.size(0)\nrunning += loss.item()"
ZEROS = "running, correct, total = 0.0, 0, 0"
METER = (
    HEAD
    + """
class Meter:
    def __init__(self):
        self.reset()

    def reset(self):
        self.sum = 0
        self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def accuracy(output, target):
    _, pred = torch.max(output, 1)
    return (pred == target).float().mean()


def train(epoch):
    losses, top = Meter(), Meter()
    for i, (a, b) in enumerate(loader):
        optimizer.zero_grad()
        out = model(a)
        loss = criterion(out, b)
        loss.backward()
        optimizer.step()
        losses.update(loss.item(), a.size(0))
        top.update(accuracy(out, b).item(), a.size(0))
        if i % 2 == 0:
            print(f"{epoch} {i} loss {losses.val:.6f} ({losses.avg:.6f}) acc {top.val:.5f} ({top.avg:.5f})")
    return losses.avg, top.avg


for epoch in range(2):
    loss, acc = train(epoch)
    print(f"epoch {epoch}: {loss:.6f} {acc:.5f} {math.exp(loss):.5f}")
"""
)
TRAINER = (
    HEAD
    + """
class Trainer:
    def __init__(self, model):
        self.model = model
        self.log = {"loss": [], "acc": []}
        self.history = []

    def epoch(self, number):
        self.loss_sum, self.hits, self.seen = 0.0, 0, 0
        for a, b in loader:
            self.step(a, b)
        self.report(number, self.loss_sum / self.seen, self.hits / self.seen)
        return self.loss_sum / self.seen

    def step(self, a, b):
        optimizer.zero_grad()
        out = self.model(a)
        loss = F.cross_entropy(out, b)
        loss.backward()
        optimizer.step()
        self.loss_sum += loss.item() * len(b)
        self.hits += (torch.argmax(out, dim=1) == b).sum().item()
        self.seen += len(b)

    def report(self, number, loss, acc):
        print("epoch {}, loss {:.6f}, acc {:.4f}".format(number, loss, acc * 100))


trainer = Trainer(model)
for epoch in range(2):
    last = trainer.epoch(epoch)
    print(f"done {last:.6f}")
"""
)
HELPERS = (
    HEAD
    + """
def train(model, loader, optimizer, every=3):
    model.train()
    total_loss, window = 0, 0
    n_right = n_seen = 0
    for step, batch in enumerate(loader):
        inputs, labels = batch
        optimizer.zero_grad()
        logits = model(inputs)
        loss = F.cross_entropy(logits, labels)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        window += loss.item()
        n_right += int((logits.argmax(1) == labels).sum())
        n_seen += labels.size(0)
        if (step + 1) % every == 0:
            print(f"step {step} window {window / every:.6f} lr {optimizer.param_groups[0]['lr']:.3f}")
            window = 0
    return {"loss": total_loss / len(loader), "acc": n_right / n_seen}


def main():
    for epoch in range(2):
        found = train(model, loader, optimizer)
        print(epoch, f"{found['loss']:.6f}", f"{found['acc']:.4f}")


main()
"""
)
OWN = """\
class Own(nn.Module):
    def forward(self, out, target):
        return -(out.log_softmax(1) * F.one_hot(target, 2)).sum(1).mean()


criterion = Own()"""
SHOWN = {
    "batch loss": flat("", "print(f'{loss.item():.6f}', i)", ""),
    "bare numbers": flat("", "print(epoch, round(loss.item(), 5), float(loss) * 2)", ""),
    "every second": flat("running = 0.0", "running += loss.item()\nif i % 2 == 1:\n    print('%.6f' % (running / 2))\n    running = 0.0", ""),
    "mean of means": flat("running = 0.0", "running += loss.item()", "print(f'{running / len(loader):.6f}')"),
    "steps counted": flat("running, n = 0.0, 0", "running += loss.item()\nn += 1", "avg = running / n\nprint(f'{avg:.6f}')"),
    "weighted by size": flat(
        "running, total = 0.0, 0", "running += loss.item() * a.size(0)\ntotal += a.size(0)", "print(f'{running / total:.6f} of {total}')"
    ),
    "shape and len": flat("running, n = 0.0, 0", "running += loss.item() * a.shape[0]\nn += len(b)", "print('{:.6f} {}'.format(running / n, n))"),
    "counts": flat(ZEROS, COUNTED, "print(f'{correct}/{total} {100. * correct / total:.4f}% {running / (i + 1):.6f}')"),
    "ratio held": flat(ZEROS, COUNTED, "acc = correct / total\nprint(f'{acc:.5f}', f'{1 - acc:.5f}', f'{acc ** 2:.5f}')"),
    "counted by the batch size": flat(
        "correct, total = 0, 0",
        "correct += (out.argmax(1) == b).sum().item()\ntotal += batch_size",
        "print(f'{correct}/{total} {correct / total:.5f}')",
    ),
    "steps from sizes": flat("running = 0.0", "running += loss.item()", "print(f'{running / (len(data) / batch_size):.6f}')"),
    "over the dataset": flat("running = 0.0", "running += loss.item() * a.size(0)", "print(f'{running / len(loader.dataset):.6f}')"),
    "a list": flat("losses = []", "losses.append(loss.item())", "print(f'{np.mean(losses):.6f} {sum(losses) / len(losses):.6f} {losses[-1]:.6f}')"),
    "tensors": flat(
        "total = 0", "total += loss.detach()\nprint(loss.data.item())", "print(f'{total / len(loader):.6f}', (total / len(loader)).item())"
    ),
    "smoothed": flat("ema = 0.0", "ema = 0.9 * ema + 0.1 * loss.item()\nprint(f'{ema:.6f}')", ""),
    "perplexity": flat("running = 0.0", "running += loss.item()\nprint(f'{math.exp(running / (i + 1)):.6f}')", ""),
    "sum loss": flat("s = 0.0", "s += F.cross_entropy(out, b, reduction='sum').item()", "print(f'{s:.5f} {s / len(loader.dataset):.6f}')"),
    "means of counts": flat("acc = 0.0", "acc += (out.max(1)[1] == b).float().mean().item()", "print(f'{acc / len(loader):.5f}')"),
    "eq and view_as": flat(
        "hits = 0", "hits += out.argmax(dim=1, keepdim=True).eq(b.view(-1, 1)).sum().item()", "print(hits, 100. * hits / len(loader.dataset))"
    ),
    "torch sum": flat("hits = 0", "_, p = torch.max(out.data, 1)\nhits += torch.sum(p == b.data)", "print(f'{hits.double() / len(data):.5f}')"),
    "seen": flat("", "print('[{}/{}] {:.6f}'.format(i * len(a), len(loader.dataset), loss.item()))", ""),
    "meters": METER,
    "weighted classes": flat("", "print(f'{loss.item():.6f}')", "").replace(
        "nn.CrossEntropyLoss()", "nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))"
    ),
    "two reports, one number": flat(
        "running = 0.0", "running += loss.item()", "print(running / len(loader))\nprint(f'again {running / len(loader):.5f}')"
    ),
    "a trainer": TRAINER,
    "helpers": HELPERS,
    "a log": flat("", "if i % 2 == 0:\n    log.info('%d %.6f', i, loss.item())", "").replace(
        "batch_size =",
        "import logging\nlogging.basicConfig(stream=sys.stdout, format='%(message)s', level='INFO')\nlog = logging.getLogger(__name__)\nbatch_size =",
        1,
    ),
    "divided loss": flat("", "print((loss / 4).item(), loss.item() + 0.01 * epoch)", ""),
    "own criterion": flat("", "print(f'{loss.item():.6f}')", "").replace("criterion = nn.CrossEntropyLoss()", OWN),
    "a list in a file": flat("if epoch == 0:\n    kept = []\nrunning = 0.0", "running += loss.item()", "kept.append(running / len(loader))")
    + "print(kept)\n",
    "a whole list": flat("ls = []", "ls.append(loss.item())", "print(ls)"),
    "behind a guard": flat("", "if i % 2 == 0:\n    joined = loss.item()\n    print(joined)", ""),
    "counted on the tensor": flat("hits = torch.zeros(1)", "hits += (out.argmax(-1) == b).sum()", "print(f'{hits.item():.1f}')"),
}
LEFT = {
    "smallest": flat("best = 9.0", "best = min(best, loss.item())", "print(f'{best:.5f}')"),
    "smallest by hand": flat("best = 9.0", "if loss.item() < best:\n    best = loss.item()", "print(f'{best:.5f}')"),
    "smallest by choice": flat("best = 9.0", "v = loss.item()\nbest = v if v < best else best", "print(f'{best:.5f}')"),
    "counted now and then": flat("n = 0", "if loss.item() > 0.5:\n    n += 1", "print(n)"),
    "one's loss by another's": flat("r = 1.0", "r = r * loss.item()", "print(r)"),
    "chosen samples": flat("s = 0.0", "s += F.cross_entropy(out, b, reduction='none')[b == 1].mean().item()", "print(s)"),
    "means and sums": flat("s = 0.0", "s += loss.item() + a.size(0)", "print(s)"),
    "a product over the batch": flat("", "print((out @ out.t()).mean().item())", ""),
    "a mean over samples first": flat("", "print((out.mean(0) ** 2).mean().item())", ""),
    "a weighted mean": flat("", "with torch.no_grad():\n    print(F.cross_entropy(out, b, weight=torch.tensor([1.0, 3.0])).item())", ""),
    "in an exception": flat("", "try:\n    pass\nexcept ValueError:\n    print(loss.item())", ""),
    "under a test of its own": flat("", "if loss.item() > 0.6:\n    print(loss.item())", ""),
    "in a comprehension": flat("ls = []", "ls.append(loss.item())", "print([round(l, 3) for l in ls])"),
    "a list that is read": flat("ls = []", "ls.append(loss.item())\nif i > 2:\n    optimizer.param_groups[0]['lr'] = 0.1 + 0 * ls[0]", "print(ls)"),
    "a sum that decides": flat(
        "hits = 0", "hits += (out.argmax(1) == b).sum().item()", "if hits > 90:\n    torch.save(model.state_dict(), 'm.pt')\nprint(hits)"
    ),
    "part of an epoch of the dataset": flat("hits = 0", "hits += (out.argmax(1) == b).sum().item()\nprint(hits / len(data))", ""),
    "changed in place": flat("t = torch.zeros(1)", "t.add_(loss.detach())", "print(t.item())"),
    "set by parts": flat("t = np.zeros(2)", "t[0] += loss.item()", "print(t[0])"),
    "one of the samples": flat("", "print(out[0].sum().item())", ""),
    "a queue": flat("q = collections.deque(maxlen=3)", "q.append(loss.item())", "print(sum(q) / 3)").replace(
        "import math", "import collections\nimport math"
    ),
    "a collation": flat("", "print(a.size(0) * 2, loss.item())", "").replace(
        "shuffle=True", "shuffle=True, collate_fn=torch.utils.data.default_collate"
    ),
    "brought together by hand": flat(
        "hits = torch.zeros(1)",
        "hits += (out.argmax(1) == b).sum()",
        "print(hits.item())\nif torch.distributed.is_initialized():\n    torch.distributed.all_reduce(hits)",
    ),
}
ASKED = Options(reduce_train_metrics=True)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    bench = Bench(tmp_path_factory.mktemp("metrics"))
    yield bench
    bench.close()


@pytest.mark.parametrize("name", SHOWN)
def test_two_ranks_show_what_one_process_shows(bench: Bench, name: str) -> None:
    source = SHOWN[name]
    case = replace(named("digits_argparse"), argv=(), argv_two=None, files=(), metric=r".+")
    result = convert(source, ASKED, "train.py")
    assert result.outcome is Outcome.CONVERTED, result.diagnostics
    assert not [d.message for d in result.diagnostics if d.id == "S2A733"]
    assert convert(result.after, ASKED, "train.py").outcome is Outcome.READY
    plain = launch.run(bench.warm, source.encode(), [("16",)], bench.folder("original"))
    assert not (found := compare.one_process(case, plain, launch.run(bench.warm, result.after, [("16",)], bench.folder("one")))), "\n".join(found)
    fixed = launch.run(bench.warm, source.encode(), [("16",)], bench.folder("fixed"), fixed_order=True)
    two = launch.run(bench.warm, result.after, [("8",)], bench.folder("two"), processes=2, fixed_order=True)
    if name == "a log":  # which every process keeps, with the same numbers
        assert two.ranks[1].out == two.ranks[0].out
        two = replace(two, ranks=(two.ranks[0], replace(two.ranks[1], out="")))
    assert not (found := compare.processes(case, fixed, two)), "\n".join(found)


def test_a_last_batch_that_is_filled_up_counts_as_much_as_it_is(bench: Bench) -> None:
    """At a learning rate of 0 every batch has the same loss and every answer is right, however many samples are repeated."""
    source = flat(ZEROS + "\nweighed = 0.0", COUNTED + "\nweighed += loss.item() * a.size(0)", "n = len(loader.dataset)")
    source = (
        source.replace("(x.sum(1) > 0).long()", "torch.zeros(85).long()")
        .replace("x = torch.randn(96, 6", "x = torch.zeros(85, 6")
        .replace(", generator=torch.Generator().manual_seed(1))", ")")
    )
    source = source.replace("lr=0.2)", "lr=0.0)\nnn.init.zeros_(model[2].weight)\nnn.init.zeros_(model[2].bias)")
    source += "    print(f'{weighed / n:.5f} {100 * correct / n:.3f} {correct / total:.4f} {running / (i + 1):.5f}')\n"
    result = convert(source, ASKED, "train.py")
    assert not [d.message for d in result.diagnostics if d.id == "S2A733"]
    plain = launch.run(bench.warm, source.encode(), [("16",)], bench.folder("uneven"))
    two = launch.run(bench.warm, result.after, [("8",)], bench.folder("uneven-two"), processes=2)
    assert not plain.code and not two.code, two.complaint()
    assert "0.69315 100.000 1.0000 0.69315" in plain.ranks[0].out and plain.ranks[0].out == two.ranks[0].out


@pytest.mark.parametrize("name", ["counts", "steps from sizes", "counted by the batch size", "over the dataset"])
def test_ranks_that_share_a_batch(bench: Bench, name: str) -> None:
    case = replace(named("digits_argparse"), argv=(), argv_two=None, files=(), metric=r".+")
    result = convert(SHOWN[name], Options(reduce_train_metrics=True, batch="global"), "train.py")
    assert result.outcome is Outcome.CONVERTED and not [d.message for d in result.diagnostics if d.id == "S2A733"]
    fixed = launch.run(bench.warm, SHOWN[name].encode(), [("16",)], bench.folder("fixed"), fixed_order=True)
    two = launch.run(bench.warm, result.after, [("16",)], bench.folder("two"), processes=2, fixed_order=True)
    assert not (found := compare.processes(case, fixed, two)), "\n".join(found)


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_followed_is_left_and_said(name: str) -> None:
    result = convert(LEFT[name], ASKED, "train.py")
    assert [d.id for d in result.diagnostics].count("S2A733") == 1, result.diagnostics
    assert b"joint_" not in result.after
