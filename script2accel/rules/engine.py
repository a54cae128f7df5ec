"""Refuse what a DeepSpeed engine would train otherwise.

The engine takes the optimizer's step within the backward pass, with gradients and weights of its own: whatever looks at them or changes them in
between, leaves out a step, or adds two passes up, would be another training, silently. So would parameters that a step leaves unused, for which
it steps with zero gradients, and weights that aren't float32, of which it keeps a float32 copy.
Left alone without DeepSpeed.
Source: https://huggingface.co/docs/accelerate/usage_guides/deepspeed
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import View
from script2accel.analysis.precision import hand_made
from script2accel.analysis.stepping import faults
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A865", "engine-step"
APART = Message(
    "S2A435",
    Severity.ERROR,
    "DeepSpeed takes the optimizer's step within the backward pass, and {why}",
    "write backward pass, gradient clip, step and `zero_grad` one behind the other, once for each batch; or convert with `--fsdp`",
)
PRECISION = Message(
    "S2A305",
    Severity.ERROR,
    "{what}: DeepSpeed turns the model's weights themselves into {precision}, also those that autocast keeps in float32, and files hold them so",
    "convert with `--fsdp`, or train in float32 under DeepSpeed",
)
TYPE = Message(
    "S2A335",
    Severity.ERROR,
    "`{text}`: DeepSpeed keeps a float32 copy of the weights and trains that, whatever their own type is",
    "train float32 weights under DeepSpeed, or convert without a strategy",
)
UNUSED = Message(
    "S2A345",
    Severity.ERROR,
    "a step may leave parameters unused here: torch leaves them alone, DeepSpeed steps them with zero gradients (momentum and decay move them)",
    "convert with `--fsdp`, or without a strategy",
)
SPARSE = Message(
    "S2A355",
    Severity.ERROR,
    "`{text}` gives sparse gradients, which DeepSpeed sends another way",
    "leave `sparse` out, or convert without a strategy",
)
COMPILED = Message(
    "S2A365",
    Severity.ERROR,
    "`{text}`: whether a compiled model trains the same under a DeepSpeed engine isn't shown",
    "leave it out, or convert without a strategy",
)
ADDED = Message(
    "S2A375",
    Severity.ERROR,
    "`{text}` changes an optimizer that the engine has taken over",
    "make the optimizer whole in front of the training loop, or convert without a strategy",
)
TYPES = frozenset({"torch.float64", "torch.double", "torch.float16", "torch.half", "torch.bfloat16"})
CASTS = frozenset({"double", "half", "bfloat16"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    options = decisions.options
    if not options.zero or not decisions.plan.prepares:
        return
    for node, why in faults(facts):
        yield APART.at(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, why=why)
    yield from _precision(facts, decisions)
    if decisions.ddp_arguments.get("find_unused_parameters", "False") != "False":
        line = facts.program.train_loops[0].loop.lineno if facts.program.train_loops else 1
        yield UNUSED.at(line)
    for call in facts.calls:
        place, text = (call.lineno, call.col_offset + 1), facts.source.segment(call)[:70]
        if facts.path(call) in ("torch.compile", "torch.jit.script") or _compiles(facts, call):
            yield COMPILED.at(*place, text=text)
        elif _other_type(facts, call):
            yield TYPE.at(*place, text=text)
        elif facts.path(call).startswith("torch.nn.") and any(k.arg == "sparse" and not _false(k.value) for k in call.keywords):
            yield SPARSE.at(*place, text=text)
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "add_param_group" and facts.roles.of_node(call.func.value) == "optimizer":
            yield ADDED.at(*place, text=text)


def _precision(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """Reduced precision, asked for or the script's own."""
    asked = decisions.options.mixed_precision
    loops = facts.train_loops
    if asked not in (None, "no") and loops:
        yield PRECISION.at(loops[0].loop.lineno, what=f"--mixed-precision {asked}", precision=asked)
    for autocast in hand_made(facts).autocasts:
        if not autocast.off and facts.source.root(autocast.where) is facts.source.tree:
            yield PRECISION.at(getattr(autocast.node, "lineno", 1), what=f"`{facts.source.segment(autocast.node)}`", precision="half precision")


def _compiles(facts: View, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "compile" and facts.roles.of_node(call.func.value) == "model"


def _other_type(facts: View, call: ast.Call) -> bool:
    """Whether a call gives weights, or all that is made from then on, another type than float32."""
    named = [n for arg in (*call.args, *(k.value for k in call.keywords)) for n in walk(arg) if isinstance(n, ast.Attribute)]
    other = any(facts.source.segment(n) in TYPES for n in named)
    if facts.path(call) in ("torch.set_default_dtype", "torch.set_default_tensor_type"):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    if any(k.arg in ("dtype", "torch_dtype") and not _float32(facts, k.value) for k in call.keywords):
        return facts.roles.of_node(call) == "model" or facts.path(call).startswith("torch.nn.")
    of_model = facts.roles.of_node(call.func.value) in ("model", "criterion")
    return of_model and (call.func.attr in CASTS or (call.func.attr == "to" and other))


def _float32(facts: View, node: ast.expr) -> bool:
    return facts.source.segment(node) in ("torch.float32", "torch.float", "None", '"float32"', "'float32'")


def _false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


BEFORE = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)

for x, y in loader:
"""
PLAIN = """\
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    scheduler.step()
"""
ZERO2: dict[str, object] = {"strategy": "zero2", "num_processes": 2}
EXAMPLES: list[tuple[str, str | None, dict[str, object]]] = [
    (BEFORE + PLAIN, None, ZERO2),
    (BEFORE + PLAIN.replace("    optimizer.step()\n    scheduler.step()\n", "    scheduler.step()\n    optimizer.step()\n"), "S2A435", ZERO2),
    (BEFORE + PLAIN.replace("    optimizer.step()", "    if loss < 9:\n        optimizer.step()"), "S2A435", ZERO2),
    (BEFORE + PLAIN.replace("    optimizer.zero_grad()\n", ""), "S2A435", ZERO2),
    (BEFORE + PLAIN.replace("    loss.backward()\n", "    loss.backward()\n    (0.1 * model(x).mean()).backward()\n"), "S2A435", ZERO2),
    (BEFORE + PLAIN + "    optimizer.step()\n", "S2A435", ZERO2),
    (BEFORE + PLAIN.replace("    scheduler.step()\n", "    print(model[0].weight.grad)\n"), "S2A435", ZERO2),
    (BEFORE + PLAIN, "S2A305", {**ZERO2, "mixed_precision": "bf16"}),
    (BEFORE.replace("\noptimizer", "\nmodel.double()\noptimizer") + PLAIN.replace("model(x)", "model(x.double())"), "S2A335", ZERO2),
    (BEFORE.replace("nn.Linear(8, 8), ", "nn.Embedding(9, 8, sparse=True), ") + PLAIN, "S2A355", ZERO2),
    (BEFORE.replace("\noptimizer", "\nmodel = torch.compile(model)\noptimizer") + PLAIN, "S2A365", ZERO2),
    (BEFORE + PLAIN + '    optimizer.add_param_group({"params": [], "lr": 0.2})\n', "S2A375", ZERO2),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 2)
        self.spare = nn.Linear(8, 2)

    def forward(self, x):
        return self.body(x)


torch.manual_seed(0)
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
        "S2A345",
        ZERO2,
    ),
]
