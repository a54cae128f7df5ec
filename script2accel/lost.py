"""What a notebook reads behind a launch, and the launched processes have changed: it is lost with them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.launched import Launch, is_global, places, reached
from script2accel.source import walk

READS = frozenset(
    (
        *("items", "keys", "values", "get", "copy", "index", "count"),
        *("split", "strip", "join", "format", "lower", "upper", "startswith", "endswith", "replace", "encode", "decode", "batch_decode"),
        *("numpy", "item", "tolist", "cpu", "detach", "clone", "contiguous", "mean", "sum", "max", "min", "std", "var", "argmax", "argmin"),
        *("size", "dim", "numel", "float", "long", "int", "view", "reshape", "squeeze", "unsqueeze", "permute", "transpose", "astype"),
        *("exists", "is_dir", "is_file", "mkdir", "joinpath", "read_text", "open"),
        *("debug", "info", "warning", "error", "exception", "critical", "log"),
        *("named_parameters", "parameters", "state_dict", "to_dict"),
    )
)
"""Methods, of whatever object, that change nothing."""
GROWING = frozenset({"append", "appendleft", "extend", "add", "update", "insert", "pop", "popleft", "remove", "discard", "clear", "setdefault"})
CHANGING = frozenset({"setattr", "delattr", "next", "random.shuffle", "numpy.random.shuffle", "heapq.heappush", "heapq.heappop", "bisect.insort"})
TRAINED = frozenset({"model", "optimizer", "scheduler", "scaler", "ema", "criterion"})
PLAIN = frozenset({"const", "external", "function", "method"})


def lost(facts: Facts, launch: Launch) -> Iterator[ast.expr]:
    """The places behind a launch, or in the next one, that read what a launch changes: there it is as it was."""
    behind = Behind(facts, launch)
    changes = Changes(facts, launch).find()
    for node in behind.nodes():
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and isinstance(node.ctx, ast.Load):
            variable = isinstance(node, ast.Name) and node.id in changes.variables and is_global(facts, node)
            if variable or any(o.inner in changes.objects and behind.older(o.inner) for o in facts.machine.at.get(node, NOTHING).objs):
                yield node


@dataclass
class Behind:
    """The cells behind the first launch; with several launches, these too."""

    facts: Facts
    launch: Launch

    def __post_init__(self) -> None:
        self.tree = self.facts.source.root(self.launch.calls[0])
        self.starts = places(self.facts, self.tree, self.launch)
        self.again = len(self.launch.calls) > 1 or any(self.facts.loops(call) for call in self.launch.calls)

    def nodes(self) -> Iterator[ast.AST]:
        """Every node of these cells, and of the functions that they run."""
        first = min(self.starts, default=0)
        found: list[ast.AST] = []
        for number, statement in enumerate(self.tree.body):
            if not isinstance(statement, (*FUNCTIONS, ast.ClassDef)) and (number > first or (number == first and self.again)):
                found += walk(statement)
        yield from found
        for function in self._run(found):
            yield from walk(function)

    def _run(self, nodes: Iterable[ast.AST]) -> set[ast.AST]:
        known = {node for node in nodes if isinstance(node, ast.Call)}
        found: set[ast.AST] = set()
        for target, calls in self.facts.machine.callers.items():
            if any(call in known for call in calls) and (target is not self.launch.function or self.again):
                found |= reached(self.facts, target)
        return found

    def older(self, obj: Obj) -> bool:
        """Whether an object may have been made in the notebook's own process, in front of the last launch."""
        if obj.site is None:
            return True
        last = max(self.starts, default=0)
        made = self.facts.places(self.tree.body, obj.site)
        if isinstance(self.facts.function(obj.site), ast.Module):
            return any(i <= last for i in made) or not made
        return any(i < last and i not in self.starts for i in made)


