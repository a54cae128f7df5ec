"""Launch a notebook's training function with `notebook_launcher`, which starts the processes.

`train(2, lr=0.1)` in a cell becomes `notebook_launcher(train, args=(2, 0.1), num_processes=N)`, with the N of `--num-processes` or of the saved
answers. The accelerator is born in that function, and what cells have made is prepared there: the processes are forked, and a forked process
can't use a GPU that was used before. What they change or give back is lost with them, so whoever reads it is refused.
Left alone without a number of processes, and when training runs in a cell: that stays in one process.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/notebook
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import moves
from script2accel.analysis.facts import View
from script2accel.analysis.randomness import seedings
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge, remove_statement, replace, replace_range
from script2accel.change.plan import Change, Edit
from script2accel.construction import BIRTH
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.launched import Launch, devices, early, inside, is_global, questions
from script2accel.lost import lost
from script2accel.source import walk

CODE, NAME = "S2A804", "launched-function"
ONE_PROCESS = Message(
    "S2A821",
    Severity.WARNING,
    "a notebook's cells train in one process, in the order in which they stand",
    "for several processes, put everything from the accelerator to the last use of the model into one function that a cell calls, and convert with "
    "`--num-processes N`: `notebook_launcher` starts it (what it returns or changes is lost with its processes)",
)
STAYS = Message(
    "S2A814",
    Severity.WARNING,
    "{count} processes are asked for, and this notebook's cells train in one: {why}",
    "put everything from the making of model, optimizer and loaders to the last use of the model into one function that a cell calls, "
    "and convert again",
)
RESULT = Message(
    "S2A834",
    Severity.ERROR,
    "what `{name}` gives back is used (line {used}), and `notebook_launcher` hands nothing back",
    "let the function write it to a file that later cells read, or convert for one process (`--num-processes 1`)",
)
LOST = Message(
    "S2A844",
    Severity.ERROR,
    "`{text}` is read behind the launch of `{name}`, which changes it in processes of its own: here it stays as it was",
    "do this in the launched function, or read what it saved; or convert for one process (`--num-processes 1`)",
)
TOUCHED = Message(
    "S2A854",
    Severity.ERROR,
    "`{text}` can use the device in front of the launch of `{name}`, whose forked processes could not use it any more (documented)",
    "move it into the launched function, or convert for one process (`--num-processes 1`)",
)
ARGUMENTS = Message(
    "S2A864",
    Severity.ERROR,
    "`notebook_launcher` hands arguments on by their position, and those of `{name}` can't be put in order: {why}",
    "give them by position, and convert again",
)
GIVES_BACK = Message(
    "S2A874",
    Severity.ERROR,
    "`{text}`: what a launched function gives back is pickled and thrown away, and this can't be left out, since calls in it may do something",
    "do it in a statement of its own in front of the `return`, and convert again",
)
DRAWS = Message(
    "S2A884",
    Severity.WARNING,
    "each launch of `{name}` starts from the notebook's own random state: what one draws doesn't move the next one on",
    "seed in the function if its runs are to draw differently",
)
DEVICE = Message(
    "S2A894",
    Severity.ERROR,
    "the launched `{name}` has a `{text}` of its own, and functions that it calls read the cells' one",
    "give them the device as an argument, and convert again",
)
QUIET = frozenset(
    {"float", "int", "str", "bool", "len", "sum", "min", "max", "round", "abs", "sorted", "list", "tuple", "dict", "set", "range", "zip"}
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    launch, plan = decisions.launch, decisions.plan
    if launch is None:
        if facts.source.notebook and plan.prepares and facts.source is facts.program.source.entries[0]:
            asked = decisions.options.num_processes
            yield STAYS.at(0, count=asked, why=plan.unlaunched) if plan.unlaunched else ONE_PROCESS.at(0)
        return
    if launch.done:
        return
    if facts.source.root(launch.function) is facts.source.tree:
        yield from _function(facts, decisions, launch)
    if facts.source.root(launch.calls[0]) is facts.source.tree:
        yield from _cells(facts, decisions, launch)


# in the function --------------------------------------------------------------------------------------------


def _function(facts: View, decisions: Decisions, launch: Launch) -> Iterator[Change | Diagnostic]:
    """The function sets anew, for its process, what cells have made, and gives nothing back."""
    name = decisions.accelerator(launch.anchor)
    variables = dict.fromkeys(launch.names)
    lines = []
    for text in dict.fromkeys(ast.unparse(t) for d in devices(facts, launch) for t in (d.targets if isinstance(d, ast.Assign) else [d.target])):
        own = text in facts.machine.bound.get(launch.function, ())
        readers = {facts.function(n) for n in inside(launch) if n.id == text and is_global(facts, n)}
        if own and readers:
            yield DEVICE.at(launch.function.lineno, name=launch.function.name, text=text)
        elif readers:
            lines.append(f"{text} = {name}.device")
            variables |= dict.fromkeys([text] if readers - {launch.function} else [])
    lines += [f"{arg} = {name}.device" for arg in _given_devices(facts, launch)]
    declared = facts.machine.declared.get(launch.function, {})
    missing = [variable for variable in variables if variable not in declared]
    edits = [add_before(facts.source, launch.anchor, f"global {', '.join(missing)}", rank=BIRTH - 1)] if missing else []
    edits += [add_before(facts.source, launch.anchor, "\n".join(lines), rank=BIRTH + 1)] if lines else []
    if edits:
        yield Change(CODE, NAME, "each process sets what cells have made anew, for itself", launch.anchor.lineno, merge(edits), source="R53")
    for node in facts.source.every(ast.Return):
        if node.value is not None and facts.source.scope(node) is launch.function:
            yield _given_back(facts, launch, node)


def _given_devices(facts: View, launch: Launch) -> list[str]:
    """The parameters that take the cells' device."""
    chosen = {o for d in devices(facts, launch) if d.value is not None for o in facts.machine.at.get(d.value, NOTHING).objs}
    arguments = [a for a in walk(launch.function.args) if isinstance(a, ast.arg)]
    return [a.arg for a in arguments if chosen & facts.machine.at.get(a, NOTHING).objs]


