"""Every module here is one rule: CODE, NAME, messages, EXAMPLES and `rewrite(facts, decisions)`. They are found, not listed."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def load() -> list[ModuleType]:
    """The rule modules, in the order of their codes."""
    found = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    return sorted(found, key=lambda rule: str(rule.CODE))
