"""The script's own experiment tracker, and which of its calls mean the same through Accelerate's.

Accelerate logs to every tracker that it holds, makes one for each `init_trackers`, and hands TensorBoard nothing but Python numbers, texts and
dictionaries of them: a script with one tracker, made once, can be rewritten call by call.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import trackers as names
from script2accel.source import walk


@dataclass(frozen=True, eq=False)
class Log:
    """A call that logs: `scalar` of one tag, `scalars` of one tag, or `values`, a dictionary."""

    call: ast.Call
    form: str
    parts: tuple[ast.expr, ...]  # (tag, value) or (values,)
    step: ast.expr | None


@dataclass(eq=False)
class Tracking:
    """One tracker: the call that makes it, what logs, what ends it, and whether anything else reads it (`kept`)."""

    name: str
    make: ast.Call
    where: ast.expr  # the directory or project
    options: tuple[ast.keyword, ...] = ()
    logs: list[Log] = field(default_factory=list)
    ends: list[ast.Call] = field(default_factory=list)
    kept: bool = False

    @property
    def taken(self) -> frozenset[ast.Call]:
        """The calls that become Accelerate's."""
        return frozenset((self.make, *(log.call for log in self.logs), *self.ends))


@dataclass(eq=False)
class Found:
    """What a script tracks with: the tracker that can be rewritten, and those that stay (place, name, why)."""

    tracking: Tracking | None = None
    stay: list[tuple[ast.Call, str]] = field(default_factory=list)

    @property
    def taken(self) -> frozenset[ast.Call]:
        """The calls that become Accelerate's."""
        return self.tracking.taken if self.tracking is not None else frozenset()


def find(facts: Facts) -> Found:
    """The script's trackers."""
    found = Found()
    makers = [(call, name) for call in facts.program.calls if (name := names.maker(facts.path(call)))]
    for call, name in makers:
        why = "" if name in names.REWRITTEN else "how its calls translate isn't known here"
        tracking = None
        if not why:
            why = "Accelerate would log everything to each of several trackers" if len(makers) > 1 else _alone(facts, call)
        if not why:
            tracking, why = _tensorboard(facts, call) if name == "tensorboard" else _run(facts, call, name)
        if tracking is None:
            found.stay.append((call, why))
        else:
            found.tracking = tracking
            _read(facts, tracking)
    return found


def _alone(facts: Facts, call: ast.Call) -> str:
    """Why a place may make more than one tracker, or why its result can't be followed."""
    parent = facts.source.parents[call]
    targets = parent.targets if isinstance(parent, ast.Assign) else []
    if not (isinstance(parent, ast.Expr) or (len(targets) == 1 and isinstance(targets[0], (ast.Name, ast.Attribute)))):
        return "it isn't made in a statement of its own"
    return _repeated(facts, call)


