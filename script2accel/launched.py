"""Which function of a notebook `notebook_launcher` can run, and what there is in front of it and behind it.

The launcher forks: each process starts with what the cells above have made, and what it changes or gives back is lost with it. A process that
was forked behind the first use of a GPU can't use one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from script2accel.analysis.devices import definitions_cached, moves, to_cpu
from script2accel.analysis.facts import Facts
from script2accel.analysis.homes import Homes
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk

IN_A_CELL = "training runs in a cell, not in a function that a cell calls"
MANY_MACHINES = "a notebook runs on one machine"


@dataclass(frozen=True, eq=False)
class Launch:
    """A function that cells call (`calls`) and that is to run in `count` processes; `inside` are the functions that run in them.

    `names` are the notebook's variables that these processes set anew. `done`: the notebook launches it already.
    """

    function: ast.FunctionDef
    calls: tuple[ast.Call, ...]
    count: int
    inside: frozenset[ast.AST]
    names: tuple[str, ...] = ()
    done: bool = False

    @property
    def anchor(self) -> ast.stmt:
        """The first statement of the function that isn't its docstring or a declaration of globals."""
        body = self.function.body
        start = 1 if ast.get_docstring(self.function, clean=False) is not None else 0
        return next((s for s in body[start:] if not isinstance(s, ast.Global)), body[-1])


def find(facts: Facts, processes: int | None, machines: int | None) -> Launch | str:
    """The function of a notebook to launch, or why there is none ('' where nobody asked for several processes)."""
    entry = facts.source.entries[0]
    launches = [call for call in facts.calls if names.LAUNCHER.match(facts.path(call))]
    if not launches and (not entry.notebook or processes is None or processes < 2):
        return ""
    if not launches and (machines or 1) > 1:
        return MANY_MACHINES
    found = _launches(launches) if launches else _roots(facts, entry.tree)
    if isinstance(found, str):
        return found
    targets = {o.site for call in found for o in facts.machine.at.get(_named(call, bool(launches)), NOTHING).objs}
    function = next(iter(targets), None)
    if len(targets) != 1 or not isinstance(function, ast.FunctionDef):
        return IN_A_CELL if not targets else "training starts in several functions, or in one that can't be followed"
    why = "" if launches else _unfit(facts, function, found)
    if why:
        return why
    return Launch(function, tuple(found), processes or 1, frozenset(reached(facts, function)), done=bool(launches))


def _launches(launches: list[ast.Call]) -> list[ast.Call] | str:
    return [call for call in launches if call.args or any(k.arg == "function" for k in call.keywords)] or IN_A_CELL


def _named(call: ast.Call, launched: bool) -> ast.expr:
    """The function that a cell calls, or gives to the launcher."""
    if not launched:
        return call.func
    return call.args[0] if call.args else next(k.value for k in call.keywords if k.arg == "function")


def _roots(facts: Facts, tree: ast.Module) -> list[ast.Call] | str:
    """The calls in cells through which everything that trains is reached."""
    found: dict[ast.Call, None] = {}
    for backward in facts.backwards:
        waiting: list[ast.AST] = [backward.call]
        seen: set[ast.AST] = set()
        while waiting:
            node = waiting.pop()
            function = facts.function(node)
            if isinstance(function, ast.Module):
                if node is backward.call or function is not tree or not isinstance(node, ast.Call):
                    return IN_A_CELL
                found[node] = None
            elif function not in seen:
                seen.add(function)
                waiting += facts.callers(function)
    return sorted(found, key=lambda call: call.lineno) or IN_A_CELL


def _unfit(facts: Facts, function: ast.FunctionDef, calls: list[ast.Call]) -> str:
    """Why a function can't be launched at some calls."""
    name = function.name
    if not isinstance(facts.source.scope(function), ast.Module) or not all(isinstance(call.func, (ast.Name, ast.Attribute)) for call in calls):
        return f"training runs in a method, `{name}`, of an object that a cell has made"
    if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in walk(function)) or function.decorator_list:
        return f"`{name}` is a generator, or decorated"
    if set(facts.callers(function)) - set(calls) or facts.machine.escapes.get(function):
        return f"`{name}` is also called elsewhere than in a cell"
    if not all(isinstance(facts.source.parents[call], (ast.Expr, ast.Assign)) for call in calls):
        return f"the call of `{name}` is part of another statement"
    return ""


