"""Let the accelerator name the device.

`device = torch.device("cuda" if torch.cuda.is_available() else "cpu")` becomes `device = accelerator.device`: each process
then has the device that the launcher gave it. The variable stays, since other code may use it; one that the script reads as text
(`device == "cuda"`) stays a text.
Left alone when the value isn't a choice of a device, or stands in an nn.Module's class.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import override, own_definitions
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import add_before, merge, replace, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.launched import devices
from script2accel.source import walk

CODE, NAME = "S2A101", "device-name"
NO_EFFECT = Message(
    "S2A111",
    Severity.NOTE,
    "`{flag}` no longer decides anything: the launcher gives each process its device",
    "drop the flag, or keep it for old command lines",
)
STRING_METHODS = frozenset(
    {"startswith", "endswith", "lower", "upper", "split", "rsplit", "partition", "find", "index", "replace", "strip", "isdigit", "count", "encode"}
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    done: set[ast.AST] = set()
    launched = set(devices(facts.program, decisions.launch)) if decisions.launch is not None else set()  # these are the launch's own
    for definition in own_definitions(facts):
        if definition in done or definition in launched:
            continue
        whole = _choice(facts, definition)
        last = override(facts, definition)
        if last is not None:
            edits = _behind(facts, decisions, definition, last)
        elif whole is not None:
            done |= {node for node in walk(whole) if isinstance(node, ast.stmt)}
            target = _targets(definition)[0]
            text = f"{facts.source.segment(target)} = {_form(facts, decisions, definition)}"
            edits = replace(facts.source, whole, text)
        else:
            assert definition.value is not None
            edits = replace(facts.source, definition.value, _form(facts, decisions, definition))
        yield Change(CODE, NAME, "each process has its own device: the accelerator names it", definition.lineno, edits, source="R02")
    yield from _given(facts, decisions)
    yield from _compared(facts)
    yield from _flags(facts)


def _behind(facts: View, decisions: Decisions, definition: ast.Assign | ast.AnnAssign, last: ast.stmt) -> tuple[Edit, ...]:
    """The device set behind a statement that may set any global: what is in front of it are defaults, from which no accelerator must be born."""
    block = facts.source.block(last)
    index = next(i for i, s in enumerate(block) if s is last)
    place = block[min(index + 1, len(block) - 1)]
    target = facts.source.segment(_targets(definition)[0])
    return add_before(facts.source, place, f"{target} = {_form(facts, decisions, definition, place)}")


def _form(facts: View, decisions: Decisions, definition: ast.Assign | ast.AnnAssign, place: ast.stmt | None = None) -> str:
    """The accelerator's device; as text where it was text and the script reads it as such (`device == "cuda"`)."""
    device = f"{decisions.accelerator(place or definition)}.device"
    read = _texts(facts, definition) if definition.value is not None and _is_text(definition.value) else None
    if read is None:
        return device
    return f"str({device})" if any(":" in text for text in read) else f"{device}.type"


def _is_text(value: ast.expr) -> bool:
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            return _is_text(body) and _is_text(orelse)
        case ast.BoolOp(values=parts):
            return all(_is_text(part) for part in parts)
    return isinstance(value, (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Attribute))


def _texts(facts: View, definition: ast.Assign | ast.AnnAssign) -> list[str] | None:
    """The texts that the device is compared with, if it is used as text at all."""
    used = False
    found: list[str] = []
    for node in facts.source.nodes:
        match node:
            case ast.Compare(left=left, comparators=others) if any(_holds(facts, part, definition) for part in (left, *others)):
                texts = [n.value for part in (left, *others) for n in walk(part) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
                used, found = used or bool(texts), found + texts
            case ast.Attribute(value=owner, attr=attr) if attr in STRING_METHODS and _holds(facts, owner, definition):
                used = True
            case ast.Subscript(value=owner) if _holds(facts, owner, definition):
                used = True
            case ast.Call(func=ast.Name(id="getattr"), args=[_, name, *_]) if _holds(facts, name, definition):
                used = True
    return found if used else None


def _holds(facts: View, node: ast.expr, definition: ast.Assign | ast.AnnAssign) -> bool:
    """Whether a name, or a parameter that it was given to, holds the device that a definition chooses."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return False
    if any(ast.unparse(node) == ast.unparse(target) for target in _targets(definition)):
        return True
    value = facts.machine.at.get(definition.value, NOTHING) if definition.value is not None else NOTHING
    return isinstance(node, ast.Name) and bool(facts.machine.at.get(node, NOTHING).objs & value.objs)


def _targets(definition: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return definition.targets if isinstance(definition, ast.Assign) else [definition.target]


def _given(facts: View, decisions: Decisions) -> Iterator[Change]:
    """`Trainer(model, torch.device(args.device))`: a device that is chosen where it is handed on."""
    chosen = {n for d in own_definitions(facts) if d.value is not None for n in walk(d.value)}
    for call in facts.calls:
        parent = facts.source.parents[call]
        taker = facts.source.parents[parent] if isinstance(parent, ast.keyword) else parent
        if facts.path(call) != "torch.device" or call in chosen or not isinstance(taker, ast.Call) or taker.func is call:
            continue
        own = any(o.kind in ("function", "class", "method") for o in facts.machine.at.get(taker.func, NOTHING).objs)
        if not own or facts.in_module(call) or (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == "cpu"):
            continue
        edits = replace(facts.source, call, f"{decisions.accelerator(call)}.device")
        yield Change(CODE, NAME, "each process has its own device: the accelerator names it", call.lineno, edits, source="R02")


def _compared(facts: View) -> Iterator[Change]:
    """`device == torch.device("cuda")`: the accelerator's device has a number, so only the types can be compared."""
    for node in facts.source.every(ast.Compare):
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Eq, ast.NotEq)):
            continue
        for name, other in ((node.left, node.comparators[0]), (node.comparators[0], node.left)):
            match other:
                case ast.Call(args=[ast.Constant(value=str(text)) as kind], keywords=[]) if facts.path(other) == "torch.device" and ":" not in text:
                    if any(_holds(facts, name, definition) for definition in own_definitions(facts)):
                        edits = merge([wrap_expression(facts.source, name, "", ".type"), replace(facts.source, other, facts.source.segment(kind))])
                        yield Change(CODE, NAME, "the accelerator's device has a number: the types are compared", node.lineno, edits, source="R02")


