"""What a conversion costs, in ratios taken in one interleaved run (wall times of a busy machine mean little).

    python benchmarks/bench.py [--rounds 9] [--largest 20000]

Prints three tables: conversion of a 1000-line script against LibCST's parse + codegen of the same text; growth of time
and memory with the lines, for scripts of functions and for flat module-level ones; start-up of `--help` against
`import click`. Nothing fails by time: the numbers are for reading.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))  # measures this checkout, installed or not

FUNCTIONS = """
class Net{i}(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body{i} = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x):
        return self.body{i}(x)


def train{i}(args, model{i}, device, loader{i}, optimizer{i}, epoch):
    model{i}.train()
    total{i} = 0.0
    for step, (data, target) in enumerate(loader{i}):
        data, target = data.to(device), target.to(device)
        optimizer{i}.zero_grad()
        output = model{i}(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer{i}.step()
        total{i} += loss.item()
        if step % args.log_interval == 0:
            print("epoch {{}} [{{}}/{{}}] loss {{:.4f}}".format(epoch, step, len(loader{i}), loss.item()))


def test{i}(model{i}, device, loader{i}):
    model{i}.eval()
    correct = 0
    with torch.no_grad():
        for data, target in loader{i}:
            data, target = data.to(device), target.to(device)
            output = model{i}(data)
            correct += output.argmax(dim=1).eq(target).sum().item()
    print("accuracy {{:.2f}}".format(100.0 * correct / len(loader{i}.dataset)))


def run{i}(args, device):
    full{i} = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
    loader{i} = DataLoader(full{i}, batch_size=8, shuffle=True)
    valid{i} = DataLoader(full{i}, batch_size=16)
    model{i} = Net{i}(32).to(device)
    optimizer{i} = optim.AdamW(model{i}.parameters(), lr=args.lr)
    scheduler{i} = optim.lr_scheduler.StepLR(optimizer{i}, step_size=1, gamma=0.9)
    for epoch in range(args.epochs):
        train{i}(args, model{i}, device, loader{i}, optimizer{i}, epoch)
        test{i}(model{i}, device, valid{i})
        scheduler{i}.step()
    torch.save(model{i}.state_dict(), "model{i}.pt")
"""

FLAT = """
full{i} = TensorDataset(torch.randn(64, 8), torch.randint(0, 2, (64,)))
loader{i} = DataLoader(full{i}, batch_size=8, shuffle=True)
valid{i} = DataLoader(full{i}, batch_size=16)
model{i} = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
criterion{i} = nn.CrossEntropyLoss()
optimizer{i} = optim.SGD(model{i}.parameters(), lr=0.1, momentum=0.9)
scheduler{i} = optim.lr_scheduler.StepLR(optimizer{i}, step_size=1)
for epoch{i} in range(2):
    running{i} = 0.0
    for inputs{i}, labels{i} in loader{i}:
        inputs{i}, labels{i} = inputs{i}.to(device), labels{i}.to(device)
        optimizer{i}.zero_grad()
        outputs{i} = model{i}(inputs{i})
        loss{i} = criterion{i}(outputs{i}, labels{i})
        loss{i}.backward()
        optimizer{i}.step()
        running{i} += loss{i}.item()
    scheduler{i}.step()
    print(epoch{i}, running{i} / len(loader{i}))
correct{i} = 0
with torch.no_grad():
    for inputs{i}, labels{i} in valid{i}:
        outputs{i} = model{i}(inputs{i}.to(device))
        correct{i} += outputs{i}.argmax(1).eq(labels{i}.to(device)).sum().item()
print("accuracy", correct{i} / len(valid{i}.dataset))
torch.save(model{i}.state_dict(), "model{i}.pt")
"""

HEAD = """import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(1)
"""


def functions_script(lines: int) -> str:
    """A script of about so many lines: runs of one training in functions, each with its own names, called from `main`."""
    count = max(1, (lines - 20) // (FUNCTIONS.count("\n") + 1))
    calls = "\n".join(f"    run{i}(args, device)" for i in range(count))
    body = "".join(FUNCTIONS.format(i=i) for i in range(count))
    return f"""{HEAD}{body}

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--log-interval", type=int, default=4)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
{calls}


if __name__ == "__main__":
    main()
"""


def flat_script(lines: int) -> str:
    """A script of about so many lines without a function: one training after the other at module level."""
    count = max(1, (lines - 10) // FLAT.count("\n"))
    body = "".join(FLAT.format(i=i) for i in range(count))
    return f'{HEAD}\ndevice = torch.device("cuda" if torch.cuda.is_available() else "cpu")\n{body}'


SHAPES: dict[str, Callable[[int], str]] = {"functions": functions_script, "flat": flat_script}


def clock(work: Callable[[bytes], object], data: bytes) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    work(data)
    return time.process_time() - start


def against_libcst(rounds: int) -> list[tuple[str, ...]]:
    """Rows (shape, lines, changes, convert ms, libcst ms, ratio, spread): both measured in turn, in one process."""
    import libcst

    from script2accel import convert

    def round_trip(data: bytes) -> bytes:
        return libcst.parse_module(data).bytes

    rows: list[tuple[str, ...]] = [("shape", "lines", "outcome", "changes", "convert ms", "parse+codegen ms", "ratio", "ratios")]
    for shape, make in SHAPES.items():
        text = make(1000)
        data = text.encode()
        result = convert(data)
        round_trip(data)  # warm both
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(clock(convert, data))
            theirs.append(clock(round_trip, data))
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        rows.append(
            (
                shape,
                str(text.count("\n")),
                result.outcome.value,
                str(len(result.changes)),
                f"{1000 * statistics.median(ours):.1f}",
                f"{1000 * statistics.median(theirs):.1f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} - {max(ratios):.2f}",
            )
        )
    return rows


def peak() -> int:
    """The most memory that this process held so far, in KB; what its parent held doesn't count (as it does in `ru_maxrss`)."""
    with contextlib.suppress(OSError, StopIteration):
        return int(next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


CHILD = """
import json, sys, time
sys.path.insert(0, {folder!r})
import bench
from script2accel import convert
convert(b"import torch\\n")
data = bench.SHAPES[{shape!r}]({lines}).encode()
base = bench.peak()
start = time.process_time()
result = convert(data)
spent = time.process_time() - start
print(json.dumps([data.count(b"\\n"), len(result.changes), spent, base / 1024, bench.peak() / 1024]))
"""


def growth(rounds: int, largest: int) -> list[tuple[str, ...]]:
    """Rows (shape, lines, changes, seconds, µs per line, MB above the start, KB per line); a process each, rounds interleaved."""
    sizes = [size for size in (1000, 5000, 20000) if size < largest] + [largest]
    cells: dict[tuple[str, int], list[list[float]]] = {}
    for _ in range(rounds):
        for shape in SHAPES:
            for size in sizes:
                code = CHILD.format(folder=str(HERE), shape=shape, lines=size)
                done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
                cells.setdefault((shape, size), []).append(json.loads(done.stdout))
    rows: list[tuple[str, ...]] = [("shape", "lines", "changes", "s", "µs/line", "MB", "KB/line")]
    for (shape, _), runs in cells.items():
        lines, changes = int(runs[0][0]), int(runs[0][1])
        spent = statistics.median(run[2] for run in runs)
        memory = statistics.median(run[4] - run[3] for run in runs)
        rows.append((shape, str(lines), str(changes), f"{spent:.2f}", f"{1e6 * spent / lines:.0f}", f"{memory:.0f}", f"{1024 * memory / lines:.1f}"))
    return rows


def start_up(rounds: int) -> list[tuple[str, ...]]:
    """Rows (command, user+system ms, ratio to `import click`): processes in turn."""
    commands = {
        "python -c 'import click'": [sys.executable, "-c", "import click"],
        "script2accel --help": [sys.executable, "-m", "script2accel", "--help"],
        "python -c 'import libcst'": [sys.executable, "-c", "import libcst"],
    }
    script = Path(sys.executable).with_name("script2accel")
    if script.exists():
        commands["script2accel --help"] = [str(script), "--help"]
    spent: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds + 1):
        for name, command in commands.items():
            before = os.times()
            subprocess.run(command, check=True, capture_output=True, cwd=HERE.parent)
            after = os.times()
            spent[name].append(after.children_user + after.children_system - before.children_user - before.children_system)
    base = statistics.median(spent["python -c 'import click'"][1:])
    rows: list[tuple[str, ...]] = [("command", "CPU ms", "ratio")]
    for name, times in spent.items():
        median = statistics.median(times[1:])  # the first round fills the caches
        rows.append((name, f"{1000 * median:.0f}", f"{median / base:.2f}"))
    return rows


def table(title: str, rows: list[tuple[str, ...]]) -> None:
    """Print rows in aligned columns."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    print(f"\n{title}")
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9, help="runs of each cell, of which the median is shown")
    parser.add_argument("--largest", type=int, default=20000, help="lines of the largest script")
    args = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {args.rounds} interleaved rounds")
    table("conversion of 1000 lines against LibCST's parse + codegen of the same text", against_libcst(args.rounds))
    table("growth (CPU time and peak memory above an idle process)", growth(max(1, args.rounds // 3), args.largest))
    table("start-up", start_up(args.rounds))


if __name__ == "__main__":
    main()
