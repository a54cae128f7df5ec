"""Gather what an evaluation loop counts, batch by batch.

Right behind the model's forward, `gather_for_metrics` collects the result and the targets of all ranks and drops the samples that were repeated to
fill the last batch, so that every counter, list and `len(loader.dataset)` below means what it meant.
Left alone when the loop can't be gathered safely: then each rank runs the whole evaluation over the unprepared loader.
Source: https://huggingface.co/docs/accelerate/quicktour#distributed-evaluation
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import CannotEditError, add_behind
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A701", "gather"
LAYOUT = Message("S2A711", Severity.ERROR, "the result must be gathered behind this line, which holds several statements", "put each statement on a line of its own and convert again")
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for gather in decisions.plan.gathers:
        if facts.source.root(gather.statement) is not facts.source.tree:
            continue
        joined = ", ".join(gather.names)
        code = f"{joined} = {decisions.accelerator(gather.statement)}.gather_for_metrics(({joined}))"
        try:
            edits = add_behind(facts.source, gather.statement, code)
        except CannotEditError:
            yield LAYOUT.at(gather.statement.lineno)
            continue
        yield Change(CODE, NAME, "metrics over all ranks' samples, each counted once", gather.statement.lineno, edits, source="R39")
