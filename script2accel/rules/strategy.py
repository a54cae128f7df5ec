"""Put the strategy that was asked for into the accelerator: `ParallelismConfig` and the FSDP plugin.

The sizes are checked against the processes, the machines, each other and what the script shows of its model, before anything is written. FSDP2
always gets a plugin, since sizes alone are plain DDP without a word; it wraps the block class that the script's model repeats, or leaves the choice
to a pretrained model's own list. With `--parallelism from-config` sizes and plugins come from the accelerate config, and only what they need in the
script is written.
Left alone when plain data parallelism is asked for.
Source: https://huggingface.co/docs/accelerate/concept_guides/fsdp1_vs_fsdp2
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from script2accel.analysis.blocks import blocks
from script2accel.analysis.facts import Facts, View
from script2accel.analysis.values import Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.knowledge.accelerate import MODULES
from script2accel.knowledge.gates import gates
from script2accel.parallelism import Model, features, notes, refusals, uses_config
from script2accel.plugins import Expression, fsdp_plugin, parallelism_config

CODE, NAME = "S2A800", "strategy"
REFUSED = Message("S2A808", Severity.ERROR, "{what} ({source})", "{todo}")
SEQUENCE = Message(
    "S2A405",
    Severity.ERROR,
    "sp={sp}: sequence parallelism isn't put into scripts by this version",
    "convert with `--cp {sp}` (FSDP2), or without a strategy",
)
STATE = Message(
    "S2A807",
    Severity.ERROR,
    "a state of the accelerator can't be saved under tensor parallelism alone: `accelerator.save_state` fails on its weights (measured)",
    "convert with `--dp-shard` beside `--tp`, or save the weights alone",
)
GATED = Message("S2A828", Severity.NOTE, "the strategy needs {versions}", "")
NOTED = Message("S2A838", Severity.NOTE, "{text}", "")
BLOCKS = Message("S2A848", Severity.NOTE, "FSDP wraps {what}", "")

ABSENT = Message(
    "S2A856",
    Severity.ERROR,
    "`{name}` is to be wrapped, and no class of the script that makes the model has this name: FSDP would look for it in vain",
    "leave `wrap` out: the repeated block is found in the script ({seen})",
)
FOREIGN = Message(
    "S2A866",
    Severity.WARNING,
    "`{name}` is to be wrapped, which doesn't look like a part of `{model}`: FSDP ends with an error where a model doesn't have the class",
    "leave `wrap` out: the model brings a list of its own",
)
FAMILY = re.compile(r"^transformers\.(?:\w+\.)*([A-Z]\w*?)(?:PreTrainedModel|Model|LMHeadModel|DoubleHeadsModel|For[A-Z]\w*)(?:\.|$)")


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    options = decisions.options
    if not options.parallel or not facts.train_loops:
        return
    line = facts.train_loops[0].loop.lineno
    request = options.request(_seen(facts.program))
    refused = refusals(request)
    for one in refused:
        todo = f"nearest valid: {' or '.join(map(str, one.nearest))}" if one.nearest else "no size makes this valid: convert without it"
        yield REFUSED.at(line, what=one.what, source=one.source, todo=todo)
    if refused:
        return
    if options.sp > 1:
        yield SEQUENCE.at(line, sp=options.sp)
        return
    if options.tp > 1 and not options.sharded and decisions.plan.states.saves:
        yield STATE.at(decisions.plan.states.saves[0].call.lineno)
        return
    for note in notes(request):
        yield NOTED.at(line, text=note)
    needed = gates(features(request))
    if needed:
        yield GATED.at(line, versions=", ".join(map(str, needed)))
    if options.parallelism == "from-config":
        return
    engines: dict[str, Expression] = {}
    if uses_config(request) and options.sizes.total > 1:
        engines["parallelism_config"] = parallelism_config(options.sizes)
    if options.sharded:
        yield from _absent(facts.program, decisions, line)
        wrap = _wrap(facts.program, decisions)
        engines["fsdp_plugin"] = fsdp_plugin(wrap, offload=options.offload == "all")
        yield BLOCKS.at(line, what=f"`{'`, `'.join(wrap)}`" if wrap else "the model's own list of blocks" if wrap == () else "the model as one unit")
    for keyword, expression in engines.items():
        decisions.engines[keyword] = expression.text
        decisions.imports |= {(MODULES[name], name): None for name in expression.names}


def _wrap(facts: Facts, decisions: Decisions) -> tuple[str, ...] | None:
    """The classes to wrap: those asked for, those seen; none for a transformers model, which has a list; None where nothing is repeated."""
    if decisions.options.wrap:
        return decisions.options.wrap
    model = facts.models[0]
    return () if _transformers(model) else blocks(facts, model) or None


def _absent(facts: Facts, decisions: Decisions, line: int) -> Iterator[Diagnostic]:
    """Classes that are asked for and that the model can't have."""
    model = facts.models[0]
    own = {cls.name for cls in facts.module_classes}
    family = FAMILY.match(model.path)
    for name in decisions.options.wrap:
        if model.kind == "instance" and name not in own and not _borrows(facts):
            seen = blocks(facts, model)
            yield ABSENT.at(line, name=name, seen=f"here `{'`, `'.join(seen)}`" if seen else "here none, so the model is one unit")
        elif family and family[1] not in ("Auto", "") and not name.startswith(family[1]):
            yield FOREIGN.at(line, name=name, model=model.path.removeprefix("transformers."))


def _borrows(facts: Facts) -> bool:
    """Whether classes of the script hold modules from libraries, whose blocks can't be seen."""
    paths = (facts.path(call) for call in facts.calls if facts.in_module(call))
    return any("." in path and path.partition(".")[0] not in ("torch", "math", "numpy") for path in paths)


def _transformers(model: Obj) -> bool:
    return model.path.startswith("transformers.")


def _seen(facts: Facts) -> Model:
    """What the script shows of its model."""
    counts: dict[str, int] = {}
    for call in facts.calls:
        path = facts.path(call)
        for keyword in call.keywords:
            what = names.MODEL_COUNTS.get(keyword.arg or "") if path.startswith("transformers.") and path.endswith("Config") else None
            if what is None and keyword.arg == "max_length" and _padded(call):
                what = "sequence"
            if what is not None and isinstance(keyword.value, ast.Constant) and type(keyword.value.value) is int:
                counts[what] = keyword.value.value
    models = facts.models
    return Model(
        heads=counts.get("heads"),
        kv_heads=counts.get("kv_heads"),
        sequence=counts.get("sequence"),
        transformers=all(_transformers(m) for m in models) if models else None,
        models=len(models) or 1,
    )


def _padded(call: ast.Call) -> bool:
    """Whether a tokenizer is told to pad to the greatest length."""
    return any(k.arg == "padding" and isinstance(k.value, ast.Constant) and k.value.value == "max_length" for k in call.keywords)


EXAMPLES: list[tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A848",
        {"dp_shard": 2},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A808",
        {"dp_shard": 2, "num_processes": 3},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A808",
        {"tp": 2},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A808",
        {"dp_replicate": 2, "tp": 2},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A808",
        {"strategy": "zero3", "dp_replicate": 2, "num_processes": 4},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
        {},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A856",
        {"strategy": "fsdp2", "num_processes": 2, "wrap": ["BertLayer"]},
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
model = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for tokens, labels in loader:
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}, "last.pt")
""",
        "S2A807",
        {"tp": 2, "checkpointing": "state"},
    ),
]
