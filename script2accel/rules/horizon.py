"""Name what several processes change about horizons and repetitions.

A horizon that is the loader's length divided by the number of devices was divided for a loader that no one shares out; a prepared loader's length is
already that of one process, so the horizon would be too short by that factor. And where prepare runs again in each round of a loop, the accelerator
keeps what it prepared in the earlier ones.
Left alone when the horizon is the loader's length alone, and when prepare runs once.
Source: https://huggingface.co/docs/accelerate/concept_guides/performance#learning-rates
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A286", "horizon"
DIVIDED = Message(
    "S2A296",
    Severity.WARNING,
    "this horizon is the loader's length divided by `{by}`, and a prepared loader's length is already that of one process",
    "leave the division out where the processes share the data",
)
AGAIN = Message(
    "S2A836",
    Severity.NOTE,
    "prepare runs in every round of the loop in line {loop}: the accelerator keeps what it prepared in earlier rounds",
    "`accelerator.free_memory()` between the rounds lets go of it",
)
DEVICES = re.compile(r"^torch\.cuda\.device_count$|^torch\.distributed\.get_world_size$")
DEPTH = 4  # names that are followed from the scheduler back to the division


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for prepare in decisions.plan.prepares:
        loops = facts.loops(prepare.anchor)
        if loops and facts.source.root(prepare.anchor) is facts.source.tree:
            yield AGAIN.at(prepare.anchor.lineno, prepare.anchor.col_offset + 1, loop=loops[0].lineno)
    if not decisions.plan.prepares:
        return
    for call in facts.calls:
        if facts.roles.of_node(call) == "scheduler" and facts.roles.of_node(call.func) != "scheduler":
            for argument in (*call.args, *(k.value for k in call.keywords)):
                for division, by in _divisions(facts, argument, DEPTH):
                    yield DIVIDED.at(division.lineno, division.col_offset + 1, by=by)


def _divisions(facts: View, value: ast.expr, depth: int) -> Iterator[tuple[ast.BinOp, str]]:
    """Divisions of a loader's length by the number of devices, in an expression or what its names were assigned."""
    for node in walk(value):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Div, ast.FloorDiv)):
            if _holds(facts, node.right, _counts_devices, DEPTH) and _holds(facts, node.left, _measures_loader, DEPTH):
                yield node, facts.source.segment(node.right)
        elif isinstance(node, (ast.Name, ast.Attribute)) and depth:
            for other in facts.assigned.get(ast.unparse(node), ()):
                yield from _divisions(facts, other, depth - 1)


def _holds(facts: View, value: ast.expr, wanted: Callable[[View, ast.Call], bool], depth: int) -> bool:
    for node in walk(value):
        if isinstance(node, ast.Call) and wanted(facts, node):
            return True
        followed = facts.assigned.get(ast.unparse(node), ()) if depth and isinstance(node, (ast.Name, ast.Attribute)) else ()
        if any(_holds(facts, other, wanted, depth - 1) for other in followed):
            return True
    return False


def _counts_devices(facts: View, call: ast.Call) -> bool:
    return DEVICES.match(facts.path(call)) is not None


def _measures_loader(facts: View, call: ast.Call) -> bool:
    return facts.path(call) == "len" and len(call.args) == 1 and facts.roles.of_node(call.args[0]) == "loader"


_SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
{indent}loader = DataLoader(data, batch_size=16, shuffle=True)
{indent}model = nn.Linear(8, 2)
{indent}optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{indent}steps = len(loader){by}
{indent}scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
{indent}for x, y in loader:
{indent}    optimizer.zero_grad()
{indent}    loss = nn.functional.cross_entropy(model(x), y)
{indent}    loss.backward()
{indent}    optimizer.step()
{indent}    scheduler.step()
"""
_REPEATED = _SCRIPT.replace("{indent}loader", "for again in range(2):\n{indent}loader", 1)
EXAMPLES: list[tuple[str, str | None]] = [
    (_SCRIPT.format(indent="", by=" // torch.cuda.device_count()"), "S2A296"),
    (_REPEATED.format(indent="    ", by=""), "S2A836"),
    (_SCRIPT.format(indent="", by=" // 2"), None),
]
