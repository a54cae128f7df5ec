"""Where the script seeds and where it draws."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from script2accel.analysis.facts import Facts, Function
from script2accel.knowledge import torch as names


@dataclass(frozen=True, eq=False)
class Seeding:
    """A call that seeds: which generator, with what expression."""

    call: ast.Call
    statement: ast.stmt
    what: str
    node: ast.expr
    text: str
    scope: Function


def seedings(facts: Facts) -> list[Seeding]:
    """Every seeding statement, in the order of the text (`all` for Accelerate's and transformers' set_seed)."""
    found = []
    for call in facts.calls:
        path = facts.path(call)
        what = names.SEED.get(path) or ("all" if path in ("accelerate.utils.set_seed", "transformers.set_seed", "transformers.trainer_utils.set_seed") else None)
        statement = facts.source.statement(call)
        if what and call.args and isinstance(statement, ast.Expr) and statement.value is call:
            found.append(Seeding(call, statement, what, call.args[0], facts.source.segment(call.args[0]), facts.function(call)))
    return found


def seeded(facts: Facts, what: str) -> bool:
    """Whether a generator (torch, numpy, random) is seeded anywhere."""
    return any(s.what in (what, "all") for s in seedings(facts))


def loop_draws(facts: Facts) -> list[ast.Call]:
    """Draws of torch noise inside training loops, outside of models, datasets and explicit generators."""
    found = []
    for call in facts.calls:
        if not names.RANDOM_FACTORY.match(facts.path(call)) or not facts.path(call).startswith("torch.") or facts.inside_class(call, facts.dataset_classes):
            continue
        if any(k.arg == "generator" for k in call.keywords):
            continue
        if facts.in_train_loop(call):
            found.append(call)
    return found


def setup_draws(facts: Facts) -> dict[str, ast.Call]:
    """The first draw of each generator outside of training loops, models and dataset classes: data that is made or split."""
    found: dict[str, ast.Call] = {}
    for call in facts.calls:
        path = facts.path(call)
        split = path in ("torch.utils.data.random_split", "torch.utils.data.dataset.random_split")
        if not split and not names.RANDOM_FACTORY.match(path):
            continue
        if facts.in_module(call) or facts.inside_class(call, facts.dataset_classes) or any(k.arg == "generator" for k in call.keywords):
            continue
        if any(loop in facts.training_loops for loop in facts.all_loops(call)):
            continue
        what = "torch" if path.startswith("torch.") else "numpy" if path.startswith("numpy.") else "random"
        found.setdefault(what, call)
    return found
