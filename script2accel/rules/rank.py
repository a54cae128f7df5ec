"""Ask the accelerator for the process's place, not the environment or a flag.

`int(os.environ["RANK"])` becomes `accelerator.process_index`, `LOCAL_RANK` `accelerator.local_process_index`, `WORLD_SIZE`
`accelerator.num_processes`; so do the variables that SLURM and MPI set. A `--local_rank` flag stays, for old command lines, and gets the
accelerator's number behind the parser.
Left alone: questions whether a variable is set (`"RANK" in os.environ`).
Source: https://huggingface.co/docs/accelerate/package_reference/accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import ENVIRONMENT, company_flags, of_ranks
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import CannotEditError, add_before, replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A507", "rank"
FLAG = Message(
    "S2A533",
    Severity.NOTE,
    "`--{flag}` no longer decides anything: the accelerator gives each process its number",
    "drop the flag, or keep it for old command lines",
)
LOST = Message(
    "S2A534",
    Severity.ERROR,
    "`{text}` is a number that a launcher's flag gave, and no place is found behind the parser to set it",
    "set it to `accelerator.local_process_index`",
)
REASON = "the accelerator knows its place among the processes"
FLAGS = ("local_rank", "local-rank")
AFTER_PARSER = -9  # behind the accelerator's birth, in front of everything else


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for node in facts.source.every(ast.Subscript, ast.Call):
        name = environment(node)
        if name is None or node not in facts.machine.at or decisions.is_gone(node):
            continue
        whole, number = _whole(facts, node), f"{decisions.accelerator(node)}.{ENVIRONMENT[name]}"
        bare = whole is not node or isinstance(facts.source.parents[node], ast.FormattedValue)
        yield Change(CODE, NAME, REASON, whole.lineno, replace(facts.source, whole, number if bare else f"str({number})"), source="R36")
    for values in company_flags(facts.program).values():
        for value in (part for whole in values for part in _deciding(facts, whole)):
            if facts.source.root(value) is facts.source.tree and not decisions.is_gone(value) and not _asks_accelerator(facts, value):
                text = f"{decisions.accelerator(value)}.num_processes > 1"
                yield Change(
                    CODE,
                    NAME,
                    "several processes run when the launcher started several",
                    value.lineno,
                    replace(facts.source, value, text),
                    source="R36",
                )
    yield from _flags(facts, decisions)


def _deciding(facts: View, value: ast.expr) -> list[ast.expr]:
    """The parts of `world_size > 1 or args.spawn` that ask for the number of processes; the whole of anything else."""
    if isinstance(value, ast.BoolOp) and isinstance(value.op, ast.Or):
        return [part for part in value.values if of_ranks(facts.program, part)][:1]
    return [value]


def _asks_accelerator(facts: View, value: ast.expr) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "num_processes" and facts.roles.of_node(n.value) == "accelerator" for n in walk(value))


def environment(node: ast.AST) -> str | None:
    """The variable of a launcher that an expression reads, or None."""
    match node:
        case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str(name)), ctx=ast.Load()) if name in ENVIRONMENT:
            return name
        case ast.Call(func=ast.Attribute(attr="get", value=ast.Attribute(attr="environ")), args=[ast.Constant(value=str(name)), *_]) if (
            name in ENVIRONMENT
        ):
            return name
        case ast.Call(func=ast.Attribute(attr="getenv") | ast.Name(id="getenv"), args=[ast.Constant(value=str(name)), *_]) if name in ENVIRONMENT:
            return name
    return None


def _whole(facts: View, node: ast.AST) -> ast.expr:
    """The call of `int` around an expression, or the expression."""
    parent = facts.source.parents[node]
    if isinstance(parent, ast.Call) and facts.path(parent) == "int" and parent.args == [node] and not parent.keywords:
        return parent
    assert isinstance(node, ast.expr)
    return node


# flags ---------------------------------------------------------------------------------------------------


def _flags(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        flag = next(
            (a.value.lstrip("-") for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value.lstrip("-") in FLAGS),
            None,
        )
        if flag is None or not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
            continue
        named = next((str(k.value.value) for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)), "local_rank")
        reads = [n for n in facts.program.source.every(ast.Attribute) if n.attr == named and isinstance(n.ctx, ast.Load) and n in facts.machine.at]
        owners = {ast.unparse(n.value) for n in reads}
        yield FLAG.at(call.lineno, call.col_offset + 1, flag=str(flag))
        if not reads or _set_already(facts, named):
            continue
        place = _behind_parser(facts, owners)
        if place is None:
            yield LOST.at(reads[0].lineno, reads[0].col_offset + 1, text=ast.unparse(reads[0]))
            continue
        statement, owner, anchor = place
        accelerator = decisions.accelerator(anchor)
        line = f"{owner}.{named} = {accelerator}.local_process_index"
        if _tells_alone(reads, facts):  # `-1` says that the script runs alone
            line = f"if {accelerator}.num_processes > 1:\n\t{line}"
        try:
            edits = add_before(facts.source, anchor, line, rank=AFTER_PARSER)
        except CannotEditError:
            yield LOST.at(reads[0].lineno, reads[0].col_offset + 1, text=ast.unparse(reads[0]))
            continue
        yield Change(CODE, NAME, "the launcher gives no such flag: the accelerator's number takes its place", statement.lineno, edits, source="R36")


def _set_already(facts: View, name: str) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Store) for n in facts.program.source.nodes)


def _behind_parser(facts: View, owners: set[str]) -> tuple[ast.stmt, str, ast.stmt] | None:
    """The statement that binds the parsed command line, its name, and the statement behind it."""
    for node in facts.source.every(ast.Assign):
        if node.value not in facts.machine.at:
            continue
        target = node.targets[0]
        if isinstance(target, ast.Tuple) and target.elts:
            target = target.elts[0]
        parsed = any(
            o.base is not None and o.base.kind == "attr" and str(o.base.name).startswith("parse_")
            for o in facts.machine.at.get(target, NOTHING).objs
            if o.kind == "made"
        )
        if parsed and isinstance(target, ast.Name) and target.id in owners:
            block = facts.source.block(node)
            index = next(i for i, s in enumerate(block) if s is node)
            if index + 1 < len(block) and not isinstance(block[index + 1], ast.Return):
                return node, target.id, block[index + 1]
    return None


def _tells_alone(reads: list[ast.Attribute], facts: View) -> bool:
    """Whether the script compares the number with -1."""
    for node in reads:
        parent = facts.program.source.parents[node]
        if isinstance(parent, ast.Compare) and any(ast.unparse(c) == "-1" or "-1" in ast.unparse(c) for c in (parent.left, *parent.comparators)):
            return True
        if isinstance(parent, ast.Compare) and isinstance(parent.ops[0], (ast.GtE, ast.Lt)) and ast.unparse(parent.comparators[0]) == "0":
            return True
    return False


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rank = int(os.environ["RANK"])
world_size = int(os.environ.get("WORLD_SIZE", 1))
distributed = world_size > 1
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
if rank == 0:
    print(f"{world_size} ranks", loss.item())
    torch.save(model.state_dict(), "model.pt")
""",
        """\
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
rank = accelerator.process_index
world_size = accelerator.num_processes
distributed = accelerator.num_processes > 1
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
if rank == 0:
    print(f"{world_size} ranks", loss.item())
    torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
""",
    ),
    (
        """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
if args.local_rank == 0:
    torch.save(model.state_dict(), "model.pt")
""",
        """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, default=0)
args = parser.parse_args()
accelerator = Accelerator()
args.local_rank = accelerator.local_process_index
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
if args.local_rank == 0:
    torch.save(accelerator.unwrap_model(model).state_dict(), "model.pt")
""",
    ),
    (
        """\
import os

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
print("RANK" in os.environ)
""",
        None,
    ),
]
