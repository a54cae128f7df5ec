"""Call the worker instead of spawning it: the launcher starts the processes.

`mp.spawn(worker, args=(a, b), nprocs=n)` becomes `worker(accelerator.local_process_index, a, b)`. What the script took for the number of
processes becomes `accelerator.num_processes` where it is set.
Left alone: processes of other kinds, which a person must look at.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/launch
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.distribution import group_call
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import replace, replace_range
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A506", "spawn"
UNSEEN = Message(
    "S2A531", Severity.ERROR, "what `{text}` starts, or with which arguments, can't be seen", "call the worker directly, and convert again"
)
COUNT = Message(
    "S2A532",
    Severity.ERROR,
    "`{text}` is the number of processes that the script starts, and it is used elsewhere: where it comes from can't be changed",
    "set it to `accelerator.num_processes`, and convert again",
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        if not names.SPAWN.match(facts.path(call)):
            continue
        worker, given, count = _argument(call, 0, "fn"), _argument(call, 1, "args"), _argument(call, 2, "nprocs")
        followed = worker is not None and any(
            o.kind == "function" and call in facts.callers(o.site) for o in facts.machine.at.get(worker, NOTHING).objs if o.site is not None
        )
        if (
            not followed
            or worker is None
            or not (given is None or isinstance(given, ast.Tuple))
            or any(isinstance(e, ast.Starred) for e in getattr(given, "elts", ()))
        ):
            yield UNSEEN.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
            continue
        rank = "process_index" if _is_global(facts, worker) else "local_process_index"
        parts = [f"{decisions.accelerator(call)}.{rank}", *(facts.source.segment(e) for e in getattr(given, "elts", ()))]
        paren = facts.source.text.index("(", facts.source.outer(call.func)[1])
        edits = (
            *replace(facts.source, call.func, facts.source.segment(worker)),
            *replace_range(paren + 1, facts.source.end(call) - 1, ", ".join(parts)),
        )
        yield Change(CODE, NAME, "the launcher starts the processes: each calls the worker", call.lineno, edits, source="R48")
        composed = list(_composed(facts))
        for node in composed:
            text = f"{decisions.accelerator(node)}.process_index"
            yield Change(
                CODE, NAME, "the number of this process among those of all machines", node.lineno, replace(facts.source, node, text), source="R48"
            )
        if count is not None and not composed:
            yield from _count(facts, decisions, call, count)


def _composed(facts: View) -> Iterator[ast.BinOp]:
    """`node_rank * gpus_per_node + gpu`: the rank that a script with several machines computes from a worker's number."""
    for node in facts.program.source.nodes:
        match node:
            case (
                ast.BinOp(left=ast.BinOp(op=ast.Mult()), op=ast.Add(), right=number)
                | ast.BinOp(left=number, op=ast.Add(), right=ast.BinOp(op=ast.Mult()))
            ):
                if any(names.SPAWN.match(o.path) for o in facts.machine.at.get(number, NOTHING).objs):
                    yield node


def _argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    return call.args[index] if len(call.args) > index else next((k.value for k in call.keywords if k.arg == name), None)


def _is_global(facts: View, worker: ast.expr) -> bool:
    """Whether the worker takes its number for its rank among all processes: it gives it to init_process_group as it is."""
    for call in facts.program.calls:
        if group_call(facts, call) == "init_process_group":
            rank = next((k.value for k in call.keywords if k.arg == "rank"), None)
            if rank is not None and any(names.SPAWN.match(o.path) for o in facts.machine.at.get(rank, NOTHING).objs):
                return True
    return False


def _count(facts: View, decisions: Decisions, call: ast.Call, count: ast.expr) -> Iterator[Change | Diagnostic]:
    """Where the number of processes is set: `world_size = torch.cuda.device_count()`, `args.nprocs = 2`."""
    if not isinstance(count, (ast.Name, ast.Attribute)):
        return
    text = ast.unparse(count)
    values = facts.assigned.get(text, [])
    here = [
        v
        for v in values
        if facts.source.root(v) is facts.source.tree
        and (isinstance(count, ast.Attribute) or facts.function(v) in (facts.function(call), facts.source.tree))
    ]
    uses = [n for n in facts.source.every(ast.Name, ast.Attribute) if isinstance(n.ctx, ast.Load) and ast.unparse(n) == text and n is not count]
    if not here and not uses:
        return
    if not here or len(here) != len(values):
        yield COUNT.at(count.lineno, count.col_offset + 1, text=text)
        return
    for value in here:
        number = f"{decisions.accelerator(value)}.num_processes"
        yield Change(
            CODE, NAME, "the launcher decides how many processes there are", value.lineno, replace(facts.source, value, number), source="R48"
        )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def worker(rank, world_size, epochs):
    data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    if rank == 0:
        print(loss.item() / world_size)


def main():
    world_size = torch.cuda.device_count()
    mp.spawn(worker, args=(world_size, 3), nprocs=world_size)


if __name__ == "__main__":
    main()
""",
        """\
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator


def worker(accelerator, rank, world_size, epochs):
    data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
    if rank == 0:
        print(loss.item() / world_size)


def main():
    accelerator = Accelerator()
    world_size = accelerator.num_processes
    worker(accelerator, accelerator.local_process_index, world_size, 3)


if __name__ == "__main__":
    main()
""",
    ),
    (
        """\
import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def worker(rank, epochs):
    data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    given = (int(input()),)
    mp.spawn(worker, args=given, nprocs=2)
""",
        "S2A531",
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
