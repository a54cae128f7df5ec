"""What a run left behind: the record of every rank, its output, the files in its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Step:
    """One optimizer step: learning rates, checksum of the parameters, how far each has moved, projections of each."""

    optimizer: int
    lrs: tuple[float, ...]
    crc: int
    moved: tuple[float, ...]
    marks: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Rank:
    """One process of a run. `last` are checksums of the trained parameters when it ended: a rank may load what another hasn't."""

    losses: tuple[float | None, ...]
    steps: tuple[Step, ...]
    writes: tuple[str, ...]
    processes: int
    accelerated: bool
    last: tuple[int, ...]
    out: str
    err: str


@dataclass(frozen=True)
class Run:
    """One script, run to its end (`code` 0) or not, with all its ranks."""

    code: int
    folder: Path
    ranks: tuple[Rank, ...]
    said: str = ""
    laid: frozenset[str] = frozenset()

    @cached_property
    def files(self) -> dict[str, Path]:
        """The files that the script left, by relative path; not those that were `laid` there for it."""
        found = (path for path in self.folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        return {name: path for path in sorted(found) if (name := path.relative_to(self.folder).as_posix()) not in self.laid}

    def complaint(self) -> str:
        """The last lines of what went wrong."""
        return "\n".join([self.said[-400:], *(f"[rank {n}] {rank.err[-400:]}" for n, rank in enumerate(self.ranks))]).strip()


def read_rank(folder: Path, number: int) -> Rank:
    """The record of one process; empty when it never got so far."""
    path = folder / f"rank{number}.jsonl"
    events = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    kinds: dict[str, list[dict[str, Any]]] = {"backward": [], "step": [], "write": [], "end": []}
    for event in events:
        kinds[event.pop("event")].append(event)
    steps = tuple(Step(s["optimizer"], tuple(s["lrs"]), s["crc"], tuple(s["moved"]), tuple(map(tuple, s["marks"]))) for s in kinds["step"])
    out, err = (read_text(folder / f"rank{number}.{ending}") for ending in ("out", "err"))
    return Rank(
        losses=tuple(b["loss"] for b in kinds["backward"]),
        steps=steps,
        writes=tuple(str(w["path"]) for w in kinds["write"]),
        processes=min((int(str(e["processes"])) for e in kinds["end"]), default=0),
        accelerated=bool(kinds["end"]) and all(e["accelerate"] for e in kinds["end"]),
        last=tuple(crc for e in kinds["end"] for crc in e["crcs"]),
        out=out,
        err=err,
    )


def read_text(path: Path) -> str:
    """A text file's content, or nothing."""
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
