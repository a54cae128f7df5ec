"""Options of one file: the table of the nearest script2accel.toml or pyproject.toml above it (`saved` says where); the flags win."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from script2accel.errors import SourceError, UsageError
from script2accel.options import Options
from script2accel.workflow import files

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass
class Settings:
    """The flags of a command, and the tables read so far (one per folder)."""

    flags: Mapping[str, object]
    _tables: dict[str, Options] = field(default_factory=dict)

    def of(self, target: str) -> Options:
        """The options that hold for a file (for stdin, an empty path: for the current folder)."""
        options = self._table(os.path.realpath(os.path.dirname(target) or os.curdir))
        given = {name: value for name, value in self.flags.items() if value is not None}
        return replace(options, **given)  # type: ignore[arg-type]

    def _table(self, folder: str) -> Options:
        if folder not in self._tables:
            place, above = os.path.join(folder, "pyproject.toml"), os.path.dirname(folder)
            if os.path.lexists(place):
                self._tables[folder] = _options(place)
            else:
                self._tables[folder] = Options() if above == folder else self._table(above)
        return self._tables[folder]


def _options(place: str) -> Options:
    try:
        document = tomllib.loads(files.read(place).data.decode("utf-8"))
    except SourceError as error:
        raise UsageError(str(error)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{place}: not valid TOML: {error}") from None
    tool = document.get("tool", {})
    table = tool.get("script2accel", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        raise UsageError(f"{place}: `tool.script2accel` must be a table")
    try:
        return Options.from_mapping(table)
    except UsageError as error:
        raise UsageError(f"{place}: [tool.script2accel]: {error}") from None
