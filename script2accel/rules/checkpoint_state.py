"""Keep training checkpoints as states of the accelerator, where the user asks for it: `--checkpointing state`.

A table that is saved with the states of a model and an optimizer becomes `accelerator.save_state(folder)`, on every process (on the main one alone
the others' random states are lost, and under FSDP it hangs: measured), under the name that the file had. What else the table
holds (epoch, best metric, scheduler, arguments) is written beside it by the main process, and read from there by the lines that read it before.
`load_state_dict` of models and optimizers becomes one `accelerator.load_state(folder)` behind prepare: in front of it it would restore nothing.
Batches that a resumed epoch skips are skipped as before: the same ones on every process.
Left alone: files that hold weights only, and checkpoints of which a part is loaded elsewhere. Refused where not every process comes to the place, and
where it can't be seen that what is loaded is what was saved.
Source: https://huggingface.co/docs/accelerate/usage_guides/checkpoint
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis import checkpoints
from script2accel.analysis.checkpoints import Loaded, Saved, Table
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import add_argument, add_before, add_behind, ensure_import, merge, remove_statement, replace, wrap_expression
from script2accel.change.plan import Change, Edit, Remove, Splice
from script2accel.decisions import Decisions, Prepare, ident
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk
from script2accel.states import restored_in

CODE, NAME = "S2A602", "checkpoint-state"
REFUSED = Message(
    "S2A622",
    Severity.ERROR,
    "--checkpointing state: this checkpoint can't be shown to come back as it was saved: {why}",
    "change this place, or leave `--checkpointing state` out: the checkpoint stays a file",
)
FOLDER = Message(
    "S2A632",
    Severity.WARNING,
    "from now on `{text}` is a folder, which `accelerator.load_state` reads: the converted script can't read files that were written before",
    "finish runs that have such a file with the script as it was",
)
UNREAD = Message(
    "S2A642",
    Severity.WARNING,
    "nothing in the script loads this checkpoint, which is a folder from now on",
    "let what reads it call `accelerator.load_state` behind prepare; the weights alone are its `model.safetensors`",
)
KEPT = Message("S2A652", Severity.WARNING, "this checkpoint stays a file: {why}", "")
NONE = Message("S2A662", Severity.NOTE, "--checkpointing state: no file is saved that holds the states of a model and an optimizer", "")
APART = Message(
    "S2A672",
    Severity.WARNING,
    "`{text}` reads a file with weights; a checkpoint that is saved from now on is a folder",
    "give it the folder's `model.safetensors` through `safetensors.torch.load_file`, or a file that holds weights only",
)
VALUES = "values.pt"
HARMLESS = frozenset({"train", "eval", "to", "cuda", "state_dict", "parameters"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if decisions.options.checkpointing != "state" or not decisions.plan.prepares:
        return
    states = decisions.plan.states
    if not states.saves and not states.kept and facts.source in facts.program.source.entries:
        yield NONE.at(0)
    for save, why in states.kept:
        if _here(facts, save.call):
            yield KEPT.at(save.call.lineno, save.call.col_offset + 1, why=why)
    for node, why in states.problems:
        if _here(facts, node):
            yield REFUSED.at(getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1, why=why)
    if states.problems:
        return
    for table in states.tables:
        if _here(facts, table.node):
            yield from _emptied(facts, table)
    for save in states.saves:
        if _here(facts, save.call):
            yield _saving(facts, decisions, save)
            yield (FOLDER if states.loads else UNREAD).at(save.call.lineno, save.call.col_offset + 1, text=facts.source.segment(save.target))
    for load in states.loads:
        if _here(facts, load.call):
            yield from _loading(facts, decisions, load)
    for load in states.apart:
        if _here(facts, load.call):
            yield APART.at(load.call.lineno, load.call.col_offset + 1, text=facts.source.segment(load.call))


def _here(facts: View, node: ast.AST) -> bool:
    return facts.source.root(node) is facts.source.tree


def _change(line: int, message: str, edits: tuple[Edit, ...]) -> Change:
    return Change(CODE, NAME, message, line, edits, source="R23")


# saving --------------------------------------------------------------------------------------------------


def _emptied(facts: View, table: Table) -> Iterator[Change]:
    """The table without its states."""
    gone = {e.node for e in table.entries if e.role}
    edits: list[tuple[Edit, ...]] = [remove_statement(facts.source, n) for n in gone if isinstance(n, ast.stmt)]
    inside = [n for n in gone if not isinstance(n, ast.stmt)]
    if inside:
        edits.append(_without(facts, table.node, set(inside)))
    yield _change(table.node.lineno, "states are kept by the accelerator", merge(edits))


def _without(facts: View, node: ast.Dict | ast.Call, gone: set[ast.AST]) -> tuple[Edit, ...]:
    """A dict without some of its entries, each with its comma, or with its lines."""
    source = facts.source
    spans: list[tuple[int, int, bool]] = []
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            end = source.outer(value)[1]
            spans.append((source.start(key) if key is not None else source.text.rindex("**", 0, source.start(value)), end, key in gone))
    else:
        for keyword in node.keywords:
            end = source.outer(keyword.value)[1]
            first = source.start(keyword) if keyword.arg is not None else source.text.rindex("**", 0, source.start(keyword.value))
            spans.append((first, end, keyword in gone))
    kept = [i for i, (_, _, out) in enumerate(spans) if not out]
    edits: list[Edit] = []
    for i, (start, end, out) in enumerate(spans):
        if not out:
            continue
        lines = _own_lines(facts, start, end)
        if lines is not None:
            edits.append(Remove(*lines))
        elif i + 1 < len(spans) and (i < (kept[-1] if kept else -1)):
            edits.append(Splice(start, spans[i + 1][0], ""))
        else:
            edits.append(Splice(spans[i - 1][1] if i else start, end, ""))
    return tuple(edits)


def _own_lines(facts: View, start: int, end: int) -> tuple[int, int] | None:
    """The lines of an entry that has them for itself."""
    source = facts.source
    first, last = source.line_of(start), source.line_of(end - 1)
    before = source.text[source.starts[first - 1] : start]
    line = source.line_text(last)
    rest = source.text[end : source.starts[last - 1] + len(line)].strip()
    return (first, last) if not before.strip() and (rest in ("", ",") or rest.startswith((",#", ", #", "#"))) else None


def _saving(facts: View, decisions: Decisions, save: Saved) -> Change:
    accelerator = decisions.accelerator(save.call)
    message = "one state, saved by every process"
    if not decisions.plan.states.values:
        text = f"{accelerator}.save_state({facts.source.segment(save.target)})"
        return _change(save.call.lineno, message, replace(facts.source, save.call, text))
    named, path, values = _places(facts, save.target)
    edits = [
        add_before(facts.source, facts.source.statement(save.call), f"{named}{accelerator}.save_state({path})"),
        replace(facts.source, save.call.func, f"{accelerator}.save"),
        values,
    ]
    return _change(save.call.lineno, f"{message}; the main process writes the other values beside it", merge(edits))


def _places(facts: View, target: ast.expr) -> tuple[str, str, tuple[Edit, ...]]:
    """A line that names the folder (or none), the folder's expression, and the edits that make the path one to the values in it."""
    source, text = facts.source, facts.source.segment(target)
    if not checkpoints.pure(facts, target):
        imports = ensure_import(source, "", "os")
        name = _fresh(facts)
        return f"{name} = {text}\n", name, merge([replace(source, target, f'os.path.join({name}, "{VALUES}")'), imports])
    if isinstance(target, ast.Constant) and text[:1] in "'\"" and "\n" not in text and text[1:2] != text[0]:
        return "", text, replace(source, target, f"{text[:-1]}/{VALUES}{text[-1]}")
    if isinstance(target, ast.Call) and facts.path(target) == "os.path.join":
        return "", text, add_argument(source, target, f'"{VALUES}"')
    edits = wrap_expression(source, target, "os.path.join(", f', "{VALUES}")')
    return "", text, merge([edits, ensure_import(source, "", "os")])


