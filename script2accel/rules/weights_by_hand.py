"""Refuse what would set the ranks' weights apart, or change gradients before they are averaged.

A prepared model's weights are equal on all ranks because they start equal, and because every step adds the same averaged gradient. Weights or
gradients that get a value of one rank's own (noise, a batch's statistics) break that silently (measured); a hook on a parameter runs in
front of the averaging, so that a clamp there is another clamp (measured).
Left alone: values that are the same on all ranks (clipping, decay, averages of weights), and what is done in front of prepare.
Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, View
from script2accel.analysis.values import NOTHING
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A545", "weights-by-hand"
APART = Message(
    "S2A555",
    Severity.ERROR,
    "`{text}` gives weights or gradients of a prepared model what each rank has of its own: the ranks' models would drift apart (measured)",
    "make the value on one rank and send it to all (`accelerate.utils.broadcast`), or draw it from a generator that all ranks seed alike",
)
HOOK = Message(
    "S2A565",
    Severity.ERROR,
    "`{text}` changes gradients before they are averaged over the ranks: with several processes that is another gradient (measured)",
    "change the gradients behind the backward pass (`p.grad`), in front of the optimizer's step",
)
SAFE = frozenset({"requires_grad_", "zero_", "detach_", "share_memory_", "retain_grad_", "train_"})
HOOKS = frozenset({"register_hook", "register_post_accumulate_grad_hook"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        if facts.in_module(call):
            continue
        place = (call.lineno, call.col_offset + 1)
        if _sets_apart(facts, call):
            yield APART.at(*place, text=facts.source.segment(call)[:70])
        elif _hooks(facts, call):
            yield HOOK.at(*place, text=facts.source.segment(call)[:70])
    for node in facts.source.every(ast.Assign, ast.AugAssign):
        if not facts.in_module(node) and _writes_apart(facts, node):
            yield APART.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node)[:70])


def _sets_apart(facts: View, call: ast.Call) -> bool:
    """Whether a call changes prepared weights in place by a draw, or by what differs between ranks."""
    func = call.func
    if _in_optimizer(facts, call) and (names.RANDOM_FACTORY.match(facts.path(call)) or getattr(func, "attr", "") in names.DRAWN_IN_PLACE):
        return True
    if names.INITIALISER.match(facts.path(call)):
        return bool(call.args) and facts.roles.reads_prepared_weights(call.args[0])
    if not isinstance(func, ast.Attribute):
        return False
    if func.attr == "reset_parameters":
        return _behind_prepare(facts, func.value)
    if func.attr == "apply" and call.args and any(o.kind == "prepared" for o in facts.machine.at[func.value].objs):
        return any(_initialises(o.site) for o in facts.machine.at.get(call.args[0], NOTHING).objs if isinstance(o.site, (*FUNCTIONS, ast.Lambda)))
    if not func.attr.endswith("_") or func.attr.endswith("__") or func.attr in SAFE:
        return False
    given = (*call.args, *(k.value for k in call.keywords))
    if func.attr not in names.DRAWN_IN_PLACE and not any(facts.machine.marks_of(arg) for arg in given):
        return False
    return any(facts.roles.reads_prepared_weights(owner) for owner in _chain(func.value))


def _in_optimizer(facts: View, node: ast.AST) -> bool:
    """Whether a node stands in a method of an optimizer's class: what it draws goes into weights."""
    return facts.inside_class(node, facts.optimizer_classes) is not None


def _chain(node: ast.expr) -> Iterator[ast.expr]:
    """What a chain of in-place methods works on: `p` of `p.mul_(a).add_(b)`."""
    while True:
        yield node
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_")):
            return
        node = node.func.value


def _behind_prepare(facts: View, node: ast.AST) -> bool:
    """Whether an expression is a prepared model, or a part of one."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if any(o.kind == "prepared" for o in facts.machine.at.get(node, NOTHING).objs):
            return True
        node = node.value
    return any(o.kind == "prepared" for o in facts.machine.at.get(node, NOTHING).objs)


def _initialises(function: ast.AST) -> bool:
    """Whether a function that is applied to each layer draws weights."""
    return any(
        isinstance(n, ast.Attribute) and (n.attr == "reset_parameters" or n.attr in names.DRAWN_IN_PLACE or ast.unparse(n.value).endswith("init"))
        for n in walk(function)
    )


def _hooks(facts: View, call: ast.Call) -> bool:
    """Whether a call hangs a hook that gives another gradient on a parameter of a model that trains."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in HOOKS or not call.args:
        return False
    models = facts.roles.parameters_of([facts.machine.at.get(call.func.value, NOTHING)])
    if not any(m in facts.models for m in models):
        return False
    found = [o.site for o in facts.machine.at.get(call.args[0], NOTHING).objs]
    return not found or any(_gives(site) for site in found)


def _gives(function: ast.AST | None) -> bool:
    """Whether a hook can return something, or change its argument in place (one that can't be read may)."""
    if isinstance(function, ast.Lambda):
        return not (isinstance(function.body, ast.Call) and ast.unparse(function.body.func).split(".")[-1] in ("append", "print", "add", "update"))
    if not isinstance(function, FUNCTIONS):
        return True
    if any(isinstance(n, ast.Return) and n.value is not None for n in walk(function)):
        return True
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr.endswith("_") for n in walk(function))


def _writes_apart(facts: View, node: ast.Assign | ast.AugAssign) -> bool:
    """Whether `p.data`, `p.grad` or a part of a weight is set to what differs between ranks."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    if not facts.machine.marks_of(node.value):
        return False
    return any(
        isinstance(t, (ast.Subscript, ast.Attribute))
        and (isinstance(t, ast.Subscript) or t.attr in ("data", "grad"))
        and facts.roles.reads_prepared_weights(t)
        for t in targets
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Langevin(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.add_(p.grad, alpha=-group["lr"]).add_(torch.randn_like(p), alpha=group["lr"] ** 0.5)


loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = Langevin(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        "S2A555",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.grad.add_(torch.randn_like(p.grad), alpha=0.01)
    optimizer.step()
""",
        "S2A555",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for p in model.parameters():
    p.register_hook(lambda grad: grad.clamp(-1, 1))

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        "S2A565",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
nn.init.normal_(model.weight, std=0.02)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
norms = []
for p in model.parameters():
    p.register_hook(lambda grad: norms.append(grad.norm()))

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    for p in model.parameters():
        p.grad.data.clamp_(-1, 1)
    optimizer.step()
    for p in model.parameters():
        p.data.clamp_(-0.1, 0.1)
""",
        None,
    ),
]
