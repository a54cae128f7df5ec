"""Refuse what needs whole weights on one process when FSDP2, or DeepSpeed, divides the model.

Under FSDP2 and ZeRO 3 each process holds a part of every weight behind prepare: a look at one sees the part, a forward pass takes all processes, and
each shard is cut from its own process's initial weights. Saving the model's weights, clipping by their norm, counting them (not under ZeRO 3, where a
part counts nothing) and loading them in front of prepare keep their meaning; what doesn't is refused with the line. The same is refused under ZeRO 1
and 2, whose optimizer overwrites the weights of the model with its own.
Left alone when neither is asked for.
Source: https://huggingface.co/docs/accelerate/usage_guides/fsdp
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import guarded
from script2accel.analysis.distribution import synchronised_statistics
from script2accel.analysis.facts import View
from script2accel.analysis.randomness import seedings
from script2accel.analysis.values import NOTHING
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A850", "sharding"
WEIGHTS = Message(
    "S2A858",
    Severity.ERROR,
    "`{text}` looks at the model's weights behind prepare: under this strategy each process holds a part of them",
    "do it in front of prepare, or on the state that `accelerator.get_state_dict(model)` gathers, and convert again",
)
STATE = Message(
    "S2A868",
    Severity.ERROR,
    "`{text}`: the state of a sharded optimizer is in parts, and a file of this form would hold one process's",
    "keep checkpoints with `accelerator.save_state(folder)` and `accelerator.load_state(folder)`: `--checkpointing state` does it where it can",
)
ALONE = Message(
    "S2A878",
    Severity.ERROR,
    "`{text}` is reached by some of the processes only ({why}): under this strategy it takes all of them, and the others would wait for ever",
    "let every process come here, or convert without a strategy",
)
UNSEEDED = Message(
    "S2A888",
    Severity.ERROR,
    "the model's initial weights aren't seeded: each process cuts its part from weights of its own, and replicas would differ",
    "seed in front of the model (`--seed N` does it), and convert again",
)
STATISTICS = Message(
    "S2A898",
    Severity.ERROR,
    "running batch statistics are each process's own under this strategy: evaluation and saved files would hold one process's",
    "convert the model with `torch.nn.SyncBatchNorm.convert_sync_batchnorm`, or convert without a strategy",
)
BUFFER = Message(
    "S2A425",
    Severity.ERROR,
    "the buffer `{name}` is changed while the model runs: under DDP it is that of the first process, under this strategy each process has its own",
    "convert without a strategy, or keep what it holds outside of the model",
)
OPTIMIZER = Message(
    "S2A258",
    Severity.ERROR,
    "`{name}` isn't known to treat each element of a weight by itself: on shards it may step otherwise",
    "use an optimizer of `torch.optim` such as AdamW, or convert without a strategy",
)
CLIPS_VALUE = Message(
    "S2A268",
    Severity.ERROR,
    "gradients are clipped by value here, which Accelerate refuses under FSDP and DeepSpeed (measured)",
    "clip by norm, or convert without a strategy",
)
NORM = Message(
    "S2A388",
    Severity.ERROR,
    "the norm that the gradient clip gives is used: of divided gradients it is given in parts, or as a bare number",
    "leave the norm unused, and convert again",
)
COUNTS = frozenset({"numel", "nelement", "requires_grad", "shape", "size", "dim", "ndim"})
"""What a sharded parameter answers as the whole one would."""
HARMLESS_CALLS = frozenset({"print", "isinstance", "type", "hasattr", "id", "accelerate.utils.set_seed"})
"""Calls outside of the script that may be given a model."""
PLAIN = frozenset({"config", "name_or_path", "main_input_name"})
"""Attributes of a model that hold no weights."""


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.options.divided or not decisions.plan.prepares:
        return
    options = decisions.options
    early = options.tp > 1 or (options.zero == 3 and any(m.path.startswith("transformers.") for m in facts.program.models))
    whole = COUNTS if options.zero < 3 else COUNTS & {"requires_grad"}
    yield from (d for node, d in _weights(facts, early, whole) if not decisions.is_state(node))
    yield from _buffers(facts)
    yield from _optimizers(facts, decisions)
    yield from _forwards(facts)
    yield from _clips(facts)
    if facts.train_loops and not options.zero:  # DeepSpeed sends the first process's weights to all
        yield from _beginning(facts, decisions)
    for call in facts.calls:
        path = facts.path(call)
        if names.BATCH_NORM.match(path) and not path.endswith("SyncBatchNorm") and not synchronised_statistics(facts):
            yield STATISTICS.at(call.lineno, call.col_offset + 1)
            break


def _weights(facts: View, early: bool, whole: frozenset[str]) -> Iterator[tuple[ast.AST, Diagnostic]]:
    """Looks at a divided model's weights, and copies of it, each with its place; `early` where it is divided in front of prepare already; a part
    answers `whole` questions as the whole would."""
    for node in facts.source.nodes:
        match node:
            case ast.Attribute(value=owner) if _model(facts, owner, early) and not facts.in_module(node) and not _harmless(facts, node, whole):
                place, text = (node.lineno, node.col_offset + 1), facts.source.segment(node)
                if node.attr == "state_dict" and guarded(facts, node):
                    yield node, ALONE.at(*place, text=text, why="it is saved on the main process")
                else:
                    yield node, WEIGHTS.at(*place, text=text)
            case ast.Subscript(value=owner, ctx=ast.Load()) if _model(facts, owner, early) or _parameters_of_group(node):
                yield node, WEIGHTS.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
            case ast.Call() if (given := _handed_out(facts, node, early)) is not None:
                yield node, WEIGHTS.at(node.lineno, node.col_offset + 1, text=f"{facts.source.segment(node.func)}({facts.source.segment(given)})")
    for arg in facts.machine.plain:
        if isinstance(arg, ast.expr) and facts.source.root(arg) is facts.source.tree:
            yield arg, WEIGHTS.at(arg.lineno, arg.col_offset + 1, text=facts.source.segment(arg))
    for name in _kept(facts):
        yield name, WEIGHTS.at(name.lineno, name.col_offset + 1, text=name.id)


def _buffers(facts: View) -> Iterator[Diagnostic]:
    """Buffers of the script's own modules that change while they run."""
    for cls in facts.module_classes:
        if facts.source.root(cls) is not facts.source.tree:
            continue
        nodes = list(walk(cls))
        registered = {name for n in nodes if (name := _registers(n)) is not None}
        for node in nodes:
            if isinstance(node, ast.Attribute) and node.attr in registered and _changes(facts, node):
                yield BUFFER.at(node.lineno, node.col_offset + 1, name=node.attr)
                break