def _fresh(facts: View) -> str:
    return next(n for n in ("checkpoint_folder", "state_folder", "folder_of_state") if n not in facts.source.names)


# loading -------------------------------------------------------------------------------------------------


def _loading(facts: View, decisions: Decisions, load: Loaded) -> Iterator[Change | Diagnostic]:
    yield from _asked(facts, load)
    owners = [r.owner for r in load.restored if r.role not in ("scaler", "random")]
    behind = [any(o.kind == "prepared" for o in facts.machine.at.get(owner, NOTHING).objs) for owner in owners]
    if all(behind):
        yield from _in_place(facts, decisions, load)
    elif any(behind):
        yield REFUSED.at(load.call.lineno, why="prepare stands between what it loads")
    else:
        yield from _moved(facts, decisions, load)


def _going(facts: View, load: Loaded) -> list[ast.stmt]:
    """The statements that put the state into place, in the order of the text; models and optimizers first."""
    ordered = sorted(load.restored, key=lambda r: (r.role in ("scaler", "random"), r.call.lineno))
    return list(dict.fromkeys(restored_in(facts, load, r) for r in ordered))


def _in_place(facts: View, decisions: Decisions, load: Loaded) -> Iterator[Change | Diagnostic]:
    first, *others = _going(facts, load)
    block = facts.source.block(first)
    inside = [s for s in others if s in block]
    between = block[block.index(first) + 1 : max([block.index(s) for s in inside], default=block.index(first)) + 1]
    if (node := _used(facts, load, [s for s in between if s not in others])) is not None:
        yield REFUSED.at(node.lineno, why=f"`{facts.source.segment(node)}` is used while the state is put into place")
        return
    yield from _late(facts, load, first)
    accelerator = decisions.accelerator(load.call)
    named, path, values = _places(facts, load.target)
    edits = [replace(facts.source, first, f"{accelerator}.load_state({path})"), *(remove_statement(facts.source, s) for s in others)]
    edits += _read(facts, decisions, load, named, values)
    yield _change(first.lineno, "the accelerator restores what is prepared, and each process's random numbers", merge(edits))


