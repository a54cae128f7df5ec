"""What calls do: the script's own functions are followed, names of libraries read from tables."""

from __future__ import annotations

import ast
import re

from script2accel.analysis.expressions import FUNCTIONS, Expressions
from script2accel.analysis.overriding import sets_any
from script2accel.analysis.texts import constant, taken_apart
from script2accel.analysis.values import NOTHING, Obj, Value, join_all
from script2accel.knowledge import torch as names
from script2accel.source import Source, walk

READS = frozenset({"named_parameters", "state_dict", "named_buffers"})  # whose names a wrapper changes
WEIGHTS = READS | {"parameters", "buffers", "module", "modules", "named_modules", "children"}
DETACHING = frozenset({"detach", "detach_", "item", "numpy", "tolist"})
MAX_RUNS = 24  # how often one function's body is followed
MAX_STEPS = 40  # times the number of nodes: beyond it, a function is followed twice only
MOST_NAMED = 8  # functions and classes of a module that a name known at run time may mean
ITERATORS = re.compile(r"^(iter|list|tuple|reversed|sorted|itertools\.(cycle|islice|chain)|more_itertools\.\w+)$")
ONE_BY_ONE = re.compile(r"^(iter|itertools\.(cycle|islice)|more_itertools\.\w+)$")
SHUFFLES = re.compile(r"^(numpy\.random|random)\.shuffle$")
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Keywords = dict[str | None, Value]
SIZING = frozenset({"append", "appendleft", "extend", "extendleft", "add", "insert", "put", "push", "pop", "popleft", "remove", "discard", "clear"})
EQUAL_ON_RANKS = frozenset({"len", "isinstance", "type", "hasattr", "id", "callable", "issubclass"})
ACCELERATOR = re.compile(r"^accelerate\.(accelerator\.)?Accelerator$")
AGREEING = frozenset({"gather", "gather_for_metrics", "reduce", "check_trigger"})
AGREEING_FUNCTIONS = re.compile(
    r"^accelerate\.utils\.(operations\.)?(gather|gather_object|reduce|broadcast|broadcast_object_list)$|^torch\.distributed\.(all_reduce|all_gather\w*)$"
)


