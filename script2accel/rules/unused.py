"""Let DDP look for parameters that a step doesn't use.

Where training ignores a part of what the model gives (`validity, _ = discriminator(images)`), the parameters behind it get no gradient in that
step, and a wrapped model stops with an error at the next forward pass (measured). `find_unused_parameters=True` is set then.
Left alone when everything that the model gives is used.
Source: https://huggingface.co/docs/accelerate/package_reference/kwargs#accelerate.DistributedDataParallelKwargs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import View
from script2accel.analysis.values import Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A245", "unused-parameters"
IGNORED = Message(
    "S2A246",
    Severity.NOTE,
    "`{name}` of what the model gives isn't used here: DDP is told to look for unused parameters (`find_unused_parameters=True`)",
    "",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for forward in facts.forwards if decisions.plan.prepares else ():
        statement = facts.source.parents[forward.call]
        if not isinstance(statement, ast.Assign) or quiet(facts, forward.call) or not facts.in_train_loop(forward.call):
            continue
        target = statement.targets[0]
        for index, part in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
            if isinstance(part, ast.Name) and _unread(facts, part) and any(_own_head(facts, model, index) for model in forward.models):
                decisions.ddp_arguments["find_unused_parameters"] = "True"
                yield IGNORED.at(part.lineno, part.col_offset + 1, name=part.id)
                return


def _own_head(facts: View, model: Obj, index: int) -> bool:
    """Whether element `index` of what a model's `forward` returns comes from a layer that nothing else of it needs."""
    found = facts.machine.class_member(model, "forward") if model.kind == "instance" else None
    for method in found.objs if found is not None else ():
        for node in ast.walk(method.site) if method.site is not None else ():
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and index < len(node.value.elts):
                part = node.value.elts[index]
                if isinstance(part, ast.Call):
                    return True
                if isinstance(part, ast.Name) and _only_returned(method.site, part.id):
                    return True
    return False


def _only_returned(function: ast.AST | None, name: str) -> bool:
    """Whether a name is set by calls on their own, and read where it is returned only."""
    assert function is not None
    loads = [n for n in ast.walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    made = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
    return len(loads) == 1 and bool(made) and all(isinstance(n.value, ast.Call) for n in made)


def _unread(facts: View, name: ast.Name) -> bool:
    """Whether nothing in the function reads the name."""
    function = facts.function(name)
    return not any(isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load) for n in ast.walk(function))


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head, self.judge = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        x = self.body(x)
        return self.head(x), self.judge(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    output, _ = model(x)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
""",
        "S2A246",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head, self.judge = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        x = self.body(x)
        return self.head(x), self.judge(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    output, judged = model(x)
    loss = nn.functional.cross_entropy(output, y) + judged.mean()
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
