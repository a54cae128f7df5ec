"""Show that what trains is prepared.

Over the run as it will be: every training loop reads a prepared loader, every forward pass in it calls a prepared model, every step is a prepared optimizer's, no scheduler that
steps per epoch is prepared, and no evaluation reads a prepared loader without gathering. What can't be shown is refused.
Left alone when all of it holds.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#prepare-pytorch-objects
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import EvalLoop, Facts
from script2accel.analysis.values import NOTHING
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A220", "proof"
LOADER = Message("S2A221", Severity.ERROR, "this training loop reads a loader that isn't prepared: every rank would see all the data", "prepare the loader in front of the loop, under the name that the loop reads")
MODEL = Message("S2A222", Severity.ERROR, "`{text}` trains a model that isn't prepared: its gradients would not be synchronised", "prepare the model before it is handed on, under the name that is called here")
OPTIMIZER = Message("S2A223", Severity.ERROR, "`{text}` steps an optimizer that isn't prepared", "prepare the optimizer together with its model")
ONE_RANK = Message("S2A225", Severity.ERROR, "this evaluation reads a prepared loader and gathers nothing: its numbers would be one rank's ({why})", "gather predictions and targets with `accelerator.gather_for_metrics`, or evaluate over a loader that isn't prepared")
SCHEDULER = Message("S2A226", Severity.ERROR, "this scheduler is prepared: it would step once per process at each call (measured)", "leave the scheduler out of prepare")
EXAMPLES: list[tuple[str, str | None]] = []
AGREEING = frozenset({"gather", "gather_for_metrics", "reduce", "gather_object"})


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if decisions.plan.problems:  # refused already: what isn't prepared follows from it
        return
    for loop in facts.train_loops:
        for loader in loop.loaders:
            if ("iterated", loop.loop) in facts.machine.uses.get(loader, ()):
                yield LOADER.at(loop.loop.lineno, loop.loop.col_offset + 1)
    trained = set(facts.models)
    for forward in facts.forwards:
        raw = [o for o in facts.machine.at.get(forward.call.func, NOTHING).objs if o in trained and o.kind != "prepared"]
        if raw and not quiet(facts, forward.call) and facts.in_train_loop(forward.call) and not _unwrapped(forward.call):
            yield MODEL.at(forward.call.lineno, forward.call.col_offset + 1, text=facts.source.segment(forward.call.func))
    for step in facts.optimizer_steps:
        assert isinstance(step.call.func, ast.Attribute)
        if any(o.kind != "prepared" and facts.roles.of(o) == "optimizer" for o in facts.machine.at[step.call.func.value].objs):
            yield OPTIMIZER.at(step.call.lineno, step.call.col_offset + 1, text=facts.source.segment(step.call))
    gathered = {g.loop.loop for g in decisions.plan.gathers}
    for evaluation in facts.eval_loops:
        if evaluation.loop not in gathered and _reads_prepared(facts, evaluation) and not _agrees(facts, evaluation):
            why = next((p.why for p in decisions.plan.every_rank if p.loop.loop is evaluation.loop), "no gather")
            yield ONE_RANK.at(evaluation.loop.lineno, evaluation.loop.col_offset + 1, why=why)
    for step in facts.scheduler_steps:
        assert isinstance(step.call.func, ast.Attribute)
        if any(o.kind == "prepared" for o in facts.machine.at[step.call.func.value].objs):
            yield SCHEDULER.at(step.call.lineno, step.call.col_offset + 1)


def _unwrapped(call: ast.Call) -> bool:
    return "unwrap_model" in ast.unparse(call.func)


def _reads_prepared(facts: Facts, evaluation: EvalLoop) -> bool:
    return any(("iterated", evaluation.loop) in uses for obj, uses in facts.machine.uses.items() if obj.kind == "prepared" and obj.inner in evaluation.loaders and facts.roles.of(obj) == "loader")


def _agrees(facts: Facts, evaluation: EvalLoop) -> bool:
    return any(
        isinstance(call.func, ast.Attribute) and call.func.attr in AGREEING and facts.inside(evaluation.loop, call) or facts.path(call) == "accelerate.utils.gather_object"
        for call in facts.calls
    )
