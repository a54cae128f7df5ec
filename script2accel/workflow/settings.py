"""Options of one file: the table of the nearest script2accel.toml or pyproject.toml above it (`saved` says where); the flags win."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from script2accel.options import STRATEGIC, Options
from script2accel.workflow import saved


@dataclass
class Settings:
    """The flags of a command, and the tables read so far (one per folder)."""

    flags: Mapping[str, object]
    _tables: dict[str, Options] = field(default_factory=dict)

    def of(self, target: str) -> Options:
        """The options that hold for a file (for stdin, an empty path: for the current folder)."""
        options = self._table(os.path.realpath(os.path.dirname(target) or os.curdir))
        given = {name: value for name, value in self.flags.items() if value is not None}
        if given.keys() & set(STRATEGIC):  # another strategy than the saved one; the hardware stays what it is
            default = Options()
            given = {name: getattr(default, name) for name in STRATEGIC if name not in ("num_machines", "num_processes")} | given
        return replace(options, **given)  # type: ignore[arg-type]

    def _table(self, folder: str) -> Options:
        if folder not in self._tables:
            place, above = saved.file_in(folder), os.path.dirname(folder)
            if place is not None:
                self._tables[folder] = saved.options(saved.read(place))
            else:
                self._tables[folder] = Options() if above == folder else self._table(above)
        return self._tables[folder]
