"""The roles that a user can teach, and which base class stands for which of them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from script2accel.knowledge import torch as names

ROLES: Mapping[str, str] = {
    "model": "a torch.nn.Module",
    "criterion": "what computes a loss",
    "optimizer": "a torch.optim.Optimizer",
    "scheduler": "a learning rate scheduler",
    "loader": "a torch.utils.data.DataLoader",
    "dataset": "what a loader reads",
    "sampler": "what orders a loader's samples",
    "batch": "what a loader gives",
    "output": "what a model gives",
    "loss": "what is backpropagated",
    "ema": "an averaged copy of a model",
    "writer": "an experiment tracker",
}
"""Role -> what an object of it is."""
TABLE = "[tool.script2accel.roles]"
SAME_KIND = (frozenset({"model", "criterion", "ema"}), frozenset({"output", "loss"}))
"""Roles between which the user decides: the analysis tells them apart by what is done with an object."""
ONLY_OF_TORCH = frozenset({"model", "optimizer", "loader"})
"""Roles whose objects prepare takes if they are torch's, and passes over in silence if they aren't."""
BASES: Mapping[re.Pattern[str], frozenset[str]] = {
    names.MODULE_BASE: frozenset({"model", "criterion", "ema"}),
    names.DATASET_BASE: frozenset({"dataset"}),
    names.LOADER_BASE: frozenset({"loader"}),
    names.SAMPLER_BASE: frozenset({"sampler"}),
    names.OPTIMIZER_BASE: frozenset({"optimizer"}),
    names.SCHEDULER_BASE: frozenset({"scheduler"}),
}
"""Pattern of torch's base classes -> the roles that a class of the user's stands for as they do."""


def hint(role: str, what: str = "") -> str:
    """What to do where an object of a role isn't known to be one, as a part of a sentence; nothing where `what` makes it isn't named."""
    return f" (or, if {what} is {ROLES[role]}, say so: `# s2a: {role}` at the end of its line, or an entry in {TABLE})" if what else ""


def listed() -> str:
    """The roles, for a message."""
    return ", ".join(ROLES)