@dataclass
class Changes:
    """The objects that the launched functions change, with what holds them, and the cells' variables that they set."""

    facts: Facts
    launch: Launch
    objects: set[Obj] = field(default_factory=set)
    variables: set[str] = field(default_factory=set)

    def find(self) -> Changes:
        """Look through all functions that are launched."""
        for function in self.launch.inside:
            own = _own_name(self.facts, function)
            for node in walk(function):
                self._look(node, own)
        held = [(o, value) for (o, _), value in self.facts.machine.store.items() if isinstance(o, Obj)]
        size = -1
        while size != len(self.objects):  # what holds a changed object has changed
            size = len(self.objects)
            self.objects |= {o for o, value in held if o.kind not in PLAIN and any(v.inner in self.objects for v in value.objs)}
        return self

    def _look(self, node: ast.AST, own: str) -> None:
        facts = self.facts
        match node:
            case ast.Global(names=declared):
                self.variables |= set(declared)
            case ast.AugAssign(target=ast.Name() as variable):
                self._mark(variable)
            case ast.Attribute(value=owner) | ast.Subscript(value=owner) if not isinstance(node.ctx, ast.Load) and _root(owner) != own:
                self._mark(owner)
            case ast.Call(func=ast.Attribute(value=owner, attr=method) as func) if _root(owner) != own:
                followed = [o.site for o in facts.machine.at.get(func, NOTHING).objs if o.kind in ("function", "method") and o.site is not None]
                if any(_alters(facts, site) for site in followed) if followed else method not in READS:
                    self._mark(owner)
            case ast.Attribute(value=owner, attr=method) if method in GROWING and _root(owner) != own:  # a method that is handed on
                self._mark(owner)
            case ast.Delete(targets=targets):
                for target in targets:
                    self._without(target, own)
            case ast.Call(func=ast.Name() as name):
                self.objects |= {o.base.inner for o in facts.machine.at.get(name, NOTHING).objs if o.base is not None and o.name in GROWING}
        match node:
            case ast.Call(args=args) if facts.path(node) in CHANGING:
                for arg in args:
                    self._mark(arg)
            case ast.Call(func=called) if any(o.kind == "instance" for o in facts.machine.at.get(called, NOTHING).objs) and not facts.in_module(node):
                self._mark(called)
        if isinstance(node, ast.expr) and node in facts.machine.at and not facts.in_module(node) and facts.roles.of_node(node) in TRAINED:
            self._mark(node)

    def _without(self, target: ast.expr, own: str) -> None:
        """`del table[key]`, which the abstract run passes over: what holds the name changes."""
        root = _root(target)
        if isinstance(target, ast.Name) or not root or root == own:
            return
        function = self.facts.function(target)
        given = [a for a in walk(getattr(function, "args", function)) if isinstance(a, ast.arg) and a.arg == root]
        for arg in given:
            self._mark(arg)
        self.variables |= {root} if not given else set()

    def _mark(self, node: ast.expr | ast.arg) -> None:
        """An object is changed, and so is what it is taken out of."""
        part: ast.AST = node
        while True:
            self.objects |= {o.inner for o in self.facts.machine.at.get(part, NOTHING).objs if o.kind not in PLAIN}
            if not isinstance(part, (ast.Attribute, ast.Subscript)):
                return
            part = part.value


def _own_name(facts: Facts, function: ast.AST) -> str:
    """The name of `self` in a method, else ''."""
    if not isinstance(function, FUNCTIONS) or not isinstance(facts.source.scope(function), ast.ClassDef):
        return ""
    return function.args.args[0].arg if function.args.args else ""


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _alters(facts: Facts, function: ast.AST) -> bool:
    """Whether a method, or another that it calls, changes its own object."""
    for one in reached(facts, function):
        own = _own_name(facts, one)
        for node in walk(one) if own else ():
            match node:
                case ast.Attribute(value=owner) | ast.Subscript(value=owner) if not isinstance(node.ctx, ast.Load) and _root(owner) == own:
                    return True
                case ast.Call(func=ast.Attribute(value=ast.Attribute() as owner, attr=method)) if _root(owner) == own and method not in READS:
                    return True
    return False
