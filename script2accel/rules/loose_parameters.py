"""Refuse to train weights that no prepared model holds.

A prepared model's gradients are averaged over the ranks; a tensor beside it (a temperature, class centres, task weights), or a module whose
`forward` is never called, gets each rank's own gradient. The ranks' weights then drift apart, silently (measured).
Left alone when everything that an optimizer is given belongs to models that are prepared.
Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.values import Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A265", "loose-parameters"
LOOSE = Message(
    "S2A275",
    Severity.ERROR,
    "the optimizer of line {maker} trains `{text}`, which no prepared model holds: its gradients would not be synchronised between ranks (measured)",
    "make it an `nn.Parameter` of the model, used in the model's `forward`, and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for optimizer in facts.optimizers:
        for obj in (*facts.roles.loose_parameters(optimizer), *_uncalled(facts, decisions, optimizer)):
            if isinstance(obj.site, ast.expr) and facts.source.root(obj.site) is facts.source.tree:
                text = facts.source.segment(obj.site)[:60]
                yield LOOSE.at(obj.site.lineno, obj.site.col_offset + 1, text=text, maker=getattr(optimizer.site, "lineno", 0))


def _uncalled(facts: View, decisions: Decisions, optimizer: Obj) -> list[Obj]:
    """The modules that an optimizer trains beside prepared ones, and that nothing is seen to call."""
    if not decisions.plan.prepares:
        return []
    trained = [m for m, by in facts.roles.training.items() if optimizer in by and m.kind in ("made", "instance")]
    return [m for m in trained if not decisions.is_prepared(m) and m not in facts.models and facts.roles.of(m) in ("model", "criterion", "")]


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
temperature = nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([{"params": model.parameters()}, {"params": [temperature], "lr": 0.01}], lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x) / temperature, y)
    loss.backward()
    optimizer.step()
""",
        "S2A275",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
table = nn.Embedding(2, 2)
optimizer = torch.optim.SGD(list(model.parameters()) + list(table.parameters()), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), table.weight[y])
    loss.backward()
    optimizer.step()
""",
        "S2A275",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return self.layer(x) * self.scale


loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD([{"params": model.layer.parameters()}, {"params": [model.scale], "lr": 0.01}], lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