def _choice(facts: View, definition: ast.Assign | ast.AnnAssign) -> ast.If | None:
    """An `if`/`else` that only chooses the device: it becomes one line."""
    parent = facts.source.parents[definition]
    if not isinstance(parent, ast.If) or definition not in parent.body or not facts.source.alone(parent):
        return None
    known = set(own_definitions(facts))
    target = ast.unparse(definition.targets[0] if isinstance(definition, ast.Assign) else definition.target)
    node: ast.If = parent
    while True:
        if len(node.body) != 1 or node.body[0] not in known or not _same_target(node.body[0], target) or "#" in facts.source.segment(parent):
            return None
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            node = node.orelse[0]
            continue
        if len(node.orelse) != 1 or node.orelse[0] not in known or not _same_target(node.orelse[0], target):
            return None
        break
    outer = facts.source.parents[parent]
    return None if isinstance(outer, ast.If) and parent in outer.orelse else parent


def _same_target(node: ast.stmt, target: str) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == target


def _flags(facts: View) -> Iterator[Diagnostic]:
    """Command line flags that only the replaced definitions read."""
    replaced = {n for d in own_definitions(facts) if d.value is not None for n in walk(d.value)}
    if not replaced:
        return
    read: dict[str, list[ast.AST]] = {}
    for node in facts.source.every(ast.Attribute):
        if isinstance(node.ctx, ast.Load):
            read.setdefault(node.attr, []).append(node)
    for call in facts.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        options = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if not options:
            continue
        dest = next(
            (str(k.value.value) for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)),
            max(options, key=len).lstrip("-").replace("-", "_"),
        )
        uses = [n for n in read.get(dest, []) if not (isinstance(n, ast.Attribute) and n is call.func)]
        if uses and all(n in replaced for n in uses):
            yield NO_EFFECT.at(call.lineno, call.col_offset + 1, flag=options[-1])


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
weights = torch.ones(2).to(device)

for x, y in loader:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y, weights)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
device = accelerator.device
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
weights = torch.ones(2).to(device)

for x, y in loader:
    optimizer.zero_grad()
    counted = weights[y].sum()
    share = counted / accelerator.reduce(counted, reduction="mean")
    loss = torch.where(counted > 0, nn.functional.cross_entropy(model(x), y, weights), 0.0) * share
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
if device == "cuda":
    torch.backends.cudnn.benchmark = True
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model.to(device)

for x, y in loader:
    x, y = x.to(device), y.to(device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
device = accelerator.device.type
if device == "cuda":
    torch.backends.cudnn.benchmark = True
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int, default=0)
args = parser.parse_args()
if torch.cuda.is_available():
    device = torch.device(f"cuda:{args.gpu}")
else:
    device = torch.device("cpu")
pinned = device != torch.device("cpu")
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, pin_memory=pinned)
model = nn.Linear(8, 2).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
    loss.backward()
    optimizer.step()
""",
        """\
import argparse
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--gpu", type=int, default=0)
args = parser.parse_args()
accelerator = Accelerator()
device = accelerator.device
pinned = device.type != "cpu"
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, pin_memory=pinned)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, loader, optimizer, device):
    weights = torch.ones(2).to(device)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device), weights)
        loss.backward()
        optimizer.step()


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model.cuda(), loader, optimizer, torch.device("cuda:0"))
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


def train(model, loader, optimizer, device):
    weights = torch.ones(2).to(device)
    for x, y in loader:
        optimizer.zero_grad()
        counted = weights[y].sum()
        share = counted / accelerator.reduce(counted, reduction="mean")
        loss = torch.where(counted > 0, nn.functional.cross_entropy(model(x), y, weights), 0.0) * share
        accelerator.backward(loss)
        optimizer.step()


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
train(model, loader, optimizer, accelerator.device)
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
device = "phone"
print("a " + device)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
