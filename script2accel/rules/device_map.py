"""Take `device_map` off a pretrained model that trains.

A model that `device_map` spread over the devices of one process can't be prepared by several (`prepare` raises an error), and one on a single
device is placed by prepare anyway. What was spread since it is too large for one device needs FSDP or DeepSpeed; that is said.
Left alone for models that don't train.
Source: https://huggingface.co/docs/accelerate/concept_guides/big_model_inference
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.change.edits import drop_argument
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A106", "device-map"
SPREAD = Message(
    "S2A116",
    Severity.WARNING,
    "`{text}` could spread the model over several devices of one process; each process now holds the whole of it on its own device",
    "if it is too large for one, shard it: `script2accel config --strategy fsdp2` or zero3",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        keyword = next((k for k in call.keywords if k.arg == "device_map"), None)
        if keyword is None or not (isinstance(call.func, ast.Attribute) and call.func.attr in ("from_pretrained", "from_config")):
            continue
        trained = [o for o in facts.roles.objects(call, "model") if o.inner in facts.models]
        if not trained or (isinstance(keyword.value, ast.Constant) and keyword.value.value is None):
            continue
        yield SPREAD.at(keyword.value.lineno, keyword.value.col_offset + 1, text=facts.source.segment(keyword))
        edits = drop_argument(facts.source, call, keyword)
        yield Change(CODE, NAME, "prepare places the model: one that `device_map` has spread can't be prepared", call.lineno, edits, source="R04")


_SCRIPT = """\
import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
{imports}
{born}model = AutoModelForCausalLM.from_pretrained("here"{map})
judge = AutoModelForCausalLM.from_pretrained("there", device_map="auto").eval()
loader = DataLoader(torch.zeros(64, 8).long(), batch_size=16)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{prepare}
for ids in loader:
    optimizer.zero_grad()
    loss = model(input_ids=ids, labels=ids).loss
    {backward}
    optimizer.step()
"""
EXAMPLES: list[tuple[str, str | None]] = [
    (_SCRIPT.format(imports="", born="", map=', device_map="auto"', prepare="", backward="loss.backward()"), "S2A116"),
    (_SCRIPT.format(imports="", born="", map="", prepare="", backward="loss.backward()"), None),
]
