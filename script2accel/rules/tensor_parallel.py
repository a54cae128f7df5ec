"""Load a pretrained model in parts: tensor parallelism is transformers' own, by the model's plan.

`from_pretrained` gets the accelerator's device mesh and `tp_plan="auto"`, so the accelerator is born in front of the model, and the optimizer is made
from the parts. Models that aren't loaded so can't be divided: Accelerate refuses them. The processes of a group work on one batch, so they must draw
alike.
Left alone without tensor parallelism.
Source: https://huggingface.co/docs/accelerate/concept_guides/training_tp
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.randomness import seeded
from script2accel.change.edits import add_argument, merge
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A860", "tensor-parallel"
LOADED = Message(
    "S2A288",
    Severity.ERROR,
    "`{text}` isn't loaded with `from_pretrained`: transformers divides models while it loads them, and Accelerate refuses others",
    "save the model once and load it with `from_pretrained`, or convert with `--fsdp`",
)
ARGUMENT = Message(
    "S2A298",
    Severity.ERROR,
    "`{argument}` already says how this model is placed or divided",
    "take it out, and convert again",
)
DRAWS = Message(
    "S2A308",
    Severity.ERROR,
    "nothing seeds torch, and the processes that share a batch must draw alike (dropout)",
    "seed the script (`--seed N` does it), and convert again",
)
SHUFFLED = Message(
    "S2A328",
    Severity.ERROR,
    "this evaluation runs whole on every rank over a loader that shuffles: processes that share a batch would see different ones",
    "evaluate without `shuffle=True`, and convert again",
)
PLACED = frozenset({"device_mesh", "tp_plan", "tp_size", "device_map", "distributed_config"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    options = decisions.options
    if not options.grouped or not decisions.plan.prepares:
        return
    yield from _alike(facts, decisions)
    if options.tp == 1:
        return
    for model in facts.program.models:
        if model.site is None or facts.source.root(model.site) is not facts.source.tree:
            continue
        site = model.site
        line = getattr(site, "lineno", 1)
        if not isinstance(site, ast.Call) or not names.LOADED.match(model.path):
            yield LOADED.at(line, text=facts.source.segment(site.func if isinstance(site, ast.Call) else site))
        elif (given := next((k.arg or "**" for k in site.keywords if k.arg is None or k.arg in PLACED), None)) is not None:
            yield ARGUMENT.at(line, argument=given)
        else:
            mesh = f'tp_plan="auto", device_mesh={decisions.accelerator(site)}.torch_device_mesh'
            edits = merge([add_argument(facts.source, site, mesh)])
            yield Change(CODE, NAME, "the model is divided while it is loaded, along the mesh's `tp`", line, edits, source="R72")


def _alike(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """What the processes that share a batch must have in common."""
    if facts.train_loops and not seeded(facts.program, "torch") and decisions.options.seed is None:
        yield DRAWS.at(facts.train_loops[0].loop.lineno)
    for loop in facts.eval_loops:
        for loader in loop.loaders:
            shuffle = loader.keywords.get("shuffle") or (loader.arguments[2] if len(loader.arguments) > 2 else None)
            if shuffle is not None and any(o.name is not False for o in shuffle.objs):
                yield SHUFFLED.at(loop.loop.lineno)


EXAMPLES: list[tuple[str, str | None, dict[str, object]]] = [
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

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_size=2))
model = AutoModelForCausalLM.from_pretrained("tiny", tp_plan="auto", device_mesh=accelerator.torch_device_mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(loss.item())
""",
        {"tp": 2},
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

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
torch.save(model.state_dict(), "weights.pt")
""",
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.parallelism_config import ParallelismConfig
from torch.distributed.checkpoint.state_dict import StateDictOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
accelerator = Accelerator(parallelism_config=ParallelismConfig(tp_size=2))
model = AutoModelForCausalLM.from_pretrained("tiny", tp_plan="auto", device_mesh=accelerator.torch_device_mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(loss.item())
accelerator.save(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)), "weights.pt")
""",
        {"tp": 2},
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM, LlamaConfig

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
config = LlamaConfig(num_attention_heads=4)
model = AutoModelForCausalLM.from_config(config)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A288",
        {"tp": 2},
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
model = AutoModelForCausalLM.from_pretrained("tiny", device_map="auto")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A298",
        {"tp": 2},
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM

tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
model = AutoModelForCausalLM.from_pretrained("tiny")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A308",
        {"tp": 2},
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

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())

test_loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16, shuffle=True)
with torch.no_grad():
    for tokens, labels in test_loader:
        print(model(input_ids=tokens, labels=labels).loss.item())
""",
        "S2A328",
        {"tp": 2},
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

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        None,
        {},
    ),
]
