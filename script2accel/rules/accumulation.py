"""Refuse gradient accumulation by hand.

A division of the loss and a gate around the optimizer step must become `accelerator.accumulate` together: the division kept gives 1/k of the gradient, the gate kept loses steps (measured).
They are recognised and, for now, left to a person.
Left alone: an optimizer that steps as often as gradients are made.
Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A401", "hand-made-accumulation"
GATE = Message(
    "S2A411",
    Severity.ERROR,
    "the optimizer steps under a condition, the backward pass doesn't: gradients are accumulated by hand",
    "step at every backward pass, and convert again",
)
MICRO = Message(
    "S2A412",
    Severity.ERROR,
    "several backward passes come to one optimizer step: gradients are accumulated by hand",
    "step at every backward pass, and convert again",
)
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if any(isinstance(c.func, ast.Attribute) and c.func.attr == "accumulate" and facts.roles.of_node(c.func.value) == "accelerator" for c in facts.calls):
        return
    for step in facts.optimizer_steps:
        backwards = [b for b in facts.backwards if facts.function(b.call) is facts.function(step.call)]
        if not backwards:
            continue
        own = facts.loops(step.call)
        deeper = [b for b in backwards if facts.loops(b.call)[:1] != own[:1] and set(own) < set(facts.loops(b.call))]
        if deeper:
            yield MICRO.at(step.call.lineno, step.call.col_offset + 1)
            continue
        shared = [b for b in backwards if facts.loops(b.call)[:1] == own[:1]]
        if shared and own and not any(_conditions(facts, step.call) <= _conditions(facts, b.call) for b in shared):
            yield GATE.at(step.call.lineno, step.call.col_offset + 1)


def _conditions(facts: Facts, node: ast.AST) -> set[tuple[ast.AST, bool]]:
    """The `if` branches around a node, up to its innermost loop (rank guards left out)."""
    found = set()
    child = node
    for parent in facts.source.ancestors(node):
        if isinstance(parent, (ast.For, ast.While, ast.AsyncFor, ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(parent, ast.If) and child is not parent.test:
            found.add((parent, child in parent.body))
        child = parent
    return found
