"""Show one progress bar.

`tqdm(...)` gets `disable=not accelerator.is_local_main_process`; an own `disable` is kept beside it.
Left alone in classes without an accelerator, and where it is there already.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/execution#execute-on-one-process
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import add_argument, wrap_expression
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic
from script2accel.knowledge import torch as names

CODE, NAME = "S2A704", "progress-bar"
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        path = facts.path(call)
        if not names.PROGRESS.match(path) or path.startswith("progress.") or facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue
        if not decisions.may_ask(call):
            continue
        if decisions.method_of(call) and not decisions.is_global(call) and not decisions.class_has(call):
            continue
        own = next((k.value for k in call.keywords if k.arg == "disable"), None)
        if own is not None and "main_process" in facts.source.segment(own):
            continue
        quiet = f"not {decisions.accelerator(call)}.is_local_main_process"
        edits = wrap_expression(facts.source, own, "(", f") or {quiet}") if own is not None else add_argument(facts.source, call, f"disable={quiet}")
        yield Change(CODE, NAME, "one progress bar per machine", call.lineno, edits, essential=False, source="R33")
