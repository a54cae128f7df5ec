"""How an expression of the script is written at another place: parameters followed to what callers give, attributes to what sets them."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.overriding import overriding
from script2accel.analysis.values import NOTHING
from script2accel.source import Scope, children, walk

DEPTH = 8  # how many calls up a parameter is followed
PLAIN = (
    ast.Constant,
    ast.Name,
    ast.Attribute,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Subscript,
    ast.Dict,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
)


class NotKnownError(Exception):
    """The expression can't be written at that place; `why` says what is in the way."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


@dataclass
class Origin:
    """The text at the other place, and the statements there that must have run before."""

    text: str
    behind: dict[ast.stmt, None] = field(default_factory=dict)


class Origins:
    """Writes expressions as one scope (a module, a function, a class's `__init__`) knows them."""

    def __init__(self, facts: Facts, home: Scope) -> None:
        self.facts, self.home = facts.program, home

    def write(self, node: ast.expr, depth: int = 0) -> Origin:
        """The expression's text at home. Raises NotKnownError."""
        if depth > DEPTH:
            raise NotKnownError(node, "it goes through too many calls")
        source = self.facts.source.of(node)
        origin, at, pieces = Origin(""), source.start(node), []
        for leaf in _leaves(node):
            found = self._leaf(leaf, depth)
            origin.behind |= found.behind | self._writes(leaf)
            pieces.append(source.text[at : source.start(leaf)] + found.text)
            at = source.end(leaf)
        origin.text = "".join(pieces) + source.text[at : source.end(node)]
        return origin

    def _leaf(self, leaf: ast.expr, depth: int) -> Origin:
        names, root = _chain(leaf)
        scope = self.facts.source.function(leaf)
        if isinstance(leaf, ast.Subscript):
            return self._keyword(leaf, root, depth)
        if isinstance(scope, FUNCTIONS) and names and self._is_self(scope, root):
            return self._attribute(leaf, scope, names, depth)
        owner = self.facts.machine.owner(self.facts.source.scope(leaf), root.id)
        text = self.facts.source.segment(leaf)
        if isinstance(owner, ast.Module):
            if root.id not in self.facts.machine.bound.get(owner, ()):
                return Origin(text)
            if self.facts.source.root(self.home) is not owner and not self._imported(owner, root.id):
                raise NotKnownError(leaf, f"`{root.id}` belongs to another file")
            return Origin(text, self._bindings(owner, root.id) if owner is self.home else {})
        if owner is self.home:
            return Origin(text, self._bindings(self.home, root.id))
        if not isinstance(owner, FUNCTIONS):
            raise NotKnownError(leaf, f"`{text}` belongs to a class")
        inner = self._local(leaf, owner, root.id, depth)
        rest = "".join(f".{name}" for name in names)
        simple = inner.text.replace(".", "").replace("_", "").isalnum()
        return Origin((inner.text if simple or not rest else f"({inner.text})") + rest, inner.behind)

    def _keyword(self, leaf: ast.Subscript, root: ast.Name, depth: int) -> Origin:
        """`kwargs["name"]`: what the caller gives under that name; of any other dict, its item."""
        owner = self.facts.machine.owner(self.facts.source.scope(leaf), root.id)
        if isinstance(owner, FUNCTIONS) and owner is not self.home and owner.args.kwarg is not None and owner.args.kwarg.arg == root.id:
            assert isinstance(leaf.slice, ast.Constant)
            return self._given(leaf, owner, str(leaf.slice.value), depth)
        inner = self._leaf(root, depth)
        return Origin(f"{inner.text}[{self.facts.source.segment(leaf.slice)}]", inner.behind)

    def _imported(self, owner: ast.Module, name: str) -> bool:
        """Whether a name of another file is an import of a library that the home's file imports under the same name."""
        here = self.facts.machine.store.get((self.facts.source.root(self.home), name))
        there = self.facts.machine.store.get((owner, name))
        return here is not None and there is not None and here.objs == there.objs and all(o.kind == "external" for o in here.objs)

    def _bindings(self, scope: ast.AST, name: str) -> dict[ast.stmt, None]:
        """The statements of a scope that set a name, or may set any; imports and definitions left out."""
        stores = [
            n
            for n in walk(scope)
            if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) and self.facts.source.scope(n) is scope
        ]
        free = overriding(self.facts.source.of(scope), scope) if isinstance(scope, ast.Module) and stores else []
        return dict.fromkeys(sorted([*(self.facts.source.statement(n) for n in stores), *free], key=lambda s: s.lineno))

    def _writes(self, leaf: ast.expr) -> dict[ast.stmt, None]:
        """The statements of home's body in which an attribute that is read is set (`args.accum //= world`)."""
        scope = self.facts.source.function(leaf)
        if not isinstance(leaf, ast.Attribute) or (isinstance(scope, FUNCTIONS) and self._is_self(scope, _chain(leaf)[1])):
            return {}  # of `self`, what `__init__` sets is followed
        machine, body = self.facts.machine, getattr(self.home, "body", [])
        written = [n for o in machine.at.get(leaf.value, NOTHING).objs for n in machine.attribute_writes.get((o, leaf.attr), ())]
        return {body[index]: None for node in written for index in self.facts.places(body, node)}

    def _local(self, leaf: ast.expr, owner: ast.FunctionDef | ast.AsyncFunctionDef, name: str, depth: int) -> Origin:
        stores = self._bindings(owner, name)
        if _parameter(owner, name):
            if stores:
                raise NotKnownError(leaf, f"`{name}` is set again in `{owner.name}`")
            return self._given(leaf, owner, name, depth)
        if len(stores) != 1:
            raise NotKnownError(leaf, f"`{name}` is set {len(stores)} times in `{owner.name}`")
        statement = next(iter(stores))
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
            and plain(statement.value)
        ):
            return self._grouped(statement.value, depth)
        raise NotKnownError(leaf, f"`{name}` is computed in `{owner.name}`")

    def _grouped(self, node: ast.expr, depth: int) -> Origin:
        origin = self.write(node, depth + 1)
        if not isinstance(node, (ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.Subscript)) and not origin.text.startswith("("):
            origin.text = f"({origin.text})"
        return origin

    def _given(self, leaf: ast.expr, owner: ast.FunctionDef | ast.AsyncFunctionDef, name: str, depth: int) -> Origin:
        calls = self.facts.callers(owner)
        if not calls:
            raise NotKnownError(leaf, f"nothing calls `{owner.name}`")
        found = []
        for call in calls:
            given = argument(call, owner, name, method=isinstance(self.facts.source.scope(owner), ast.ClassDef))
            if given is None:
                raise NotKnownError(leaf, f"what `{owner.name}` gets for `{name}` can't be seen")
            found.append(self._grouped(given, depth))
        if len({origin.text for origin in found}) != 1:
            raise NotKnownError(leaf, f"`{owner.name}` gets different values for `{name}`")
        for origin in found[1:]:
            found[0].behind |= origin.behind
        return found[0]

    def _is_self(self, scope: ast.FunctionDef | ast.AsyncFunctionDef, root: ast.Name) -> bool:
        return isinstance(self.facts.source.scope(scope), ast.ClassDef) and bool(scope.args.args) and scope.args.args[0].arg == root.id

    def _attribute(self, leaf: ast.expr, scope: ast.FunctionDef | ast.AsyncFunctionDef, names: list[str], depth: int) -> Origin:
        """`self.x`: what the class's `__init__` sets it to."""
        cls = self.facts.source.scope(scope)
        assert isinstance(cls, ast.ClassDef)
        text = self.facts.source.segment(leaf)
        stores = [n for n in walk(cls) if isinstance(n, ast.Attribute) and n.attr == names[0] and isinstance(n.ctx, ast.Store) and _rooted(n)]
        made = [self.facts.source.statement(n) for n in stores if getattr(self.facts.source.scope(n), "name", "") == "__init__"]
        statement = made[0] if len(made) == 1 else None
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or statement.targets[0] not in stores:
            raise NotKnownError(leaf, f"`{text}` isn't set once, in `__init__`")
        if len(stores) > 1 and not self._still(leaf, statement.value):
            raise NotKnownError(leaf, f"`{text}` is set again after `__init__`")
        if not plain(statement.value):
            raise NotKnownError(leaf, f"`{text}` is computed in `__init__`")
        inner = self._grouped(statement.value, depth)
        return Origin(inner.text + "".join(f".{name}" for name in names[1:]), inner.behind)

    def _still(self, leaf: ast.expr, value: ast.expr) -> bool:
        """Whether, where it is read, an attribute holds what `__init__` gave it: another method that sets it runs later."""
        while isinstance(leaf, ast.Attribute) and isinstance(leaf.value, ast.Attribute):
            leaf = leaf.value
        here, there = self.facts.machine.at.get(leaf), self.facts.machine.at.get(value)
        return here is not None and there is not None and bool(here.objs) and here.objs == there.objs