def _registers(node: ast.AST) -> object:
    """The name of the buffer that a call registers."""
    match node:
        case ast.Call(func=ast.Attribute(attr="register_buffer"), args=[ast.Constant(value=name), *_]):
            return name
    return None


def _changes(facts: View, node: ast.Attribute) -> bool:
    """Whether a place sets what an attribute holds, or changes it in place, other than in a constructor."""
    function = facts.function(node)
    if isinstance(function, ast.Module) or function.name == "__init__":
        return False
    chain: ast.AST = node
    while isinstance(parent := facts.source.parents[chain], (ast.Attribute, ast.Subscript)) and parent.value is chain:
        chain = parent
    call = facts.source.parents[chain]
    in_place = isinstance(chain, ast.Attribute) and chain.attr.endswith("_") and isinstance(call, ast.Call) and call.func is chain
    return in_place or isinstance(getattr(chain, "ctx", None), ast.Store) or isinstance(call, ast.AugAssign)


def _parameters_of_group(node: ast.Subscript) -> bool:
    """`group["params"]`: an optimizer's own list of weights."""
    return isinstance(node.slice, ast.Constant) and node.slice.value == "params"


def _handed_out(facts: View, call: ast.Call, early: bool) -> ast.expr | None:
    """A model that a call gives, whole, to code that isn't the script's: it would copy, save or export one process's part."""
    callee = facts.machine.at.get(call.func, NOTHING).objs
    if facts.in_module(call) or not callee or any(o.kind in ("function", "class", "method") for o in callee) or facts.path(call) in HARMLESS_CALLS:
        return None
    if facts.roles.of_node(call) == "optimizer" or any(names.TRANSPARENT.match(p) for p in facts.any_path(call)):
        return None
    if isinstance(call.func, ast.Attribute) and facts.roles.of_node(call.func.value) == "accelerator":
        return None
    return next((arg for arg in (*call.args, *(k.value for k in call.keywords)) if _model(facts, arg, early)), None)


def _model(facts: View, node: ast.expr, early: bool = False) -> bool:
    """Whether an expression can hold a prepared model (`early`: or one that an optimizer trains)."""
    if early and any(o in facts.program.models for o in facts.machine.at.get(node, NOTHING).objs):
        return True
    return any(o.kind == "prepared" and facts.roles.of(o) in ("model", "criterion") for o in facts.machine.at.get(node, NOTHING).objs)


