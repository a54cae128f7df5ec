"""Let Accelerate run the backward pass.

`loss.backward()` knows nothing of gradient scaling and of accumulation; `accelerator.backward(loss)` does. Keyword arguments are passed on.
Left alone when it already goes through the accelerator, or isn't a tensor's.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#training-loop
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import call_function, replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic

CODE, NAME = "S2A202", "backward"
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for backward in facts.backwards:
        if backward.done or facts.in_module(backward.call):
            continue
        accelerator = decisions.accelerator(backward.call)
        if facts.path(backward.call).startswith("torch.autograd"):
            edits = replace(facts.source, backward.call.func, f"{accelerator}.backward")
        else:
            edits = call_function(facts.source, backward.call, f"{accelerator}.backward")
        yield Change(CODE, NAME, "the accelerator runs the backward pass: it scales and synchronises gradients", backward.call.lineno, edits, source="R06")
