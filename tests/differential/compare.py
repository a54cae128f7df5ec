"""Judges a conversion by two runs: what differs, one line each; nothing when they make the same training."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.differential.cases import Case
from tests.differential.trace import Rank, Run, Step

NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|\bnan\b|\binf\b")
RANDOM = frozenset({"rng"})  # keys under which fixtures keep random states: each rank has its own in the folder
SHOWN = 4  # differences of one kind that are told


@dataclass(frozen=True)
class Tolerance:
    """How far two processes may be from one: summation order, nothing else.

    `losses` is relative to the loss; `parameters` is relative to how far the parameters have moved since the start, since their size would hide a
    halved learning rate; `metrics` and `files` are relative to the number, with `files_floor` for numbers near zero.
    Measured on the fixtures: right conversions reach 1.1e-6 (losses) and 6.3e-5 (parameters: a key bias, whose gradient is noise); of the planted
    errors that change the training, the smallest deviations are 2.5e-4 and 4.9e-2.
    """

    losses: float = 1e-5
    parameters: float = 1e-3
    lrs: float = 1e-9
    metrics: float = 1e-4
    files: float = 1e-4
    files_floor: float = 1e-5

    def given(self, values: Mapping[str, float]) -> Tolerance:
        """With a case's own numbers."""
        return replace(self, **values)


@dataclass(frozen=True)
class Distance:
    """The largest deviations seen, each in its own unit (for choosing tolerances)."""

    losses: float = 0.0
    parameters: float = 0.0


def one_process(case: Case, plain: Run, converted: Run) -> list[str]:
    """Original and conversion, one process each: bit for bit."""
    return list(_ran(plain, converted, 1)) or [
        *_few("losses", _losses_equal(plain.ranks[0], converted.ranks[0])),
        *_few("optimizer steps", _steps_equal(plain.ranks[0], converted.ranks[0])),
        *(["the parameters at the end differ"] if plain.ranks[0].last != converted.ranks[0].last else []),
        *_few("printed lines", _lines_equal(plain.ranks[0].out, converted.ranks[0].out)),
        *_few("files", _files(case, plain, converted, None)),
    ]


def processes(case: Case, plain: Run, converted: Run, tolerance: Tolerance | None = None) -> list[str]:
    """Original at one process, conversion at several with the batch divided: the same training up to summation order."""
    bounds = (tolerance or Tolerance()).given(case.tolerance)
    return list(_ran(plain, converted, len(converted.ranks))) or [
        *_few("losses", _losses_near(plain, converted, bounds)),
        *_few("optimizer steps", _steps_near(plain.ranks[0], converted.ranks[0], bounds)),
        *_few("ranks", _ranks_agree(converted)),
        *_few("metric lines", _metrics(case, plain, converted, bounds)),
        *_few("writers", _one_writer(converted)),
        *_few("files", _files(case, plain, converted, bounds)),
    ]


def engine(case: Case, plain: Run, converted: Run, tolerance: Tolerance) -> list[str]:
    """As `processes`, for an engine whose optimizer steps parts that no parameter shows: steps are compared by their learning rates, weights by the
    losses that they give and by the files."""
    bounds = tolerance.given(case.tolerance)
    return list(_ran(plain, converted, len(converted.ranks))) or [
        *_few("losses", _losses_near(plain, converted, bounds)),
        *_few("optimizer steps", _rates_near(plain, converted, bounds)),
        *_few("metric lines", _metrics(case, plain, converted, bounds)),
        *_few("writers", _one_writer(converted)),
        *_few("files", _files(case, plain, converted, bounds)),
    ]


def ranks_alone(plain: Run, converted: Run) -> list[str]:
    """What holds for several processes even where the training can't be compared with one: ranks equal, one writer, the same files."""
    found = list(_ran(plain, converted, len(converted.ranks))) or [*_few("ranks", _ranks_agree(converted)), *_few("writers", _one_writer(converted))]
    for number, rank in enumerate(converted.ranks):
        if len(rank.steps) != len(plain.ranks[0].steps):
            found.append(f"rank {number} made {len(rank.steps)} optimizer steps, the original {len(plain.ranks[0].steps)}")
    written = _written(plain, converted)
    if plain.files.keys() != written:
        found.append(f"files {sorted(plain.files)}, and {sorted(written)}")
    return found


