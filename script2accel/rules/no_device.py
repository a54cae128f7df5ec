"""Give a script that knows no device what it needs on one.

prepare puts the model on the accelerator's device, and a prepared loader its batches. In a script that moves nothing, tensors that are made by
hand and meet them, or that a model or a dataset keeps in an attribute, and models that aren't prepared (a target network), go there too; what
comes out is brought to the CPU where it becomes a NumPy array.
Left alone in scripts that move something themselves, and for what never meets a prepared model.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import moves
from script2accel.analysis.facts import FUNCTIONS, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import wrap_expression
from script2accel.change.plan import Change, Splice
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic
from script2accel.knowledge import torch as names

CODE, NAME = "S2A105", "no-device"
MEETS = "it meets the prepared model: it goes to the accelerator's device"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares or moves(facts.program):
        return
    yield from _tensors(facts, decisions)
    yield from _attributes(facts, decisions)
    yield from _models(facts, decisions)
    yield from _whole_data(facts, decisions)
    yield from _arrays(facts)


def _tensors(facts: View, decisions: Decisions) -> Iterator[Change]:
    """Tensors that are made on the CPU and come to a model or a loss."""
    machine = facts.machine
    met = {mark for b in facts.program.backwards for mark in machine.made_into(b.loss)}
    for call in facts.program.calls:
        if call in machine.detours or call in facts.forward_calls:
            met |= {mark for a in (*call.args, *(k.value for k in call.keywords)) for mark in machine.made_into(a)}
    for call in facts.calls:
        mark = machine.making(call)
        if facts.inside_class(call, facts.dataset_classes) or _in_class_body(facts, call) or not (mark in met or _in_forward(facts, call, mark)):
            continue
        if device := decisions.device(call):
            yield Change(CODE, NAME, MEETS, call.lineno, wrap_expression(facts.source, call, "", f".to({device})"), source="R02")


def _in_class_body(facts: View, node: ast.AST) -> bool:
    """Whether a node runs with the definition of a class, at which there may be no accelerator yet."""
    return isinstance(facts.source.scope(node), ast.ClassDef)


def _in_forward(facts: View, call: ast.Call, mark: ast.AST) -> bool:
    """Whether a model makes a tensor while it runs."""
    function = facts.function(call)
    if mark not in facts.machine.makings or not facts.in_module(call) or isinstance(function, ast.Module) or function.name == "__init__":
        return False
    callers = [facts.function(site) for site in facts.callers(function)]
    return facts.in_train_loop(call) and not any(isinstance(c, FUNCTIONS) and c.name == "__init__" for c in callers)


def _attributes(facts: View, decisions: Decisions) -> Iterator[Change]:
    """Tensors that a model or a dataset made for itself and keeps in an attribute, where training reads them."""
    registered = {c.args[0].value for c in facts.program.calls if _registers(c) and isinstance(c.args[0], ast.Constant)}
    makers = {facts.machine.making(call): call for call in facts.program.calls if facts.machine.making(call) in facts.machine.makings}
    for node in facts.source.every(ast.Attribute):
        if not isinstance(node.ctx, ast.Load) or node.attr in registered or node not in facts.machine.at or not _computes(facts, node):
            continue
        if any(_is_part(facts, o) for o in facts.machine.at[node].objs) or facts.inside_class(node, facts.dataset_classes):
            continue
        made = [makers[mark] for mark in facts.machine.made_into(node) if mark in makers]
        made += [o.site for o in facts.machine.at[node].objs if isinstance(o.site, ast.Call) and facts.machine.making(o.site) in makers]
        if not made:
            continue
        inside = facts.inside_class(node, facts.module_classes)
        own = inside is not None and _is_self(facts, node.value) and any(inside in facts.program.source.classes(call)[:1] for call in made)
        kept = own or any(_in_class_body(facts, call) for call in made)
        if not kept and not any(facts.roles.of(o) == "dataset" for o in facts.machine.at.get(node.value, NOTHING).objs):
            continue
        if device := decisions.device(node):
            edits = wrap_expression(facts.source, node, "", f".to({device})")
            yield Change(CODE, NAME, MEETS, node.lineno, edits, source="R02")


def _registers(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr in ("register_buffer", "register_parameter") and bool(call.args)


def _is_part(facts: View, obj: Obj) -> bool:
    """Whether an object is a parameter or a module, which prepare moves with its model, or no tensor."""
    return names.PARAMETER.match(obj.path) is not None or bool(facts.roles.of(obj)) or obj.kind in ("const", "method", "function", "instance", "list")


def _is_self(facts: View, node: ast.expr) -> bool:
    function = facts.function(node)
    arguments = [] if isinstance(function, ast.Module) else function.args.args
    return isinstance(node, ast.Name) and bool(arguments) and function.name != "__init__" and arguments[0].arg == node.id  # type: ignore[union-attr]


def _computes(facts: View, node: ast.expr) -> bool:
    """Whether an expression is computed with: an operand, an argument of torch's or of a loss, be it an entry of it or another shape."""
    parent = facts.source.parents[node]
    if not facts.in_module(node) and not facts.in_train_loop(node) and not (isinstance(parent, ast.keyword) and parent.arg == "weight"):
        return False
    child: ast.AST = node
    while True:
        match parent:
            case ast.Subscript(value=value) if value is child:
                pass
            case ast.Attribute(attr=attr) if attr in names.SAME_TENSOR:
                child, parent = parent, facts.source.parents[parent]
            case ast.BinOp() | ast.Compare():
                return True
            case ast.keyword():
                return isinstance(call := facts.source.parents[parent], ast.Call) and _takes(facts, call)
            case ast.Call(func=func):
                return func is not child and _takes(facts, parent)
            case _:
                return False
        child, parent = parent, facts.source.parents[parent]


