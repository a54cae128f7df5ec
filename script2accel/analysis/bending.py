"""Losses that bend a mean over the batch: the root of one, a quotient of two, a spread. The average of the ranks' isn't that of their joint batch."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names
from script2accel.source import children, walk

Scope = tuple[ast.AST | None, str]


def bends(facts: Facts) -> Iterator[ast.expr]:
    """Where what training goes back from takes something other than a sum or a mean of the samples."""
    reader = _Reader(facts)
    waiting: list[ast.expr] = [b.loss for b in facts.backwards if facts.in_train_loop(b.call) and not quiet(facts, b.call)]
    seen: set[ast.AST] = set()
    while waiting:
        node = waiting.pop()
        if node in seen or _left(node):
            continue
        seen.add(node)
        if reader.bends(node) and facts.machine.marks_of(node):
            yield node
            continue
        waiting += reader.behind(node)


def _left(node: ast.expr) -> bool:
    """Whether no gradient comes through an expression."""
    owner = node.func if isinstance(node, ast.Call) else node
    return isinstance(owner, ast.Attribute) and owner.attr in names.OUT_OF_GRAPH


class _Reader:
    """Reads expressions back to what they are computed from."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.stored: dict[Scope, list[ast.expr]] = {}
        self.known: dict[ast.AST, bool] = {}
        self.called: dict[ast.Call, list[ast.AST]] = {}
        for function, calls in facts.machine.callers.items():
            for call in calls:
                self.called.setdefault(call, []).append(function)
        for source in facts.source.sources:
            for node in source.every(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if node.value is not None:
                        self._store(target, node.value)

    def _store(self, target: ast.expr, value: ast.expr) -> None:
        match target, value:
            case (ast.Tuple(elts=left), ast.Tuple(elts=right)) if len(left) == len(right):
                for one, other in zip(left, right, strict=True):
                    self._store(one, other)
            case ast.Name(id=name), _:
                self.stored.setdefault((self.facts.function(target), name), []).append(value)
            case ast.Attribute(attr=name), _:
                self.stored.setdefault((None, name), []).append(value)

    def behind(self, node: ast.expr) -> list[ast.expr]:
        """What an expression is computed from: its parts, what its name was given, what a function of the script returns or was handed."""
        match node:
            case ast.Name(id=name):
                return self.stored.get((self.facts.function(node), name), []) + self._handed(node, name)
            case ast.Attribute(attr=name, value=ast.Name(id="self")):
                return self.stored.get((None, name), [])
            case ast.Call() if node in self.facts.forward_calls and not self._criterion(node):
                return []
            case ast.Call(func=func):
                parts = [func.value] if isinstance(func, ast.Attribute) else []
                returned = self._returned(node)
                return returned or [*parts, *node.args, *(k.value for k in node.keywords)]
        return [child for child in children(node) if isinstance(child, ast.expr)]

    def _criterion(self, call: ast.Call) -> bool:
        return any(self.facts.roles.of(o) == "criterion" for o in self.facts.machine.at.get(call.func, NOTHING).objs)

    def _returned(self, call: ast.Call) -> list[ast.expr]:
        """What the script's own functions that a call runs give back: a function's, a method's, a criterion's `forward`."""
        found: list[ast.expr] = []
        for function in self.called.get(call, ()):
            if isinstance(function, FUNCTIONS):
                found += [n.value for n in walk(function) if isinstance(n, ast.Return) and n.value is not None]
        return found

    def _handed(self, node: ast.Name, name: str) -> list[ast.expr]:
        function = self.facts.function(node)
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return []
        parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        if name not in parameters:
            return []
        place = parameters.index(name) - (parameters[0] == "self")
        found = []
        for call in self.facts.callers(function):
            given = next((k.value for k in call.keywords if k.arg == name), call.args[place] if 0 <= place < len(call.args) else None)
            found += [given] if given is not None else []
        return found

    # what bends ------------------------------------------------------------------------------------------

    def bends(self, node: ast.expr) -> bool:
        """Whether an expression takes a mean over the batch to something that isn't linear in it."""
        match node:
            case ast.BinOp(left=left, op=ast.Pow(), right=power):
                return self.joint(left) and not (isinstance(power, ast.Constant) and power.value == 1)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.joint(left) and self.joint(right)
            case ast.BinOp(op=ast.Div(), right=right):
                return self.joint(right)
            case ast.Call(func=func, args=args):
                path = self.facts.path(node)
                if names.BENDS.match(path):
                    return any(self.joint(a) for a in args[:2])
                if names.COSINE.match(path):
                    return any(k.arg == "dim" and _zero(k.value) for k in node.keywords)
                if names.SPREADS.match(path):
                    return _over_batch(node, 1)
                if isinstance(func, ast.Attribute) and not path:
                    if func.attr in names.BENDING:
                        return self.joint(func.value)
                    return func.attr in names.SPREADING and _over_batch(node, 0)
        return False

    def joint(self, node: ast.expr) -> bool:
        """Whether an expression is one number (or row) for all samples of the batch, with their gradients."""
        if node not in self.known:
            self.known[node] = False
            self.known[node] = bool(self.facts.machine.marks_of(node)) and self._joint(node)
        return self.known[node]

    def _joint(self, node: ast.expr) -> bool:
        if _left(node):
            return False
        match node:
            case ast.Call(func=func):
                path = self.facts.path(node)
                if self._is_loss(node):
                    return True
                if names.JOINS.match(path):
                    return _over_batch(node, 1)
                if isinstance(func, ast.Attribute) and not path and func.attr in names.JOINING:
                    return _over_batch(node, 0)
                if returned := self._returned(node):
                    return any(self.joint(r) for r in returned)
                return bool(names.BENDS.match(path)) and any(map(self.joint, node.args[:2]))
            case ast.BinOp(left=left, right=right):
                return self.joint(left) or self.joint(right)
            case ast.UnaryOp(operand=operand):
                return self.joint(operand)
            case ast.Name() | ast.Attribute():
                return any(self.joint(value) for value in self.behind(node))
        return False

    def _is_loss(self, call: ast.Call) -> bool:
        """Whether a call gives the mean or the sum of one of torch's losses."""
        sites = [call] if any(names.LOSS_FUNCTION.match(p) for p in self.facts.any_path(call)) else []
        for obj in self.facts.machine.at.get(call.func, NOTHING).objs:
            if obj.kind == "made" and names.LOSS_MODULE.match(obj.path) and isinstance(obj.site, ast.Call):
                sites.append(obj.site)
        return bool(sites) and not any(k.arg in ("reduction", "reduce") and not _constant(k.value, "mean", "sum") for s in sites for k in s.keywords)


def _constant(node: ast.expr, *values: str) -> bool:
    return isinstance(node, ast.Constant) and node.value in values


def _zero(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value == 0


def _over_batch(call: ast.Call, first: int) -> bool:
    """Whether a reduction goes over the samples: over all dimensions, or the first."""
    place = first + (ast.unparse(call.func).rsplit(".", 1)[-1] in ("norm", "vector_norm"))
    dim = next((k.value for k in call.keywords if k.arg in ("dim", "axis")), call.args[place] if len(call.args) > place else None)
    match dim:
        case None | ast.Constant(value=None | 0):
            return True
        case ast.Tuple(elts=elts) | ast.List(elts=elts):
            return any(map(_zero, elts))
    return False