def _given_back(facts: View, launch: Launch, node: ast.Return) -> Change | Diagnostic:
    """A `return` without its value: it would be pickled, which fails for much of what trains, and thrown away (measured)."""
    assert node.value is not None
    for call in walk(node.value):
        if isinstance(call, (ast.Call, ast.Await, ast.NamedExpr)) and not _quiet(facts, call):
            return GIVES_BACK.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
    last = node is launch.function.body[-1] and len(launch.function.body) > 1 and facts.source.alone(node)
    above = facts.source.line_text(facts.source.line_of(facts.source.start(node)) - 1).strip().startswith("#")
    edits = remove_statement(facts.source, node) if last and not above else replace(facts.source, node, "return")
    return Change(CODE, NAME, "nobody gets what a launched function gives back", node.lineno, edits, source="R53")


def _quiet(facts: View, call: ast.AST) -> bool:
    match call:
        case ast.Call(func=ast.Attribute(attr="item" | "tolist" | "cpu" | "numpy" | "mean" | "sum" | "detach" | "state_dict")):
            return True
        case ast.Call():
            return facts.path(call) in QUIET
    return False


# in the cells -----------------------------------------------------------------------------------------------


def _cells(facts: View, decisions: Decisions, launch: Launch) -> Iterator[Change | Diagnostic]:
    """The calls become launches; what stands in front of them or behind them is looked at."""
    name = launch.function.name
    yield from _devices(facts, launch)
    moved = {move.call for move in moves(facts.program) if decisions.places(move)}
    for call in early(facts.program, launch.calls):
        if call not in moved and not any(call in walk(d) for d in devices(facts, launch)):
            yield TOUCHED.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call), name=name)
    for node in list(lost(facts.program, launch))[:1]:
        yield LOST.at(node.lineno, node.col_offset + 1, text=ast.unparse(node), name=name)
    for call in launch.calls:
        yield _launched(facts, decisions, launch, call)
    if (len(launch.calls) > 1 or any(facts.loops(call) for call in launch.calls)) and not any(
        facts.function(s.call) in launch.inside for s in seedings(facts.program)
    ):
        yield DRAWS.at(launch.calls[0].lineno, name=name)


