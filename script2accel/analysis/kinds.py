"""How a number of one rank relates to the one that a single process would have with the ranks' joint batch.

Every prepared loader gives all ranks batches of one size, so a mean over the joint batch is the mean of the ranks' means, a sum is the sum of their
sums, and what is computed from both by adding, and by multiplying with what all ranks have alike, follows: a number of *degree* 0 is a mean over the
batch, of degree 1 grows with it as a sum or a size does. What isn't linear in the ranks' own numbers has no degree; its parts may have.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace

from script2accel.analysis.agreed import agreed_objects
from script2accel.analysis.averages import ignores
from script2accel.analysis.evenly import uneven
from script2accel.analysis.facts import Facts
from script2accel.analysis.values import NOTHING, Obj, Value
from script2accel.knowledge import torch as names
from script2accel.source import children, walk

TURNS = 8
DEEP = 8  # behind a longer chain of calls an object stands for what comes of it
PASSED_ON = frozenset({"item", "detach", "clone", "cpu", "float", "double", "numpy", "tolist", "data"})
NUMBERS = frozenset({"item", "tolist", "numpy"})
ELEMENTWISE = frozenset(
    {"eq", "ne", "gt", "lt", "ge", "le", "float", "double", "long", "int", "bool", "half", "abs", "exp", "log", "sqrt", "pow", "sigmoid", "tanh"}
    | {"round", "clamp", "detach", "clone", "add", "sub", "mul", "div", "square", "relu", "type_as"}
    | {"one_hot", "logsigmoid", "softplus", "gelu"}
)  # fmt: skip
COMPARES = frozenset({"eq", "ne", "gt", "lt", "ge", "le"})
ALONG_AN_AXIS = frozenset({"argmax", "argmin", "max", "min", "softmax", "log_softmax", "sum", "mean", "norm", "any", "all"})
SHAPING = frozenset({"view", "reshape", "view_as", "reshape_as", "expand_as", "squeeze", "unsqueeze", "flatten", "t", "transpose", "permute"})
MAKES_ZERO = frozenset({"torch.zeros", "torch.zeros_like", "numpy.zeros"})
MAKES_TENSOR = frozenset({"torch.tensor", "torch.as_tensor", "numpy.array", "numpy.asarray"})
MEANS = frozenset({"numpy.mean", "statistics.mean", "statistics.fmean"})
SUMS = frozenset({"sum", "numpy.sum", "math.fsum"})


@dataclass(frozen=True)
class Kind:
    """What is known of a number (`form` number), of a tensor with something for each sample of the batch (samples), of a plain 0 (zero).

    `varies`: each rank has its own. `whole`: the size of the dataset is in it. `sized`: the size of a batch is. `shaped`: which axis is that of the
    samples isn't known any more. `counts`: it is made of whole numbers only. `form` lost: `why` says what can't be shown.
    """

    form: str = "number"
    varies: bool = False
    degree: int = 0
    tensor: bool = False
    whole: bool = False
    sized: bool = False
    shaped: bool = False
    counts: bool = False
    why: str = ""

    @property
    def same(self) -> bool:
        """Whether one process would have the same number."""
        return self.form == "zero" or (self.form == "number" and not self.varies and self.degree == 0)


ZERO = Kind("zero")
SAME = Kind()
SAMPLES = Kind("samples", varies=True, tensor=True)
MEAN = Kind(varies=True, tensor=True)
SIZE = Kind(degree=1, sized=True)


def lost(why: str, *parts: Kind) -> Kind:
    """No degree can be given; the first reason that a part has stands."""
    return Kind("lost", sized=any(p.sized for p in parts), why=next((p.why for p in parts if p.why), why))


def joined(one: Kind, other: Kind) -> Kind:
    """Either of two, or their sum."""
    tensor = one.tensor or other.tensor
    if "lost" in (one.form, other.form):
        return lost("", one, other)
    if "zero" in (one.form, other.form):
        known = other if one.form == "zero" else one
        return replace(known, tensor=tensor, whole=one.whole or other.whole)
    if "samples" in (one.form, other.form):
        return replace(_of_each_sample(one, other), counts=one.counts and other.counts)
    if one.degree != other.degree:
        return lost("it brings means and sums of the batch together", one, other)
    counts = one.counts and other.counts
    return Kind("number", one.varies or other.varies, one.degree, tensor, one.whole or other.whole, one.sized or other.sized, counts=counts)


def product(one: Kind, other: Kind, sign: int = 1) -> Kind:
    """One times the other (`sign` -1: divided by it)."""
    tensor = one.tensor or other.tensor
    if "lost" in (one.form, other.form):
        return lost("", one, other)
    if "zero" in (one.form, other.form):
        return replace(ZERO, tensor=tensor)
    if "samples" in (one.form, other.form):
        return _of_each_sample(one, other)
    if other.varies and (one.varies or sign < 0):
        return lost("it multiplies or divides by a number of each rank's own", one, other)
    return Kind("number", one.varies or other.varies, one.degree + sign * other.degree, tensor, one.whole or other.whole, one.sized or other.sized)


def _of_each_sample(*kinds: Kind) -> Kind:
    """What is computed for each sample by itself."""
    if not all(k.form == "samples" or k.same for k in kinds):
        return lost("it brings samples and numbers together", *kinds)
    return replace(SAMPLES, shaped=any(k.shaped for k in kinds))


class Kinds:
    """The kinds of all numbers of a program.

    `split`: the batch size that the script writes is the joint batch's already. `evened`: means over what counts in each rank's batch that the
    conversion weights, so that the mean of the ranks' is that of the joint batch.
    """

    def __init__(self, facts: Facts, *, split: bool, evened: frozenset[ast.expr] = frozenset()) -> None:
        self.facts, self.split, self.evened = facts, split, evened
        self.known: dict[Obj, Kind] = {}
        self.guess: dict[Obj, Kind] = {}
        self.visited: set[Obj] = set()
        self.reading: set[ast.Name] = set()
        self.agreed = agreed_objects(facts)
        self.trained = frozenset(o for loop in facts.train_loops for o in loop.loaders)
        self.sizes, self.written = self._batch_sizes()
        self.apart = _set_apart(facts)

    # questions -------------------------------------------------------------------------------------------

    def of_node(self, node: ast.expr) -> Kind:
        """The kind of what an expression holds: by its objects, or where their chain of calls is too long by its text."""
        value = self.facts.machine.at.get(node, NOTHING)
        return self._of_text(node) if any(o.depth > DEEP for o in value.objs) else self.of_value(value)

    def _of_text(self, node: ast.expr) -> Kind:
        machine = self.facts.machine
        match node:
            case ast.Call(func=ast.Attribute(value=receiver, attr=name), args=args, keywords=keywords) if not any(k.arg is None for k in keywords):
                given = {k.arg: machine.at.get(k.value, NOTHING) for k in keywords}
                return self._method(self.of_node(receiver), name, [machine.at.get(a, NOTHING) for a in args], given)
            case ast.Attribute(value=receiver, attr=name) if name in PASSED_ON:
                return self.of_node(receiver)
            case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="max" | "min")) as pair, slice=ast.Constant(value=int())):
                return self.of_node(pair)
            case ast.Name() if node not in self.reading:
                self.reading.add(node)
                values = _assigned(self.facts, node)
                found = ZERO if values else lost("its chain of calls is too long")
                for value in values:
                    found = joined(found, self.of_node(value))
                self.reading.discard(node)
                return found
        return lost("its chain of calls is too long")

    def of_value(self, value: Value) -> Kind:
        """The kind that all objects of a value share."""
        found = ZERO
        for obj in sorted(value.objs, key=lambda o: o.number):
            found = joined(found, self.of(obj))
        return found

    def of(self, obj: Obj) -> Kind:
        """The kind of one object: a sum that grows in a loop holds itself, so the question is asked until the answer stands."""
        if obj in self.known:
            return self.known[obj]
        if self.visited:
            return self._look(obj)
        for _ in range(TURNS):
            before = dict(self.guess)
            self._look(obj)
            self.visited.clear()
            if before == self.guess:
                break
        else:
            self.guess = {o: k if o in self.known else lost("its value can't be followed") for o, k in self.guess.items()}
        self.known.update(self.guess)
        return self.known[obj]

    def _look(self, obj: Obj) -> Kind:
        if obj in self.known:
            return self.known[obj]
        if obj not in self.visited:
            self.visited.add(obj)
            self.guess[obj] = self._find(obj)
        return self.guess.get(obj, ZERO)

    # objects ---------------------------------------------------------------------------------------------

    def _find(self, obj: Obj) -> Kind:
        if obj.depth > DEEP:
            return lost("its chain of calls is too long")
        if obj in self.agreed or obj.name == "agreed":
            return lost("the script brings it together over the ranks itself")
        if obj in self.sizes:
            return SAME if self.split else SIZE
        if self.facts.roles.of(obj) == "world size":
            return Kind(degree=-1)
        match obj.kind:
            case "const":
                return self._constant(obj)
            case "expr":
                return self._formula(obj)
            case "made":
                return self._made(obj)
            case "attr":
                return self._attribute(obj)
            case "item":
                return self._item(obj)
            case "param" if obj.base is None:
                return lost("what it is given can't be seen")
            case "list" | "tuple" | "dict":
                return lost("it is a collection of numbers")
        return SAME

    def _constant(self, obj: Obj) -> Kind:
        if type(obj.name) in (int, float) and obj.name == 0:
            return ZERO
        if obj.name is None:
            return ZERO
        if type(obj.name) is int and obj.name in self.written and not self.split:
            return Kind("lost", sized=True, why=f"{obj.name} is the batch size as it is written, which is one process's")
        return SAME

    def _formula(self, obj: Obj) -> Kind:
        site = obj.site
        found = ZERO
        for values in self.facts.machine.operands.get(site, ()) if site is not None else ():
            found = joined(found, self._of_operation(site, values))  # type: ignore[arg-type]
        if site is not None and (found.varies or found.degree) and (why := self._uneven(site)):
            return lost(why, found)
        return found

    def _uneven(self, site: ast.AST) -> str:
        """Why an operation isn't made equally often on every rank, or of numbers that were set equally often."""
        parts = [n for n in children(site) if isinstance(n, ast.expr)]
        return uneven(self.facts, site) or next((why for part in parts if (why := self.set_apart(part))), "") or self.unweighted(site)

    def unweighted(self, node: ast.AST) -> str:
        """Why the loss that a model gives, read here, is no mean over the joint batch, or ''."""
        for inner in walk(node) if ignores(self.facts) else ():
            if (
                isinstance(inner, ast.Attribute)
                and inner.attr == "loss"
                and inner not in self.evened
                and self.facts.roles.of_node(inner.value) == "output"
            ):
                return "it is a mean over the labels that count in each rank's batch, read before it is weighted"
        return ""

    def set_apart(self, node: ast.expr) -> str:
        """Why a name may hold what one rank has set and another hasn't, or ''."""
        text = ast.unparse(node) if isinstance(node, (ast.Name, ast.Attribute)) else ""
        line = self.apart.get((_scope(self.facts, node), text)) if text else None
        return f"it is set under a condition that differs between ranks (line {line})" if line else ""

    def _of_operation(self, site: ast.AST, values: tuple[Value, ...]) -> Kind:
        match site:
            case ast.BinOp(op=op, left=left, right=right):
                one, other = self._operand(left, values[0], op), self._operand(right, values[1], op)
            case ast.AugAssign(op=op):
                one, other = self.of_value(values[0]), self._valued(site.value, values[1])
            case ast.UnaryOp(op=ast.USub() | ast.UAdd()):
                return self.of_value(values[0])
            case ast.Compare():
                return self._compared([self.of_value(v) for v in values])
            case _:
                return self._alike([self.of_value(v) for v in values])
        match op:
            case ast.Add() | ast.Sub():
                return joined(one, other)
            case ast.Mult():
                return product(one, other)
            case ast.Div():
                return product(one, other, -1)
            case ast.Pow() | ast.BitAnd() | ast.BitOr() if one.form == "samples":
                return _of_each_sample(one, other)
        return self._alike([one, other])

    def _operand(self, node: ast.expr, value: Value, op: ast.operator) -> Kind:
        """A number that is written where it multiplies is a factor, be it equal to the batch size or not."""
        return SAME if isinstance(node, ast.Constant) and isinstance(op, ast.Mult) and node.value else self._valued(node, value)

    def _valued(self, node: ast.expr, value: Value) -> Kind:
        return self._of_text(node) if any(o.depth > DEEP for o in value.objs) else self.of_value(value)

    def _compared(self, kinds: list[Kind]) -> Kind:
        return replace(_of_each_sample(*kinds), counts=True) if any(k.form == "samples" for k in kinds) else self._alike(kinds)

    def _alike(self, kinds: list[Kind]) -> Kind:
        """What is computed in any other way is the same everywhere if its parts are."""
        return SAME if all(k.same for k in kinds) else lost("how it is computed isn't followed", *kinds)

    # what calls give -------------------------------------------------------------------------------------

    def _made(self, obj: Obj) -> Kind:
        callee = obj.base
        if callee is None:
            return SAME  # an index, a key
        if callee.kind == "external":
            return self._of_library(obj, str(callee.name))
        if self.facts.roles.of(callee) == "criterion":
            return MEAN if obj.site in self.evened else self._of_criterion(callee.inner)
        if callee.kind == "attr" and callee.base is not None:
            return self._of_method(obj, callee.base, str(callee.name))
        if self.facts.roles.of(callee) == "model":
            return SAMPLES
        return self._alike([self.of_value(v) for v in (*obj.arguments, *obj.keywords.values())])

    def _of_library(self, obj: Obj, path: str) -> Kind:
        first = obj.arguments[0] if obj.arguments else NOTHING
        if names.LOSS_FUNCTION.match(path):
            return MEAN if obj.site in self.evened else _reduced(obj.keywords)
        if names.CLOCK.match(path):
            return SAME
        if path == "len":
            return self._length(first)
        if path == "float":
            return replace(self.of_value(first), tensor=False)
        if path == "int" and (kind := self.of_value(first)).counts:
            return replace(kind, tensor=False)
        if path in MAKES_ZERO or path in MAKES_TENSOR:
            if self._changed(obj):
                return lost("it is changed in place", SIZE)
            return replace(ZERO if path in MAKES_ZERO else self.of_value(first), tensor=True)
        if path in SUMS or path in MEANS:
            return self._of_elements(first)
        if path.startswith(("torch.", "numpy.")):
            name = path.rsplit(".", 1)[1]
            if name in ("sum", "mean") and len(obj.arguments) == 1 and not obj.keywords:
                return self._over_the_batch(first, name)
            kinds = [self.of_value(v) for v in obj.arguments]
            if any(k.form == "samples" for k in kinds) and self._sample_by_sample(name, kinds[0], obj.arguments[1:], obj.keywords):
                return _of_each_sample(*kinds)
        if names.RANDOM_FACTORY.match(path):
            return lost("it is drawn")
        return self._alike([self.of_value(v) for v in (*obj.arguments, *obj.keywords.values())])

    def _changed(self, obj: Obj) -> bool:
        """Whether parts of a tensor are set, or a method that ends in `_` changes it."""
        machine = self.facts.machine
        return (obj, "*") in machine.store or any(what.startswith(".") and what.endswith("_") for what, _ in machine.uses.get(obj, ()))

    def _of_method(self, obj: Obj, receiver: Obj, name: str) -> Kind:
        if name == "size" and len(obj.arguments) == 1:
            return self._axis(receiver, obj.arguments[0], obj.site)
        if name in ("numel", "nelement"):
            return self._axis(receiver, None, obj.site)
        kind = self._look(receiver) if receiver.kind not in ("list", "dict", "tuple") else SAME
        return self._method(kind, name, obj.arguments, obj.keywords)

    def _method(self, kind: Kind, name: str, arguments: list[Value], keywords: dict[str | None, Value]) -> Kind:
        """What a method gives of something of a kind."""
        if name in PASSED_ON and not arguments:
            return replace(kind, tensor=kind.tensor and name not in NUMBERS)
        if kind.form == "samples":
            if name in ("sum", "mean") and not arguments and not keywords:
                return self._of_samples(kind, name)
            if name in SHAPING:
                return replace(kind, shaped=True)
            if name in COMPARES:
                return self._compared([kind, *(self.of_value(v) for v in arguments)])
            if name in ("float", "double", "long", "int") and not arguments:
                return kind
            if self._sample_by_sample(name, kind, arguments, keywords):
                return _of_each_sample(kind, *(self.of_value(v) for v in arguments))
        return self._alike([kind, *(self.of_value(v) for v in (*arguments, *keywords.values()))])

    def _sample_by_sample(self, name: str, kind: Kind, arguments: list[Value], keywords: dict[str | None, Value]) -> bool:
        """Whether a function leaves each sample's numbers to themselves."""
        return name in ELEMENTWISE or (name in ALONG_AN_AXIS and not kind.shaped and _behind_the_first(arguments, keywords))

    def _over_the_batch(self, value: Value, name: str) -> Kind:
        found = ZERO
        for obj in value.objs:
            found = joined(found, self._of_samples(self._look(obj), name))
        return found

    def _of_samples(self, kind: Kind, name: str) -> Kind:
        """The sum or mean of all that a tensor holds for the batch."""
        if kind.form != "samples":
            return lost("it is summed over something else than the samples", kind)
        if name == "mean" and any(self._collated(loader) for loader in self.trained):
            return lost("batches of the script's own collation may hold more or fewer numbers than other ranks'")
        return Kind("number", True, int(name == "sum"), True, counts=kind.counts and name == "sum")

    def _of_elements(self, value: Value) -> Kind:
        """The sum or mean of what a list holds, if every rank's is as long."""
        found = ZERO
        for obj in value.objs:
            if obj.kind not in ("list", "tuple") or self.facts.machine.lengths.get(obj):
                return lost("what it holds can't be followed")
            grown = {what for what, _ in self.facts.machine.uses.get(obj, ())}
            if ".extend" in grown:
                return lost("its list grows by many numbers at a time")
            found = joined(found, self.of_value(self.facts.machine.anything_in(obj)))
        return found

    def _of_criterion(self, criterion: Obj) -> Kind:
        if names.LOSS_MODULE.match(criterion.path):
            weighted = criterion.arguments and "CrossEntropy" in criterion.path
            return lost("its mean is weighted, by classes") if weighted else _reduced(criterion.keywords)
        if criterion.kind == "external":
            return _reduced({})
        machine = self.facts.machine
        methods = [o for name in ("forward", "__call__") if (found := machine.class_member(criterion, name)) is not None for o in found.objs]
        given = [machine.returns[m.site] for m in methods if m.site in machine.returns]
        return self.of_value(given[0]) if given else lost("whether this loss is a mean or a sum can't be seen")

    # lengths and parts -----------------------------------------------------------------------------------

    def _length(self, value: Value) -> Kind:
        found = ZERO
        for obj in value.objs:
            role = self.facts.roles.of(obj)
            if role == "loader":
                known = SAME if obj.kind == "prepared" or self.split or obj.inner not in self.trained else Kind(degree=-1)
            elif role in ("dataset", "sampler") or (obj.kind == "attr" and obj.name in ("dataset", "sampler")):
                known = Kind(whole=True)
            elif obj.kind in ("list", "tuple", "dict"):
                known = self._count(obj)
            else:
                known = self._axis(obj, NOTHING, None) if role in ("batch", "output") else SAME
            found = joined(found, known)
        return found

    def _count(self, obj: Obj) -> Kind:
        grown = {what for what, _ in self.facts.machine.uses.get(obj, ())}
        if self.facts.machine.lengths.get(obj) or ".extend" in grown:
            return lost("how long its list is can't be followed")
        return SAME

    def _axis(self, tensor: Obj, axis: Value | None, site: ast.AST | None) -> Kind:
        """How long a tensor is along an axis (None: how many numbers it holds; nothing: along the first)."""
        loader = batch_of(self.facts, tensor)
        if loader is None:
            return lost("this isn't known to be the size of a batch", SIZE)
        if loader.kind != "prepared" or loader.inner not in self.trained or (isinstance(site, ast.Call) and self._gathered(site)):
            return SAME
        if self._collated(loader.inner):
            return lost("batches of the script's own collation may be longer or shorter than other ranks'", SIZE)
        indices = {o.name for o in axis.objs} if axis is not None else {0}
        return SIZE if indices <= {0} else SAME if all(type(i) is int and i > 0 for i in indices) else lost("the axis can't be seen", SIZE)

    def _gathered(self, call: ast.Call) -> bool:
        return isinstance(call.func, ast.Attribute) and not self.facts.machine.marks_of(call.func.value)

    def _collated(self, loader: Obj) -> bool:
        return bool({"collate_fn", "batch_sampler"} & set(loader.keywords))

    def _attribute(self, obj: Obj) -> Kind:
        base = obj.base
        if base is None:
            return SAME
        role = self.facts.roles.of(base)
        if obj.name == "loss" and role == "output":
            return MEAN
        if obj.name == "batch_size" and role == "loader":
            return SAME if base.kind == "prepared" or self.split else SIZE
        if role in ("output", "batch"):
            return SAMPLES
        if obj.name in PASSED_ON:
            return self._look(base)
        name = str(obj.name).lower()
        if not self.split and ("batch_size" in name or "batchsize" in name):
            return Kind("lost", sized=True, why=f"`{obj.name}` may be the batch size of one process")
        kind = self._look(base) if base.kind in ("made", "expr", "item", "attr") else SAME
        return SAME if kind.same or base.kind == "attr" else lost("", kind)

    def _item(self, obj: Obj) -> Kind:
        base = obj.base
        if base is None:
            return SAME
        if base.kind == "attr" and base.name == "shape" and base.base is not None:
            return self._axis(base.base, Value(frozenset((Obj("const", obj.name, None, None),)), frozenset()), None)
        if (loader := batch_of(self.facts, obj)) is not None:
            return SAMPLES if loader.kind == "prepared" and loader.inner in self.trained else lost("it comes from an evaluation's batches")
        role = self.facts.roles.of(base)
        if role == "loader":
            return SAMPLES if base.kind == "prepared" and base.inner in self.trained else lost("it comes from an evaluation's batches")
        if role == "output" and not isinstance(obj.name, int):
            return SAMPLES
        kind = self._look(base)
        if kind.form == "samples":
            if isinstance(obj.name, int) and role == "output" and self.facts.machine.used(base, "subscript"):
                return lost("it may be one of the samples", kind)
            several = base.kind == "made" and base.base is not None and str(base.base.name).rsplit(".", 1)[-1] in ("max", "min")
            return SAMPLES if several or role == "output" else lost("it takes out some of the samples", kind)
        return SAME if kind.same else lost("", kind)

    def _batch_sizes(self) -> tuple[frozenset[Obj], frozenset[int]]:
        """How the script writes the batch size of what it trains on: objects, and constants."""
        objs = {o for loader in self.trained for o in _given(self.facts, loader)}
        return frozenset(o for o in objs if o.kind != "const"), frozenset(o.name for o in objs if o.kind == "const" and type(o.name) is int)


