"""Say where a loss bends a mean over the batch.

The root of a mean squared error, the logarithm of a mean, a correlation, a quotient of two sums (a masked mean, Dice): gradients are averaged over
the ranks, and the average of the ranks' losses isn't the loss of their joint batch, so that N processes don't train as one with the global batch.
Left alone: sums and means of samples, whatever each sample is taken through before; what is only shown or logged; norms of weights.
Source: https://huggingface.co/docs/accelerate/concept_guides/performance
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.bending import bends
from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A218", "bent-mean"
BENT = Message(
    "S2A248",
    Severity.WARNING,
    "`{text}` isn't a mean of samples: with N processes it is taken of each rank's own batch, and the average of the ranks' is another number "
    "than that of the global batch",
    "keep the batch size on each process (the default), or average over samples last; in one process nothing changes",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares:
        return
    told = set()
    for node in bends(facts.program):
        statement = facts.program.source.statement(node)
        if facts.source.root(node) is facts.source.tree and statement not in told:
            told.add(statement)
            yield BENT.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node)[:60])


SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class RootError(nn.Module):
    def forward(self, out, wanted):
        return torch.sqrt(torch.mean((out - wanted) ** 2))


def spread(out, wanted):
    return (out - wanted).std()


data = TensorDataset(torch.ones(64, 8), torch.zeros(64, 1))
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 1)
criterion = nn.MSELoss()
root = RootError()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    out = model(x)
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item() ** 0.5, torch.exp(loss).item())
"""
BENDING = (
    "torch.sqrt(criterion(out, y))",
    "nn.functional.mse_loss(out, y) ** 0.5",
    "((out - y) ** 2).mean().log()",
    "root(out, y)",
    "criterion(out, y) + spread(out, y)",
    "((out - y) ** 2).sum() / ((y - y.mean()) ** 2).sum()",
    "((out - y) * (y != 0)).abs().sum() / (y != 0).sum()",
    "torch.norm(out - y)",
    "-nn.functional.cosine_similarity(out.squeeze(), y.squeeze(), dim=0)",
    "criterion(out, y) * (out - y).abs().mean()",
)
STRAIGHT = (
    "criterion(out, y) / 4 + 0.1 * (out - y).abs().mean()",
    "((out - y) ** 2 + 1).sqrt().mean()",
    "(out - y).norm(2, dim=1).mean()",
    "(out - y).pow(2).sum() / len(x)",
    "criterion(out, y) + 0.01 * model.weight.norm() ** 2",
)
EXAMPLES: list[tuple[str, str | None]] = [
    *((SCRIPT.replace("{loss}", loss), "S2A248") for loss in BENDING),
    *((SCRIPT.replace("{loss}", loss), None) for loss in STRAIGHT),
]