def _harmless(facts: View, node: ast.Attribute, whole: frozenset[str]) -> bool:
    """Whether what is read of a prepared model is the same, or the whole, when it is divided."""
    call = facts.source.parents[node]
    if node.attr in PLAIN or node.attr in names.STATELESS:
        return True
    if not isinstance(call, ast.Call) or call.func is not node:
        return False
    if node.attr in ("parameters", "named_parameters"):
        return _only_counted(facts, call, whole) or _clipped(facts, call) or _makes_optimizer(facts, call)
    return node.attr == "state_dict" and not guarded(facts, node) and _only_saved(facts, call)


def _only_counted(facts: View, call: ast.Call, whole: frozenset[str]) -> bool:
    """Whether a comprehension over parameters asks them only for what they answer whole."""
    comprehension = facts.source.parents[call]
    if not isinstance(comprehension, ast.comprehension) or comprehension.iter is not call:
        return False
    around = facts.source.parents[comprehension]
    bound = {n.id for n in walk(comprehension.target) if isinstance(n, ast.Name)}
    for node in walk(around):
        if isinstance(node, ast.Name) and node.id in bound and isinstance(node.ctx, ast.Load):
            asked = facts.source.parents[node]
            if not isinstance(asked, ast.Attribute) or asked.attr not in whole:
                return False
    return True


def _clipped(facts: View, call: ast.Call) -> bool:
    around = facts.source.parents[call]
    given = isinstance(around, ast.Call) and (call in around.args[:1])
    if isinstance(around, ast.keyword):
        given, around = around.arg == "parameters", facts.source.parents[around]
    return given and isinstance(around, ast.Call) and any(names.CLIP_NORM.match(p) for p in facts.any_path(around))


def _only_saved(facts: View, call: ast.Call) -> bool:
    """Whether a state is written to a file and nothing else: the processes other than the first get an empty one."""
    if _in_save(facts, call):
        return True
    match facts.source.statement(call):
        case ast.Assign(targets=[ast.Name(id=name)]) as statement:
            scope = facts.source.scope(statement)
            loads = [n for n in walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)]
            return bool(loads) and all(_in_save(facts, n) for n in loads)
    return False


def _in_save(facts: View, node: ast.AST) -> bool:
    """Whether a value goes, as it is or in a table, into `torch.save`."""
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.Call):
            return facts.path(parent) == "torch.save"
        if not isinstance(parent, (ast.Dict, ast.keyword)):
            return False
    return False


def _kept(facts: View) -> Iterator[ast.Name]:
    """Names that still hold the whole weights of before prepare, read behind it."""
    order = facts.machine.order
    for node in facts.source.nodes:
        owner = _looked_into(facts, node)
        if owner is None or not facts.roles.objects(owner, "model") or _model(facts, owner) or facts.in_module(node):
            continue
        statement = facts.source.statement(node)
        if not isinstance(statement, ast.Assign) or facts.roles.of_node(statement.value) == "optimizer":
            continue
        bound = {n.id for target in statement.targets for n in walk(target) if isinstance(n, ast.Name)}
        for name in walk(facts.source.scope(statement)):
            if isinstance(name, ast.Name) and name.id in bound and isinstance(name.ctx, ast.Load):
                reader = facts.source.statement(name)
                behind = order.get(reader, 0) > order.get(statement, 0)
                if behind and not _makes_optimizer(facts, name) and not _number(facts, statement.value):
                    yield name