def _scope(facts: Facts, node: ast.AST) -> ast.AST:
    """Where a name is at home: its function, or the class of an attribute of `self`."""
    function = facts.function(node)
    return facts.source.scope(function) if isinstance(node, ast.Attribute) and not isinstance(function, ast.Module) else function


def _set_apart(facts: Facts) -> dict[tuple[ast.AST, str], int]:
    """(home, name) of what is set under a condition that differs between ranks, and what is set from it -> the line."""
    found: dict[tuple[ast.AST, str], int] = {}
    returns: dict[ast.AST, int] = {}
    settings = [n for n in facts.source.every(ast.Assign, ast.AnnAssign, ast.Return) if n.value is not None]
    first = True
    while True:
        before = len(found) + len(returns)
        for node in settings:
            line = _line_apart(facts, node, found, returns, first)
            if not line:
                continue
            if isinstance(node, ast.Return):
                returns.setdefault(facts.function(node), line)
                continue
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for part in target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]:
                    if isinstance(part, (ast.Name, ast.Attribute)):
                        found.setdefault((_scope(facts, part), ast.unparse(part)), line)
        first = False
        if len(found) + len(returns) == before:
            return found


def _line_apart(
    facts: Facts, node: ast.Assign | ast.AnnAssign | ast.Return, found: dict[tuple[ast.AST, str], int], returns: dict[ast.AST, int], first: bool
) -> int:
    value = node.value
    assert value is not None
    if first and facts.machine.marks_of(value) and uneven(facts, node):
        return node.lineno
    for part in walk(value):
        if isinstance(part, ast.IfExp) and facts.machine.marks_of(part.test):
            return node.lineno
    if isinstance(value, (ast.Name, ast.Attribute)):
        return found.get((_scope(facts, value), ast.unparse(value)), 0)
    if isinstance(value, ast.Call):
        sites = [o.site for o in facts.machine.at.get(value.func, NOTHING).objs if o.kind in ("function", "method")]
        return next((returns[site] for site in sites if site in returns), 0)
    return 0


