"""Rewrite plain PyTorch training scripts for Hugging Face Accelerate: the library API, loaded on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from script2accel.options import Options
    from script2accel.result import Result
    from script2accel.workflow.check import check
    from script2accel.workflow.convert import convert

__version__ = "0.1.0"
__all__ = ["Options", "Result", "__version__", "check", "convert"]

_HOMES = {
    "Options": "script2accel.options",
    "Result": "script2accel.result",
    "check": "script2accel.workflow.check",
    "convert": "script2accel.workflow.convert",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for, so that `--help` pays for none of them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
