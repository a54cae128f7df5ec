"""Refuse a block that reentrant checkpointing runs twice in a step.

`torch.utils.checkpoint.checkpoint` runs a backward pass of its own for each call, unless `use_reentrant=False` is given: parameters of a block that
is called twice are then ready twice, and a wrapped model ends with an error (measured). The argument isn't added here, since it can change the
training: where no input of the block needs a gradient (frozen layers in front), reentrant checkpointing gives the block none (measured).
Left alone when `use_reentrant=False` is given, and where each block is checkpointed once.
Source: https://huggingface.co/docs/accelerate/package_reference/kwargs#accelerate.DistributedDataParallelKwargs
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A266", "checkpointed-twice"
TWICE = Message(
    "S2A276",
    Severity.ERROR,
    "`{text}` is checkpointed more than once in a step, in the reentrant form: on several ranks its parameters are marked ready twice (measured)",
    "give `use_reentrant=False` (blocks whose inputs need no gradient, as behind frozen layers, are then trained), and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares:
        return
    calls = [call for call in facts.calls if any(names.CHECKPOINT.match(path) for path in facts.any_path(call)) and call.args and _reentrant(call)]
    often = Counter((facts.function(call), _block(call)) for call in calls)
    for call in calls:
        if often[facts.function(call), _block(call)] > 1 or _again(facts, call):
            yield TWICE.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.args[0]))


def _reentrant(call: ast.Call) -> bool:
    given = next((k.value for k in call.keywords if k.arg == "use_reentrant"), None)
    return not (isinstance(given, ast.Constant) and given.value is False)


def _block(call: ast.Call) -> tuple[str, ...]:
    """What is checkpointed: the function, and the constants that it is given, which may choose a layer."""
    return tuple(ast.unparse(part) for part in call.args if part is call.args[0] or isinstance(part, ast.Constant))


def _again(facts: View, call: ast.Call) -> bool:
    """Whether a loop of the same function calls the same block again: neither it nor what it is given is named by the loop, or made in it."""
    read = {n.id for part in call.args for n in walk(part) if isinstance(n, ast.Name)}
    for loop in facts.loops(call):
        if isinstance(loop, ast.While):
            continue  # its counter may choose the block
        own = {n.id for n in walk(loop.target) if isinstance(n, ast.Name)} | {n.name for n in walk(loop) if isinstance(n, ast.FunctionDef)}
        if not read & own:
            return True
    return False


_SCRIPT = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.last = nn.Linear(4, 2)

    def run(self, number, x):
        return self.blocks[number](x)

    def forward(self, x):
        x = self.first(x)
{body}
        return self.last(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
_EACH = """\
        for block in self.blocks:
            x = checkpoint(block, x)"""
_TWICE = """\
        for _ in range(2):
            x = checkpoint(self.blocks[0], x)"""
_NUMBERED = """\
        for number in range(2):
            x = checkpoint(self.run, number, x)"""
_NEW = """\
        for _ in range(2):
            x = checkpoint(self.blocks[0], x, use_reentrant=False)"""
EXAMPLES: list[tuple[str, str | None]] = [
    (_SCRIPT.replace("{body}", _TWICE), "S2A276"),
    (_SCRIPT.replace("{body}", _EACH), None),
    (_SCRIPT.replace("{body}", _NUMBERED), None),
    (_SCRIPT.replace("{body}", _NEW), None),
]
