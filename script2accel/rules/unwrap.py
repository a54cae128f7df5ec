"""Reach a wrapped model's own attributes through `unwrap_model`.

Behind prepare a model may be wrapped: `model.fc`, `model.generate(...)`, `model.load_state_dict(...)` go through
`accelerator.unwrap_model(model)`, and `model.state_dict()` becomes `accelerator.get_state_dict(model)`, whose keys carry no `module.`.
Left alone in front of prepare, and for what the wrapper answers itself (`train`, `eval`, `parameters`, `zero_grad`). Refused when training
runs through such a method: its gradients would not be synchronised, silently (measured).
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#model
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import guarded, quiet, runs_layers
from script2accel.analysis.distribution import inside_wrapper, passes_wrapper
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import ensure_import, merge, replace, wrap_expression
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A205", "unwrap"
PAST_FORWARD = Message(
    "S2A214",
    Severity.ERROR,
    "training runs through `{text}`, not through the model's `forward`: on several ranks its gradients would not be synchronised",
    "call the model itself (move the computation into `forward`, or let `forward` call the method), and convert again",
)
WRITTEN = Message(
    "S2A224",
    Severity.ERROR,
    "`{text}` is set behind prepare: it would reach the wrapper only, or not be synchronised",
    "set it before prepare, or on `accelerator.unwrap_model(model)`",
)

PLAIN = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    yield from _handed_on(facts, decisions)
    yield from _layers(facts, decisions)
    for node in facts.source.every(ast.Attribute):
        if node.attr in names.MODULE_API or node.value not in facts.machine.at:
            continue
        if not any(
            o.kind == "prepared" and facts.roles.of(o) in ("model", "criterion") for o in facts.machine.at[node.value].objs
        ) or facts.in_module(node):
            continue
        if isinstance(node.value, ast.Call) or decisions.is_state(node):
            continue
        if passes_wrapper(facts, node):
            continue
        text = facts.source.segment(node)
        if node.attr == "require_backward_grad_sync":
            continue  # a choice that goes with hand-made accumulation
        if isinstance(node.ctx, ast.Store) and _plain_value(facts, node):
            yield _change(facts, decisions, node)
        elif isinstance(node.ctx, ast.Store) or _written_below(facts, node):
            yield WRITTEN.at(node.lineno, node.col_offset + 1, text=text)
        elif _trains(facts, node):
            yield PAST_FORWARD.at(node.lineno, node.col_offset + 1, text=text)
        else:
            yield _change(facts, decisions, node)


def _written_below(facts: View, node: ast.Attribute) -> bool:
    """Whether a part of the attribute gets something that may be a layer or a weight: `model.head.last = nn.Linear(...)`, `model.layers[0] = ...`."""
    part: ast.AST = node
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        if isinstance(part.ctx, ast.Store):
            return not _plain_value(facts, part)
        above = facts.source.parents[part]
        part = above if isinstance(above, (ast.Attribute, ast.Subscript)) and above.value is part else ast.Pass()
    return False


def _plain_value(facts: View, target: ast.Attribute | ast.Subscript) -> bool:
    """Whether what is stored is a number, a truth value or a text, the same on every rank: the inner model may keep it, since nothing trains it."""
    match facts.source.parents[target]:
        case ast.Assign(targets=[single], value=value) if single is target:
            pass
        case ast.AugAssign(value=value):
            pass
        case _:
            return False
    if facts.machine.marks_of(value):
        return False
    plain = (
        ast.Constant,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.IfExp,
        ast.operator,
        ast.unaryop,
        ast.boolop,
        ast.cmpop,
        ast.expr_context,
    )
    return all(isinstance(part, plain) or _counts(facts, part) for part in walk(value))


def _counts(facts: View, node: ast.AST) -> bool:
    """Whether a name is the counter of a loop over numbers."""
    if not isinstance(node, ast.Name):
        return False
    loops = (loop for loop in facts.loops(node) if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name) and loop.target.id == node.id)
    return any(isinstance(loop.iter, ast.Call) and facts.path(loop.iter) == "range" for loop in loops)


def _handed_on(facts: View, decisions: Decisions) -> Iterator[Change]:
    """What copies, traces, exports or draws a model, or averages a copy of it, gets the inner model."""
    for call in facts.calls:
        drawn = isinstance(call.func, ast.Attribute) and call.func.attr in ("add_graph", "watch")
        paths = facts.any_path(call)
        taken = bool(paths) and all(names.TAKES_PLAIN.match(path) or names.EMA.match(path) for path in paths)
        given = [*call.args[:1], *(k.value for k in call.keywords if k.arg in ("model", "func", "obj"))]
        if not given or not (drawn or taken) or not decisions.prepared_here(given[0], "model"):
            continue
        if isinstance(given[0], ast.Attribute) and given[0].attr == "module":
            continue  # unwrapped as an attribute
        edits = wrap_expression(facts.source, given[0], f"{decisions.accelerator(call)}.unwrap_model(", ")")
        reason = "a tracker traces the inner model" if drawn else "the inner model is copied, traced or exported, not what wraps it"
        yield Change(CODE, NAME, reason, call.lineno, edits, source="R17")


def _layers(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    """`model[0]`, `len(model)`, `for layer in model`: a wrapped model is no sequence."""
    for node in facts.source.every(ast.Subscript, ast.For, ast.comprehension, ast.Call):
        match node:
            case ast.Subscript(value=model) | ast.For(iter=model) | ast.comprehension(iter=model):
                pass
            case ast.Call(func=ast.Name(id="len" | "list" | "enumerate"), args=[model]):
                pass
            case _:
                continue
        if isinstance(model, ast.Call) or not decisions.prepared_here(model, "model") or facts.in_module(model):
            continue
        above = facts.source.parents[node]
        if isinstance(above, ast.Call) and above.func is node and not quiet(facts, node) and facts.in_train_loop(node):
            yield PAST_FORWARD.at(model.lineno, model.col_offset + 1, text=facts.source.segment(node))
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            yield WRITTEN.at(model.lineno, model.col_offset + 1, text=facts.source.segment(node))
        else:
            edits = wrap_expression(facts.source, model, f"{decisions.accelerator(model)}.unwrap_model(", ")")
            yield Change(CODE, NAME, "a wrapped model is no sequence of layers: the inner one is", model.lineno, edits, source="R17")


def _trains(facts: View, node: ast.Attribute) -> bool:
    """Whether the attribute is called, runs layers, and what it gives comes to a backward pass."""
    call: ast.AST = node
    while isinstance(call, ast.Attribute):
        call = facts.source.parents[call]
        if isinstance(call, ast.Attribute) and _weight(facts, call.value):
            return False  # DDP synchronises what a weight adds to the loss together with the rest of its gradient
    if not isinstance(call, ast.Call) or quiet(facts, node) or node.attr in names.MODULE_NAMED:
        return False
    if not any(call in facts.machine.at[b.loss].marks for b in facts.backwards if b.loss in facts.machine.at):
        return False
    return runs_layers(facts, node)


def _weight(facts: View, node: ast.expr) -> bool:
    """Whether an expression is a parameter of a layer."""
    if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
        return True
    objs = facts.machine.at.get(node, NOTHING).objs
    return bool(objs) and all(names.PARAMETER.match(o.path) for o in objs)


def _change(facts: View, decisions: Decisions, node: ast.Attribute) -> Change:
    accelerator = decisions.accelerator(node)
    call = facts.source.parents[node]
    if node.attr == "module":  # `model.module if hasattr(model, "module") else model`
        edits = replace(facts.source, node, f"{accelerator}.unwrap_model({facts.source.segment(node.value)})")
        return Change(CODE, NAME, "the inner model, whatever wraps it", node.lineno, edits, source="R17")
    owner = inside_wrapper(facts, node.value)
    if (
        node.attr == "state_dict"
        and not guarded(facts, node)
        and isinstance(call, ast.Call)
        and call.func is node
        and not call.args
        and not call.keywords
    ):
        text = f"{accelerator}.get_state_dict({facts.source.segment(owner)})"
        if decisions.options.tp > 1 and not decisions.options.sharded:  # Accelerate gives the parts as they are
            text = f"get_model_state_dict({facts.source.segment(owner)}, options=StateDictOptions(full_state_dict=True, cpu_offload=True))"
            module = "torch.distributed.checkpoint.state_dict"
            imports = [ensure_import(facts.source, module, name) for name in ("StateDictOptions", "get_model_state_dict")]
            return Change(
                "S2A205", NAME, "the whole weights, on every rank", node.lineno, merge([replace(facts.source, call, text), *imports]), source="R20"
            )
        edits = replace(facts.source, call, text)
        return Change("S2A205", NAME, "the weights of the model without its wrapper, on every rank", node.lineno, edits, source="R20")
    edits = wrap_expression(facts.source, owner, f"{accelerator}.unwrap_model(", ")")
    return Change(
        CODE, NAME, "a wrapped model has its own attributes only: the inner one is reached by unwrap_model", node.lineno, edits, source="R17"
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()

traced = torch.jit.trace(model, torch.ones(1, 8))
traced.save("net.pt")
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()

traced = torch.jit.trace(accelerator.unwrap_model(model), torch.ones(1, 8))
if accelerator.is_main_process:
    traced.save("net.pt")
""",
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

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print(model.fc.weight.sum().item())
torch.save(model.state_dict(), "model.pt")
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(x)

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.print(accelerator.unwrap_model(model).fc.weight.sum().item())
accelerator.save(accelerator.get_state_dict(model), "model.pt")
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
model.load_state_dict({name: part * 0.5 for name, part in model.state_dict().items()})
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.unwrap_model(model).load_state_dict({name: part * 0.5 for name, part in accelerator.get_state_dict(model).items()})
""",
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

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = model.loss(x, y)
    loss.backward()
    optimizer.step()
""",
        "S2A214",
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

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
model.fc = nn.Linear(8, 2)
""",
        "S2A224",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = 0
        self.head = nn.Sequential(nn.Linear(8, 2))

    def forward(self, x):
        return self.head(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    model.steps += 1
model.head[0] = nn.Linear(8, 2)
""",
        "S2A224",
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

    def loss(self, x, y):
        return nn.functional.cross_entropy(self(x), y)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.load_state_dict(model.state_dict())
model.train()

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
model.eval()
""",
        None,
    ),
]
