"""Let every rank make the same data.

Data that is drawn or split without a seed comes out differently on each rank: samples of the one's training part land in the other's validation part (measured).
The ranks take over the first one's random state at the birth of the accelerator; with one process nothing changes.
Left alone when the script seeds that generator, or draws with a generator of its own.
Source: https://huggingface.co/docs/accelerate/package_reference/utilities
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.analysis.randomness import seeded, setup_draws
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A207", "same-draw"
UNSEEDED = Message(
    "S2A217",
    Severity.ERROR,
    "{what} is drawn here without a seed: each rank would draw its own data",
    "seed it at the start of the script, and convert again",
)
STATES = {
    "torch": ('synchronize_rng_states(["torch"])', "synchronize_rng_states"),
    "numpy": ("{module}.random.set_state(broadcast_object_list([{module}.random.get_state()])[0])", "broadcast_object_list"),
    "random": ("{module}.setstate(broadcast_object_list([{module}.getstate()])[0])", "broadcast_object_list"),
}
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for what, call in setup_draws(facts).items():
        if seeded(facts.program, what) or not _matters(facts, decisions):
            continue
        statement = facts.source.statement(call)
        module = _module_name(facts, what)
        if module is None or facts.in_module(call) or facts.loops(call):
            yield UNSEEDED.at(call.lineno, call.col_offset + 1, what=f"`{facts.source.segment(call.func)}`")
            continue
        code, name = STATES[what]
        decisions.accelerator(statement)
        try:
            edits = merge([add_before(facts.source, statement, code.format(module=module), rank=-5), ensure_import(facts.source, "accelerate.utils", name)])
        except CannotEditError:
            yield UNSEEDED.at(call.lineno, call.col_offset + 1, what=f"`{facts.source.segment(call.func)}`")
            continue
        yield Change(CODE, NAME, "drawn without a seed: every rank takes the first one's random state, so that all make the same data", call.lineno, edits, source="R83")


def _matters(facts: Facts, decisions: Decisions) -> bool:
    return bool(decisions.plan.prepares)


def _module_name(facts: Facts, what: str) -> str | None:
    """How the script calls the module that draws."""
    if what == "torch":
        return "torch"
    wanted = "numpy" if what == "numpy" else "random"
    for (owner, name), value in facts.machine.store.items():
        if owner is facts.source.tree and any(o.kind == "external" and o.name == wanted for o in value.objs):
            return str(name)
    return None
