"""Let DDP look for parameters that a step doesn't use.

Where training ignores a part of what the model gives (`validity, _ = discriminator(images)`), the parameters behind it get no gradient in that
step, and a wrapped model stops with an error at the next forward pass (measured). `find_unused_parameters=True` is set then.
The same holds for a layer that no method reads, or that `forward` reads only if an argument says so. `--find-unused-parameters` sets it in any case.
Left alone when everything that the model gives is used.
Source: https://huggingface.co/docs/accelerate/package_reference/kwargs#accelerate.DistributedDataParallelKwargs
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import View
from script2accel.analysis.values import Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A245", "unused-parameters"
IGNORED = Message(
    "S2A246",
    Severity.NOTE,
    "`{name}` of what the model gives isn't used here: DDP is told to look for unused parameters (`find_unused_parameters=True`)",
    "",
)


LEFT = Message(
    "S2A835",
    Severity.NOTE,
    "a training step may leave the parameters of `{name}` unused: DDP is told to look for unused parameters (`find_unused_parameters=True`)",
    "",
)
OVERRULED = Message("S2A299", Severity.NOTE, "the script's own `{text}` gives way to --find-unused-parameters", "")
IDLE = Message(
    "S2A309",
    Severity.WARNING,
    "--find-unused-parameters has no effect: it is an option of DDP, which the strategy does without",
    "leave it out",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if decisions.plan.prepares and decisions.options.find_unused_parameters:
        yield from _asked(facts, decisions)
    layers = _layers(facts) if decisions.plan.prepares else {}
    loads: dict[str, list[ast.Attribute]] = defaultdict(list)
    for node in facts.source.nodes if layers else ():
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            loads[node.attr].append(node)
    for model in layers:
        for node, name in _left(facts, model, layers[model], loads):
            decisions.ddp_arguments["find_unused_parameters"] = "True"
            yield LEFT.at(node.lineno, node.col_offset + 1, name=name)
    for forward in facts.forwards if decisions.plan.prepares else ():
        statement = facts.source.parents[forward.call]
        if not isinstance(statement, ast.Assign) or quiet(facts, forward.call) or not facts.in_train_loop(forward.call):
            continue
        target = statement.targets[0]
        for index, part in enumerate(target.elts if isinstance(target, ast.Tuple) else ()):
            if isinstance(part, ast.Name) and _unread(facts, part) and any(_own_head(facts, model, index) for model in forward.models):
                decisions.ddp_arguments["find_unused_parameters"] = "True"
                yield IGNORED.at(part.lineno, part.col_offset + 1, name=part.id)
                return


def _asked(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """What is said of `--find-unused-parameters`."""
    if not decisions.options.wrapped and facts.source in facts.program.source.entries:
        yield IDLE.at(0)
    for call in facts.calls:
        for keyword in call.keywords if names.HAND_WRAPPER.match(facts.path(call)) else ():
            if keyword.arg == "find_unused_parameters" and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is True):
                yield OVERRULED.at(call.lineno, keyword.col_offset + 1, text=facts.source.segment(keyword))


def _layers(facts: View) -> dict[Obj, list[str]]:
    """Model -> its attributes that are layers with weights."""
    table: dict[Obj, list[str]] = {model: [] for model in facts.models}
    for (owner, name), value in facts.machine.store.items():
        if owner in table and isinstance(name, str) and value.objs and all(_has_weights(facts, o) for o in value.objs):
            table[owner].append(name)
    return table


def _left(facts: View, model: Obj, layers: list[str], loads: dict[str, list[ast.Attribute]]) -> Iterator[tuple[ast.expr, str]]:
    """Layers of a model's own class that no method reads, or that `forward` reads only if one of its parameters says so."""
    cls = model.base.site if model.kind == "instance" and model.base is not None else None
    if not isinstance(cls, ast.ClassDef) or facts.source.root(cls) is not facts.source.tree:
        return
    nodes = [n for n in walk(cls) if isinstance(n, ast.Attribute)]
    if any(n.attr in ("_modules", "children", "modules", "named_children", "named_modules") for n in nodes) or _looks_up(cls):
        return
    for name in layers:
        mine = [n for n in nodes if n.attr == name and isinstance(n.value, ast.Name) and n.value.id == "self"]
        made = [n for n in mine if isinstance(n.ctx, ast.Store)]
        read = loads[name]
        if len(made) == 1 and (not read or all(_asked_for(facts, n) for n in read)):
            yield made[0], f"self.{name}"


def _looks_up(cls: ast.ClassDef) -> bool:
    return any(isinstance(n, ast.Name) and n.id in ("getattr", "setattr") for n in walk(cls))


def _has_weights(facts: View, obj: Obj) -> bool:
    """Whether an object is a layer with parameters that are trained."""
    layer = obj.kind == "made" and names.MODULE.match(obj.path) is not None and not names.BARE_LAYER.match(obj.path)
    return layer or (obj.kind == "instance" and facts.machine.is_module(obj))


def _asked_for(facts: View, node: ast.AST) -> bool:
    """Whether a place of `forward` is reached only if one of its parameters, other than by being there, says so."""
    function = facts.function(node)
    if isinstance(function, ast.Module) or function.name != "forward":
        return False
    parameters = {a.arg for a in (*function.args.args[1:], *function.args.kwonlyargs)}
    child: ast.AST = node
    for parent in facts.source.ancestors(node):
        if parent is function:
            return False
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test and isinstance(parent.test, (ast.Name, ast.UnaryOp)):
            asked = parent.test.operand if isinstance(parent.test, ast.UnaryOp) else parent.test
            if isinstance(asked, ast.Name) and asked.id in parameters:
                return True
        child = parent
    return False


def _own_head(facts: View, model: Obj, index: int) -> bool:
    """Whether element `index` of what a model's `forward` returns comes from a layer that nothing else of it needs."""
    found = facts.machine.class_member(model, "forward") if model.kind == "instance" else None
    for method in found.objs if found is not None else ():
        for node in walk(method.site) if method.site is not None else ():
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) and index < len(node.value.elts):
                part = node.value.elts[index]
                if isinstance(part, ast.Call):
                    return True
                if isinstance(part, ast.Name) and _only_returned(method.site, part.id):
                    return True
    return False


def _only_returned(function: ast.AST | None, name: str) -> bool:
    """Whether a name is set by calls on their own, and read where it is returned only."""
    assert function is not None
    loads = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
    made = [n for n in walk(function) if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)]
    return len(loads) == 1 and bool(made) and all(isinstance(n.value, ast.Call) for n in made)


def _unread(facts: View, name: ast.Name) -> bool:
    """Whether nothing in the function reads the name."""
    function = facts.function(name)
    return not any(isinstance(n, ast.Name) and n.id == name.id and isinstance(n.ctx, ast.Load) for n in walk(function))


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.spare = nn.Linear(8, 2)
        self.drop = nn.Dropout()

    def forward(self, x):
        return self.head(self.body(x))


loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
""",
        "S2A835",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head, self.judge = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        x = self.body(x)
        return self.head(x), self.judge(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    output, _ = model(x)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
""",
        "S2A246",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head, self.judge = nn.Linear(8, 2), nn.Linear(8, 1)

    def forward(self, x):
        x = self.body(x)
        return self.head(x), self.judge(x)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    output, judged = model(x)
    loss = nn.functional.cross_entropy(output, y) + judged.mean()
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