def _launched(facts: View, decisions: Decisions, launch: Launch, call: ast.Call) -> Change | Diagnostic:
    name = launch.function.name
    statement = facts.source.parents[call]
    assert isinstance(statement, (ast.Expr, ast.Assign))
    if isinstance(statement, ast.Assign):
        used = _used(facts, statement)
        if used is not None:
            return RESULT.at(call.lineno, call.col_offset + 1, name=name, used=used.lineno)
    try:
        given = _arguments(facts, launch.function, call)
    except CannotEditError as error:
        return ARGUMENTS.at(call.lineno, call.col_offset + 1, name=name, why=error.why)
    parts = [facts.source.segment(call.func)]
    parts += [f"args=({given[0]},)" if len(given) == 1 else f"args=({', '.join(given)})"] if given else []
    text = f"notebook_launcher({', '.join([*parts, f'num_processes={launch.count}'])})"
    start, end = facts.source.start(statement), facts.source.end(call)
    edits = [replace_range(start, end, text)]
    if facts.source.root(launch.function) is facts.source.tree:
        decisions.imports["accelerate", "notebook_launcher"] = None  # behind that of the accelerator, which is born in this file
    else:
        edits.append(ensure_import(facts.source, "accelerate", "notebook_launcher"))
    return Change(CODE, NAME, "the launcher starts the processes, and each calls the function", call.lineno, merge(edits), source="R53")


def _used(facts: View, statement: ast.Assign) -> ast.Name | ast.Assign | None:
    """Where a cell, or a function, reads what a call gave; what isn't held by plain names counts as read."""
    stored = [n for target in statement.targets for n in walk(target) if isinstance(n, ast.expr)]
    if not all(isinstance(n, (ast.Name, ast.Tuple, ast.List)) for n in stored):
        return statement
    wanted = {n.id for n in stored if isinstance(n, ast.Name)}
    return next(
        (n for n in facts.source.every(ast.Name) if n.id in wanted and not isinstance(n.ctx, ast.Store) and is_global(facts, n)),
        None,
    )


def _arguments(facts: View, function: ast.FunctionDef, call: ast.Call) -> list[str]:
    """The arguments of a call by their position. Raises CannotEditError."""
    segment = facts.source.segment
    given = [segment(arg) for arg in call.args]
    if not call.keywords:
        return given
    if any(isinstance(arg, ast.Starred) for arg in call.args):
        raise CannotEditError(call, "it unpacks some")
    arguments = function.args
    names_ = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    defaults: dict[str, ast.expr] = dict(zip(names_[len(names_) - len(arguments.defaults) :], arguments.defaults, strict=True))
    keywords = {k.arg: k.value for k in call.keywords}
    if not set(keywords) <= set(names_):
        raise CannotEditError(call, "some have no position")
    if [k.arg for k in call.keywords] != [n for n in names_ if n in keywords] and not all(_still(v) for v in keywords.values()):
        raise CannotEditError(call, "they are computed in another order")
    last = max(names_.index(str(name)) for name in keywords)
    for name in names_[len(given) : last + 1]:
        if name in keywords:
            given.append(segment(keywords[name]))
        elif name in defaults and _still(defaults[name]) and not isinstance(defaults[name], ast.Name):
            given.append(ast.unparse(defaults[name]))
        else:
            raise CannotEditError(call, f"`{name}` isn't given, and its default is no constant")
    return given