def _moved(facts: View, decisions: Decisions, load: Loaded) -> Iterator[Change | Diagnostic]:
    """The state is loaded behind prepare, if the place in front of it was come to."""
    prepare = next(p for p in decisions.plan.prepares if any(facts.roles.of(o) == "optimizer" for _, o in p.items))
    going = _going(facts, load)
    top = _above(facts, prepare, facts.source.statement(load.call))
    if top is None or any(_above(facts, prepare, s) is None for s in going):
        yield REFUSED.at(load.call.lineno, why="it is loaded in front of prepare, at a place that can't be seen from there")
        return
    block = facts.source.block(prepare.anchor)
    last = block.index(prepare.anchor) + prepare.behind
    if (node := _used(facts, load, block[block.index(top) : last], going)) is not None:
        yield REFUSED.at(node.lineno, why=f"`{facts.source.segment(node)}` is used between the loading and prepare")
        return
    yield from _late(facts, load, prepare.anchor)
    accelerator, name = decisions.accelerator(prepare.anchor), _fresh(facts)
    named, path, values = _places(facts, load.target)
    statement = facts.source.statement(load.call)
    edits = [remove_statement(facts.source, s) for s in going]
    add = add_behind if prepare.behind else add_before
    if statement is top:
        edits.append(add(facts.source, prepare.anchor, f"{accelerator}.load_state({name})", rank=1))
    else:
        edits.append(add_before(facts.source, top, f"{name} = None"))
        edits.append(add(facts.source, prepare.anchor, f"if {name} is not None:\n\t{accelerator}.load_state({name})", rank=1))
    edits += _read(facts, decisions, load, named or f"{name} = {path}\n", values)
    message = "the state is loaded behind prepare: in front of it nothing would be restored"
    yield _change(going[0].lineno, message, merge(edits))


def _read(facts: View, decisions: Decisions, load: Loaded, named: str, values: tuple[Edit, ...]) -> Iterator[tuple[Edit, ...]]:
    """What becomes of the reading itself: it reads the other values, where there are any."""
    statement = facts.source.statement(load.call)
    if named:
        yield add_before(facts.source, statement, named.rstrip("\n"), rank=1)
    if decisions.plan.states.values:
        yield values
        return
    yield remove_statement(facts.source, statement)
    if (waits := checkpoints.awaited(facts, load.call)) is not None:
        yield add_before(facts.source, waits, f"{decisions.accelerator(load.call)}.wait_for_everyone()")


def _above(facts: View, prepare: Prepare, statement: ast.stmt) -> ast.stmt | None:
    """The statement of prepare's block that a statement stands in, below nothing but conditions; None where it is elsewhere."""
    block = facts.source.block(prepare.anchor)
    node: ast.AST = statement
    while True:
        if node in block:
            return node
        node = facts.source.parents[node]
        if not isinstance(node, ast.If):
            return None


def _used(facts: View, load: Loaded, block: list[ast.stmt], going: list[ast.stmt] | None = None) -> ast.expr | None:
    """What does something with a model or optimizer in statements that run while its state isn't in place."""
    objs = {ident(o) for r in load.restored for o in r.objs}
    start = load.call.lineno if going is not None else 0
    skipped = {n for s in going or [] for n in walk(s)}
    for node in facts.program.source.every(ast.Name, ast.Attribute):
        if node in skipped or not isinstance(node.ctx, ast.Load):
            continue
        if not any(ident(o) in objs for o in facts.machine.at.get(node, NOTHING).objs) or _harmless(facts, node):
            continue
        places = facts.places(block, node)
        if places and (node.lineno > start or facts.source.root(node) is not facts.source.tree or not _within(facts, block, node)):
            return node
    return None