def _takes(facts: View, call: ast.Call) -> bool:
    """Whether a call computes with the tensors that it is given: one of torch, a model, a loss."""
    path = facts.path(call)
    if path.startswith("torch.utils.") or (path.startswith("torch.") and names.MAKES.match(path)):
        return False
    return path.startswith("torch.") or call in facts.forward_calls or facts.roles.of_node(call.func) in ("model", "criterion")


def _models(facts: View, decisions: Decisions) -> Iterator[Change]:
    """Models that are called beside the prepared ones and aren't prepared themselves."""
    called = {m for f in facts.program.forwards for m in f.models if not decisions.is_prepared(m) and facts.all_loops(f.call)}
    for model in sorted(called, key=lambda m: getattr(m.site, "lineno", 0)):
        site = model.site
        if not isinstance(site, ast.Call) or facts.source.root(site) is not facts.source.tree or facts.in_module(site) or _copied(facts, model):
            continue
        edits = wrap_expression(facts.source, site, "", f".to({decisions.accelerator(site)}.device)")
        yield Change(CODE, NAME, "a model that isn't prepared goes to the accelerator's device by itself", site.lineno, edits, source="R04")


def _whole_data(facts: View, decisions: Decisions) -> Iterator[Change]:
    """What is taken out of a dataset past the loader, and given to a prepared model."""
    for forward in facts.forwards:
        for arg in forward.call.args if decisions.prepared_here(forward.call.func, "model") else ():
            objs = [o for o in facts.machine.at.get(arg, NOTHING).objs if o.kind != "const"]
            if objs and all(_out_of_dataset(facts, o) for o in objs):
                edits = wrap_expression(
                    facts.source,
                    arg,
                    "(" if isinstance(arg, ast.BinOp) else "",
                    f"{')' if isinstance(arg, ast.BinOp) else ''}.to({decisions.accelerator(arg)}.device)",
                )
                yield Change(CODE, NAME, "taken out of the dataset, not dealt by the loader", arg.lineno, edits, source="R04")


def _out_of_dataset(facts: View, obj: Obj) -> bool:
    probe: Obj | None = obj
    while probe is not None and probe.kind in ("attr", "item", "made", "expr"):
        if facts.roles.of(probe) == "dataset":
            return True
        probe = probe.base
    return False


