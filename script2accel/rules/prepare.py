"""Prepare what trains, in one call: models, optimizers, loaders, in that order, under their own names.

prepare wraps the model for gradient synchronisation, shards the loaders over the ranks and places batches. Schedulers are not
prepared: a prepared one steps once per process at each call (measured), and an unprepared one, its horizon computed behind
prepare, is exact under every strategy. Losses without parameters, frozen modules and copies of the model are not prepared either.
Left alone when everything is prepared already.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#prepare-pytorch-objects
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import CannotEditError, add_before, add_behind
from script2accel.change.plan import Change
from script2accel.decisions import Decisions, Prepare
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A201", "prepare"
LAYOUT = Message("S2A211", Severity.ERROR, "prepare must stand here, and the line holds several statements", "put each statement on a line of its own and convert again")
EVERY_RANK = Message("S2A212", Severity.NOTE, "this evaluation runs whole on every rank, over the unprepared loader: {why}", "")
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    yield from (p for p in decisions.plan.problems if p.path in ("", facts.source.path))
    for prepare in decisions.plan.prepares:
        if facts.source.root(prepare.anchor) is not facts.source.tree:
            continue
        try:
            yield _change(facts, decisions, prepare)
        except CannotEditError:
            yield LAYOUT.at(prepare.anchor.lineno)
    for plan in decisions.plan.every_rank:
        if facts.source.root(plan.loop.loop) is facts.source.tree:
            yield EVERY_RANK.at(plan.loop.loop.lineno, plan.loop.loop.col_offset + 1, why=plan.why)


def _change(facts: Facts, decisions: Decisions, prepare: Prepare) -> Change:
    paths = list(dict.fromkeys(path for path, _ in prepare.items))
    call = f"{decisions.accelerator(prepare.anchor)}.prepare"
    joined = ", ".join(paths)
    code = f"{joined} = {call}({joined})"
    if len(code) > 110:
        lines = ",\n\t".join(paths)
        code = f"{joined} = {call}(\n\t{lines},\n)"
    add = add_behind if prepare.behind else add_before
    return Change(CODE, NAME, "models, optimizers and loaders go through prepare, once, before their first use", prepare.anchor.lineno, add(facts.source, prepare.anchor, code), source="R03")
