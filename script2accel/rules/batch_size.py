"""Ask a prepared loader for its total batch size.

A prepared loader's `batch_size` is None (measured); `total_batch_size` is that of all ranks together, which a single process would have.
Left alone in front of prepare.
Source: https://huggingface.co/docs/accelerate/package_reference/torch_wrappers
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import Facts
from script2accel.change.edits import replace_range
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic

CODE, NAME = "S2A208", "batch-size"
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for node in facts.source.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "batch_size" and decisions.prepared_here(node.value, "loader"):
            edits = replace_range(facts.source.end(node) - len("batch_size"), facts.source.end(node), "total_batch_size")
            yield Change(CODE, NAME, "a prepared loader has no batch_size of its own", node.lineno, edits, source="R45")
