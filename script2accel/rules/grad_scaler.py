"""Take the script's GradScaler out: Accelerate has its own.

`scaler.scale(loss).backward()` becomes `accelerator.backward(loss)`, `scaler.step(optimizer)` `optimizer.step()`, and `unscale_` and
`update` go, since the accelerator does both; the scaler's options go to `GradScalerKwargs`. What checkpoints keep of it is that of
`accelerator.scaler`, under the same key. A scaler left beside
Accelerate's gives wrong weights silently (measured).
Left alone: scripts without a GradScaler. Refused when the scaler is used in a way that isn't followed, when there are several, or when
several optimizers step on one update.
Source: https://huggingface.co/docs/accelerate/package_reference/kwargs#gradscalerkwargs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, Step, View
from script2accel.analysis.precision import HandMade, ScalerUse, hand_made
from script2accel.change.edits import (
    CannotEditError,
    dissolve,
    drop_argument,
    drop_parameter,
    merge,
    remove_statement,
    replace,
    wrap_statements,
)
from script2accel.change.plan import Change, Edit, Splice
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A302", "grad-scaler"
STAYS = Message(
    "S2A321",
    Severity.ERROR,
    "`{text}`: this use of the GradScaler has no counterpart, and a scaler that stays beside Accelerate's gives wrong weights (measured)",
    "use the scaler by `scale`, `unscale_`, `step`, `update` and its state only, and convert again",
)
SEVERAL = Message(
    "S2A322",
    Severity.ERROR,
    "a second GradScaler (the first: line {first}): Accelerate has one for all optimizers",
    "use one scaler, and convert again",
)
SHARED = Message(
    "S2A323",
    Severity.ERROR,
    "several optimizers step on one `scaler.update()`: each prepared one updates the scale, and the next is unscaled again (measured)",
    "step one optimizer with all parameters, and convert again",
)
REASON = "Accelerate scales the loss, unscales before clipping, and updates the scale itself"
STATE = "{a}.scaler.{call} if {a}.scaler is not None else {without}"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    made = hand_made(facts)
    if not made.uses:
        return
    for call in made.scalers[1:]:
        if _here(facts, call):
            yield SEVERAL.at(call.lineno, call.col_offset + 1, first=made.scalers[0].lineno)
    yield from _shared(facts, made)
    merged = list(_merged(facts, made))
    for node, edits in merged:
        yield Change(CODE, NAME, "both branches are the same now", node.lineno, edits, source="R16")
    gone = {inner for node, _ in merged for statement in node.body for inner in walk(statement)} | {
        inner for node, _ in merged for inner in walk(node.test)
    }
    removed = _Removed(facts)
    for use in made.uses:
        if _here(facts, use.node) and use.node not in gone and not decisions.is_state(use.node):
            yield from _use(facts, decisions, made, use, removed)
    if removed.statements:
        yield Change(CODE, NAME, REASON, min(s.lineno for s in removed.statements), removed.edits(), source="R16")


def _here(facts: View, node: ast.AST) -> bool:
    return facts.source.root(node) is facts.source.tree


class _Removed:
    """Statements that go; an `if` whose whole body goes, goes with it."""

    def __init__(self, facts: View) -> None:
        self.facts = facts
        self.statements: dict[ast.stmt, None] = {}

    def add(self, statement: ast.stmt) -> None:
        self.statements[statement] = None
        parent = self.facts.source.parents[statement]
        if (
            isinstance(parent, ast.If)
            and not parent.orelse
            and all(s in self.statements for s in parent.body)
            and not self.facts.source.is_elif(parent)
        ):
            for inner in parent.body:
                self.statements.pop(inner, None)
            self.add(parent)

    def edits(self) -> tuple[Edit, ...]:
        return merge([remove_statement(self.facts.source, s) for s in self.statements])


def _use(facts: View, decisions: Decisions, made: HandMade, use: ScalerUse, removed: _Removed) -> Iterator[Change | Diagnostic]:
    source, node, call = facts.source, use.node, use.call
    statement = source.statement(node) if not isinstance(node, ast.arg) else None
    stays = STAYS.at(node.lineno, node.col_offset + 1, text=source.segment(statement)[:60] if statement is not None else getattr(node, "arg", ""))
    try:
        if isinstance(node, ast.arg):
            function = source.parents[source.parents[node]]
            assert isinstance(function, FUNCTIONS)
            yield Change(CODE, NAME, "no scaler is handed on", node.lineno, drop_parameter(source, function, node.arg), source="R16")
            return
        assert statement is not None
        alone = isinstance(statement, ast.Expr) and statement.value is call
        match use.what:
            case "bound" | "copied":
                if use.what == "bound" and (
                    not isinstance(statement, (ast.Assign, ast.AnnAssign)) or (isinstance(statement, ast.Assign) and statement.targets != [node])
                ):
                    yield stays
                else:
                    removed.add(statement)
            case "scale" if call is not None and len(call.args) == 1 and not call.keywords:
                if not any(
                    facts.scaled(b.call.func.value) is b.loss
                    for b in facts.backwards
                    if isinstance(b.call.func, ast.Attribute) and b.call.func.value is call
                ):
                    start, end = source.outer(call.args[0])
                    yield Change(
                        CODE, NAME, REASON, call.lineno, (Splice(source.start(call), start, ""), Splice(end, source.end(call), "")), source="R16"
                    )
            case "step" if alone and call is not None and len(call.args) == 1 and not call.keywords:
                yield Change(CODE, NAME, REASON, call.lineno, replace(source, call, f"{source.segment(call.args[0])}.step()"), source="R16")
            case "update" if alone and call is not None and not call.args and not call.keywords:
                removed.add(statement)
            case "unscale_" if alone and call is not None and len(call.args) == 1:
                if _clips_behind(facts, call):
                    removed.add(statement)
                else:
                    text = f"{decisions.accelerator(call)}.unscale_gradients({source.segment(call.args[0])})"
                    yield Change(CODE, NAME, REASON, call.lineno, replace(source, call, text), source="R16")
            case "state_dict" | "get_scale" if call is not None and not call.args and not call.keywords:
                without = "{}" if use.what == "state_dict" else "1.0"
                text = STATE.format(a=decisions.accelerator(call), call=f"{use.what}()", without=without)
                within = source.parents[call]
                bare = (
                    isinstance(within, (ast.Assign, ast.Dict, ast.keyword, ast.Return)) or (isinstance(within, ast.Call) and call in within.args)
                ) and not isinstance(within, ast.IfExp)
                yield Change(
                    CODE,
                    NAME,
                    "checkpoints keep the scale, Accelerate's own, under the same key",
                    call.lineno,
                    replace(source, call, text if bare else f"({text})"),
                    source="R16",
                )
            case "load_state_dict" if alone and call is not None:
                accelerator = decisions.accelerator(call)
                edits = merge(
                    [wrap_statements(source, [statement], f"if {accelerator}.scaler is not None:"), replace(source, node, f"{accelerator}.scaler")]
                )
                yield Change(CODE, NAME, "the scale goes on where the checkpoint left it", call.lineno, edits, source="R16")
            case "is_enabled" if call is not None:
                yield Change(
                    CODE, NAME, REASON, call.lineno, replace(source, call, f'({decisions.accelerator(call)}.mixed_precision == "fp16")'), source="R16"
                )
            case "test":
                yield _test(facts, decisions, node)
            case "given" if call is not None and facts.machine.at.get(call.func) is not None and _own(facts, call):
                every: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
                given = next(item for item in every if item is node or getattr(item, "value", None) is node)
                yield Change(CODE, NAME, "no scaler is handed on", call.lineno, drop_argument(source, call, given), source="R16")
            case _:
                yield stays
    except CannotEditError as error:
        yield STAYS.at(getattr(error.node, "lineno", node.lineno), text=error.why)


def _test(facts: View, decisions: Decisions, node: ast.expr) -> Change:
    """`scaler is not None`, `if scaler:`, `not scaler`: whether there is mixed precision."""
    parent = facts.source.parents[node]
    accelerator = decisions.accelerator(node)
    whole: ast.AST = parent if isinstance(parent, (ast.Compare, ast.UnaryOp)) else node
    absent = isinstance(parent, ast.UnaryOp) or (isinstance(parent, ast.Compare) and isinstance(parent.ops[0], ast.Is))
    text = f'{accelerator}.mixed_precision {"==" if absent else "!="} "no"'
    return Change(CODE, NAME, "there is a scaler where there is mixed precision", node.lineno, replace(facts.source, whole, text), source="R16")


def _own(facts: View, call: ast.Call) -> bool:
    """Whether only functions and classes of the script are called."""
    objs = facts.machine.at[call.func].objs
    return bool(objs) and all(o.kind in ("function", "method", "class") for o in objs)


def _clips_behind(facts: View, call: ast.Call) -> bool:
    """Whether the gradients are clipped by torch's functions between the unscaling and the step: the accelerator's clip unscales first."""
    function = facts.function(call)
    step = min((s.call.lineno for s in facts.optimizer_steps if facts.function(s.call) is function and s.call.lineno > call.lineno), default=10**9)
    between = [n for n in walk(function) if isinstance(n, ast.stmt) and call.lineno < n.lineno < step]
    clips = [c for c in facts.program.calls if any(names.CLIP_NORM.match(p) or names.CLIP_VALUE.match(p) for p in facts.program.any_path(c))]
    return any(facts.inside(statement, clip) for statement in between for clip in clips)


def _shared(facts: View, made: HandMade) -> Iterator[Diagnostic]:
    """Several optimizers between two updates of the scale."""
    scaled = [s for s in facts.optimizer_steps if isinstance(s.call.func, ast.Attribute) and s.owner is not s.call.func.value]
    by_block: dict[int, list[Step]] = {}
    for step in scaled:
        by_block.setdefault(id(facts.source.block(facts.source.statement(step.call))), []).append(step)
    for steps in by_block.values():
        block = facts.source.block(facts.source.statement(steps[0].call))
        updates = [u.call for u in made.uses if u.what == "update" and u.call is not None and any(facts.source.statement(u.call) is s for s in block)]
        if len(steps) > max(1, len(updates)) and len({s.objs for s in steps}) > 1:
            yield SHARED.at(steps[1].call.lineno, steps[1].call.col_offset + 1)


# branches with and without a scaler ------------------------------------------------------------------------


def _merged(facts: View, made: HandMade) -> Iterator[tuple[ast.If, tuple[Edit, ...]]]:
    """`if` statements whose branches do the same with and without mixed precision: the plain branch stays."""
    for node in facts.source.every(ast.If):
        if not node.orelse or facts.source.is_elif(node):
            continue
        parts = [_dump(facts, made, node.body), _dump(facts, made, node.orelse)]
        touched = any(_scaled(facts, made, s) for s in node.body)
        if parts[0] == parts[1] and touched and not any(_scaled(facts, made, s) for s in node.orelse):
            try:
                yield node, dissolve(facts.source, node, node.orelse)
            except CannotEditError:
                continue


def _scaled(facts: View, made: HandMade, statement: ast.stmt) -> bool:
    autocasts = {a.where for a in made.autocasts}
    uses = {u.node for u in made.uses}
    return any(n in uses or n in autocasts for n in walk(statement))


def _dump(facts: View, made: HandMade, node: object) -> str:
    """The shape of code without what only mixed precision adds."""
    if isinstance(node, list):
        parts = []
        for item in node:
            if isinstance(item, ast.stmt) and _vanishes(made, item):
                continue
            if isinstance(item, ast.With) and len(item.items) == 1 and any(a.where is item for a in made.autocasts):
                parts.append(_dump(facts, made, item.body)[1:-1])
                continue
            parts.append(_dump(facts, made, item))
        return "[" + ",".join(p for p in parts if p) + "]"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        backward = next((b for b in facts.program.backwards if b.call is node), None)
        step = next((s for s in facts.program.optimizer_steps if s.call is node), None)
        if backward is not None:
            return f"backward({_dump(facts, made, backward.loss)},{_dump(facts, made, node.keywords)})"
        if step is not None:
            return f"step({_dump(facts, made, step.owner)},{_dump(facts, made, step.given)})"
    if isinstance(node, ast.AST):
        fields = ",".join(_dump(facts, made, getattr(node, f)) for f in node._fields if f not in ("ctx", "type_comment"))
        return f"{type(node).__name__}({fields})"
    return repr(node)


def _vanishes(made: HandMade, statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and any(u.what in ("update", "unscale_") and u.call is statement.value for u in made.uses)


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
scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
torch.save({"scaler": scaler.state_dict()}, "scaler.pt")
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(mixed_precision="fp16", kwargs_handlers=[GradScalerKwargs(init_scale=1024.0)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    with accelerator.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
accelerator.save({"scaler": accelerator.scaler.state_dict() if accelerator.scaler is not None else {}}, "scaler.pt")
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
amp = torch.cuda.is_available()
scaler = torch.cuda.amp.GradScaler() if amp else None

for x, y in loader:
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(enabled=scaler is not None):
        loss = nn.functional.cross_entropy(model(x), y)
    if scaler is not None:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    else:
        loss.backward()
        optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
amp = torch.cuda.is_available()
accelerator = Accelerator(mixed_precision="fp16" if amp else "no")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    with accelerator.autocast():
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

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
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
scaler = torch.amp.GradScaler("cuda")
other = torch.optim.SGD([model.bias], lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.step(other)
    scaler.update()
""",
        "S2A323",
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
scaler = torch.amp.GradScaler("cuda")
scaler_too = torch.amp.GradScaler("cuda")

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        "S2A322",
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
scaler = torch.amp.GradScaler("cuda")

for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update(2048.0)
""",
        "S2A321",
    ),
]