class Calls(Expressions):
    """Evaluates calls."""

    def ev_Call(self, node: ast.Call, scope: ast.AST) -> Value:
        callee = self.eval(node.func, scope)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            for loop, objs in self.running:
                self.trained.setdefault(loop, set()).update(objs)
        args: list[Value] = []
        for arg in node.args:
            value = self.eval(arg, scope)
            if isinstance(arg, ast.Starred) and len(value.objs) == 1 and (parts := self._spread(value)):
                args += parts
                continue
            args.append(self.element(value, arg) if isinstance(arg, ast.Starred) else value)
            if isinstance(arg, ast.Starred):
                args += [args[-1]] * 5  # as many positional arguments as there may be
        keywords: Keywords = {}
        for keyword in node.keywords:
            value = self.eval(keyword.value, scope)
            if keyword.arg is None:
                self._unpacked(value, keywords)
            else:
                keywords[keyword.arg] = value
        if self.world.prepares:
            self._plain(node, callee, args, keywords)
        if isinstance(node.func, ast.Name) and node.func.id == "super" and self._of_own_class(node, scope):
            return self._super(node, scope)
        result = self.call_objects(callee, node, args, keywords)
        if sets_any(node):
            self.overridden(node)
        if args and isinstance(node.args[0], (ast.Name, ast.Attribute)) and any(SHUFFLES.match(o.path) or self._own_shuffle(o) for o in callee.objs):
            self.assign(node.args[0], args[0].marked(frozenset((node,))), scope)  # in place
        return result.marked(frozenset((node,))) if self.world.prepares and self._past_forward(node.func) else result

    def _unpacked(self, value: Value, keywords: Keywords) -> None:
        """What `**value` gives a call: the entries of written dicts by their names, and under None what isn't known by name."""
        for obj in value.objs:
            for key in self.keys.get(obj, ()):
                if isinstance(key, str) and (obj, ("key", key)) in self.store:
                    keywords[key] = keywords.get(key, NOTHING).join(self.store[obj, ("key", key)])
            if obj.kind != "dict" or (obj, "*") in self.store:
                keywords[None] = keywords.get(None, NOTHING).join(obj.alone)

    def overridden(self, node: ast.AST) -> None:
        """Forget which constants the module of a node holds: they are defaults, and what runs here may set others."""
        module = self.source.root(node)
        for key, value in [(k, v) for k, v in self.store.items() if k[0] is module and any(o.kind == "const" for o in v.objs)]:
            self.put(key, value.join(self.world.value("expr", "overridden", None, node)))

    def _own_shuffle(self, callee: Obj) -> bool:
        """Whether it is the `shuffle` of a generator that the system seeds."""
        base = callee.base if callee.kind == "attr" and callee.name == "shuffle" else None
        return base is not None and names.GENERATOR.match(base.path) is not None and not (base.arguments or base.keywords)

    def _plain(self, node: ast.Call, callee: Value, args: list[Value], keywords: Keywords) -> None:
        """A prepared model that goes where only its weights are read (an EMA's update) goes there unwrapped."""
        given: list[tuple[int | str, ast.expr]] = [(i, a) for i, a in enumerate(node.args) if i < len(args)]
        given += [(k.arg, k.value) for k in node.keywords if k.arg is not None]
        for key, arg in given:
            value = args[key] if isinstance(key, int) else keywords[key]
            models = [o for o in value.objs if o.kind == "prepared" and not names.OPTIMIZER.match(o.inner.path) and not self._taught_apart(o)]
            if not models or not callee.objs or not all(self._weights_only(o, key) for o in callee.objs):
                continue
            self.plain.add(arg)
            plain = Value(frozenset(o.inner for o in value.objs), value.marks)
            if isinstance(key, int):
                args[key] = plain
            else:
                keywords[key] = plain

    def _taught_apart(self, obj: Obj) -> bool:
        """Whether the user says that an object is something else than a model."""
        return self.teaching.role(obj) not in ("", "model")

    def _weights_only(self, callee: Obj, key: int | str) -> bool:
        """Whether a function of the script, or a known EMA class, reads only the weights of an argument."""
        if callee.kind == "attr" and callee.base is not None and names.EMA.match(callee.base.path):
            return callee.name in ("update", "update_parameters", "step")
        function = callee.site
        if callee.kind not in ("function", "method") or not isinstance(function, FUNCTIONS):
            return False
        parameters = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        at = key + (callee.kind == "method") if isinstance(key, int) else 0
        name = key if isinstance(key, str) else parameters[at] if at < len(parameters) else None
        if name is None or (function, name) in self._weight_readers:
            return self._weight_readers.get((function, str(name)), False)
        for parameter in parameters:  # one walk answers for all of them
            self._weight_readers[function, parameter] = False
        self._weight_readers[function, name] = False
        for parameter, nodes in self._named(function, {*parameters, name}).items():
            parents = [self.source.parents[n] for n in nodes]
            read = [p.attr for p in parents if isinstance(p, ast.Attribute)]
            only = len(read) == len(parents) and set(read) <= WEIGHTS and bool(READS & set(read))
            stored = any(isinstance(n.ctx, ast.Store) for n in nodes)
            self._weight_readers[function, parameter] = only and not stored
        return self._weight_readers[function, name]

    def _named(self, function: ast.AST, wanted: set[str]) -> dict[str, list[ast.Name]]:
        """Where a function loads and stores some names."""
        table: dict[str, list[ast.Name]] = {}
        for node in walk(function):
            if isinstance(node, ast.Name) and node.id in wanted and not isinstance(node.ctx, ast.Del):
                table.setdefault(node.id, []).append(node)
        return table

    def _past_forward(self, func: ast.expr) -> bool:
        """Whether a call goes past the forward of a prepared object, through an attribute of it: what it gives is marked as a detour."""
        inner = func.value if isinstance(func, ast.Attribute) else None
        if inner is None or func.attr in names.MODULE_API or inner not in self.at:  # type: ignore[attr-defined]
            return False
        while inner is not None and not any(o.kind == "prepared" for o in self.at.get(inner, NOTHING).objs):
            inner = inner.value if isinstance(inner, ast.Attribute) else None
        if inner is None:
            return False
        self.detours.add(self.source.parents[func])
        return True

    def call_objects(self, callee: Value, node: ast.AST, args: list[Value], keywords: Keywords) -> Value:
        objs = sorted(callee.objs, key=_kind) if len(callee.objs) > 1 else callee.objs
        return join_all([self.teaching.called(obj, node, self._call(obj, node, args, keywords, callee.marks)) for obj in objs])

    def _call(self, obj: Obj, node: ast.AST, args: list[Value], keywords: Keywords, marks: frozenset[ast.AST]) -> Value:
        if obj.kind == "function":
            return self.invoke(obj, node, args, keywords)
        everything = marks
        for value in (*args, *keywords.values()):
            everything |= self.deep_marks(value)
        match obj.kind:
            case "method":
                function = self.world.obj("function", obj.name, None, obj.site)
                return self.invoke(function, node, [Value(frozenset((obj.base,)), frozenset()), *args], keywords)  # type: ignore[arg-type]
            case "class":
                made = self.instance(obj, node, construct=False)
                self._construct(obj, made, node, args, keywords)
                made.arguments, made.keywords = args, keywords
                self._given(node, args, keywords, obj)
                return made.alone
            case "external":
                return self._external(obj, node, args, keywords, everything)
            case "attr":
                return self._method(obj, node, args, keywords, everything)
            case "instance":
                self.use(obj, "call", node)
                if (method := self.class_member(obj, "__call__") or self.class_member(obj, "forward")) is not None:
                    result = self.call_objects(method, node, args, keywords)
                    if not self.is_module(obj):
                        return result
                return self._made(obj, node, args, keywords, everything)
            case "prepared":
                self.use(obj, "call", node)
                inner = obj.inner
                if inner.kind == "instance" and (method := self.class_member(inner, "forward")) is not None:
                    self.call_objects(method, node, args, keywords)
                self.flows.add(node)
                return self._made(obj, node, args, keywords, everything | {node})
            case "const":
                return NOTHING
        self.use(obj, "call", node)
        return self._made(obj, node, args, keywords, everything)

    def _made(self, callee: Obj, node: ast.AST, args: list[Value], keywords: Keywords, marks: frozenset[ast.AST]) -> Value:
        """A new object that a call gave; its arguments are remembered, and that they were given."""
        obj = self.world.obj("made", "", callee, node, self.phase)
        obj.arguments, obj.keywords = args, keywords
        self._given(node, args, keywords, callee)
        return Value(frozenset((obj,)), marks)

    def _given(self, node: ast.AST, args: list[Value], keywords: Keywords, callee: Obj) -> None:
        for value in (*args, *keywords.values()):
            for obj in value.objs:
                if obj.kind in ("function", "method") and obj.site is not None:
                    self.escapes.setdefault(obj.site, []).append(node)
                elif obj.kind not in ("const", "external"):
                    self.use(obj, "given", node)

    # the script's own functions and classes -----------------------------------------------------------------

    def is_module(self, obj: Obj) -> bool:
        """Whether an instance's class reaches nn.Module."""
        return obj.base is not None and self.reaches(obj.base, names.MODULE_BASE)

    def reaches(self, cls: Obj, pattern: re.Pattern[str], seen: tuple[Obj, ...] = ()) -> bool:
        """Whether one of a class's bases, at any distance, is named so."""
        if self.teaching.stands_for(cls, pattern):
            return True
        for base in self.bases.get(cls, ()):
            if base.kind == "external" and (pattern.match(str(base.name)) or self.teaching.stands_for(base, pattern)):
                return True
            if base.kind == "class" and base not in seen and self.reaches(base, pattern, (*seen, cls)):
                return True
        return False

    def instance(self, cls: Obj, site: ast.AST, *, construct: bool) -> Obj:
        """The instance that a place makes of a class."""
        obj = self.world.obj("instance", cls.name, cls, site, self.phase)
        known = self.instances.setdefault(cls, [])
        if obj not in known:
            known.append(obj)
            if construct:
                self._construct(cls, obj, site, None, {})
        return obj

    def _construct(self, cls: Obj, made: Obj, node: ast.AST, args: list[Value] | None, keywords: Keywords) -> None:
        found = self.lookup(cls, "__init__")
        for obj in found.objs if found is not None else ():
            if obj.kind == "function":
                me = made.alone
                self.invoke(obj, node, [me, *(args or [])], keywords, known=args is not None)
        if args is not None:
            fields = [s.target.id for s in getattr(cls.site, "body", ()) if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name)]
            if fields and found is None:  # a dataclass
                for name, value in (*zip(fields, args, strict=False), *((str(k), v) for k, v in keywords.items() if k)):
                    self.put((made, name), value)

    def _of_own_class(self, node: ast.Call, scope: ast.AST) -> bool:
        """Whether it is `super()`, or `super(Class, self)` that says the same."""
        owner = self.source.scope(scope)
        named = node.args[0] if len(node.args) == 2 else None
        return not node.args or (isinstance(named, ast.Name) and isinstance(owner, ast.ClassDef) and named.id == owner.name)

    def _super(self, node: ast.Call, scope: ast.AST) -> Value:
        if not isinstance(scope, FUNCTIONS) or not scope.args.args:
            return NOTHING
        cls_node = self.source.scope(scope)
        if not isinstance(cls_node, ast.ClassDef):
            return NOTHING
        me = self.store.get((scope, scope.args.args[0].arg), NOTHING)
        cls = self.world.obj("class", cls_node.name, None, cls_node)
        parent = self.world.obj("super", cls.name, None, node)
        for name, value in self._inherited(cls).items():
            bound = {
                self.world.obj("method", obj.name, instance, obj.site) if obj.kind == "function" else obj
                for obj in value.objs
                for instance in me.objs
            }
            if bound:
                self.put((parent, name), Value(frozenset(bound), frozenset()))
        return parent.alone

    def _inherited(self, cls: Obj) -> dict[str, Value]:
        """What a class has from the project's classes that it is made of, the nearest first."""
        found: dict[str, Value] = {}
        for base in self.ancestors(cls):
            for name in sorted(self.bound.get(base.site, ())) if base.site is not None else ():
                if (base, name) in self.store:
                    found.setdefault(name, self.store[base, name])
        return found

    def ancestors(self, cls: Obj) -> list[Obj]:
        """The project's classes that a class is made of, the nearest first."""
        found: list[Obj] = []
        waiting = list(self.bases.get(cls, ()))
        while waiting:
            base = waiting.pop(0)
            if base.kind == "class" and base is not cls and base not in found:
                found.append(base)
                waiting += self.bases.get(base, ())
        return found

    def invoke(self, function: Obj, call: ast.AST, args: list[Value], keywords: Keywords, *, known: bool = True) -> Value:
        node = function.site
        if isinstance(call, ast.Call) and known and node is not None:
            self.callers.setdefault(node, {})[call] = None
        if not isinstance(node, (*FUNCTIONS, ast.Lambda)):
            return NOTHING
        self._bind_parameters(node, args, keywords, known)
        if isinstance(node, ast.Lambda):
            return self.eval(node.body, node) if self.runs.get(node, 0) < MAX_RUNS and self._enter(node) else NOTHING
        generator = node in self._generators()
        if self.runs.get(node, 0) < self.most_runs() and node not in self.stack and len(self.stack) < 24:
            self._enter(node)
            self.stack.append(node)
            before, self.returns[node] = self.returns.get(node, NOTHING), NOTHING
            tables, self.locals = self.locals, []
            phase, self.phase = self.phase, _nested(self.phase, call)
            self.execute(node.body, node)
            self.locals, self.phase = tables, phase
            now = self.returns[node]
            self.returns[node] = before.join(now)
            self.stack.pop()
            result = now
        else:
            result = self.returns.get(node, NOTHING)
        if generator:
            return Value(frozenset((self.world.obj("made", "generator", None, node, _nested(self.phase, call)),)), frozenset())
        return result

    def most_runs(self) -> int:
        """How often a function may still be followed: twice only when the run has become long."""
        return MAX_RUNS if self.steps < MAX_STEPS * max(200, len(self.order)) else 2

    def _enter(self, node: ast.AST) -> bool:
        self.runs[node] = self.runs.get(node, 0) + 1
        return True

    def execute(self, body: list[ast.stmt], scope: ast.AST) -> bool:
        """Run statements."""
        raise NotImplementedError  # in Machine

    def _generators(self) -> frozenset[ast.AST]:
        """The functions that yield."""
        count = len(self.source.sources)
        if self._generator_set[0] != count:
            self._generator_set = count, frozenset(self.source.scope(n) for n in self.source.every(ast.Yield, ast.YieldFrom))
        return self._generator_set[1]

    _generator_set: tuple[int, frozenset[ast.AST]] = (0, frozenset())

    @property
    def stack(self) -> list[ast.AST]:
        """The functions being followed."""
        return self._stack

    def _bind_parameters(self, node: Definition, args: list[Value], keywords: Keywords, known: bool) -> None:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults = dict(zip([a.arg for a in positional[len(positional) - len(arguments.defaults) :]], arguments.defaults, strict=True))
        defaults |= {a.arg: d for a, d in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if d is not None}
        extra = keywords.get(None)
        for index, arg in enumerate([*positional, *arguments.kwonlyargs]):
            if index < len(args) and index < len(positional):
                value = args[index]
            elif arg.arg in keywords:
                value = keywords[arg.arg]
            elif extra is not None:
                value = self.world.value("param", arg.arg, None, node)
            elif known:
                value = self.at.get(defaults[arg.arg], NOTHING) if arg.arg in defaults else NOTHING
            else:
                value = self.world.value("param", arg.arg, None, node)
            value = self.teaching.bound(arg, value)
            self.put((node, arg.arg), value)
            self.at[arg] = self.at[arg].join(value) if arg in self.at else value
        if arguments.vararg is not None:
            rest = self.world.obj("tuple", "args", None, arguments.vararg) if known else self.world.obj("param", arguments.vararg.arg, None, node)
            if known:
                self.put((rest, "*"), join_all(args[len(positional) :]))
            self.put((node, arguments.vararg.arg), rest.alone)
        if arguments.kwarg is not None:
            rest = self.world.obj("dict", "kwargs", None, arguments.kwarg) if known else self.world.obj("param", arguments.kwarg.arg, None, node)
            named = {a.arg for a in (*positional, *arguments.kwonlyargs)}
            for name, value in keywords.items():
                if name is not None and name not in named:
                    self.put((rest, ("key", name)), value)
            self.put((node, arguments.kwarg.arg), rest.alone)

    # libraries -------------------------------------------------------------------------------------------

    def _external(self, obj: Obj, node: ast.AST, args: list[Value], keywords: Keywords, marks: frozenset[ast.AST]) -> Value:
        path = str(obj.name)
        first = args[0] if args else NOTHING
        if path in ("enumerate", "zip"):
            made = self.world.obj("iter", path, None, node)
            for index, value in enumerate(args[:8]):
                self.put((made, index), value)
            return made.alone
        if names.PROGRESS_ITERABLE.match(path):
            iterable = keywords.get("iterable", first)
            bar = self._made(obj, node, args, keywords, frozenset())
            through = self.world.obj("iter", "through", None, node)
            self.put((through, 0), iterable)
            return Value(bar.objs | iterable.objs, iterable.marks) if iterable.objs else bar
        if ITERATORS.match(path):
            for value in args:
                if path != "iter":
                    self.iterated(value, node)
                for o in value.objs if path == "iter" else ():
                    self.use(o, "iter", node)
            if ONE_BY_ONE.match(path) and first.objs:  # no other name for what it runs over: preparing it would do nothing
                made = self.world.obj("iter", "over", None, node, self.phase)
                self.put((made, 0), first)
                return Value(frozenset((made,)), first.marks)
            if path in ("list", "tuple", "sorted", "reversed") and any(self._deals(o) for o in first.objs):
                made = self.world.obj("list", path, None, node, self.phase)  # batches that are kept, not the loader
                self.put((made, "*"), self.element(first, node))
                return Value(frozenset((made,)), first.marks)
            return first if path != "itertools.chain" else join_all(args)
        if path == "next":
            self.iterated(first, node)
            return self.element(first, node)
        if path in EQUAL_ON_RANKS:
            for o in first.objs if path == "len" else ():
                self.use(o, "len", node)
            lengths = [self.lengths.get(o, frozenset()) for o in first.objs] if path == "len" else []
            return self._made(obj, node, args, keywords, frozenset[ast.AST]().union(*lengths))
        if path == "getattr" and len(args) >= 2 and isinstance(node, ast.Call) and (name := self._attribute_name(node, args[1])) is not None:
            return join_all([self.member(o, str(name), node) for o in first.objs]).join(args[2] if len(args) > 2 else NOTHING)
        if path == "getattr" and len(args) >= 2 and any(o.kind == "module" for o in first.objs):
            return join_all([self.any_of_module(o) for o in first.objs if o.kind == "module"])
        if path == "getattr" and first.objs and all(o.kind == "external" for o in first.objs):  # models' names are often chosen at run time
            self._given(node, args, keywords, obj)
            return join_all([self.world.value("external", f"{o.name}.__dict__[]") for o in first.objs])
        if path in ("types.SimpleNamespace", "argparse.Namespace") and not args and None not in keywords:
            result = self._made(obj, node, args, keywords, marks)
            for made in result.objs:
                for key, value in keywords.items():
                    self.put((made, str(key)), value)
            return result
        if path == "importlib.import_module" and len(args) == 1 and isinstance(name := constant(first), str) and not name.startswith("."):
            found = self.source.resolve(self.source.of(node), name)
            return self.module_value(found) if found is not None else self.world.value("external", name)
        if names.LOCATE.match(path) and isinstance(name := constant(first), str):
            return self._located(name, node)
        if path == "setattr" and len(args) == 3 and len(args[1].objs) == 1:
            for o in first.objs:
                self.put((o, str(next(iter(args[1].objs)).name)), args[2])
            return NOTHING
        if path in ("map", "filter") and len(args) > 1:
            made = self.world.obj("list", path, None, node)
            result = self.call_objects(first, node, [self.element(value, node) for value in args[1:]], {})
            self.add((made, "*"), result if path == "map" else self.element(args[1], node))
            return Value(frozenset((made,)), marks)
        if path == "dict" and not args:
            made = self.world.obj("dict", "", None, node, self.phase)
            for name, value in keywords.items():
                if name is not None:
                    self.put((made, ("key", name)), value)
            return Value(frozenset((made,)), marks)
        if names.GIVES_BACK.match(path):
            made = self.world.obj("tuple", path, None, node)
            every = [*args, *(keywords[name] for name in ("models", "optimizers") if name in keywords)]
            for index, value in enumerate(every[:2]):
                self.put((made, index), value)
            self._given(node, args, keywords, obj)
            return every[0] if len(every) == 1 else made.alone
        if names.HAND_WRAPPER.match(path):
            wrapped = first if args else keywords.get("module", NOTHING)
            for o in wrapped.objs:  # prepare wraps it instead: the wrapper is passed over
                self.use(o.inner, "wrapped", node)
            return wrapped.marked(marks) if wrapped.objs else self._made(obj, node, args, keywords, marks)
        if names.SPAWN.match(path) and isinstance(node, ast.Call) and (workers := self._workers(first)):
            rank = self._made(obj, node, [], {}, frozenset())
            given = keywords.get("args", args[1] if len(args) > 1 else NOTHING)
            return join_all([self.invoke(worker, node, [rank, *self._handed(worker, self._spread(given))], {}) for worker in workers])
        if names.LAUNCHER.match(path) and isinstance(node, ast.Call) and (workers := self._workers(keywords.get("function", first))):
            handed = self._spread(keywords.get("args", args[1] if len(args) > 1 else NOTHING))
            for worker in workers:
                self.invoke(worker, node, handed, {})
            return NOTHING  # what the function gives back is lost with its process
        if names.TRANSPARENT.match(path):
            wrapper = self._made(obj, node, args, keywords, marks)
            return Value(wrapper.objs | first.objs, marks) if first.objs else wrapper
        if path.startswith("accelerate.") and AGREEING_FUNCTIONS.match(path):
            self._given(node, args, keywords, obj)
            return self.agreed(first)
        if path in ("accelerate.skip_first_batches", "accelerate.data_loader.skip_first_batches"):
            return first
        if names.CLOCK.match(path) or (names.RANDOM_FACTORY.match(path) and "generator" not in keywords):
            marks = marks | {node}
        if names.CPU_TENSOR.match(path) and "device" not in keywords:
            twin = self.making(node)
            self.makings.add(twin)
            marks = marks | {twin}
        return self._made(obj, node, args, keywords, marks)

    def _attribute_name(self, call: ast.Call, value: Value) -> object:
        """The name that `getattr` is given, where it is a constant or an f-string of constants; else None."""
        found = constant(value)
        return self.written.get(call.args[1]) if found is None and len(call.args) > 1 else found

    def _located(self, path: str, node: ast.AST) -> Value:
        """What a dotted path leads to: a name of a module of the project, or of a library."""
        parts = path.split(".")
        for count in range(len(parts) - 1, 0, -1):
            found = self.source.resolve(self.source.of(node), ".".join(parts[:count]))
            if found is not None:
                value = self.module_value(found)
                for part in parts[count:]:
                    value = join_all([self.member(o, part, node) for o in value.objs])
                return value
        return self.world.value("external", path)

    def module_value(self, source: Source) -> Value:
        """A module of the project, its body run."""
        raise NotImplementedError  # in Machine

    def _deals(self, obj: Obj) -> bool:
        """Whether an object is a DataLoader."""
        inner = obj.inner
        if inner.kind == "instance":
            return inner.base is not None and self.reaches(inner.base, names.LOADER_BASE)
        return names.LOADER.match(inner.path) is not None or self.teaching.role(inner) == "loader"

    def _workers(self, value: Value) -> list[Obj]:
        """The script's functions that a call starts as processes, if it can start nothing else."""
        found = [o for o in value.objs if o.kind == "function" and isinstance(o.site, FUNCTIONS)]
        return found if len(found) == len(value.objs) else []

    def _handed(self, worker: Obj, values: list[Value]) -> list[Value]:
        """What a started process is given: a written number may be that of the processes, which its use tells."""
        arguments = worker.site.args.args[1:]  # type: ignore[union-attr]
        return [
            value.join(self.world.value("param", arg.arg, None, worker.site)) if all(o.kind == "const" for o in value.objs) else value
            for arg, value in zip(arguments, values, strict=False)
        ]

    def grow(self, container: Obj) -> None:
        """A container gets or loses an element: where that is under marks, its length is marked."""
        if self.guard:
            self.lengths[container] = self.lengths.get(container, frozenset()) | self.guard

    def _spread(self, value: Value) -> list[Value]:
        """The elements of a written tuple, one value each."""
        for obj in value.objs:
            if obj.kind == "tuple" and isinstance(obj.site, ast.Tuple):
                return [self.store.get((obj, index), NOTHING) for index in range(len(obj.site.elts))]
        return []

    def _method(self, obj: Obj, node: ast.AST, args: list[Value], keywords: Keywords, marks: frozenset[ast.AST]) -> Value:
        base, name = obj.base, str(obj.name)
        assert base is not None
        self.use(base, "." + name, node)
        if name in SIZING:
            self.grow(base)
        if base.inner is not base:
            self.use(base.inner, "." + name, node)
        if self.tells_place(base):
            found = self._accelerator(base, name, node, args, keywords, marks)
            if found is not None:
                return found
        if name == "scale" and args and self._scales(base, node):
            self._given(node, args, keywords, obj)
            return Value(args[0].objs, marks)
        if base.kind in ("list", "dict", "iter"):
            return self._container(base, name, node, args, keywords, marks)
        if base.kind == "const" and not keywords and (parts := taken_apart(base.name, name, [constant(value) for value in args])) is not None:
            return self._text(parts, node)
        if name in names.DRAWING_METHODS and names.GENERATOR.match(base.path) and not (base.arguments or base.keywords):
            marks = marks | {node}  # a generator that the system seeds
        if name in DETACHING:
            marks -= self.flows
        if name in names.MOVES or name in ("type_as", "item", "tolist", "numpy", "to_device"):
            marks -= self.makings
        if name in names.SAME:
            self._given(node, args, keywords, obj)
            return Value(frozenset((base,)), marks)
        if name in ("append", "extend", "add", "insert") and args:
            self.add((base, "*"), args[-1].marked(self.guard))
        return self._made(obj, node, args, keywords, marks)

    def _text(self, parts: str | tuple[str, ...], node: ast.AST) -> Value:
        """A text, or the parts of one."""
        if isinstance(parts, str):
            return self.world.value("const", parts)
        made = self.world.obj("list", parts, None, node, self.phase)
        for index, part in enumerate(parts):
            self.put((made, index), self.world.value("const", part))
            self.put((made, index - len(parts)), self.world.value("const", part))
        return made.alone

    def any_of_module(self, module: Obj) -> Value:
        """Whatever a module defines, where its name is only known at run time (nothing when that is too much to follow)."""
        held = [value for (owner, _), value in self.store.items() if owner is module.site]
        package = str(module.name).endswith("__init__.py")  # it hands out what its modules define
        found = {o for value in held for o in value.objs if o.kind in ("class", "function")}
        own = [o for o in found if package or self.source.root(o.site) is module.site]  # type: ignore[arg-type]
        return Value(frozenset(own), frozenset()) if len(own) <= MOST_NAMED else NOTHING

    def _scales(self, base: Obj, node: ast.AST) -> bool:
        """Whether `scale` is a GradScaler's: what it gives stands for the loss that it takes."""
        above = self.source.parents.get(node)
        unknown = base.kind in ("param", "attr", "const") and isinstance(above, ast.Attribute) and above.attr == "backward"
        return names.SCALER.match(base.path) is not None or unknown

    def tells_place(self, obj: Obj) -> bool:
        """Whether an object is an Accelerator, or used as one."""
        return ACCELERATOR.match(obj.path) is not None or self.is_accelerator(obj)

    def is_accelerator(self, obj: Obj) -> bool:
        """Whether an unknown parameter or attribute is used as an accelerator is."""
        if obj.kind not in ("param", "attr") or obj.name not in ("accelerator", "accel"):
            return False
        said = {what for what, _ in self.uses.get(obj, ())}
        return bool(
            said & {".backward", ".prepare", ".gather_for_metrics", ".unwrap_model", ".print", ".accumulate", ".save", ".get_state_dict", ".gather"}
        )

    def prepared(self, value: Value) -> Value:
        """The value after prepare."""
        return Value(frozenset(o if o.kind in ("prepared", "const") else self.world.obj("prepared", "", o, None) for o in value.objs), value.marks)

    def _accelerator(self, base: Obj, name: str, node: ast.AST, args: list[Value], keywords: Keywords, marks: frozenset[ast.AST]) -> Value | None:
        first = args[0] if args else NOTHING
        if name == "prepare":
            for value in args:
                for o in value.objs:
                    self.use(o, "prepare", node)
            if len(args) == 1:
                return self.prepared(first)
            made = self.world.obj("tuple", "prepare", None, node)
            for index, value in enumerate(args):
                self.put((made, index), self.prepared(value))
            return made.alone
        if name in ("prepare_model", "prepare_optimizer", "prepare_data_loader", "prepare_scheduler"):
            for o in first.objs:
                self.use(o, "prepare", node)
            return self.prepared(first)
        if name == "unwrap_model":
            return Value(frozenset(o.inner for o in first.objs), first.marks)
        if name in AGREEING:
            self._given(node, args, keywords, base)
            agreed = Value(self.agreed(first).objs, frozenset())
            return agreed if agreed.objs else Value(self._made(base, node, args, keywords, frozenset()).objs, frozenset())
        if name == "pad_across_processes" or name == "skip_first_batches":
            return first
        if name == "backward":
            for o in first.objs:
                self.use(o, "backward", node)
        return None

    def deep_marks(self, value: Value) -> frozenset[ast.AST]:
        """What marks a value, or the elements of its containers."""
        marks = value.marks
        for obj in value.objs:
            if obj.kind in ("list", "tuple", "dict"):
                marks |= self.anything_in(obj).marks
        return marks

    def making(self, node: ast.AST) -> ast.AST:
        """A mark of its own for a call that makes a tensor (a draw's own node says something else)."""
        return self._making.setdefault(node, ast.Pass(lineno=getattr(node, "lineno", 0)))

    def agreed(self, value: Value) -> Value:
        """The value when all ranks hold the same: no marks, in its containers neither."""
        objs = []
        for obj in value.objs:
            if obj.kind in ("tuple", "list", "dict"):
                twin = self.world.obj(obj.kind, "agreed", None, obj.site)
                for (_, key), part in self._elements(obj):
                    self.put((twin, key), self.agreed(part))
                obj = twin
            objs.append(obj)
        return Value(frozenset(objs), frozenset())

    def _container(self, base: Obj, name: str, node: ast.AST, args: list[Value], keywords: Keywords, marks: frozenset[ast.AST]) -> Value:
        if name in ("append", "add", "appendleft") and args:
            self.add((base, "*"), args[0].marked(self.guard))
        elif name == "extend" and args:
            self.add((base, "*"), self.element(args[0], node).marked(self.guard))
        elif name == "insert" and len(args) > 1:
            self.add((base, "*"), args[1].marked(self.guard))
        elif name in ("update", "setdefault") and (args or keywords):
            for word, value in keywords.items():
                self.add((base, ("key", word) if word is not None else "*"), value)
            for other in args[-1].objs if args else ():
                if other.kind == "dict" and name == "update":
                    for (_, index), value in self._elements(other):
                        self.add((base, index), value)
                else:
                    self.add((base, "*"), args[-1])
        elif name == "items":
            made = self.world.obj("iter", "items", None, node)
            self.put((made, 0), self.anything_in(base))
            return Value(frozenset((made,)), marks)
        elif name == "values":
            made = self.world.obj("iter", "values", None, node)
            self.put((made, 0), self.anything_in(base))
            return Value(frozenset((made,)), marks)
        elif name in ("get", "pop", "popleft"):
            key = next((o.name for o in args[0].objs if o.kind == "const"), None) if args else None
            if (base, ("key", key)) in self.store:
                return self.store[base, ("key", key)]
            return self.anything_in(base).join(args[1] if len(args) > 1 else NOTHING)
        elif name == "copy":
            return Value(frozenset((base,)), marks)
        self._given(node, args, keywords, base)
        return self.world.value("made", "." + name, base, node, marks)

    def ends(self, call: ast.Call) -> bool:
        """Whether a call ends the program."""
        return any(o.kind == "external" and str(o.name) in names.EXIT for o in self.at.get(call.func, NOTHING).objs)


def _nested(phase: str, call: ast.AST) -> str:
    """The context of a call: the phase, and the last two places that called."""
    head, *calls = phase.split("@")
    place = f"{getattr(call, 'lineno', 0)}:{getattr(call, 'col_offset', 0)}"
    return "@".join([head, *calls[-1:], place])


def _kind(obj: Obj) -> tuple[str, int, str]:
    return obj.kind, getattr(obj.site, "lineno", 0), str(obj.name)
