"""Where the script seeds and where it draws."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import Facts, Function, View
from script2accel.knowledge import torch as names
from script2accel.source import walk


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
    known = facts.__dict__
    if "seedings" not in known:
        known["seedings"] = list(_seedings(facts))
    return known["seedings"]  # type: ignore[no-any-return]


def _seedings(facts: Facts) -> Iterator[Seeding]:
    for call in facts.calls:
        path = facts.path(call)
        what = names.SEED.get(path) or (
            "all" if path in ("accelerate.utils.set_seed", "transformers.set_seed", "transformers.trainer_utils.set_seed") else None
        )
        statement = facts.source.statement(call)
        if what and call.args and isinstance(statement, ast.Expr) and statement.value is call:
            yield Seeding(call, statement, what, call.args[0], facts.source.segment(call.args[0]), facts.function(call))


def seeded(facts: Facts, what: str) -> bool:
    """Whether a generator (torch, numpy, random) is seeded anywhere."""
    return any(s.what in (what, "all") for s in seedings(facts))


def loop_draws(facts: Facts) -> list[ast.Call]:
    """Draws of noise inside training loops, outside of models, datasets and explicit generators."""
    found = []
    for call in facts.calls:
        if not names.RANDOM_FACTORY.match(facts.path(call)) or facts.inside_class(call, facts.dataset_classes):
            continue
        if any(k.arg == "generator" for k in call.keywords):
            continue
        if facts.in_train_loop(call):
            found.append(call)
    return found


def drawn_by(facts: Facts, call: ast.Call) -> str:
    """The generator that a draw takes its numbers from: torch, numpy or random."""
    path = facts.path(call)
    return "torch" if path.startswith("torch.") else "numpy" if path.startswith("numpy.") else "random"


def alike(facts: Facts, draws: list[ast.Call]) -> list[Seeding]:
    """The seedings that make the ranks' draws the same; none where the generators of all draws are left as the system seeds them."""
    kinds = {"all", *(drawn_by(facts, call) for call in draws)}
    found = [s for s in seedings(facts) if s.what in kinds]
    return [] if any(_by_rank(facts, s.node) for s in found) else found


def _by_rank(facts: Facts, node: ast.expr) -> bool:
    """Whether a seed is computed from the process's place: the script sets its processes apart itself."""
    held = [facts.machine.at[n] for n in walk(node) if n in facts.machine.at]
    return any(facts.roles.of(o) == "rank" for value in held for o in value.objs)


def settled(facts: Facts, seeds: list[Seeding], anchor: ast.stmt) -> bool:
    """Whether all the seeding is done, once, before a statement runs."""
    order = facts.machine.order
    return all(not facts.all_loops(s.call) and order.get(s.statement, 0) < order.get(anchor, 0) for s in seeds)


@dataclass(frozen=True, eq=False)
class SetupDraw:
    """A draw that decides about the data: its generator, the call, the statement in front of which ranks must agree."""

    what: str
    call: ast.Call
    statement: ast.stmt


def setup_draws(facts: Facts) -> list[SetupDraw]:
    """The first draw of each generator that makes, splits or orders the data of a loader, outside of training loops."""
    found: dict[str, SetupDraw] = {}
    feeding = _feeding(facts)
    for call in facts.calls:
        path = facts.path(call)
        if not (names.RANDOM_FACTORY.match(path) or path in SPLITS) or any(k.arg == "generator" for k in call.keywords) or facts.in_train_loop(call):
            continue
        what = drawn_by(facts, call)
        dataset = facts.inside_class(call, facts.dataset_classes)
        if dataset is not None:
            statement = _made_at(facts, dataset) if getattr(facts.function(call), "name", "") == "__init__" else None
        else:
            statement = facts.source.statement(call) if path in SPLITS or path.endswith(".shuffle") or call in feeding else None
        if statement is not None:
            found.setdefault(what, SetupDraw(what, call, statement))
    return list(found.values())


SPLITS = frozenset({"torch.utils.data.random_split", "torch.utils.data.dataset.random_split", "sklearn.model_selection.train_test_split"})


def _feeding(facts: Facts) -> frozenset[ast.AST]:
    """Draws whose values a loader is made of, or training without one is computed from."""
    marks: frozenset[ast.AST] = frozenset()
    for train in facts.train_loops:
        for backward in train.backwards if not train.loaders else ():
            marks |= facts.machine.marks_of(backward.loss)
    for loader in facts.loaders:
        for value in (*loader.arguments, *loader.keywords.values()):
            marks |= value.marks
            for obj in value.objs:
                for inner in (*obj.arguments, *obj.keywords.values()):
                    marks |= inner.marks
    return marks


def _made_at(facts: Facts, dataset: ast.ClassDef) -> ast.stmt | None:
    """The first statement that makes an instance of a dataset class."""
    sites = [o.site for cls, objs in facts.machine.instances.items() if cls.site is dataset for o in objs if isinstance(o.site, ast.Call)]
    return facts.source.statement(min(sites, key=lambda site: site.lineno)) if sites else None


def module_name(facts: View, what: str) -> str | None:
    """How the script calls the module that draws."""
    if what == "torch":
        return "torch"
    wanted = "numpy" if what == "numpy" else "random"
    for (owner, name), value in facts.machine.store.items():
        if owner is facts.source.tree and any(o.kind == "external" and o.name == wanted for o in value.objs):
            return str(name)
    return None
