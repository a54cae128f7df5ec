"""Where the differential tests run scripts: one warm process a test session, and the originals run once each."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import Path

from tests.differential import launch
from tests.differential.cases import Case
from tests.differential.trace import Run

Source = bytes | Mapping[str, bytes]


class Bench:
    """Runs originals and conversions in numbered folders below `scratch`."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch
        self.count = itertools.count()
        self.originals: dict[tuple[str, bool, bool, int], Run] = {}
        self.cold = launch.Cold()
        self.warm = self.cold if os.environ.get("S2A_DIFFERENTIAL") == "cold" else launch.Warm()

    def folder(self, name: str) -> Path:
        """A new folder for one run."""
        return self.scratch / f"{next(self.count):03}-{name}"

    def original(self, case: Case, *, fixed_order: bool = False, gpu: bool = False) -> Run:
        """The original, run once a session for each order of samples: at one process, or at several if it can and is compared with several."""
        processes = 2 if case.by_hand and fixed_order and not gpu else 1
        key = (case.name, fixed_order, gpu, processes)
        if key not in self.originals:
            launcher = self.cold if gpu else self.warm
            runs = case.runs(halved=False)
            fixed = fixed_order and not (case.by_hand or case.own_order)
            self.originals[key] = launch.run(
                launcher,
                case.texts,
                runs,
                self.folder(case.name),
                processes=processes,
                fixed_order=fixed,
                gpu=gpu,
                group=case.by_hand,
                beside=case.beside,
            )
        return self.originals[key]

    def one(self, case: Case, source: Source, *, fixed_order: bool = False, gpu: bool = False, precision: str | None = None) -> Run:
        """A conversion at one process."""
        launcher = self.cold if gpu else self.warm
        runs = case.runs(halved=False)
        return launch.run(launcher, source, runs, self.folder(case.name), fixed_order=fixed_order, gpu=gpu, precision=precision)

    def two(self, case: Case, source: Source, *, gpu: bool = False, cold: bool = False) -> Run:
        """A conversion at two processes, each with half the batch."""
        launcher = self.cold if gpu or cold else self.warm
        runs = case.runs(halved=True)
        return launch.run(
            launcher,
            source,
            runs,
            self.folder(case.name),
            processes=2,
            divide=case.divisor(2),
            fixed_order=not (case.by_hand or case.own_order),
            gpu=gpu,
        )

    def close(self) -> None:
        """Ends the warm process."""
        if isinstance(self.warm, launch.Warm):
            self.warm.close()