def reduced_precision(plain: Run, converted: Run, precision: str) -> list[str]:
    """Original in fp32, conversion in fp16 or bf16 on one GPU: it trains, from the same start, in the same direction, and writes the same files.

    fp16 may skip optimizer steps while its scale settles; nothing else may be missing.
    """
    first, other = plain.ranks[0], converted.ranks[0]
    found = list(_ran(plain, converted, 1))
    if found:
        return found
    if len(first.losses) != len(other.losses):
        found.append(f"{len(first.losses)} backward passes, and {len(other.losses)}")
    if not all(loss is not None and math.isfinite(loss) for loss in other.losses):
        found.append("a loss isn't finite")
    elif first.losses and not _near(first.losses[0], other.losses[0], 0.05):
        found.append(f"the first loss is {first.losses[0]}, and {other.losses[0]}")
    skipped = len(first.steps) - len(other.steps)
    if skipped < 0 or skipped > (3 if precision == "fp16" else 0):
        found.append(f"{len(first.steps)} optimizer steps, and {len(other.steps)}")
    if not other.steps or (skipped == 0 and _deviation(first.steps[-1], other.steps[-1]) > 0.5):
        found.append("the parameters went elsewhere")
    if plain.files.keys() != converted.files.keys():
        found.append(f"files {sorted(plain.files)}, and {sorted(converted.files)}")
    return found


def distance(plain: Run, converted: Run) -> Distance:
    """How far apart the two runs are, whatever is allowed."""
    first = plain.ranks[0]
    losses = [_relative(p, m) for p, m in zip(first.losses, _mean_losses(converted), strict=False) if p is not None and m is not None]
    steps = [_deviation(a, b) for a, b in zip(first.steps, converted.ranks[0].steps, strict=False)]
    return Distance(max(losses, default=0.0), max(steps, default=0.0))


def _few(kind: str, found: Iterator[str]) -> Iterator[str]:
    lines = list(found)
    yield from (f"{kind}: {line}" for line in lines[:SHOWN])
    if len(lines) > SHOWN:
        yield f"{kind}: and {len(lines) - SHOWN} more"


def _ran(plain: Run, converted: Run, count: int) -> Iterator[str]:
    if plain.code:
        yield f"the original ended with {plain.code}: {plain.complaint()}"
    if converted.code:
        yield f"the conversion ended with {converted.code}: {converted.complaint()}"
        return
    for number, rank in enumerate(converted.ranks):
        if not rank.accelerated or rank.processes != count:
            yield f"rank {number} ran as {rank.processes} process(es), accelerate {'used' if rank.accelerated else 'not used'}; expected {count}"
    if not plain.ranks[0].steps:
        yield "the original made no optimizer step: nothing is compared"


def _losses_equal(plain: Rank, converted: Rank) -> Iterator[str]:
    for number, (a, b) in enumerate(zip_longest(plain.losses, converted.losses)):
        if a != b and not (_nan(a) and _nan(b)):
            yield f"backward {number}: {a} and {b}"


def _steps_equal(plain: Rank, converted: Rank) -> Iterator[str]:
    for number, (a, b) in enumerate(zip_longest(plain.steps, converted.steps)):
        if a is None or b is None:
            yield f"step {number}: only in the {'conversion' if a is None else 'original'}"
        elif a.lrs != b.lrs:
            yield f"step {number}: learning rates {a.lrs} and {b.lrs}"
        elif a.crc != b.crc:
            yield f"step {number}: parameters differ by {_deviation(a, b):.1e} of their displacement"


def _lines_equal(plain: str, converted: str) -> Iterator[str]:
    for number, (a, b) in enumerate(zip_longest(plain.splitlines(), converted.splitlines()), 1):
        if a != b:
            yield f"line {number}: {a!r} and {b!r}"


def _mean_losses(run: Run) -> list[float | None]:
    means: list[float | None] = []
    for together in zip(*(rank.losses for rank in run.ranks), strict=False):
        known = [loss for loss in together if loss is not None]
        means.append(sum(known) / len(together) if len(known) == len(together) else None)
    return means


def _losses_near(plain: Run, converted: Run, bounds: Tolerance) -> Iterator[str]:
    expected = _mean_losses(plain)
    for number, rank in enumerate(converted.ranks):
        if len(rank.losses) != len(expected):
            yield f"rank {number} made {len(rank.losses)} backward passes, the original {len(expected)}"
    for number, (a, b) in enumerate(zip(expected, _mean_losses(converted), strict=False)):
        if not _near(a, b, bounds.losses):
            yield f"backward {number}: {a}, the ranks' mean {b}"


def _steps_near(plain: Rank, converted: Rank, bounds: Tolerance) -> Iterator[str]:
    if len(plain.steps) != len(converted.steps):
        yield f"{len(plain.steps)} in the original, {len(converted.steps)} on rank 0"
    for number, (a, b) in enumerate(zip(plain.steps, converted.steps, strict=False)):
        if len(a.lrs) != len(b.lrs) or not all(_near(x, y, bounds.lrs) for x, y in zip(a.lrs, b.lrs, strict=False)):
            yield f"step {number}: learning rates {a.lrs} and {b.lrs}"
        apart = _deviation(a, b)
        if not apart <= bounds.parameters:
            yield f"step {number}: parameters differ by {apart:.1e} of their displacement"