def _repeated(facts: Facts, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> str:
    if facts.loops(node):
        return "it is made in a loop, and Accelerate would keep every one"
    function = facts.function(node)
    if isinstance(function, ast.Module) or function in seen:
        return ""
    sites = facts.callers(function)
    if len(sites) > 1:
        return "it is made by a function that is called several times, and Accelerate would keep every one"
    return next((why for site in sites if (why := _repeated(facts, site, seen | {function}))), "")


def _tensorboard(facts: Facts, call: ast.Call) -> tuple[Tracking | None, str]:
    where = call.args[0] if call.args else next((k.value for k in call.keywords if k.arg == "log_dir"), None)
    rest = tuple(k for k in call.keywords if k.arg != "log_dir")
    if where is None:
        return None, "it names no directory, and the default one has no counterpart"
    if len(call.args) > 1 or isinstance(where, ast.Starred) or any(k.arg in (None, "comment") for k in rest):
        return None, "its arguments have no counterpart"
    if any(o.kind == "const" and not (isinstance(o.name, str) and o.name) for o in facts.machine.at.get(where, NOTHING).objs):
        return None, "it may name no directory, and the default one has no counterpart"
    return Tracking("tensorboard", call, where, rest), ""


def _run(facts: Facts, call: ast.Call, name: str) -> tuple[Tracking | None, str]:
    first = call.args[0] if name == "trackio" and call.args else None
    project = next((k.value for k in call.keywords if k.arg == "project"), first)
    if project is None or len(call.args) > (first is not None) or isinstance(project, ast.Starred):
        return None, "it names no project by keyword, and Accelerate asks for one"
    return Tracking(name, call, project, tuple(k for k in call.keywords if k.arg != "project")), ""


def _read(facts: Facts, tracking: Tracking) -> None:
    """Sort the tracker's uses."""
    source = facts.program.source
    made = facts.machine.at.get(tracking.make, NOTHING).objs
    told = {target for target in _targets(source.parents[tracking.make])}
    for call in facts.program.calls:
        if not isinstance(source.parents[call], ast.Expr) or not _speaks(facts, tracking, call, made):
            continue
        if facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue  # no accelerator comes there
        if (log := _logs(facts, tracking.name, call)) is not None:
            tracking.logs.append(log)
        elif _word(facts, call) in ("close", "finish") and not call.args and not call.keywords and _last(facts, call):
            tracking.ends.append(call)
    receivers = {c.func.value for c in tracking.taken if isinstance(c.func, ast.Attribute)}
    tracking.kept = any(
        facts.machine.at[node].objs & made
        for node in source.nodes
        if isinstance(node, (ast.Name, ast.Attribute))
        and isinstance(node.ctx, ast.Load)
        and node in facts.machine.at
        and node not in receivers | told
    )


def _targets(statement: ast.AST) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else []


def _speaks(facts: Facts, tracking: Tracking, call: ast.Call, made: frozenset[Obj]) -> bool:
    """Whether a call is a method of this tracker, or a function of its module that works on the run."""
    if tracking.name != "tensorboard" and facts.path(call) in (f"{tracking.name}.log", f"{tracking.name}.finish"):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    objs = {o for o in facts.machine.at.get(call.func.value, NOTHING).objs if not (o.kind == "const" and o.name is None)}
    return bool(objs) and objs <= made


def _word(facts: Facts, call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else facts.path(call).rsplit(".", 1)[-1]


def _logs(facts: Facts, name: str, call: ast.Call) -> Log | None:
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    word = _word(facts, call)
    if name != "tensorboard":
        given = _bound(call, ("data", "step"))
        plain = word == "log" and given is not None and "data" in given and call.args and not _media(facts, given["data"])
        return Log(call, "values", (given["data"],), given.get("step")) if plain and given is not None else None
    parameters = names.SCALARS.get(word)
    given = _bound(call, parameters) if parameters else None
    if given is None or parameters is None or parameters[0] not in given or parameters[1] not in given or len(call.args) < 2:
        return None
    values = given[parameters[1]]
    if word == "add_scalars" and not (isinstance(values, ast.Dict) and None not in values.keys):
        return None
    return Log(call, "scalar" if word == "add_scalar" else "scalars", (given[parameters[0]], values), given.get("global_step"))


def _bound(call: ast.Call, parameters: tuple[str, ...]) -> dict[str, ast.expr] | None:
    """Parameter -> argument, or None where there are others."""
    if len(call.args) > len(parameters) or any(k.arg not in parameters for k in call.keywords):
        return None
    return {**dict(zip(parameters, call.args, strict=False)), **{str(k.arg): k.value for k in call.keywords}}


def _media(facts: Facts, values: ast.expr) -> bool:
    """Whether a dictionary holds images, tables and the like, which `accelerator.log` isn't documented to take."""
    if isinstance(values, ast.Name):
        objs = facts.machine.at.get(values, NOTHING).objs
        held = [o for obj in objs for o in facts.machine.anything_in(obj).objs]
        return not objs or any(o.kind != "dict" for o in objs) or any(o.path.split(".")[0] in names.REWRITTEN for o in held)
    if not isinstance(values, ast.Dict):
        return True
    return any(isinstance(n, ast.Call) and facts.path(n).split(".")[0] in names.REWRITTEN for n in walk(values))


def _last(facts: Facts, call: ast.Call) -> bool:
    """Whether nothing runs behind a statement any more: the process group may end with it."""
    child: ast.AST = facts.source.parents[call]
    if any(facts.path(c) == "torch.distributed.destroy_process_group" for c in facts.program.calls):
        return False
    while True:
        parent = facts.source.parents[child]
        block = getattr(parent, "body", [])
        if child not in block or block[-1] is not child:
            return False
        if isinstance(parent, ast.Module):
            return True
        if isinstance(parent, FUNCTIONS):
            sites = facts.callers(parent)
            if len(sites) != 1 or not isinstance(facts.source.parents[sites[0]], ast.Expr):
                return False
            child = facts.source.parents[sites[0]]
        elif isinstance(parent, ast.If) and facts.machine.truth(parent.test) and not parent.orelse:
            child = parent
        else:
            return False