def _within(facts: View, block: list[ast.stmt], node: ast.AST) -> bool:
    return any(parent in block for parent in facts.program.source.ancestors(node))


def _harmless(facts: View, node: ast.AST) -> bool:
    parent = facts.program.source.parents[node]
    if isinstance(parent, ast.Attribute) and parent.attr in HARMLESS:
        return True
    return isinstance(parent, ast.Call) and node in parent.args and facts.path(parent) in ("print", "builtins.print")


def _late(facts: View, load: Loaded, place: ast.stmt) -> Iterator[Diagnostic]:
    """Data that is drawn behind the place: with the random numbers of the state it would be other data than in the run that is resumed."""
    order = facts.machine.order
    at = order.get(place, 0)
    for loader in facts.program.loaders:
        if loader.site is None or facts.all_loops(loader.site):
            continue
        if order.get(facts.program.source.statement(loader.site), 0) > at:
            line = getattr(loader.site, "lineno", 0)
            yield REFUSED.at(load.call.lineno, why=f"the loader of line {line} is made behind it, with random numbers of another state")
            return


def _asked(facts: View, load: Loaded) -> Iterator[Change | Diagnostic]:
    """`os.path.isfile(path)` in front of the loading: it is a folder now."""
    for parent in facts.source.ancestors(load.call):
        if not isinstance(parent, ast.If):
            continue
        for call in walk(parent.test):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr not in ("isfile", "is_file"):
                continue
            asked = call.args[0] if call.args else call.func.value
            if checkpoints.same_file(facts, asked, load.target) or ast.unparse(asked) == ast.unparse(load.target):
                start = facts.source.end(call.func) - len(call.func.attr)
                edits = (Splice(start, facts.source.end(call.func), "isdir" if call.args else "is_dir"),)
                yield _change(call.lineno, "the checkpoint is a folder", edits)
            else:
                yield REFUSED.at(call.lineno, why=f"`{facts.source.segment(call)}` asks for a file, and it isn't seen to be this one")


EXAMPLES: list[tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if os.path.isfile("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pt")
""",
        """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
start = 0
if os.path.isdir("last.pt"):
    last = torch.load("last.pt/values.pt", map_location="cpu")
    accelerator.load_state("last.pt")
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    accelerator.save_state("last.pt")
    accelerator.save({"epoch": epoch + 1}, "last.pt/values.pt")
""",
        {"checkpointing": "state"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
last = torch.load("last.pt")
model.load_state_dict(last["model"])
optimizer.load_state_dict(last["optimizer"])
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.save_state("last.pt")
accelerator.wait_for_everyone()
accelerator.load_state("last.pt")
""",
        {"checkpointing": "state"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
""",
        "S2A642",
        {"checkpointing": "state"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
model.load_state_dict(torch.load("last.pt")["model"])
""",
        "S2A652",
        {"checkpointing": "state"},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
""",
        "S2A662",
        {"checkpointing": "state"},
    ),
    (
        """\
import os
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if os.path.isfile("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pt")
if len(sys.argv) > 1:
    model.load_state_dict(torch.load(sys.argv[1])["model"])
""",
        "S2A672",
        {"checkpointing": "state"},
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if os.path.isfile("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"], strict=False)
    optimizer.load_state_dict(last["optimizer"])
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pt")
""",
        "S2A622",
        {"checkpointing": "state"},
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if os.path.isfile("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"])
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    optimizer.load_state_dict(last["optimizer"])
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pt")
""",
        "S2A622",
        {"checkpointing": "state"},
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if os.path.isfile("last.pt"):
    last = torch.load(f"last_{os.environ['RANK']}.pt")
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, f"last_{os.environ['RANK']}.pt")
""",
        "S2A622",
        {"checkpointing": "state"},
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
start = 0
if os.path.isfile("last.pt"):
    last = torch.load("last.pt")
    model.load_state_dict(last["model"])
    optimizer.load_state_dict(last["optimizer"])
    start = last["epoch"]

for epoch in range(start, 3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1}, "last.pt")
""",
        None,
        {"checkpointing": "keep"},
    ),
]