def _assigned(facts: Facts, name: ast.Name) -> list[ast.expr]:
    """What a name of a function is assigned, if it is set by plain assignments only; else nothing."""
    function = facts.function(name)
    stores = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name.id and not isinstance(n.ctx, ast.Load)]
    parents = [facts.source.parents[n] for n in stores]
    return [p.value for p in parents if isinstance(p, ast.Assign)] if all(isinstance(p, ast.Assign) for p in parents) else []


def batch_of(facts: Facts, obj: Obj) -> Obj | None:
    """The loader that an object is a tensor from, as the loader's batch holds it."""
    batch = obj.base
    if obj.kind != "item" or batch is None or batch.kind != "item" or batch.base is None or facts.roles.of(batch.base) != "loader":
        return None
    return batch.base


def _given(facts: Facts, loader: Obj) -> Iterator[Obj]:
    """What a loader is given as its batch size."""
    value = loader.keywords.get("batch_size", loader.arguments[1] if len(loader.arguments) > 1 else NOTHING)
    yield from value.objs
    for table in loader.keywords.get(None, NOTHING).objs:
        yield from facts.machine.store.get((table, ("key", "batch_size")), NOTHING).objs


def _reduced(keywords: dict[str | None, Value]) -> Kind:
    """What `reduction=` (and its older spellings) makes of a batch's losses."""
    if {"reduce", "size_average"} & set(keywords) or None in keywords:
        return lost("whether this loss is a mean or a sum can't be seen")
    if {"weight", "ignore_index"} & set(keywords):
        return lost("its mean is weighted, and the weights of each rank's batch are other ones")
    given = {o.name for o in keywords["reduction"].objs} if "reduction" in keywords else {"mean"}
    found = given.pop() if len(given) == 1 else None
    if found == "none":
        return SAMPLES
    return Kind("number", True, int(found == "sum"), True) if found in ("mean", "sum") else lost("whether this loss is a mean or a sum can't be seen")


def _behind_the_first(arguments: list[Value], keywords: dict[str | None, Value]) -> bool:
    """Whether a reduction runs along another axis than that of the samples."""
    given = [keywords[k] for k in ("dim", "axis") if k in keywords] or arguments[-1:]
    found = [o.name if o.kind == "const" else o.site for value in given for o in value.objs]
    return bool(found) and all((type(i) is int and i > 0) or (isinstance(i, ast.UnaryOp) and ast.unparse(i) == "-1") for i in found)