def plain(node: ast.expr) -> bool:
    """Whether an expression only reads: names, attributes, constants, arithmetic, comparisons, and conversions of these."""
    for inner in walk(node):
        if isinstance(inner, ast.Call):
            if (
                ast.unparse(inner.func)
                not in ("int", "float", "bool", "max", "min", "round", "torch.cuda.is_available", "torch.cuda.is_bf16_supported")
                or inner.keywords
            ):
                return False
        elif not isinstance(inner, PLAIN):
            return False
    return True


def argument(call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, *, method: bool) -> ast.expr | None:
    """What a call gives for a parameter: the argument, or the parameter's constant default; None where it can't be seen."""
    keyword = next((k.value for k in call.keywords if k.arg == name), None)
    if keyword is not None:
        return keyword
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    index = next((i for i, a in enumerate(positional) if a.arg == name), None)
    place = index - (1 if method else 0) if index is not None else None
    if any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords):
        return None
    if place is not None and 0 <= place < len(call.args):
        return call.args[place]
    defaults: dict[str, ast.expr] = {
        a.arg: d for a, d in zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    }
    defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
    default = defaults.get(name)
    return default if isinstance(default, ast.Constant) else None


def _parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> bool:
    arguments = function.args
    return any(a.arg == name for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))


def _leaves(node: ast.expr) -> list[ast.expr]:
    """The names and attribute chains that an expression reads, in the order of the text."""
    found: list[ast.expr] = []

    def follow(inner: ast.AST) -> None:
        item = isinstance(inner, ast.Subscript) and isinstance(inner.value, ast.Name) and isinstance(inner.slice, ast.Constant)
        if item or isinstance(inner, ast.Name) or (isinstance(inner, ast.Attribute) and _rooted(inner)):
            assert isinstance(inner, ast.expr)
            found.append(inner)
            return
        for child in children(inner):
            follow(child)

    follow(node)
    return sorted(found, key=lambda n: (n.lineno, n.col_offset))


def _rooted(node: ast.expr) -> bool:
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def _chain(leaf: ast.expr) -> tuple[list[str], ast.Name]:
    names: list[str] = []
    if isinstance(leaf, ast.Subscript):
        leaf = leaf.value
    while isinstance(leaf, ast.Attribute):
        names.insert(0, leaf.attr)
        leaf = leaf.value
    assert isinstance(leaf, ast.Name)
    return names, leaf