def _rates_near(plain: Run, converted: Run, bounds: Tolerance) -> Iterator[str]:
    expected = plain.ranks[0].steps
    for number, rank in enumerate(converted.ranks):
        if len(expected) != len(rank.steps):
            yield f"{len(expected)} in the original, {len(rank.steps)} on rank {number}"
        for at, (a, b) in enumerate(zip(expected, rank.steps, strict=False)):
            if len(a.lrs) != len(b.lrs) or not all(_near(x, y, bounds.lrs) for x, y in zip(a.lrs, b.lrs, strict=False)):
                yield f"step {at}: learning rates {a.lrs} and {b.lrs} on rank {number}"


def _ranks_agree(run: Run) -> Iterator[str]:
    first = run.ranks[0]
    for number, rank in enumerate(run.ranks[1:], 1):
        for at, (a, b) in enumerate(zip_longest(first.steps, rank.steps)):
            if a is None or b is None or a.lrs != b.lrs or a.crc != b.crc:
                apart = "missing" if a is None or b is None else f"{_deviation(a, b):.1e} of the displacement"
                yield f"ranks 0 and {number} differ after step {at} ({apart})"
                break
        else:
            if first.last != rank.last:
                yield f"ranks 0 and {number} differ at the end, after the last step"


def _metrics(case: Case, plain: Run, converted: Run, bounds: Tolerance) -> Iterator[str]:
    if not case.metric:
        return
    pattern = re.compile(case.metric)
    expected, got = ([m.group(0) for m in pattern.finditer(run.ranks[0].out)] for run in (plain, converted))
    if not expected:
        yield f"the original prints nothing like {case.metric!r}"
    for a, b in zip_longest(expected, got):
        if a is None or b is None or not _text_near(a, b, bounds.metrics):
            yield f"{a!r} and {b!r}"
    for number, rank in enumerate(converted.ranks[1:], 1):
        again = pattern.search(rank.out)
        if again:
            yield f"rank {number} prints it too: {again.group(0)!r}"


def _one_writer(run: Run) -> Iterator[str]:
    writers: dict[str, set[int]] = {}
    for number, rank in enumerate(run.ranks):
        for path in rank.writes:
            writers.setdefault(path, set()).add(number)
    for path, ranks in sorted(writers.items()):
        if len(ranks) > 1:
            yield f"{path} is written by ranks {sorted(ranks)}"


def _files(case: Case, plain: Run, converted: Run, bounds: Tolerance | None) -> Iterator[str]:
    for name in case.files:
        if name not in plain.files:
            yield f"the original doesn't write {name}"
    written = _written(plain, converted)
    if plain.files.keys() != written:
        yield f"{sorted(plain.files)} and {sorted(written)}"
    for name in sorted(plain.files.keys() - converted.files.keys()):
        parts = {inner: path for path_, path in converted.files.items() if (inner := path_.removeprefix(f"{name}/")) != path_}
        if parts:
            yield from (f"{name}: {difference}" for difference in _state(plain.files[name], parts, len(converted.ranks), bounds))
    for name in sorted(plain.files.keys() & converted.files.keys()):
        if bounds is None or name not in case.local_files:
            yield from (f"{name}: {difference}" for difference in _file(plain.files[name], converted.files[name], bounds, case.prefix))


def _written(plain: Run, converted: Run) -> set[str]:
    """What a conversion wrote, a folder that stands for a file of the original as one."""
    return {folder if (folder := name.rpartition("/")[0]) in plain.files else name for name in converted.files}


def _state(plain: Path, parts: Mapping[str, Path], ranks: int, bounds: Tolerance | None) -> Iterator[str]:
    """A saved table against a state's folder: each entry is a model's, an optimizer's, or a value; each rank's random numbers are there."""
    table = torch.load(plain, map_location="cpu", weights_only=False)
    values = torch.load(parts["values.pt"], map_location="cpu", weights_only=False) if "values.pt" in parts else {}
    states = [load_file(path) for name, path in sorted(parts.items()) if name.endswith(".safetensors")]
    states += [torch.load(path, map_location="cpu", weights_only=False) for name, path in sorted(parts.items()) if name.startswith("optimizer")]
    if len(table) != len(values) + len(states) + len(RANDOM & table.keys()):
        yield f"{list(table)}, and {list(values)} beside {len(states)} states"
    for key, value in table.items():
        if key in values:
            yield from _values(value, values[key], bounds, str(key))
        elif key not in RANDOM and all(any(_values(_in_order(value), _in_order(state), bounds, "")) for state in states):
            yield f"no state is the original's {key!r}"
    wanted = {f"random_states_{rank}.pkl" for rank in range(ranks)}
    if not wanted <= parts.keys():
        yield f"random states of some ranks are missing: {sorted(parts)}"


