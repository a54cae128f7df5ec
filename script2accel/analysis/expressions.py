"""The store and the abstract value of every expression but calls."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable

from script2accel.analysis.program import Program
from script2accel.analysis.teaching import Teaching
from script2accel.analysis.texts import constant
from script2accel.analysis.values import NOTHING, Obj, Value, World, join_all
from script2accel.knowledge.torch import DISTRIBUTED_SAMPLER, PROGRESS_ITERABLE
from script2accel.source import Source, children, walk

Key = tuple[object, object]
Journal = dict[Key, "Value | None"]
SHAPES = frozenset({"shape", "ndim", "dtype", "device", "size", "dim"})  # equal on all ranks: prepare evens out the batches
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
BINDERS = (  # what binds names, or has a scope of its own
    ast.Module, ast.Name, ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ExceptHandler, ast.MatchAs, ast.MatchStar,
    ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, ast.comprehension,
)  # fmt: skip
RANGES = ("range", "tqdm.trange")
MOST_PHASES = 4  # turns of a loop that are followed one by one
LEAVES = (ast.expr_context, ast.Constant, ast.operator, ast.cmpop, ast.boolop, ast.unaryop, ast.alias)


class Expressions:
    """Evaluates expressions over the store; remembers what each node can hold (`at`) and what was done with each object (`uses`)."""

    def __init__(self, source: Program) -> None:
        self.source = source
        self.world = World()
        self.store: dict[Key, Value] = {}
        self.journals: list[Journal] = []
        self.at: dict[ast.AST, Value] = {}
        self.uses: dict[Obj, dict[tuple[str, ast.AST], None]] = {}
        self.operands: dict[ast.AST, list[tuple[Value, ...]]] = {}
        self.returns: dict[ast.AST, Value] = {}
        self.yields: dict[tuple[ast.AST, str | None], Value] = {}  # (generator function, the context of its call or None for any)
        self.bases: dict[Obj, list[Obj]] = {}
        self.instances: dict[Obj, list[Obj]] = {}
        self.attribute_writes: dict[tuple[Obj, str], list[ast.Attribute]] = {}
        self.stars: list[str] = []
        self.keys: dict[object, dict[object, None]] = {}
        self.runs: dict[ast.AST, int] = {}
        self.uncalled: set[ast.AST] = set()
        self.callers: dict[ast.AST, dict[ast.Call, None]] = {}
        self.escapes: dict[ast.AST, list[ast.AST]] = {}
        self.order: dict[ast.stmt, int] = {}
        self.guard: frozenset[ast.AST] = frozenset()
        self.lengths: dict[Obj, frozenset[ast.AST]] = {}  # containers that grow or shrink under marks: how many elements they have differs, too
        self.rehearsed = False
        self.steps = 0
        self._stack: list[ast.AST] = []
        self.phase = ""
        self.phase_names: set[str] = set()
        self._stores: dict[tuple[ast.AST, str], bool] = {}
        self._questions: dict[tuple[ast.AST, str], ast.expr | None] = {}
        self._asking: set[ast.expr] = set()  # questions that are being answered: one may ask for its own name
        self.running: list[tuple[ast.AST, frozenset[Obj]]] = []
        self.trained: dict[ast.AST, set[Obj]] = {}
        self.unmarked: set[ast.AST] = set()
        self.detours: set[ast.AST] = set()
        self.plain: set[ast.AST] = set()  # arguments that are prepared models and go where only weights are read
        self._weight_readers: dict[tuple[ast.AST, str], bool] = {}
        self._making: dict[ast.AST, ast.AST] = {}
        self.makings: set[ast.AST] = set()  # calls that make a tensor on the CPU: they mark it until it is moved
        self._drawing: dict[tuple[ast.AST, Obj], ast.AST] = {}
        self.drawings: dict[
            ast.AST, tuple[ast.AST, Obj]
        ] = {}  # where `next`, a generator or a loop over indices gave a value: they mark what comes of it
        self.dealt: frozenset[ast.AST] = frozenset()  # loops over places of the data, of which each rank will take its own
        self.flows: set[ast.AST] = set()  # calls of prepared models: they mark what they give, until it is detached
        self.definitions = [node for entry in source.entries for node in entry.nodes if isinstance(node, FUNCTIONS)]
        self.locals: list[dict[str, Value]] = []
        self.bound: dict[ast.AST, set[str]] = {}
        self.declared: dict[ast.AST, dict[str, str]] = {}
        self._owners: dict[tuple[ast.AST, str], ast.AST] = {}
        self._evaluators: dict[type[ast.AST], Callable[..., Value]] = {}
        self.imported: dict[ast.Module, Source] = {}
        self.written: dict[ast.AST, str | None] = {}  # what an f-string of constants comes to where it was last evaluated
        self.teaching = Teaching(self)

    # scopes ----------------------------------------------------------------------------------------------

    def collect_names(self, tree: ast.Module) -> None:
        """Which names each scope of a file binds, comprehension variables left out."""
        if tree not in self.source.scopes:
            self.source.scopes[tree] = _scopes(tree)
        bound, declared = self.source.scopes[tree]
        self.bound |= {scope: set(names) for scope, names in bound.items()}
        self.declared |= declared

    def owner(self, scope: ast.AST, name: str, *, store: bool = False) -> object:
        """The scope (or class object) whose variable a name is."""
        if isinstance(scope, Obj):
            if store or (scope, name) in self.store:
                return scope
            scope = self.source.scope(scope.site)  # type: ignore[arg-type]
        found = self._owners.get((scope, name))
        if found is None:
            found = self._owners[scope, name] = self._find_owner(scope, name)
        return found

    def _find_owner(self, scope: ast.AST, name: str) -> ast.AST:
        while not isinstance(scope, ast.Module):
            said = self.declared.get(scope, {}).get(name)
            if said == "Global":
                return self.source.root(scope)
            if said is None and not isinstance(scope, ast.ClassDef) and name in self.bound.get(scope, ()):
                return scope
            scope = self.source.scope(scope)
        return scope

    # store -----------------------------------------------------------------------------------------------

    def put(self, key: Key, value: Value) -> None:
        """Set a key; the innermost open journal remembers what stood there."""
        if self.journals and key not in self.journals[-1]:
            self.journals[-1][key] = self.store.get(key)
        if isinstance(key[1], tuple):
            self.keys.setdefault(key[0], {})[key[1][1]] = None
        self.store[key] = value

    def add(self, key: Key, value: Value) -> None:
        """Join into a key."""
        old = self.store.get(key)
        self.put(key, value if old is None else old.join(value))

    def open(self) -> Journal:
        """Start to remember what assignments replace."""
        journal: Journal = {}
        self.journals.append(journal)
        return journal

    def undo(self, journal: Journal) -> Journal:
        """Close a journal: put back what stood there, and return what had come."""
        self.journals.pop()
        changed: Journal = {key: self.store[key] for key in journal}
        for key, old in journal.items():
            if old is None:
                del self.store[key]
            else:
                self.store[key] = old
        return changed

    def meet(self, journal: Journal) -> None:
        """Close a journal: each key holds either what stood there or what came."""
        self.journals.pop()
        for key, old in journal.items():
            new = self.store[key]
            if self.journals and key not in self.journals[-1]:
                self.journals[-1][key] = old
            if old is not None:
                self.store[key] = old.join(new)

    # uses ------------------------------------------------------------------------------------------------

    def use(self, obj: Obj, what: str, node: ast.AST) -> None:
        """Remember what was done with an object."""
        self.uses.setdefault(obj, {})[what, node] = None

    def used(self, obj: Obj, what: str) -> list[ast.AST]:
        """The nodes where something was done with an object."""
        return [node for said, node in self.uses.get(obj, ()) if said == what]

    # expressions -----------------------------------------------------------------------------------------

    def eval(self, node: ast.expr, scope: ast.AST) -> Value:
        """What an expression can hold here; remembered."""
        kind = type(node)
        evaluate = self._evaluators.get(kind)
        if evaluate is None:
            evaluate = self._evaluators[kind] = getattr(self, f"ev_{kind.__name__}", self._parts)
        value = evaluate(node, scope)
        if not value.marks:
            self.unmarked.add(node)
        old = self.at.get(node)
        if old is not value:
            self.at[node] = value if old is None else old.join(value)
        return value

    def _parts(self, node: ast.expr, scope: ast.AST) -> Value:
        """An operation of parts: a new object that is marked by all of them."""
        values = tuple(self.eval(child, scope) for child in children(node) if isinstance(child, ast.expr))
        self.operands.setdefault(node, []).append(values)
        marks: frozenset[ast.AST] = frozenset().union(*(value.marks for value in values))
        return self.world.value("expr", "", None, node, marks)

    def ev_Constant(self, node: ast.Constant, scope: ast.AST) -> Value:
        value = node.value if isinstance(node.value, (str, int, float, bool, type(None))) else repr(node.value)
        return self.world.value("const", value)

    def ev_Name(self, node: ast.Name, scope: ast.AST) -> Value:
        name = node.id
        for table in reversed(self.locals):
            if name in table:
                return table[name]
        owner = self.owner(scope, name)
        value = self.store.get((owner, name))
        if value is not None:
            return value
        if not isinstance(owner, ast.Module):
            return NOTHING
        if self.stars and name not in self.bound[owner] and not hasattr(builtins, name):
            return self.world.value("external", f"{self.stars[0] if len(self.stars) == 1 else '*'}.{name}")
        return self.world.value("external", name)

    def ev_Attribute(self, node: ast.Attribute, scope: ast.AST) -> Value:
        base = self.eval(node.value, scope)
        found = join_all([self.member(obj, node.attr, node) for obj in base.objs])
        if node.attr in SHAPES:
            return found
        return Value(found.objs, (found.marks | base.marks) - self.flows) if node.attr == "data" else found.marked(base.marks)

    def member(self, obj: Obj, name: str, node: ast.AST) -> Value:
        """An attribute of one object."""
        if obj.kind == "external":
            return self.world.value("external", f"{obj.name}.{name}")
        if obj.kind == "module":
            return self.module_member(obj, name, node)
        if obj.kind == "const" and obj.name is None:
            return NOTHING  # None has no parts: what it stands for comes from elsewhere
        if obj.kind != "class" and (obj, name) in self.store:
            return self.store[obj, name]
        if obj.kind == "instance":
            found = self.class_member(obj, name)
            if found is not None:
                return found
        if obj.kind == "class":
            found = self.lookup(obj, name)
            if found is not None:
                return self._of_class(obj, found)
        if obj.kind == "prepared" and obj.base is not None:
            if name == "module":
                by_hand = bool(self.used(obj.inner, "wrapped"))  # the access goes together with the wrapper
                return Value(frozenset((obj if by_hand else obj.base,)), frozenset())
            self.use(obj, "attr:" + name, node)
            below = self.member(obj.base, name, node)
            if any(o.kind != "attr" for o in below.objs):
                return below
            return self.world.value("attr", name, obj)
        self.use(obj, "attr:" + name, node)
        if name == "process_index" and self.tells_place(obj):
            return self.world.value("attr", name, obj, None, frozenset((self.drawing(node, obj),)))
        if name == "module" and obj.kind in ("made", "param", "instance"):
            return obj.alone
        if name == "device":
            return self.world.value("attr", "device", obj)
        return self.world.value("attr", name, obj)

    def tells_place(self, obj: Obj) -> bool:
        """Whether an object is an Accelerator, or used as one."""
        raise NotImplementedError  # in Calls

    def module_member(self, obj: Obj, name: str, node: ast.AST) -> Value:
        """A name of a module of the project, or a module below it."""
        raise NotImplementedError  # in Machine

    def reaches(self, cls: Obj, pattern: re.Pattern[str], seen: tuple[Obj, ...] = ()) -> bool:
        """Whether one of a class's bases, at any distance, is named so."""
        raise NotImplementedError  # in Calls

    def ancestors(self, cls: Obj) -> list[Obj]:
        """The project's classes that a class is made of."""
        raise NotImplementedError  # in Calls

    def lookup(self, cls: Obj, name: str, seen: tuple[Obj, ...] = ()) -> Value | None:
        """A name in a class or the project's classes below it."""
        if (cls, name) in self.store:
            return self.store[cls, name]
        for base in self.bases.get(cls, ()):
            if base.kind == "class" and base not in seen:
                found = self.lookup(base, name, (*seen, cls))
                if found is not None:
                    return found
        return None

    def _decorators(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[str]:
        return frozenset(ast.unparse(d).split(".")[-1] for d in function.decorator_list)

    def _of_class(self, cls: Obj, found: Value) -> Value:
        """A name looked up in a class: class methods are bound to it."""
        return join_all(
            [
                self.world.value("method", obj.name, cls, obj.site, found.marks)
                if obj.kind == "function" and isinstance(obj.site, FUNCTIONS) and "classmethod" in self._decorators(obj.site)
                else Value(frozenset((obj,)), found.marks)
                for obj in found.objs
            ]
        )

    def class_member(self, instance: Obj, name: str) -> Value | None:
        """A method (bound) or class variable of an instance."""
        found = self.lookup(instance.base, name) if instance.base is not None else None
        if found is None:
            return None
        bound = []
        for obj in found.objs:
            if obj.kind == "function" and isinstance(obj.site, FUNCTIONS):
                decorators = self._decorators(obj.site)
                if "staticmethod" in decorators:
                    bound.append(Value(frozenset((obj,)), found.marks))
                elif "classmethod" in decorators:
                    bound.append(self.world.value("method", obj.name, instance.base, obj.site))
                elif decorators & {"property", "cached_property"}:
                    bound.append(self.invoke(obj, obj.site, [instance.alone], {}))
                else:
                    bound.append(self.world.value("method", obj.name, instance, obj.site))
            else:
                bound.append(Value(frozenset((obj,)), found.marks))
        return join_all(bound)

    def invoke(self, function: Obj, call: ast.AST, args: list[Value], keywords: dict[str | None, Value], *, known: bool = True) -> Value:
        """Follow a call of a function of the script."""
        raise NotImplementedError  # in Calls

    def ev_Subscript(self, node: ast.Subscript, scope: ast.AST) -> Value:
        base, index = self.eval(node.value, scope), self.eval(node.slice, scope)
        key = self.constant(node.slice)
        parts = []
        for obj in base.objs:
            if obj.kind == "dict" and key is not None and (obj, ("key", key)) in self.store:
                parts.append(self.store[obj, ("key", key)])
            elif obj.kind == "dict":
                parts.append(self.anything_in(obj))
            elif obj.kind in ("tuple", "list") and isinstance(key, int) and (obj, key) in self.store:
                parts.append(self.store[obj, key])
            elif obj.kind in ("tuple", "list"):
                same = isinstance(node.slice, ast.Slice)
                parts.append(obj.alone if same else self.anything_in(obj))
            elif obj.kind == "external":
                parts.append(self._external_item(obj, key))
            else:
                self.use(obj, "subscript", node)
                parts.append(self.world.value("item", key if key is not None else "*", obj))
        return join_all(parts).marked(base.marks | index.marks)

    def _external_item(self, obj: Obj, key: object) -> Value:
        """`os.environ["RANK"]` keeps its key; `module.__dict__["name"]` is the module's name."""
        path = str(obj.name)
        if path == "os.environ" and isinstance(key, str):
            return self.world.value("item", key, obj)
        if path.endswith(".__dict__") and isinstance(key, str):
            return self.world.value("external", f"{path.removesuffix('.__dict__')}.{key}")
        return self.world.value("external", f"{path}[]")

    def anything_in(self, obj: Obj) -> Value:
        """Any element of a container."""
        return join_all([value for (owner, key), value in self._elements(obj)])

    def _elements(self, obj: Obj) -> list[tuple[Key, Value]]:
        keys = [(obj, "*"), *((obj, ("key", key)) for key in self.keys.get(obj, ())), *((obj, i) for i in range(len(getattr(obj.site, "elts", ()))))]
        return [(key, self.store[key]) for key in keys if key in self.store]

    def constant(self, node: ast.expr) -> object:
        """The constant that an index is, or None."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return -node.operand.value if isinstance(node.operand.value, int) else None
        if isinstance(node, ast.Name) and self.phase:
            for table in reversed(self.locals):
                if node.id in table:
                    now = table[node.id]
                    break
            else:
                now = self.last(node)
            if len(now.objs) == 1 and next(iter(now.objs)).kind == "const":
                return next(iter(now.objs)).name
        values = [o.name for o in self.at[node].objs] if node in self.at and all(o.kind == "const" for o in self.at[node].objs) else []
        return values[0] if len(values) == 1 else None

    def _sequence(self, node: ast.Tuple | ast.List | ast.Set, scope: ast.AST) -> Value:
        obj = self.world.obj("tuple" if isinstance(node, ast.Tuple) else "list", "", None, node, self.phase)
        marks: frozenset[ast.AST] = frozenset()
        starred = False
        for index, part in enumerate(node.elts):
            value = self.eval(part.value if isinstance(part, ast.Starred) else part, scope)
            starred = starred or isinstance(part, ast.Starred)
            if isinstance(part, ast.Starred):
                value = self.element(value, node)
            (self.add if starred else self.put)((obj, "*" if starred else index), value)
            marks |= value.marks
        return Value(frozenset((obj,)), marks)

    ev_Tuple = ev_List = ev_Set = _sequence

    def ev_Dict(self, node: ast.Dict, scope: ast.AST) -> Value:
        obj = self.world.obj("dict", "", None, node, self.phase)
        marks: frozenset[ast.AST] = frozenset()
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.eval(part, scope)
            marks |= value.marks
            if key is None:
                for other in value.objs:
                    held = self._elements(other) if other.kind == "dict" else [((other, "*"), NOTHING)]
                    for (_, index), element in held:
                        (self.put if len(value.objs) == 1 and index != "*" else self.add)((obj, index), element)
                continue
            self.eval(key, scope)
            name = self.constant(key)
            if name is None:
                self.add((obj, "*"), value)
            else:
                self.put((obj, ("key", name)), value)
        return Value(frozenset((obj,)), marks)

    def ev_JoinedStr(self, node: ast.JoinedStr, scope: ast.AST) -> Value:
        value = self._parts(node, scope)
        parts = [p.value if isinstance(p, ast.FormattedValue) and p.conversion == -1 and p.format_spec is None else p for p in node.values]
        words = [constant(self.eval(part, scope)) if isinstance(part, (ast.Constant, ast.Name)) else None for part in parts]
        self.written[node] = "".join(words) if all(isinstance(word, str) for word in words) else None  # type: ignore[arg-type]
        return value

    def ev_IfExp(self, node: ast.IfExp, scope: ast.AST) -> Value:
        test = self.eval(node.test, scope)
        return self.eval(node.body, scope).join(self.eval(node.orelse, scope)).marked(test.marks)

    def ev_BoolOp(self, node: ast.BoolOp, scope: ast.AST) -> Value:
        values = []
        for part in node.values:
            values.append(self.eval(part, scope))
            if self.phase and self.truth(part) is isinstance(node.op, ast.Or):
                break  # what follows isn't asked in this phase
        return join_all(values)

    def ev_NamedExpr(self, node: ast.NamedExpr, scope: ast.AST) -> Value:
        value = self.eval(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def assign(self, target: ast.expr, value: Value, scope: ast.AST) -> None:
        """Bind a target."""
        raise NotImplementedError  # in Machine

    def ev_Starred(self, node: ast.Starred, scope: ast.AST) -> Value:
        return self.eval(node.value, scope)

    def ev_Await(self, node: ast.Await, scope: ast.AST) -> Value:
        return self.eval(node.value, scope)

    def ev_Yield(self, node: ast.Yield, scope: ast.AST) -> Value:
        value = self.eval(node.value, scope) if node.value is not None else NOTHING
        self._yielded(node, value)
        return NOTHING

    def _yielded(self, node: ast.AST, value: Value) -> None:
        function = self.source.scope(node)
        for key in ((function, None), (function, self.phase)):
            self.yields[key] = self.yields.get(key, NOTHING).join(value)

    def ev_YieldFrom(self, node: ast.YieldFrom, scope: ast.AST) -> Value:
        source = self.eval(node.value, scope)
        self.iterated(source, node)
        self._yielded(node, self.element(source, node))
        return NOTHING

    def ev_Lambda(self, node: ast.Lambda, scope: ast.AST) -> Value:
        return self.world.value("function", "<lambda>", None, node)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, scope: ast.AST) -> Value:
        table: dict[str, Value] = {}
        marks: frozenset[ast.AST] = frozenset()
        for generator in node.generators:
            source = self.eval(generator.iter, scope)
            self.iterated(source, generator)
            marks |= source.marks - self.makings
            phases = self.phases(generator.iter)
            if (
                isinstance(node, ast.DictComp)
                and phases
                and len(node.generators) == 1
                and isinstance(generator.target, ast.Name)
                and not generator.ifs
            ):
                return self._phase_dict(node, generator.target, phases, scope)
            if generator is node.generators[0]:
                self.locals.append(table)
            self._bind_local(generator.target, self.element(source, generator), table, source.marks)
            for test in generator.ifs:
                marks |= self.eval(test, scope).marks
        if isinstance(node, ast.DictComp):
            obj = self.world.obj("dict", "", None, node, self.phase)
            self.eval(node.key, scope)
            value = self.eval(node.value, scope)
        else:
            obj = self.world.obj("list", "", None, node, self.phase)
            value = self.eval(node.elt, scope)
        self.locals.pop()
        self.add((obj, "*"), value)
        return Value(frozenset((obj,)), marks | value.marks)

    ev_ListComp = ev_SetComp = ev_GeneratorExp = ev_DictComp = _comprehension

    def _phase_dict(self, node: ast.DictComp, target: ast.Name, phases: list[tuple[str, Value]], scope: ast.AST) -> Value:
        """`{x: make(x) for x in ["train", "val"]}`: one value for each key."""
        obj = self.world.obj("dict", "", None, node)
        marks: frozenset[ast.AST] = frozenset()
        for phase, given in phases:
            old, self.phase = self.phase, f"{self.phase}/{phase}"
            self.locals.append({target.id: given})
            key = self.eval(node.key, scope)
            value = self.eval(node.value, scope)
            names = [o.name for o in key.objs if o.kind == "const"]
            self.put((obj, ("key", names[0])) if len(names) == 1 else (obj, "*"), value)
            marks |= value.marks
            self.locals.pop()
            self.phase = old
        return Value(frozenset((obj,)), marks)

    def _bind_local(self, target: ast.expr, value: Value, table: dict[str, Value], marks: frozenset[ast.AST]) -> None:
        self.at[target] = self.at[target].join(value) if target in self.at else value
        if isinstance(target, ast.Name):
            table[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, part in enumerate(target.elts):
                self._bind_local(part, self.part(value, index, len(target.elts), target, marks), table, marks)

    # iteration -------------------------------------------------------------------------------------------

    def iterated(self, value: Value, node: ast.AST) -> None:
        """Remember that objects were iterated over, through enumerate, zip and progress bars."""
        for obj in value.objs:
            if obj.kind == "iter":
                for index in range(8):
                    if (obj, index) in self.store:
                        self.iterated(self.store[obj, index], node)
            else:
                self.use(obj, "iterated", node)

    def through(self, value: Value) -> list[Obj]:
        """The objects that are iterated over, through enumerate, zip and progress bars."""
        found: list[Obj] = []
        for obj in value.objs:
            if obj.kind == "iter":
                found += [inner for i in range(8) if (obj, i) in self.store for inner in self.through(self.store[obj, i])]
            else:
                found.append(obj)
        return found

    def element(self, value: Value, node: ast.AST) -> Value:
        """What iterating over a value gives."""
        bars = {obj for obj in value.objs if obj.kind == "made" and PROGRESS_ITERABLE.match(obj.path)}
        marks = value.marks - self.makings if any(obj.kind == "prepared" for obj in self.through(value)) else value.marks  # a prepared loader places
        return join_all([self._element(obj, node) for obj in (value.objs - bars or bars)]).marked(marks)

    def _element(self, obj: Obj, node: ast.AST) -> Value:
        value = self._one_of(obj, node)
        return value.marked(frozenset((self.drawing(node, obj),))) if obj.kind != "iter" and self._draws(obj, node) else value

    def _draws(self, obj: Obj, node: ast.AST) -> bool:
        """Whether a place draws by `next`, in or from an iterator of the script's own, or from a range of indices: what comes of it is followed."""
        if obj.kind == "instance" or (obj.kind == "made" and (obj.name == "generator" or obj.path in RANGES)):
            return True
        return isinstance(node, (ast.Call, ast.YieldFrom)) or (
            isinstance(node, (ast.For, ast.AsyncFor)) and self.source.scope(node) in self._generators()
        )

    def drawing(self, node: ast.AST, obj: Obj) -> ast.AST:
        """The mark of what a place draws from an object."""
        mark = self._drawing.get((node, obj))
        if mark is None:
            mark = self._drawing[node, obj] = ast.Pass(lineno=getattr(node, "lineno", 0))
            self.drawings[mark] = (node, obj)
        return mark

    def _generators(self) -> frozenset[ast.AST]:
        """The functions that yield."""
        raise NotImplementedError  # in Calls

    def _one_of(self, obj: Obj, node: ast.AST) -> Value:
        if obj.kind == "iter":
            if obj.name == "enumerate":
                pair = self.world.obj("tuple", "enumerate", obj, node)
                self.put((pair, 0), self.world.value("made", "index", None, obj.site))
                self.put((pair, 1), self.element(self.store.get((obj, 0), NOTHING), node))
                return Value(frozenset((pair,)), self.store[pair, 1].marks & frozenset())
            if obj.name == "zip":
                pair = self.world.obj("tuple", "zip", obj, node)
                for index in range(8):
                    if (obj, index) in self.store:
                        self.put((pair, index), self.element(self.store[obj, index], node))
                return pair.alone
            if obj.name == "items":
                pair = self.world.obj("tuple", "items", obj, node)
                self.put((pair, 0), self.world.value("made", "key", None, obj.site))
                self.put((pair, 1), self.store.get((obj, 0), NOTHING))
                return pair.alone
            inner = self.store.get((obj, 0), NOTHING)
            return self.element(inner, node) if obj.name == "over" else inner
        if obj.kind in ("list", "tuple"):
            return self.anything_in(obj)
        if obj.kind == "dict":
            return self.world.value("made", "key", None, obj.site)
        if obj.kind == "external":
            return self.world.value("item", "*", obj)
        if obj.kind == "made" and isinstance(obj.name, str) and obj.name == "generator":
            assert obj.site is not None
            return self.yields.get((obj.site, obj.context)) or self.yields.get((obj.site, None), NOTHING)
        if obj.kind == "instance":
            return self._of_instance(obj, node)
        if obj.kind == "made" and obj.path in RANGES:
            return self.world.value("made", "index", None, obj.site, frozenset((node,)) if node in self.dealt else frozenset())
        if obj.kind in ("const", "expr"):
            return self.world.value("item", "*", obj)
        marks = frozenset((node,)) if self.sharded(obj) else frozenset()
        return self.world.value("item", "*", obj, None, marks)

    def _of_instance(self, obj: Obj, node: ast.AST) -> Value:
        """What an instance of a class of the script gives as an iterator (to `next`), or as something to iterate over."""
        order = ("__next__", "__iter__") if isinstance(node, ast.Call) else ("__iter__", "__next__")
        for name in order:
            method = self.class_member(obj, name)
            found = self.call_objects(method, node, [], {}) if method is not None else NOTHING
            if name == "__iter__" and found.objs != frozenset((obj,)):
                found = self.element(found, node)
            if found.objs and found.objs != frozenset((obj,)):
                return found
        return self.world.value("item", "*", obj)

    def sharded(self, obj: Obj) -> bool:
        """Whether an object gives each rank data of its own."""
        return obj.kind == "prepared" or (
            not self.rehearsed and any(DISTRIBUTED_SAMPLER.match(o.path) for o in obj.keywords.get("sampler", NOTHING).objs)
        )

    def part(self, value: Value, index: int, count: int, node: ast.AST, marks: frozenset[ast.AST]) -> Value:
        """Element `index` of a value that is unpacked into `count` targets."""
        parts = []
        for obj in value.objs:
            if obj.kind in ("tuple", "list") and (obj, index) in self.store:
                own = self.store[obj, index]
                parts.append(own)
            elif obj.kind in ("tuple", "list"):
                parts.append(self.anything_in(obj))
            elif obj.kind == "iter":
                parts.append(self._element(obj, node))
            elif obj.kind not in ("const", "external"):
                parts.append(self.world.value("item", index, obj, None, marks))
        clean = all(obj.kind in ("tuple", "list") for obj in value.objs)
        return join_all(parts) if clean else join_all(parts).marked(marks)

    def call_objects(self, callee: Value, node: ast.AST, args: list[Value], keywords: dict[str | None, Value]) -> Value:
        """Call whatever a value holds."""
        raise NotImplementedError  # in Calls

    def truth(self, test: ast.expr) -> bool | None:
        """What a test is known to be: `__name__ == "__main__"` is true; all else unknown."""
        match test:
            case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
                return self.source.is_entry(test)
            case ast.Compare(left=ast.Constant(value="__main__"), ops=[ast.Eq()], comparators=[ast.Name(id="__name__")]):
                return self.source.is_entry(test)
            case ast.Compare(
                left=ast.Name() as name, ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=wanted)]
            ) if self.phase:
                now = self.known(name)
                if now is not None and (now.kind == "const" or wanted is None or isinstance(wanted, str)):  # a rank may well be 0
                    same = now.kind == "const" and now.name == wanted and type(now.name) is type(wanted)
                    return same if isinstance(op, (ast.Eq, ast.Is)) else not same
            case ast.Name() if self.phase:
                now = self.known(test)
                if now is not None:
                    return bool(now.name) if now.kind == "const" else None
                asked = self._asked(test)
                if asked is None or asked in self._asking:
                    return None
                self._asking.add(asked)
                answer = self.truth(asked)
                self._asking.remove(asked)
                return answer
            case ast.UnaryOp(op=ast.Not(), operand=inner):
                inverse = self.truth(inner)
                return None if inverse is None else not inverse
            case ast.BoolOp(op=op, values=parts) if self.phase:
                known = [self.truth(part) for part in parts]
                decisive = isinstance(op, ast.Or)
                return decisive if decisive in known else None if None in known else not decisive
        return None

    def known(self, name: ast.Name) -> Obj | None:
        """The one object that a parameter or the variable of a phase holds, if what it is compared with can be told."""
        scope = self.source.scope(name)
        settled = name.id in {a.arg for a in getattr(getattr(scope, "args", None), "args", ())} or name.id in self.phase_names
        objs = [o for o in self.last(name).objs] if settled else []
        if len(objs) != 1 or objs[0].kind in ("param", "attr", "item", "expr", "external") or not self._set_once(scope, name.id):
            return None
        return objs[0] if objs[0].kind in ("const", "instance", "prepared") or (objs[0].kind == "made" and objs[0].path) else None

    def _asked(self, name: ast.Name) -> ast.expr | None:
        """The question whose answer a function keeps in a name: `training = optimizer is not None`, if nothing else sets it."""
        scope = self.source.scope(name)
        if (scope, name.id) not in self._questions:
            stores = [n for n in walk(scope) if isinstance(n, ast.Name) and n.id == name.id and not isinstance(n.ctx, ast.Load)]
            holder = self.source.parents[stores[0]] if len(stores) == 1 and not isinstance(scope, ast.Module) else None
            asks = isinstance(holder, ast.Assign) and len(holder.targets) == 1 and holder in getattr(scope, "body", ())
            value = holder.value if asks and isinstance(holder, ast.Assign) else None
            self._questions[scope, name.id] = value if isinstance(value, (ast.Compare, ast.BoolOp, ast.UnaryOp)) else None
        return self._questions[scope, name.id]

    def _set_once(self, scope: ast.AST, name: str) -> bool:
        """Whether nothing in the scope but its signature or a phase loop sets the name."""
        if (scope, name) not in self._stores:
            stores = [n for n in walk(scope) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
            outer = [self.source.parents[n] for n in stores]
            outer = [self.source.parents[p] if isinstance(p, (ast.Tuple, ast.List)) else p for p in outer]
            self._stores[scope, name] = all(isinstance(p, ast.For) for p in outer)
        return self._stores[scope, name]

    def last(self, name: ast.Name) -> Value:
        """What a variable of the scope holds now."""
        return self.store.get((self.owner(self.source.scope(name), name.id), name.id), NOTHING)

    def phases(self, node: ast.expr) -> list[tuple[str, Value]]:
        """The names of at most four phases that a loop runs through, each with what its target gets; nothing where it runs through something else.

        They are written in a list or tuple, alone or in front of what belongs to them, or are the keys of one table.
        """
        if isinstance(node, (ast.List, ast.Tuple)):
            heads = [e.elts[0] if isinstance(e, (ast.Tuple, ast.List)) and len(e.elts) > 1 else e for e in node.elts]
            names = [h.value for h in heads if isinstance(h, ast.Constant) and isinstance(h.value, str)]
            whole = len(names) == len(heads) and not any(isinstance(n, ast.Starred) for e in node.elts for n in getattr(e, "elts", ()))
            found = [
                (name, self.world.value("const", name) if e is h else self.at.get(e, NOTHING))
                for name, e, h in zip(names, node.elts, heads, strict=whole)
            ]
            return found if whole and 0 < len(found) <= MOST_PHASES and len(set(names)) == len(names) else []
        how = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and not node.args else "keys"
        tables = self.at.get(node.func.value if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else node, NOTHING).objs
        table = next(iter(tables), None)
        if len(tables) != 1 or table is None or table.kind != "dict" or how not in ("keys", "items") or (table, "*") in self.store:
            return []
        keys = [key for key in self.keys.get(table, ()) if isinstance(key, str)]
        if len(keys) != len(self.keys.get(table, ())) or not 0 < len(keys) <= MOST_PHASES:
            return []
        return [(key, self._entry(table, key, node) if how == "items" else self.world.value("const", key)) for key in keys]

    def _entry(self, table: Obj, key: str, node: ast.AST) -> Value:
        """What `table.items()` gives for a key."""
        pair = self.world.obj("tuple", "entry", table, node, key)
        self.put((pair, 0), self.world.value("const", key))
        self.put((pair, 1), self.store.get((table, ("key", key)), NOTHING))
        return pair.alone

    def marks_of(self, node: ast.AST) -> frozenset[ast.AST]:
        """What makes an expression differ between ranks."""
        return self.ranked(self.at[node].marks) if node in self.at else frozenset()

    def ranked(self, marks: frozenset[ast.AST]) -> frozenset[ast.AST]:
        """Those of some marks that tell of a difference between ranks."""
        return marks - self.detours - self.flows - self.makings - self.drawings.keys()

    def drawn_into(self, node: ast.AST) -> list[tuple[ast.AST, Obj]]:
        """What an expression is computed from of that which `next`, generators and loops over indices gave: (place, object drawn from)."""
        return [self.drawings[mark] for mark in self.at[node].marks & self.drawings.keys()] if node in self.at else []

    def made_into(self, node: ast.AST) -> frozenset[ast.AST]:
        """The calls that made, on the CPU, what an expression is computed from."""
        return self.at[node].marks & self.makings if node in self.at else frozenset()

    def forwards_into(self, node: ast.AST) -> frozenset[ast.AST]:
        """The calls of prepared models whose gradients an expression carries."""
        return self.at[node].marks & self.flows if node in self.at else frozenset()


def phase_names(target: ast.expr) -> set[str]:
    """The name that a loop over phases gives each phase's name."""
    head = target.elts[0] if isinstance(target, (ast.Tuple, ast.List)) and target.elts else target
    return {head.id} if isinstance(head, ast.Name) else set()


def _scopes(tree: ast.Module) -> tuple[dict[ast.AST, set[str]], dict[ast.AST, dict[str, str]]]:
    """The names that each scope of a file binds, and those that it declares global or nonlocal."""
    bound: dict[ast.AST, set[str]] = {}
    declared: dict[ast.AST, dict[str, str]] = {}
    waiting: list[tuple[ast.AST, ast.AST]] = [(tree, tree)]
    while waiting:
        node, scope = waiting.pop()
        if not isinstance(node, BINDERS):
            waiting += [(child, scope) for child in children(node) if not isinstance(child, LEAVES)]
            continue
        names = bound.setdefault(scope, set())
        match node:
            case ast.Name(id=name, ctx=context):
                if isinstance(context, ast.Store):
                    names.add(name)
                continue
            case ast.Import() | ast.ImportFrom():
                names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
            case ast.Global() | ast.Nonlocal():
                for name in node.names:
                    declared.setdefault(scope, {})[name] = type(node).__name__
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                if not isinstance(node, ast.Lambda):
                    names.add(node.name)
                    waiting += [(part, scope) for part in (*node.decorator_list, *node.args.defaults, *node.args.kw_defaults) if part]
                arguments = node.args
                every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
                bound.setdefault(node, set()).update(arg.arg for arg in every if arg is not None)
                waiting += [(part, node) for part in (node.body if isinstance(node.body, list) else [node.body])]
                continue
            case ast.ClassDef():
                names.add(node.name)
                waiting += [(part, scope) for part in (*node.bases, *node.decorator_list)]
                waiting += [(part, node) for part in node.body]
                continue
            case ast.comprehension():
                waiting += [(node.iter, scope), *((test, scope) for test in node.ifs)]
                continue
        waiting += [(child, scope) for child in children(node)]
    return bound, declared
