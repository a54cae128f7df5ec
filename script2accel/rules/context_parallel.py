"""Run each step under `maybe_context_parallel`, with the batch cut along its sequence.

Each process of a group holds chunks of the same sequences. Labels are shifted before they are cut, since a chunk doesn't hold its next token;
positions are given, since a chunk doesn't begin at 0. The loss is the sum over the process's tokens by the number of labelled tokens of the whole
batch, so that ignored labels count nowhere: the average of the processes' averages would be another number where they are spread unevenly
(measured). What is reported of the loss is that of the whole batch.
Left alone without context parallelism. Refused with an attention mask, with models other than causal language models of transformers whose attention
is called `self_attn`, and where something else than the model's own loss is computed from the sequence.
Source: https://huggingface.co/docs/accelerate/concept_guides/context_parallelism
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.sequences import SequenceStep, UnclearError, inputs, sequence_step
from script2accel.change.edits import add_before, add_behind, ensure_import, merge, replace_range, wrap_statements
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A870", "context-parallel"
MODEL = Message(
    "S2A338",
    Severity.ERROR,
    "`{model}` isn't a causal language model whose attention Accelerate can cut: it looks for transformers' modules named `self_attn`",
    "use a model such as Llama, or convert with `--fsdp`",
)
UNCLEAR = Message(
    "S2A348",
    Severity.ERROR,
    "this step can't be cut along the sequence: {why}",
    "give the model `input_ids` and `labels`, take `loss = outputs.loss`, and convert again; or convert with `--fsdp`",
)
MASKED = Message(
    "S2A358",
    Severity.ERROR,
    "the model is given `{name}` here: under context parallelism it attends causally and without a mask",
    "fill the sequences so that none is needed and leave it out, or convert with `--fsdp`",
)
ATTENTION = Message(
    "S2A368",
    Severity.ERROR,
    "context parallelism cuts PyTorch's own attention, and the model is loaded with {text}",
    'take it out, or write `attn_implementation="sdpa"`, and convert again',
)
LENGTH = Message(
    "S2A378", Severity.NOTE, "the length of each batch's sequences must be a multiple of {least} (2 x cp), and the model attend fully", ""
)
TAKEN = frozenset({"input_ids", "labels", "position_ids"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if decisions.options.cp == 1 or not decisions.plan.prepares:
        return
    yield from _models(facts)
    for forward in facts.forwards:
        try:
            for name in inputs(facts.program, forward):
                if name not in TAKEN:
                    yield MASKED.at(forward.call.lineno, forward.call.col_offset + 1, name=name)
        except UnclearError as error:
            yield UNCLEAR.at(getattr(error.node, "lineno", 1), why=error.why)
    for backward in facts.backwards:
        try:
            step = sequence_step(facts.program, backward)
            if "labels" in step.given and "input_ids" in step.given and step.given.keys() <= TAKEN:
                yield _change(facts, decisions, step)
                yield LENGTH.at(step.forward.call.lineno, least=2 * decisions.options.cp)
            elif step.given.keys() <= TAKEN:
                yield UNCLEAR.at(step.forward.call.lineno, why="the model is given no `input_ids` or no `labels`")
        except UnclearError as error:
            yield UNCLEAR.at(getattr(error.node, "lineno", 1), why=error.why)


def _models(facts: View) -> Iterator[Diagnostic]:
    for model in facts.program.models:
        site = model.site
        if site is None or facts.source.root(site) is not facts.source.tree:
            continue
        if not names.SELF_ATTENTION.match(model.path):
            yield MODEL.at(getattr(site, "lineno", 1), model=model.path or str(model.name))
        for keyword in site.keywords if isinstance(site, ast.Call) else ():
            sdpa = isinstance(keyword.value, ast.Constant) and keyword.value.value == "sdpa"
            if keyword.arg == "attn_implementation" and not sdpa:
                yield ATTENTION.at(keyword.value.lineno, text=f"`{facts.source.segment(keyword.value)}`")


def _change(facts: View, decisions: Decisions, step: SequenceStep) -> Change:
    source, call = facts.source, step.forward.call
    accelerator = decisions.accelerator(call)
    shifted, given, count, cut = (_free(facts, name) for name in ("shift_labels", "model_inputs", "labelled", "buffers"))
    positions = f"torch.arange({shifted}.shape[1], device={shifted}.device).repeat({shifted}.shape[0], 1)"
    if "position_ids" in step.given:
        positions = f"{step.given['position_ids']}.clone()"
    lines = [
        f"{shifted} = torch.nn.functional.pad({step.given['labels']}, (0, 1), value=-100)[:, 1:].contiguous()",
        f"{given} = {{",
        f'\t"input_ids": {step.given["input_ids"]}.clone(),',
        f'\t"position_ids": {positions},',
        f'\t"labels": {shifted},',
        f'\t"shift_labels": {shifted},',
        "}",
        f'{count} = {accelerator}.reduce(({shifted} != -100).sum().float(), reduction="mean") / {accelerator}.parallelism_config.cp_size',
        f'{cut} = [{given}["input_ids"], {given}["position_ids"], {shifted}]',
    ]
    header = f"with {accelerator}.maybe_context_parallel(buffers={cut}, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set({cut})):"
    start = source.text.index("(", source.outer(call.func)[1]) + 1
    first, last = step.statements[0], step.statements[-1]
    edits: list[tuple[Edit, ...]] = [
        add_before(source, first, "\n".join(lines)),
        replace_range(start, source.end(call) - 1, f"**{given}, num_items_in_batch={count}, use_cache=False"),
        wrap_statements(source, list(step.statements), header),
    ]
    if step.reported and step.loss:
        edits.append(add_behind(source, last, f'{step.loss} = {accelerator}.reduce({step.loss}.detach(), reduction="mean")'))
    edits.append(ensure_import(source, "", "torch"))
    return Change(
        CODE, NAME, "each process works on its part of the sequence, and the loss counts labelled tokens", call.lineno, merge(edits), source="R76"
    )


def _free(facts: View, name: str) -> str:
    """A name that the file doesn't use."""
    while name in facts.source.names:
        name += "_"
    return name


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
from accelerate.utils import FullyShardedDataParallelPlugin
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
model = AutoModelForCausalLM.from_pretrained("tiny")
accelerator = Accelerator(
    parallelism_config=ParallelismConfig(cp_size=2),
    fsdp_plugin=FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        state_dict_type="SHARDED_STATE_DICT",
    ),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for tokens, labels in loader:
    optimizer.zero_grad()
    shift_labels = torch.nn.functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    model_inputs = {
        "input_ids": tokens.clone(),
        "position_ids": torch.arange(shift_labels.shape[1], device=shift_labels.device).repeat(shift_labels.shape[0], 1),
        "labels": shift_labels,
        "shift_labels": shift_labels,
    }
    labelled = accelerator.reduce((shift_labels != -100).sum().float(), reduction="mean") / accelerator.parallelism_config.cp_size
    buffers = [model_inputs["input_ids"], model_inputs["position_ids"], shift_labels]
    with accelerator.maybe_context_parallel(buffers=buffers, buffer_seq_dims=[1, 1, 1], no_restore_buffers=set(buffers)):
        loss = model(**model_inputs, num_items_in_batch=labelled, use_cache=False).loss
        accelerator.backward(loss)
    loss = accelerator.reduce(loss.detach(), reduction="mean")
    optimizer.step()
    accelerator.print(loss.item())
""",
        {"cp": 2},
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
    loss = model(input_ids=tokens, labels=labels, attention_mask=tokens.ne(0)).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A358",
        {"cp": 2},
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2LMHeadModel

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
model = GPT2LMHeadModel.from_pretrained("tiny")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A338",
        {"cp": 2},
    ),
    (
        """\
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
tokens = torch.randint(0, 64, (64, 16))
loader = DataLoader(TensorDataset(tokens, tokens), batch_size=16)
model = AutoModelForCausalLM.from_pretrained("tiny", attn_implementation="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for tokens, labels in loader:
    optimizer.zero_grad()
    loss = model(input_ids=tokens, labels=labels).loss
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A368",
        {"cp": 2},
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
    logits = model(input_ids=tokens, labels=labels).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, 64), labels[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    print(loss.item())
""",
        "S2A348",
        {"cp": 2},
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
    output = model(input_ids=tokens, labels=labels)
    loss = output.loss
    loss.backward()
    optimizer.step()
    print(output.logits.argmax(-1).float().mean().item())
""",
        "S2A348",
        {"cp": 2},
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
        {"strategy": "fsdp2"},
    ),
]