def _looked_into(facts: View, node: ast.AST) -> ast.expr | None:
    """The model of which a statement keeps weights, or a part: `model.parameters()`, `model[0]`, `model.encoder`."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="parameters" | "named_parameters")):
            return owner
        case ast.Attribute(value=owner, attr=attr) | ast.Subscript(value=owner, slice=attr):
            kept = isinstance(parent := facts.source.parents[node], ast.Assign) and parent.value is node
            return owner if kept and attr not in PLAIN else None
    return None


def _makes_optimizer(facts: View, node: ast.AST) -> bool:
    return any(isinstance(p, ast.Call) and facts.roles.of_node(p) == "optimizer" for p in facts.source.ancestors(node))


def _number(facts: View, value: ast.expr) -> bool:
    """Whether what is kept of parameters is a count."""
    return isinstance(value, ast.Call) and facts.path(value) in ("sum", "len", "builtins.sum", "builtins.len", "max", "any", "all")


def _optimizers(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    for node in facts.source.every(ast.Attribute):
        if facts.roles.of_node(node.value) != "optimizer" or decisions.is_state(node):
            continue
        if node.attr in ("state_dict", "load_state_dict", "state"):
            yield STATE.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
    for obj in facts.program.optimizers:
        if obj.site is not None and facts.source.root(obj.site) is facts.source.tree and not names.ELEMENTWISE.match(obj.path):
            yield OPTIMIZER.at(getattr(obj.site, "lineno", 1), name=obj.path or str(obj.name))


def _forwards(facts: View) -> Iterator[Diagnostic]:
    """Forward passes that not every process comes to."""
    for forward in facts.forwards:
        call = forward.call
        if not _model(facts, call.func):
            continue
        text = facts.source.segment(call)
        if guarded(facts, call):
            yield ALONE.at(call.lineno, call.col_offset + 1, text=text, why="the main process runs it")
            continue
        for parent in facts.source.ancestors(call):
            if isinstance(parent, (ast.If, ast.While)) and facts.machine.marks_of(parent.test):
                yield ALONE.at(call.lineno, call.col_offset + 1, text=text, why=f"`{facts.source.segment(parent.test)}` differs between them")
                break


def _clips(facts: View) -> Iterator[Diagnostic]:
    for call in facts.calls:
        paths = facts.any_path(call)
        if any(names.CLIP_VALUE.match(p) for p in paths):
            yield CLIPS_VALUE.at(call.lineno, call.col_offset + 1)
        elif any(names.CLIP_NORM.match(p) for p in paths):
            given = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "parameters"), None)
            fresh = isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute) and _model(facts, given.func.value)
            if not isinstance(facts.source.parents[call], ast.Expr):
                yield NORM.at(call.lineno, call.col_offset + 1)
            elif given is not None and not fresh:
                yield WEIGHTS.at(call.lineno, call.col_offset + 1, text=facts.source.segment(given))


def _beginning(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """Whether all processes make the same initial weights."""
    order = facts.machine.order
    seeds = [s for s in seedings(facts.program) if s.what in ("torch", "all") and _same_everywhere(facts, s.node)]
    for model in facts.program.models:
        if model.site is None or names.LOADED_WHOLE.match(model.path):
            continue
        made = order.get(facts.program.source.statement(model.site), 0)
        if not any(order.get(s.statement, 0) < made for s in seeds) and (seeds or decisions.options.seed is None):
            yield UNSEEDED.at(getattr(model.site, "lineno", 1))


def _same_everywhere(facts: View, seed: ast.expr) -> bool:
    """Whether a seed is the same on all processes."""
    return not facts.machine.marks_of(seed) and not any(facts.roles.of_node(n) == "rank" for n in walk(seed) if isinstance(n, ast.expr))


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
torch.save(model.state_dict(), "model.pt")
""",
        None,
        {"strategy": "fsdp2"},
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
print(sum(p.norm().item() for p in model.parameters()))
""",
        "S2A858",
        {"strategy": "fsdp2"},
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
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
""",
        "S2A868",
        {"strategy": "fsdp2"},
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
weights = list(model.parameters())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(weights, 1.0)
    optimizer.step()
""",
        "S2A858",
        {"strategy": "fsdp2"},
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
    nn.utils.clip_grad_value_(model.parameters(), 1.0)
    optimizer.step()
""",
        "S2A268",
        {"strategy": "fsdp2"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

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
        "S2A888",
        {"strategy": "fsdp2"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A898",
        {"strategy": "fsdp2"},
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
optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A258",
        {"strategy": "fsdp2"},
    ),
    (
        """\
import os
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
if int(os.environ.get("RANK", 0)) == 0:
    print(model(torch.ones(1, 8)))
""",
        "S2A878",
        {"strategy": "fsdp2"},
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
best = {name: value.clone() for name, value in model.state_dict().items()}
model.load_state_dict(best)
""",
        "S2A858",
        {"strategy": "fsdp2"},
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
print(sum(p.norm().item() for p in model.parameters()))
""",
        None,
        {},
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
print(model[0].weight.norm().item())
""",
        "S2A858",
        {"strategy": "fsdp2"},
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
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print(norm.item())
""",
        "S2A388",
        {"strategy": "fsdp2"},
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
torch.save(model, "model.pt")
""",
        "S2A858",
        {"strategy": "fsdp2"},
    ),
]
