"""Mixed precision by hand: where autocast stands, where a GradScaler is made, handed on and used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.origins import argument
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names
from script2accel.source import walk

With = ast.With | ast.AsyncWith


@dataclass(frozen=True, eq=False)
class Autocast:
    """One place that autocast governs: a `with` (and which of its items) or a decorated function; `call` makes it (None for a bare decorator)."""

    node: ast.AST
    call: ast.Call | None
    item: ast.withitem | None
    where: With | ast.FunctionDef | ast.AsyncFunctionDef
    off: bool
    trains: bool
    in_module: bool


@dataclass(frozen=True, eq=False)
class ScalerUse:
    """One expression (or parameter) that holds a GradScaler, and what is done with it; `call` calls its method, or is given it."""

    node: ast.expr | ast.arg
    what: str
    call: ast.Call | None = None


class HandMade:
    """What a script does about mixed precision itself."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.autocasts = list(self._autocasts())
        self.scalers = [c for c in facts.calls if any(names.SCALER.match(p) for p in facts.any_path(c))]
        scaled = any(isinstance(b.call.func, ast.Attribute) and facts.scaled(b.call.func.value) is not None for b in facts.backwards)
        self.uses = list(self._uses()) if self.scalers or scaled else []

    # autocast --------------------------------------------------------------------------------------------

    def makes(self, node: ast.AST) -> list[ast.Call]:
        """The calls of autocast that can have made what an expression holds."""
        objs = self.facts.machine.at.get(node, NOTHING).objs
        return [o.site for o in objs if o.kind == "made" and names.AUTOCAST.match(o.path) and isinstance(o.site, ast.Call)]

    def _autocasts(self) -> Iterator[Autocast]:
        for node in self.facts.source.every(ast.With, ast.AsyncWith, ast.FunctionDef, ast.AsyncFunctionDef):
            if isinstance(node, (ast.With, ast.AsyncWith)):
                for item in node.items:
                    for call in self.makes(item.context_expr):
                        yield self._found(item.context_expr, call, item, node)
            elif isinstance(node, FUNCTIONS):
                for decorator in node.decorator_list:
                    target = decorator.func if isinstance(decorator, ast.Call) else decorator
                    if any(o.kind == "external" and names.AUTOCAST.match(str(o.name)) for o in self.facts.machine.at.get(target, NOTHING).objs):
                        yield self._found(decorator, decorator if isinstance(decorator, ast.Call) else None, None, node)

    def _found(
        self, node: ast.AST, call: ast.Call | None, item: ast.withitem | None, where: With | ast.FunctionDef | ast.AsyncFunctionDef
    ) -> Autocast:
        enabled = keyword(call, "enabled")
        off = isinstance(enabled, ast.Constant) and enabled.value is False
        inside = self.facts.in_module(where)
        trains = not quiet(self.facts, where) and (inside or self.facts.in_train_loop(where.body[0]))
        return Autocast(node, call, item, where, off, trains, inside)

    # scaler ----------------------------------------------------------------------------------------------

    def is_scaler(self, node: ast.AST) -> bool:
        """Whether an expression holds a GradScaler, or None instead of one."""
        objs = [o for o in self.facts.machine.at.get(node, NOTHING).objs if o.kind != "const" or o.name is not None]
        return bool(objs) and all(self.facts.roles.of(o) == "scaler" for o in objs)

    def _uses(self) -> Iterator[ScalerUse]:
        source = self.facts.source
        for node in source.nodes:
            if isinstance(node, ast.arg):
                if self.is_scaler(node):
                    yield ScalerUse(node, "parameter")
                continue
            if not isinstance(node, (ast.Name, ast.Attribute)) or not self.is_scaler(node):
                continue
            yield self._use(node)

    def _use(self, node: ast.Name | ast.Attribute) -> ScalerUse:
        parent = self.facts.source.parents[node]
        above = self.facts.source.parents.get(parent)
        if isinstance(node.ctx, ast.Store):
            return ScalerUse(node, "bound")
        if isinstance(parent, ast.Attribute) and isinstance(above, ast.Call) and above.func is parent:
            return ScalerUse(node, parent.attr, above)
        if (
            isinstance(parent, ast.Compare)
            and len(parent.ops) == 1
            and isinstance(parent.ops[0], (ast.Is, ast.IsNot))
            and _is_none(parent.comparators[0])
        ):
            return ScalerUse(node, "test")
        if isinstance(parent, (ast.If, ast.IfExp)) and parent.test is node:
            return ScalerUse(node, "test")
        if isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not):
            return ScalerUse(node, "test")
        if isinstance(parent, ast.Assign) and parent.value is node:
            return ScalerUse(node, "copied")
        call = above if isinstance(parent, ast.keyword) else parent
        if isinstance(call, ast.Call) and node is not call.func:
            return ScalerUse(node, "given", call)
        return ScalerUse(node, "other")


def hand_made(facts: Facts) -> HandMade:
    """Mixed precision by hand in all files, found once per facts."""
    program = facts.program
    if "hand_made_precision" not in program.__dict__:
        program.__dict__["hand_made_precision"] = HandMade(program)
    return program.__dict__["hand_made_precision"]  # type: ignore[no-any-return]


def keyword(call: ast.Call | None, name: str) -> ast.expr | None:
    """A keyword argument of a call."""
    return next((k.value for k in call.keywords if k.arg == name), None) if call is not None else None


def definition(facts: Facts, node: ast.expr) -> ast.expr | None:
    """What a name, a parameter with one caller, or an attribute of `self` is set to, where one statement sets it."""
    source = facts.program.source
    scope = source.function(node)
    match node:
        case ast.Name(id=name):
            owner = facts.machine.owner(source.scope(node), name)
            if not isinstance(owner, ast.AST):
                return None
            stores = [
                n for n in walk(owner) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) and source.scope(n) is owner
            ]
            if not stores and isinstance(owner, FUNCTIONS):
                given = [argument(c, owner, name, method=isinstance(source.scope(owner), ast.ClassDef)) for c in facts.callers(owner)]
                return given[0] if len(given) == 1 else None
        case ast.Attribute(value=ast.Name(id=me), attr=name) if isinstance(scope, FUNCTIONS) and scope.args.args and scope.args.args[0].arg == me:
            cls = source.scope(scope)
            stores = [n for n in walk(cls) if isinstance(n, ast.Attribute) and n.attr == name and isinstance(n.ctx, ast.Store)]  # type: ignore[misc]
        case _:
            return None
    statement = source.statement(stores[0]) if len(stores) == 1 else None
    return statement.value if isinstance(statement, ast.Assign) and statement.targets == [stores[0]] else None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