def _copied(facts: View, model: Obj) -> bool:
    return model.path == "copy.deepcopy"


def _arrays(facts: View) -> Iterator[Change]:
    """`.numpy()` of what a model gives or a prepared loader placed: from the CPU."""
    for call in facts.calls:
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr != "numpy" or facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue
        if any(_on_device(facts, o) for o in facts.machine.at.get(func.value, NOTHING).objs):
            at = facts.source.dot(func)
            yield Change(CODE, NAME, "NumPy reads from the CPU", call.lineno, (Splice(at, at, ".cpu()", True),), source="R04")


def _on_device(facts: View, obj: Obj) -> bool:
    """Whether an object comes out of a prepared model or loader, and isn't on the CPU yet."""
    probe: Obj | None = obj
    while probe is not None:
        if probe.kind == "prepared" or facts.roles.of(probe) == "loss":
            return True
        if probe.kind == "attr" and probe.name == "cpu":
            return False
        probe = probe.base
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __init__(self):
        self.x = torch.ones(64, 8)
        self.mean = self.x.mean(0)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.x[i], i % 2


class Net(nn.Module):
    scale = torch.tensor(0.5)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.mask = torch.ones(8)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        start = torch.zeros(x.size(0), 8)
        return self.layer(x * self.mask * self.scale + self.shift + start)


rows = Rows()
loader = DataLoader(rows, batch_size=16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    loss = nn.functional.cross_entropy(model(x - rows.mean), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from accelerate import Accelerator


class Rows(Dataset):
    def __init__(self):
        self.x = torch.ones(64, 8)
        self.mean = self.x.mean(0)

    def __len__(self):
        return 64

    def __getitem__(self, i):
        return self.x[i], i % 2


class Net(nn.Module):
    scale = torch.tensor(0.5)

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 2)
        self.mask = torch.ones(8)
        self.register_buffer("shift", torch.zeros(8))

    def forward(self, x):
        start = torch.zeros(x.size(0), 8).to(accelerator.device)
        return self.layer(x * self.mask.to(accelerator.device) * self.scale.to(accelerator.device) + self.shift + start)


rows = Rows()
loader = DataLoader(rows, batch_size=16)
accelerator = Accelerator()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    loss = nn.functional.cross_entropy(model(x - rows.mean.to(accelerator.device)), y)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
teacher = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    noisy = x + 0.1 * torch.ones(8)
    with torch.no_grad():
        wanted = teacher(x)
    output = model(noisy)
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(output.data.numpy().mean())
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
model = nn.Linear(8, 2)
accelerator = Accelerator()
teacher = nn.Linear(8, 2).to(accelerator.device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    noisy = x + 0.1 * torch.ones(8).to(accelerator.device)
    with torch.no_grad():
        wanted = teacher(x)
    output = model(noisy)
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    accelerator.print(output.data.cpu().numpy().mean())
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = nn.Linear(8, 2).to(device)
teacher = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    x = x.to(device)
    noisy = x + 0.1 * torch.ones(8, device=device)
    with torch.no_grad():
        wanted = teacher(x)
    output = model(noisy)
    loss = nn.functional.mse_loss(output, wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(output.data.cpu().numpy().mean())
""",
        None,
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Smooth(nn.Module):
    def __init__(self, amount=0.1):
        super().__init__()
        self.amount = amount

    def forward(self, out, target):
        scale = torch.tensor([1.0, 2.0])
        return (nn.functional.cross_entropy(out.float(), target, reduction="none") * scale[target]).mean() + self.amount


def main():
    loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    criterion = Smooth()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()


main()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


class Smooth(nn.Module):
    def __init__(self, amount=0.1):
        super().__init__()
        self.amount = amount

    def forward(self, out, target):
        scale = torch.tensor([1.0, 2.0]).to(out.device)
        return (nn.functional.cross_entropy(out.float(), target, reduction="none") * scale[target]).mean() + self.amount


def main():
    loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    criterion = Smooth()
    accelerator = Accelerator()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        accelerator.backward(loss)
        optimizer.step()


main()
""",
    ),
]
