"""Print once.

`print` in and around the loops becomes `accelerator.print`, which speaks on the main process of each machine only.
What else prints (`sys.stdout.write`, `pprint`, `tqdm.write`, rich's) stands under a guard.
Left alone: prints that name their rank (each speaks for itself), prints in front of an exit (usage errors), in classes that have no accelerator,
outside of training.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/execution#execute-on-one-process
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress

from script2accel.analysis.context import guarded
from script2accel.analysis.distribution import is_rank
from script2accel.analysis.facts import FUNCTIONS, View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import CannotEditError, neighbours, replace, wrap_statements
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A703", "print"
TEXT = frozenset(["format", "join", "append", "items", "values", "keys", "strip", "rjust", "ljust", "center", "upper", "lower"])
EVERY_RANK = Message("S2A713", Severity.NOTE, "this prints on every rank: its class has no accelerator", "")


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    others: dict[ast.stmt, None] = {}
    for call in facts.calls:
        other = _other_print(facts, call)
        if not (other or facts.path(call) == "print") or not isinstance(facts.source.parents[call], ast.Expr):
            continue
        if facts.in_module(call) or facts.inside_class(call, facts.dataset_classes) or guarded(facts, call) or _before_exit(facts, call):
            continue
        if any(isinstance(n, ast.expr) and n in facts.machine.at and is_rank(facts, n) for a in call.args for n in walk(a)):
            continue
        if not decisions.may_ask(call) or not _around_training(facts, decisions, call):
            continue
        if decisions.method_of(call) and not decisions.is_global(call) and not decisions.class_has(call):
            if not _only_prints(facts, decisions, facts.function(call)):
                yield EVERY_RANK.at(call.lineno, call.col_offset + 1)
            continue
        if other:
            statement = facts.source.statement(call)
            if not any(facts.inside(statement, f.call) for f in facts.program.forwards):
                others[statement] = None
            continue
        edits = replace(facts.source, call.func, f"{decisions.accelerator(call, essential=False)}.print")
        yield Change(CODE, NAME, "one line of output, not one per process", call.lineno, edits, essential=False, source="R34")
    yield from _under_guard(facts, decisions, others)
    if decisions.plan.prepares:
        yield from _printers_guarded(facts, decisions)


def _printers_guarded(facts: View, decisions: Decisions) -> Iterator[Change]:
    """Calls of methods that only print, of classes without an accelerator (a meter's `display`), stand under a guard."""
    statements: dict[ast.stmt, None] = {}
    for call in facts.calls:
        methods = [o.site for o in facts.machine.at[call.func].objs if o.kind == "method"]
        statement = facts.source.parents[call]
        if not methods or not isinstance(statement, ast.Expr) or guarded(facts, call) or not decisions.may_ask(call):
            continue
        if all(isinstance(m, FUNCTIONS) and _has_print(facts, m) and _only_prints(facts, decisions, m) for m in methods):
            statements[statement] = None
    yield from _under_guard(facts, decisions, statements)


def _other_print(facts: View, call: ast.Call) -> bool:
    """Whether a call prints by another name than `print`."""
    if names.PRINTS.match(facts.path(call)):
        return True
    objs = facts.machine.at[call.func.value].objs if isinstance(call.func, ast.Attribute) and call.func.value in facts.machine.at else ()
    return bool(objs) and all(names.CONSOLE.match(o.path) for o in objs) and call.func.attr in ("print", "log", "rule")  # type: ignore[attr-defined]


def _under_guard(facts: View, decisions: Decisions, statements: dict[ast.stmt, None]) -> Iterator[Change]:
    for run in neighbours(facts.source, list(statements)):
        header = f"if {decisions.accelerator(run[0], essential=False)}.is_main_process:"
        with suppress(CannotEditError):
            yield Change(CODE, NAME, "it only prints: once", run[0].lineno, wrap_statements(facts.source, run, header), essential=False, source="R34")


def _has_print(facts: View, function: ast.AST) -> bool:
    return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "print" for n in walk(function))


def _only_prints(facts: View, decisions: Decisions, function: ast.AST) -> bool:
    """Whether a method does nothing but print: it sets nothing, trains nothing, and every call of it is a statement of its own."""
    if not isinstance(function, FUNCTIONS) or decisions.is_global(function) or decisions.class_has(function) or facts.in_module(function):
        return False
    places = [*(b.call for b in facts.backwards), *(s.call for s in facts.optimizer_steps), *(f.call for f in facts.forwards)]
    if any(facts.function(place) is function for place in places):
        return False
    sites = facts.callers(function)
    return _sets_nothing(facts, function) and bool(sites) and all(isinstance(facts.source.parents[site], ast.Expr) for site in sites)


def _sets_nothing(facts: View, function: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
    """Whether a function, and what it calls of the script, only computes text."""
    for node in walk(function):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Store):
            return False
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr not in TEXT:
            called = [o.site for o in facts.machine.at.get(node.func, NOTHING).objs]
            own = [site for site in called if isinstance(site, FUNCTIONS)]
            if not called or len(own) != len(called) or not all(site in seen or _sets_nothing(facts, site, seen | {function}) for site in own):
                return False
    return True


def _before_exit(facts: View, call: ast.Call) -> bool:
    """Whether the program ends, or an error is raised, behind the print in its block."""
    statement = facts.source.statement(call)
    block = facts.source.block(statement)
    behind = block[next(i for i, s in enumerate(block) if s is statement) + 1 :]
    return any(
        isinstance(s, ast.Raise) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and facts.machine.ends(s.value)) for s in behind[-1:]
    )


def _around_training(facts: View, decisions: Decisions, call: ast.Call) -> bool:
    function = facts.function(call)
    loops = [*facts.training_loops, *(loop.loop for loop in facts.eval_loops)]
    if any(facts.function(loop) is function for loop in loops) and isinstance(function, FUNCTIONS):
        return True
    if any(loop in facts.training_loops for loop in facts.all_loops(call)) or any(loop.loop in facts.all_loops(call) for loop in facts.eval_loops):
        return True
    order = facts.machine.order
    return any(p.scope is function and order.get(facts.source.statement(call), 0) >= order.get(p.anchor, 0) for p in decisions.plan.prepares)


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import sys
from pprint import pprint

import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from tqdm import tqdm

console = Console()
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    sys.stdout.write("one batch\\n")
    tqdm.write("another line")
pprint({"done": True})
console.print("done")
""",
        """\
import sys
from pprint import pprint

import torch
from rich.console import Console
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from tqdm import tqdm

console = Console()
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
    if accelerator.is_main_process:
        sys.stdout.write("one batch\\n")
        tqdm.write("another line")
if accelerator.is_main_process:
    pprint({"done": True})
    console.print("done")
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
print("done")
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
accelerator.print("done")
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
    if x.ndim != 2:
        print("rows expected")
        raise SystemExit(1)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
    ),
    (
        """\
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.parallel.DistributedDataParallel(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"[rank {rank}] {len(x)} rows")
    print("[rank %d] done" % rank, loss.item())
""",
        None,
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Clock:
    def tell(self):
        print("tick")


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    Clock().tell()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


class Clock:
    def tell(self):
        accelerator.print("tick")


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
    Clock().tell()
""",
    ),
]