def _still(node: ast.expr) -> bool:
    """Whether computing an expression does nothing that an order could change."""
    return all(isinstance(n, (ast.Constant, ast.Name, ast.UnaryOp, ast.Tuple, ast.expr_context, ast.unaryop)) for n in walk(node))


def _devices(facts: View, launch: Launch) -> Iterator[Change]:
    """The choice of a device in a cell goes, or stays where cells read it; PyTorch's question for one must not spoil the fork."""
    gone: set[ast.stmt] = set()
    for definition in devices(facts, launch):
        whole: ast.stmt = next((p for p in reversed(list(facts.source.ancestors(definition))) if isinstance(p, ast.stmt)), definition)
        target = ast.unparse(definition.targets[0] if isinstance(definition, ast.Assign) else definition.target)
        inner = set(walk(whole))
        reads = [n for n in facts.source.every(ast.Name) if n.id == target and isinstance(n.ctx, ast.Load) and n not in inner]
        if whole in gone:
            continue
        stored = {ast.unparse(n) for n in inner if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(n.ctx, ast.Store)}
        simple = all(isinstance(n, (ast.If, ast.Assign, ast.AnnAssign)) for n in inner if isinstance(n, ast.stmt)) and stored == {target}
        if not simple or any(facts.function(n) not in launch.inside for n in reads) or not facts.source.alone(whole):
            continue
        gone.add(whole)
        edits = remove_statement(facts.source, whole)
        yield Change(CODE, NAME, "each process has its own device: the accelerator names it", definition.lineno, edits, source="R02")
    asked = [call for call in questions(facts.program, launch.calls) if not any(call in walk(statement) for statement in gone)]
    if asked:
        yield Change(CODE, NAME, "asking for a GPU must not spoil the fork: PyTorch asks NVML", asked[0].lineno, _nvml(facts, asked), source="R53")


def _nvml(facts: View, asked: list[ast.Call]) -> tuple[Edit, ...]:
    first = min(i for call in asked for i in facts.places(facts.source.tree.body, call))
    text = f'os.environ["{names.NVML}"] = "1"'
    statement = facts.source.tree.body[first]
    return merge([add_before(facts.source, statement, text, rank=BIRTH), ensure_import(facts.source, "", "os")])


PATH = "cells.ipynb"
_SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
{front}

def train(epochs, lr=0.1):
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), "model.pt")
{back}

{call}
"""


def _cells_of(call: str = "train(2)", front: str = "", back: str = "") -> str:
    return _SCRIPT.replace("{call}", call).replace("{front}", front).replace("{back}", back)


_LAUNCHED = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate import notebook_launcher

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())


def train(epochs, lr=0.1):
    accelerator = Accelerator()
    loader = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for epoch in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
    accelerator.save(accelerator.get_state_dict(model), "model.pt")

notebook_launcher(train, args=(2,), num_processes=2)
"""
_TWO: dict[str, object] = {"num_processes": 2}
EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (_cells_of("losses = train(epochs=2)", back="    return loss.item()"), _LAUNCHED, _TWO),
    (_cells_of("train(2)"), "S2A821"),
    (_cells_of("train(2)"), None),
    (_cells_of("losses = train(2)\nprint(losses)", back="    return loss"), "S2A834", _TWO),
    (_cells_of("history = []\ntrain(2)\nprint(history)", back="    history.append(1)"), "S2A844", _TWO),
    (_cells_of(front='ones = torch.ones(2, device="cuda")\n'), "S2A854", _TWO),
    (_cells_of('train(2, **{"lr": 0.2})'), "S2A864", _TWO),
    (_cells_of(back="    return print(2)"), "S2A874", _TWO),
    (_cells_of("for lr in (0.1, 0.2):\n    train(2, lr)"), "S2A884", _TWO),
]