def reached(facts: Facts, function: ast.AST) -> set[ast.AST]:
    """The functions that run when a function does, itself among them."""
    called: dict[ast.AST, list[ast.AST]] = {}
    for target, calls in facts.machine.callers.items():
        for call in calls:
            called.setdefault(facts.function(call), []).append(target)
    found: set[ast.AST] = set()
    waiting = [function]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += called.get(node, ())
    return found


def inside_name(facts: Facts, homes: Homes, launch: Launch, path: str, obj: Obj) -> str | None:
    """How the launched function names what a cell holds under a name: its parameter, or the cells' own variable; None where it can't."""
    given = [b.path for b in homes.bindings(obj, launch.function) if b.statement is None]
    if given:
        return given[0] if len(set(given)) == 1 and not _read_as_global(facts, launch, path) else None
    local = path in facts.machine.bound.get(launch.function, ()) and facts.machine.declared.get(launch.function, {}).get(path) != "Global"
    return path if path.isidentifier() and not local else None


def _read_as_global(facts: Facts, launch: Launch, name: str) -> bool:
    return any(n.id == name and is_global(facts, n) for n in inside(launch))


def is_global(facts: Facts, node: ast.Name) -> bool:
    """Whether a name is a variable of its module."""
    return isinstance(facts.machine.owner(facts.source.scope(node), node.id), ast.Module)


def inside(launch: Launch) -> Iterator[ast.Name]:
    """The names in the text of the functions that run in the launched processes."""
    for function in launch.inside:
        yield from (n for n in walk(function) if isinstance(n, ast.Name))


def places(facts: Facts, tree: ast.Module, launch: Launch) -> frozenset[int]:
    """The statements of the cells, by their number, in which the launches stand."""
    return frozenset(i for call in launch.calls for i in facts.places(tree.body, call))


def devices(facts: Facts, launch: Launch) -> list[ast.Assign | ast.AnnAssign]:
    """Where cells choose the device."""
    tree = facts.source.root(launch.calls[0])
    return [d for d in definitions_cached(facts) if facts.function(d) is tree]


# in front ---------------------------------------------------------------------------------------------------


def early(facts: Facts, launches: Sequence[ast.Call]) -> Iterator[ast.Call]:
    """Calls that can use the device and run in front of a launch, in a cell or in a function that a cell calls."""
    moved = {move.call for move in moves(facts) if not to_cpu(move)}
    for call in facts.calls:
        path = facts.path(call)
        touches = call in moved or (names.TOUCHES.match(path) and not names.FORK_SAFE.match(path)) or _placed(call)
        if touches and _in_front(facts, launches, call):
            yield call


def _in_front(facts: Facts, launches: Sequence[ast.Call], call: ast.Call) -> bool:
    body = facts.source.root(launches[0]).body
    last = max((i for launch in launches for i in facts.places(body, launch)), default=-1)
    return any(i < last and not _launched_in(body[i], launches) for i in facts.places(body, call))


def _launched_in(statement: ast.stmt, launches: Sequence[ast.Call]) -> bool:
    return any(node in launches for node in walk(statement))


def _placed(call: ast.Call) -> bool:
    """Whether a call names a device to make something on."""
    for keyword in call.keywords:
        if keyword.arg in ("device", "map_location", "device_map"):
            match keyword.value:
                case ast.Constant(value=None | "cpu" | -1) | ast.Call(args=[ast.Constant(value="cpu")]):
                    continue
            return True
    return False


def questions(facts: Facts, launches: Sequence[ast.Call]) -> Iterator[ast.Call]:
    """`torch.cuda.is_available()` in front of a launch, where PyTorch isn't told to ask NVML: it spoils the fork (documented)."""
    if not any(isinstance(n, ast.Constant) and n.value == names.NVML for n in facts.source.nodes):
        yield from (c for c in facts.calls if names.ASKS_DRIVER.match(facts.path(c)) and _in_front(facts, launches, c))


def beside(facts: Facts, launch: Launch, line: int) -> bool:
    """Whether a line of a notebook runs in its own process alone: in a cell, or in a function that only cells call."""
    for statement in facts.source.root(launch.calls[0]).body:
        if statement.lineno <= line <= (statement.end_lineno or statement.lineno):
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return bool(facts.callers(statement)) and statement not in launch.inside and not facts.machine.escapes.get(statement)
            return not isinstance(statement, ast.ClassDef)
    return False


def renamed(launch: Launch, more: Iterable[str]) -> Launch:
    """The launch, with more of the cells' variables that its processes set."""
    return replace(launch, names=tuple(dict.fromkeys((*launch.names, *more))))
