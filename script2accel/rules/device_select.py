"""Take out the choice of a GPU that the launcher makes.

`torch.cuda.set_device(...)` and `os.environ["CUDA_VISIBLE_DEVICES"] = ...` in the code would send every process to the same card.
Left alone when the environment is only read, and for calls that measure or tune (`cudnn.benchmark`, `memory_allocated`).
Source: https://huggingface.co/docs/accelerate/basic_tutorials/launch#using-accelerate-launch
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import remove_statement
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic
from script2accel.knowledge import torch as names

CODE, NAME = "S2A104", "device-select"
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for statement in facts.source.nodes:
        if isinstance(statement, (ast.Expr, ast.Assign)) and _chooses(facts, statement):
            edits = remove_statement(facts.source, statement)
            yield Change(CODE, NAME, "the launcher gives each process its GPU", statement.lineno, edits, needs=frozenset({"accelerator"}), source="R02")


def _chooses(facts: Facts, statement: ast.Expr | ast.Assign) -> bool:
    match statement:
        case ast.Expr(value=ast.Call() as call):
            return any(names.SET_DEVICE.match(path) for path in facts.any_path(call))
        case ast.Assign(targets=[ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value="CUDA_VISIBLE_DEVICES"))]):
            return True
    return False
