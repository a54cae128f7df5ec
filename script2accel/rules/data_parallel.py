"""Take DataParallel and DistributedDataParallel off the model: prepare wraps it.

The wrapper's call goes, and the statement with it where it did nothing else; `.module` goes with it, and so does a choice between
`model.module` and `model`. Options of DistributedDataParallel (`find_unused_parameters`, `broadcast_buffers`, ...) survive as
`DistributedDataParallelKwargs`; `device_ids` and `output_device` are the launcher's business. Weights that were saved through the wrapper
had `module.` in front of their keys: the converted script writes and reads plain keys, and says so.
Left alone: FullyShardedDataParallel, and wrappers whose model can't be seen.
Source: https://huggingface.co/docs/accelerate/concept_guides/gradient_synchronization
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import guarded
from script2accel.analysis.devices import moves
from script2accel.analysis.distribution import dealt, inside_wrapper, passes_wrapper, wrapped, wrappers
from script2accel.analysis.facts import View
from script2accel.analysis.residue import nothing_left
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import merge, remove_statement, replace_range, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A502", "wrapper-by-hand"
OPTION = Message(
    "S2A515",
    Severity.ERROR,
    "`{text}` has no counterpart in `DistributedDataParallelKwargs`",
    "drop the option, and convert again",
)
DIFFERENT = Message(
    "S2A516",
    Severity.ERROR,
    "the models are wrapped with different options (the first: line {first}); one accelerator has one set of them",
    "wrap them alike, and convert again",
)
KEYS = Message(
    "S2A517",
    Severity.WARNING,
    "this saved keys with `module.` in front, by way of the wrapper; now they have none, as the script's own loading code expects from here on",
    "files that the original wrote need `torch.nn.modules.utils.consume_prefix_in_state_dict_if_present(state, 'module.')` before they are loaded",
)
CUT = Message(
    "S2A518",
    Severity.ERROR,
    "`{text}` cuts the wrapper's `module.` off keys by its length, and the keys have none any more",
    "use `key.removeprefix('module.')`, and convert again",
)
UNDEALT = Message(
    "S2A536",
    Severity.WARNING,
    "every process of the original read all of this loader's data (no DistributedSampler); now each gets its share, and epochs are shorter",
    "",
)
SET = Message("S2A519", Severity.ERROR, "`{text}` is replaced behind the wrapper", "set it before prepare, on the model itself")
REASON = "prepare wraps the model"
DROPPED = frozenset({"device_ids", "output_device", "module", "delay_allreduce", "message_size", "dim"})
KEPT = frozenset({"broadcast_buffers", "bucket_cap_mb", "find_unused_parameters", "check_reduction", "gradient_as_bucket_view", "static_graph"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    found = wrappers(facts)
    by_statement: dict[ast.stmt, list[ast.Call]] = {}
    for call in found:
        by_statement.setdefault(facts.source.statement(call), []).append(call)
    for statement, calls in by_statement.items():
        yield _unwrapped(facts, decisions, statement, calls)
    yield from _options(facts, decisions, found)
    yield from _accesses(facts, decisions)
    yield from _keys(facts)
    yield from _undealt(facts, found)


def _undealt(facts: View, calls: list[ast.Call]) -> Iterator[Diagnostic]:
    """Loaders that every process of the original read whole."""
    if not any("DistributedDataParallel" in path for call in calls for path in facts.any_path(call)):
        return
    for loop in facts.program.train_loops:
        for loader in loop.loaders:
            if not dealt(loader) and isinstance(loader.site, ast.Call) and loader.site in facts.calls and names.LOADER.match(loader.path):
                yield UNDEALT.at(loader.site.lineno, loader.site.col_offset + 1)


def _unwrapped(facts: View, decisions: Decisions, statement: ast.stmt, calls: list[ast.Call]) -> Change:
    moved = [m.call for m in moves(facts) if facts.source.statement(m.call) is statement and not m.rest and decisions.places(m)]
    if nothing_left(statement, moved, calls):
        decisions.gone.add(statement)
        return Change(CODE, NAME, REASON, statement.lineno, remove_statement(facts.source, statement), source="R63")
    return Change(CODE, NAME, REASON, statement.lineno, merge(_cut(facts, call) for call in calls), source="R63")


def _cut(facts: View, call: ast.Call) -> tuple[Edit, ...]:
    inner = wrapped(call)
    assert inner is not None
    start, end = facts.source.start(inner), facts.source.end(inner)
    return merge([replace_range(facts.source.start(call), start, ""), replace_range(end, facts.source.end(call), "")])


def _options(facts: View, decisions: Decisions, calls: list[ast.Call]) -> Iterator[Diagnostic]:
    """The options of DistributedDataParallel go to the accelerator, which has one set of them for all models."""
    first: tuple[dict[str, str], int] | None = None
    for call in calls:
        if any("DistributedDataParallel" not in path for path in facts.any_path(call)):
            continue
        kept: dict[str, str] = {}
        for keyword in call.keywords:
            if keyword.arg in KEPT:
                constant = isinstance(keyword.value, ast.Constant)
                kept[str(keyword.arg)] = facts.source.segment(keyword.value) if constant else decisions.reads(keyword.value)
            elif keyword.arg not in DROPPED and not (isinstance(keyword.value, ast.Constant) and keyword.value.value is None):
                text = f"{keyword.arg or '**'}={facts.source.segment(keyword.value)}"
                yield OPTION.at(keyword.value.lineno, keyword.value.col_offset + 1, text=text)
        if first is not None and first[0] != kept:
            yield DIFFERENT.at(call.lineno, call.col_offset + 1, first=first[1])
        first = first or (kept, call.lineno)
    if first is not None:
        decisions.ddp_arguments.update(first[0])


# .module -------------------------------------------------------------------------------------------------


def _accesses(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    chosen: set[ast.IfExp] = set()
    for node in facts.source.every(ast.Attribute):
        if not passes_wrapper(facts, node):
            continue
        if not isinstance(node.ctx, ast.Load):
            yield SET.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
            continue
        choice = next((p for p in facts.source.ancestors(node) if isinstance(p, ast.IfExp)), None)
        if choice is not None and choice not in chosen and _same_behind(facts, choice):
            chosen.add(choice)
            kept = choice.body if any(n is node for n in walk(choice.body)) else choice.orelse
            start, end = facts.source.outer(choice)
            edits = merge([replace_range(start, facts.source.start(kept), ""), replace_range(facts.source.end(kept), end, "")])
            yield Change(CODE, NAME, "the model is reached in one way, whether it is wrapped or not", node.lineno, edits, source="R63")
        edits = replace_range(facts.source.dot(node), facts.source.end(node), "")
        parent = facts.source.parents[node]
        alone = not isinstance(parent, ast.Attribute) and not (isinstance(parent, ast.Call) and parent.func is node and not guarded(facts, node))
        if alone and any(o.kind == "prepared" for o in facts.machine.at.get(node.value, NOTHING).objs):
            edits = merge([edits, wrap_expression(facts.source, inside_wrapper(facts, node), f"{decisions.accelerator(node)}.unwrap_model(", ")")])
        yield Change(CODE, NAME, "`.module` goes with the wrapper", node.lineno, edits, source="R63")


class _Without(ast.NodeTransformer):
    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        return node.value if node.attr == "module" else node


def _same_behind(facts: View, choice: ast.IfExp) -> bool:
    """`model.module if wrapped else model`, also with the same behind both."""
    body, other = (ast.unparse(_Without().visit(ast.parse(ast.unparse(part), mode="eval"))) for part in (choice.body, choice.orelse))
    return body == other


def _keys(facts: View) -> Iterator[Diagnostic]:
    """Weights that go to a file by way of the wrapper, and code that cuts its prefix off."""
    through = [
        call
        for call in facts.calls
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "state_dict"
        and not passes_wrapper(facts, call.func.value)
        and not _chosen_inside(facts, call)
        and any(
            facts.machine.used(o.inner, "wrapped") and "model" in (facts.roles.of(o),) for o in facts.machine.at.get(call.func.value, NOTHING).objs
        )
        and _behind_wrapper(facts, call)
    ]
    for call in through:
        yield KEYS.at(call.lineno, call.col_offset + 1)
    for node in facts.source.nodes:
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Slice(lower=ast.Constant(value=7), upper=None)) if through and len(name) <= 4:
                yield CUT.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))


def _chosen_inside(facts: View, call: ast.Call) -> bool:
    return any(isinstance(p, ast.IfExp) and _same_behind(facts, p) for p in facts.source.ancestors(call))


def _behind_wrapper(facts: View, call: ast.Call) -> bool:
    """Whether the name that is asked for its weights is one that was bound to the wrapper."""
    assert isinstance(call.func, ast.Attribute)
    text = ast.unparse(call.func.value)
    if any(passes_wrapper(facts, n) for value in facts.assigned.get(text, ()) for n in walk(value)):
        return False  # raw_model = model.module
    for obj in facts.machine.at.get(call.func.value, NOTHING).objs:
        for node in facts.machine.used(obj.inner, "wrapped"):
            statement = facts.source.statement(node)
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if (
                any(ast.unparse(t) == text for t in targets)
                or not targets
                or not any(ast.unparse(v) == text for v in walk(statement) if isinstance(v, (ast.Name, ast.Attribute)))
            ):
                return True
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
if torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
weights = model.module.state_dict() if isinstance(model, nn.DataParallel) else model.state_dict()
torch.save(weights, "model.pt")
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
weights = accelerator.get_state_dict(model)
accelerator.save(weights, "model.pt")
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel as DDP

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
ddp = DDP(model, device_ids=[0], find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(x), y)
    loss.backward()
    optimizer.step()
print(ddp.module.weight.sum().item())
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel as DDP
from accelerate import Accelerator
from accelerate import DistributedDataParallelKwargs

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
ddp = model
accelerator = Accelerator(kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
ddp, optimizer, loader = accelerator.prepare(ddp, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.print(accelerator.unwrap_model(ddp).weight.sum().item())
""",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel

group = torch.distributed.group.WORLD
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = DistributedDataParallel(nn.Linear(8, 2), process_group=group)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A515",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.nn.parallel import DistributedDataParallel as DDP

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = DDP(nn.Linear(8, 2))
other = DDP(nn.Linear(8, 2), static_graph=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A516",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.DataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save({k[7:]: v for k, v in model.state_dict().items()}, "model.pt")
""",
        "S2A518",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.DataParallel(nn.Linear(8, 2))
model.module = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A519",
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
""",
        None,
    ),
]