def _in_order(value: Any) -> Any:
    """A table with its keys in order: safetensors keeps none."""
    return dict(sorted(value.items())) if isinstance(value, Mapping) and all(isinstance(k, str) for k in value) else value


def _file(plain: Path, converted: Path, bounds: Tolerance | None, prefix: str) -> Iterator[str]:
    if plain.read_bytes()[:2] == b"PK":  # torch.save's container
        a, b = (torch.load(path, map_location="cpu", weights_only=False) for path in (plain, converted))
        yield from _values(_bare(a, prefix) if prefix else a, b, bounds, "")
    elif bounds is None:
        if plain.read_bytes() != converted.read_bytes():
            yield "bytes differ"
    elif not _text_near(plain.read_text(), converted.read_text(), bounds.files):
        yield "numbers differ" if plain.suffix != ".json" else f"{json.loads(plain.read_text())} and {json.loads(converted.read_text())}"


def _bare(value: Any, prefix: str) -> Any:
    """A checkpoint with the wrapper's prefix taken off its keys."""
    if isinstance(value, Mapping):
        return {key.removeprefix(prefix) if isinstance(key, str) else key: _bare(part, prefix) for key, part in value.items()}
    return value


def _values(a: Any, b: Any, bounds: Tolerance | None, at: str) -> Iterator[str]:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if a.shape != b.shape or a.dtype != b.dtype:
            yield f"{at}: {tuple(a.shape)} {a.dtype} and {tuple(b.shape)} {b.dtype}"
        elif bounds is None or not a.is_floating_point():
            if not torch.equal(a, b):
                yield f"{at}: tensors differ"
        elif not torch.allclose(a, b, rtol=bounds.files, atol=bounds.files_floor):
            yield f"{at}: tensors differ by {(a - b).abs().max():.1e}"
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        if list(a) != list(b):
            yield f"{at}: keys {list(a)} and {list(b)}"
        for key in a.keys() & b.keys():
            yield from _values(a[key], b[key], bounds, f"{at}.{key}" if at else str(key))
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b):
            yield f"{at}: {len(a)} and {len(b)} values"
        for number, (x, y) in enumerate(zip(a, b, strict=False)):
            yield from _values(x, y, bounds, f"{at}[{number}]")
    elif isinstance(a, float) and isinstance(b, float) and bounds is not None:
        if not _near(a, b, bounds.files):
            yield f"{at}: {a} and {b}"
    elif type(a) is not type(b) or a != b:
        yield f"{at}: {a!r} and {b!r}"


def _deviation(a: Step, b: Step) -> float:
    """How far apart the parameters are after a step, relative to their displacement from the start."""
    if len(a.marks) != len(b.marks):
        return math.inf
    apart = math.sqrt(sum((x - y) ** 2 for p, q in zip(a.marks, b.marks, strict=True) for x, y in zip(p, q, strict=True)) / len(a.marks[0]))
    moved = math.sqrt(sum(m * m for m in a.moved))
    return 0.0 if apart == 0 else apart / moved if moved else math.inf


def _text_near(a: str, b: str, tolerance: float) -> bool:
    """Whether two texts are equal but for small differences in their numbers (one unit of the last printed digit counts as small)."""
    if NUMBER.sub("#", a).split() != NUMBER.sub("#", b).split():
        return False
    return all(x == y or _printed_near(x, y, tolerance) for x, y in zip(NUMBER.findall(a), NUMBER.findall(b), strict=True))


def _printed_near(x: str, y: str, tolerance: float) -> bool:
    if "." not in x or "." not in y:
        return x == y  # counts
    digits = min(len(re.split("[eE]", n.split(".")[1])[0]) for n in (x, y))
    return _near(float(x), float(y), tolerance) or abs(float(x) - float(y)) <= 1.01 * 10.0**-digits


def _relative(a: float, b: float) -> float:
    return abs(a - b) / max(abs(a), abs(b), 1e-6)


def _near(a: float | None, b: float | None, tolerance: float) -> bool:
    if a is None or b is None:
        return a is b
    return (_nan(a) and _nan(b)) or a == b or _relative(a, b) <= tolerance


def _nan(value: float | None) -> bool:
    return value is not None and math.isnan(value)
