"""Refuse what touches the device in front of `notebook_launcher`.

`notebook_launcher` forks, and a forked process can't use a GPU that was used in front of the fork: models on a device, an `Accelerator`, and what
makes one (a Trainer's arguments) belong into the function that is launched.
Left alone when only the launched function touches the device, for questions that open none (`torch.cuda.device_count()`), and for
`torch.cuda.is_available()` where PyTorch is told to ask NVML.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/notebook
"""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.launched import early, questions

CODE, NAME = "S2A806", "notebook-launch"
EARLY = Message(
    "S2A816",
    Severity.ERROR,
    "`{text}` can touch the device in front of `notebook_launcher` (line {launch}), whose forked processes could not use it any more (documented)",
    "move it into the function that is launched",
)
COUNT = Message(
    "S2A826",
    Severity.NOTE,
    "`notebook_launcher` is asked for {count} processes: older versions of Accelerate start one on some platforms",
    "see that `accelerator.num_processes` in the launched function says as many",
)
ASKED = Message(
    "S2A144",
    Severity.ERROR,
    "`{text}` runs in front of `notebook_launcher` (line {launch}), and PyTorch's own way to ask for a GPU spoils the fork (documented)",
    f'move it into the function that is launched, or set `os.environ["{names.NVML}"] = "1"` in front of it',
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    launches = [call for call in facts.calls if names.LAUNCHER.match(facts.path(call))]
    if not launches:
        return
    for call in launches:
        count = next((k.value for k in call.keywords if k.arg == "num_processes"), call.args[2] if len(call.args) > 2 else None)
        if count is not None:
            yield COUNT.at(call.lineno, call.col_offset + 1, count=facts.source.segment(count))
    for message, found in ((EARLY, early(facts.program, launches)), (ASKED, questions(facts.program, launches))):
        for call in found:
            source = facts.program.source.of(call)
            path = "" if source is facts.source else source.path
            yield message.at(call.lineno, call.col_offset + 1, path=path, text=source.segment(call), launch=launches[0].lineno)


_SCRIPT = """\
import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
{early}

def train():
    accelerator = Accelerator()
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()


notebook_launcher(train, (), num_processes=2)
"""
EXAMPLES: list[tuple[str, str | None]] = [
    (_SCRIPT.replace("{early}", "accelerator = Accelerator()\n"), "S2A816"),
    (_SCRIPT.replace("{early}", 'weights = torch.ones(8).to("cuda")\n'), "S2A816"),
    (_SCRIPT.replace("{early}", "print(torch.cuda.is_available())\n"), "S2A144"),
    (_SCRIPT.replace("{early}", "print(torch.cuda.device_count())\n"), "S2A826"),
    (_SCRIPT.replace("{early}", f'import os\n\nos.environ["{names.NVML}"] = "1"\nprint(torch.cuda.is_available())\n'), None),
]
