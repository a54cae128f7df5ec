"""Runs a script in the abstract, in program order: what each expression can hold at its place. Nothing is imported or evaluated.

One store maps (scope or object, name) to values. Assignments replace; branches are run apart and joined; loop bodies are
run twice; calls of the script's own functions are followed, a bounded number of times each.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from script2accel.analysis.calls import Calls
from script2accel.analysis.expressions import phase_names
from script2accel.analysis.overriding import sets_any
from script2accel.analysis.program import Program
from script2accel.analysis.values import NOTHING, Obj, Value, join_all
from script2accel.source import Source, walk

Key = tuple[object, object]
Binding = Callable[["Machine"], None]


class Machine(Calls):
    """The abstract run of one program. `before` and `behind` hold bindings to make before or behind a statement (what a planned edit will do)."""

    def __init__(
        self, source: Program, before: dict[ast.AST, list[Binding]] | None = None, behind: dict[ast.AST, list[Binding]] | None = None
    ) -> None:
        super().__init__(source)
        self.before, self.behind = before or {}, behind or {}
        self.rehearsed = before is not None
        self.rerun = 0
        self._runners: dict[type[ast.stmt], Callable[..., bool]] = {}

    # the whole -------------------------------------------------------------------------------------------

    def run(self) -> Machine:
        """Run the entry scripts and what they import, then what nothing in them calls."""
        for entry in self.source.entries:
            self.run_module(entry)
        for _ in range(3):
            waiting = [node for node in self.definitions if node not in self.runs]
            if not waiting:
                break
            for node in waiting:
                if node not in self.runs:
                    self._run_uncalled(node)
        return self

    def run_module(self, source: Source) -> None:
        """Run a file's module body, once."""
        if source.tree in self.imported:
            return
        self.imported[source.tree] = source
        self.teaching.open(source)
        self.collect_names(source.tree)
        phase, self.phase, guard, self.guard, tables, self.locals = self.phase, "", self.guard, frozenset(), self.locals, []
        self.execute(source.tree.body, source.tree)
        self.phase, self.guard, self.locals = phase, guard, tables

    def module(self, source: Source) -> Obj:
        """The object of a module, its body run."""
        self.run_module(source)
        return self.world.obj("module", source.path, None, source.tree)

    def module_value(self, source: Source) -> Value:
        return self.module(source).alone

    def module_member(self, obj: Obj, name: str, node: ast.AST) -> Value:
        found = self.store.get((obj.site, name))
        if found is not None:
            return found
        below = self.source.resolve(self.source.by_tree[obj.site], name, 1) if str(obj.name).endswith("__init__.py") else None  # type: ignore[index]
        if below is not None:
            return Value(frozenset((self.module(below),)), frozenset())
        return self.world.value("external", f"{str(obj.name).removesuffix('.py').removesuffix('/__init__').replace('/', '.')}.{name}")

    def _run_uncalled(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        owner = self.source.scope(node)
        function = self.world.obj("function", node.name, None, node)
        self.uncalled.add(node)
        if isinstance(owner, ast.ClassDef):
            cls = self.world.obj("class", owner.name, None, owner)
            instances = self.instances.get(cls) or [self.instance(cls, owner, construct=True)]
            if node in self.runs:
                return
            self.invoke(function, node, [Value(frozenset(instances), frozenset())], {}, known=False)
        else:
            self.invoke(function, node, [], {}, known=False)

    # statements ------------------------------------------------------------------------------------------

    def execute(self, body: list[ast.stmt], scope: ast.AST) -> bool:
        """Run statements in order; True when the end isn't reached."""
        for statement in body:
            self.steps += 1
            self.order.setdefault(statement, len(self.order))
            for binding in self.before.get(statement, ()):
                binding(self)
            kind = type(statement)
            run = self._runners.get(kind)
            if run is None:
                run = self._runners[kind] = getattr(self, f"do_{kind.__name__}", self._do_nothing)
            ended = run(statement, scope)
            for binding in self.behind.get(statement, ()):
                binding(self)
            if ended:
                return True
        return False

    def _do_nothing(self, statement: ast.stmt, scope: ast.AST) -> bool:
        return False

    def do_Expr(self, node: ast.Expr, scope: ast.AST) -> bool:
        self.eval(node.value, scope)
        return isinstance(node.value, ast.Call) and self.ends(node.value)

    def do_Assign(self, node: ast.Assign, scope: ast.AST) -> bool:
        value = self.eval(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)
        return False

    def do_AnnAssign(self, node: ast.AnnAssign, scope: ast.AST) -> bool:
        if node.value is not None:
            self.assign(node.target, self.eval(node.value, scope), scope)
        return False

    def do_AugAssign(self, node: ast.AugAssign, scope: ast.AST) -> bool:
        old, new = self.eval(node.target, scope), self.eval(node.value, scope)
        kept = [o for o in old.objs if o.kind in ("list", "dict", "instance", "made", "param", "attr")] if isinstance(node.op, ast.Add) else []
        for obj in old.objs:
            if obj.kind == "list":
                self.add((obj, "*"), self.element(new, node))
        result = self.world.value("expr", "", None, node, old.marks | new.marks)
        self.operands.setdefault(node, []).append((old, new))
        lists = frozenset(o for o in kept if o.kind == "list")
        self.assign(node.target, Value(result.objs | lists, result.marks) if lists else result, scope)
        return False

    def do_Return(self, node: ast.Return, scope: ast.AST) -> bool:
        function = self.source.scope(node)
        value = self.eval(node.value, scope) if node.value is not None else NOTHING
        self.returns[function] = self.returns.get(function, NOTHING).join(value.marked(self.guard))
        return True

    def do_Raise(self, node: ast.Raise, scope: ast.AST) -> bool:
        for part in (node.exc, node.cause):
            if part is not None:
                self.eval(part, scope)
        return True

    def do_Delete(self, node: ast.Delete, scope: ast.AST) -> bool:
        return False

    def do_Assert(self, node: ast.Assert, scope: ast.AST) -> bool:
        self.eval(node.test, scope)
        return False

    def do_Import(self, node: ast.Import, scope: ast.AST) -> bool:
        importer = self.source.of(node)
        for alias in node.names:
            name = alias.name if alias.asname else alias.name.split(".")[0]
            found = self.source.resolve(importer, name)
            if found is not None and found is not importer:
                if not alias.asname and "." in alias.name:
                    inner = self.source.resolve(importer, alias.name)
                    if inner is not None:
                        self.module(inner)
                self.bind(scope, alias.asname or name, Value(frozenset((self.module(found),)), frozenset()))
            else:
                self.bind(scope, alias.asname or name, self.world.value("external", name))
        return False

    def do_ImportFrom(self, node: ast.ImportFrom, scope: ast.AST) -> bool:
        module = "." * node.level + (node.module or "")
        importer = self.source.of(node)
        found = self.source.resolve(importer, node.module or "", node.level)
        if found is importer:
            found = None
        if found is not None:
            self.run_module(found)
        for alias in node.names:
            if alias.name == "*":
                self._import_star(found, module, scope)
                continue
            value = self.store.get((found.tree, alias.name)) if found is not None else None
            if value is None:
                dotted = f"{node.module}.{alias.name}" if node.module else alias.name
                below = self.source.resolve(importer, dotted, node.level)
                value = Value(frozenset((self.module(below),)), frozenset()) if below is not None and below is not importer else None
            if value is None:
                self.teaching.imported(importer, node.module or "", node.level, alias.name)
            self.bind(scope, alias.asname or alias.name, value or self.world.value("external", f"{module}.{alias.name}"))
        return False

    def _import_star(self, found: Source | None, module: str, scope: ast.AST) -> None:
        if found is None:
            self.stars.append(module)
            return
        public = _listed(found)
        for name in sorted(self.bound.get(found.tree, ())):
            value = self.store.get((found.tree, name))
            if value is not None and (name in public if public is not None else not name.startswith("_")):
                self.bind(scope, name, value)
                self.bound.setdefault(self.source.root(scope), set()).add(name)

    def do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef, scope: ast.AST) -> bool:
        for default in (*node.args.defaults, *(d for d in node.args.kw_defaults if d is not None), *node.decorator_list):
            self.eval(default, scope)
        value = self.world.value("function", node.name, None, node)
        self.bind(scope, node.name, value)
        self._registered(node, value)
        return False

    do_AsyncFunctionDef = do_FunctionDef

    def do_ClassDef(self, node: ast.ClassDef, scope: ast.AST) -> bool:
        cls = self.world.obj("class", node.name, None, node)
        self.bases[cls] = [base for expr in node.bases for base in self.eval(expr, scope).objs]
        for keyword in node.keywords:
            self.eval(keyword.value, scope)
        self.bind(scope, node.name, cls.alone)
        self.execute(node.body, cls)  # type: ignore[arg-type]
        for decorator in node.decorator_list:
            self.eval(decorator, scope)
        self._registered(node, cls.alone)
        self._told_to_bases(cls, node)
        return False

    def _registered(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, value: Value) -> None:
        """Follow decorators of the project that give back what they are given: they keep it in a table. What others do is left out."""
        for decorator in reversed(node.decorator_list):
            callee = self.at.get(decorator, NOTHING)
            if not any(o.kind in ("function", "method") for o in callee.objs) or any(o.kind == "external" for o in callee.objs):
                continue
            journal, runs, escapes = self.open(), dict(self.runs), {function: list(nodes) for function, nodes in self.escapes.items()}
            given = self.call_objects(callee, decorator, [value], {})
            if value.objs <= given.objs:
                self.meet(journal)
            else:
                self.undo(journal)
                self.runs, self.escapes = runs, escapes

    def _told_to_bases(self, cls: Obj, node: ast.ClassDef) -> None:
        """A class that is defined below one of the project's with `__init_subclass__`: that is run for it."""
        hook = self._inherited(cls).get("__init_subclass__")
        for obj in hook.objs if hook is not None else ():
            if obj.kind == "function":
                self.invoke(obj, node, [cls.alone], {})

    def do_If(self, node: ast.If, scope: ast.AST) -> bool:
        """An `if` with all its `elif`s, one beside the other: a chain of hundreds must not nest the run."""
        blocks: list[list[ast.stmt]] = []
        guards: list[frozenset[ast.AST]] = []
        marks: frozenset[ast.AST] = frozenset()
        while True:
            tested = self.tested(node.test, scope)
            known = self.truth(node.test)
            marks |= tested if known is None else frozenset()
            if known is not False:
                blocks.append(node.body)
                guards.append(marks)
            if known:
                break
            following = node.orelse[0] if len(node.orelse) == 1 else None
            if not isinstance(following, ast.If) or following in self.before or following in self.behind:
                blocks.append(node.orelse)
                guards.append(marks)
                break
            node = following
            self.steps += 1
            self.order.setdefault(node, len(self.order))
        return self.execute(blocks[0], scope) if len(blocks) == 1 else self._branches(blocks, scope, guards)

    def _branches(self, blocks: list[list[ast.stmt]], scope: ast.AST, guards: list[frozenset[ast.AST]]) -> bool:
        """Run blocks from the same state, each under the marks of what chose it, and join what they leave."""
        guard = self.guard
        outcomes: list[dict[Key, Value | None]] = []
        ended = []
        returned: dict[Key, Value | None] = {}  # the insides of what a block makes and gives back: the function's callers see them
        for block, marks in zip(blocks, guards, strict=True):
            self.guard = guard | marks
            journal = self.open()
            over = self.execute(block, scope)
            ended.append(over)
            fresh = {key for key, old in journal.items() if old is None and isinstance(key[0], Obj)}
            changed = self.undo(journal)
            if not over or self._leaves_by_jump(block):
                outcomes.append(changed)
            else:
                returned |= {key: changed[key] for key in fresh}
        self.guard = guard
        for key in dict.fromkeys(key for changed in outcomes for key in changed):
            old = self.store.get(key)
            parts = [changed.get(key, old) for changed in outcomes]
            self.put(key, join_all([part for part in parts if part is not None]))
        for key, value in returned.items():
            if value is not None:
                self.add(key, value)
        return all(ended)

    def _leaves_by_jump(self, block: list[ast.stmt]) -> bool:
        return any(isinstance(n, (ast.Break, ast.Continue)) for s in block for n in walk(s))

    def do_For(self, node: ast.For | ast.AsyncFor, scope: ast.AST) -> bool:
        source = self.eval(node.iter, scope)
        self.iterated(source, node)
        phases = self.phases(node.iter)
        if phases:
            self._unrolled(node, phases, scope)
            return False
        self.running.append((node, frozenset(self.through(source))))
        self._loop(node, scope, lambda: self.assign(node.target, self.element(source, node), scope))
        self.running.pop()
        return False

    do_AsyncFor = do_For

    def do_While(self, node: ast.While, scope: ast.AST) -> bool:
        guard = self.guard

        def turn() -> None:
            self.guard = guard | self.tested(node.test, scope)

        self._loop(node, scope, turn)
        self.eval(node.test, scope)
        self.guard = guard
        forever = isinstance(node.test, ast.Constant) and node.test.value
        return bool(forever) and not any(isinstance(n, (ast.Break, ast.Return)) for n in walk(node))

    def _unrolled(self, node: ast.For | ast.AsyncFor, phases: list[tuple[str, Value]], scope: ast.AST) -> None:
        """A loop over a few written constants is run once for each of them, so that what belongs to one phase stays there."""
        self.phase_names |= phase_names(node.target)
        for phase, given in phases:
            old, self.phase = self.phase, f"{self.phase}/{phase}"
            self.assign(node.target, given, scope)
            self.execute(node.body, scope)
            self.phase = old
        self.execute(node.orelse, scope)

    def tested(self, test: ast.expr, scope: ast.AST) -> frozenset[ast.AST]:
        """What makes a condition differ between ranks; a container is true by its length."""
        value = self.eval(test, scope)
        inner = test.operand if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not) else test
        return self.ranked(value.marks).union(*(self.lengths.get(o, frozenset()) for o in self.at.get(inner, value).objs))

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, scope: ast.AST, bind: Callable[[], None]) -> None:
        guard, exits = self.guard, _exits(node)
        for turn in range(1 if self.rerun else 2):
            self.rerun += turn
            journal = self.open()
            bind()
            self.guard = self.guard.union(*map(self.marks_of, exits))  # how many turns there are is marked, too
            self.execute(node.body, scope)
            self.meet(journal)
            self.rerun -= turn
        self.guard = guard
        self.execute(node.orelse, scope)

    def do_With(self, node: ast.With | ast.AsyncWith, scope: ast.AST) -> bool:
        for item in node.items:
            value = self.eval(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.execute(node.body, scope)

    do_AsyncWith = do_With

    def do_Try(self, node: ast.Try, scope: ast.AST) -> bool:
        journal = self.open()
        ended = self.execute(node.body, scope)
        ended = (self.execute(node.orelse, scope) if not ended else True) if node.orelse else ended
        self.meet(journal)
        for handler in node.handlers:
            journal = self.open()
            if handler.name:
                self.bind(scope, handler.name, self.world.value("made", "exception", None, handler))
            if not self.execute(handler.body, scope):
                ended = False
            self.meet(journal)
        return self.execute(node.finalbody, scope) or (ended and not node.handlers)

    do_TryStar = do_Try

    def do_Match(self, node: ast.Match, scope: ast.AST) -> bool:
        subject = self.eval(node.subject, scope)
        for case in node.cases:
            for pattern in walk(case.pattern):
                name = getattr(pattern, "name", None)
                if isinstance(pattern, (ast.MatchAs, ast.MatchStar)) and name:
                    self.bind(scope, name, Value(subject.objs, subject.marks))
        blocks = [*(case.body for case in node.cases), []]
        self._branches(blocks, scope, [subject.marks] * len(blocks))
        return False

    def do_Global(self, node: ast.Global, scope: ast.AST) -> bool:
        return False

    # assignment ------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, value: Value, scope: ast.AST) -> None:
        """Bind a target of any form."""
        value = self.teaching.bound(target, value)
        self.at[target] = self.at[target].join(value) if target in self.at else value
        match target:
            case ast.Name(id=name):
                self.bind(scope, name, value)
            case ast.Starred(value=inner):
                self.assign(inner, value, scope)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                for index, part in enumerate(parts):
                    self.assign(part, self.part(value, index, len(parts), target, value.marks), scope)
            case ast.Attribute(value=owner, attr=name):
                for obj in self.eval(owner, scope).objs:
                    self.put((obj, name), value.marked(self.guard))
                    self.attribute_writes.setdefault((obj, name), []).append(target)
            case ast.Subscript(value=owner, slice=index):
                key = self.constant(index)
                self.eval(index, scope)
                if sets_any(target):
                    self.overridden(target)
                for obj in self.eval(owner, scope).objs:
                    self.grow(obj)
                    if obj.kind in ("dict", "list", "tuple", "made", "param", "attr", "instance"):
                        if key is None or obj.kind != "dict":
                            self.add((obj, "*"), value.marked(self.guard))
                        else:
                            self.put((obj, ("key", key)), value.marked(self.guard))
            case _:
                self.eval(target, scope)

    def bind(self, scope: ast.AST, name: str, value: Value) -> None:
        """Set a variable of a scope (through `global` and `nonlocal`)."""
        self.put((self.owner(scope, name, store=True), name), value.marked(self.guard))

    def names(self, scope: ast.AST) -> Iterable[tuple[str, Value]]:
        """The variables of a scope and what they hold now."""
        return [(str(name), value) for (owner, name), value in self.store.items() if owner is scope]


def _exits(loop: ast.For | ast.AsyncFor | ast.While) -> list[ast.expr]:
    """The conditions under which a loop is left by a `break` of its own."""
    found: list[ast.expr] = []

    def look(block: list[ast.stmt], tests: list[ast.expr]) -> None:
        for statement in block:
            match statement:
                case ast.Break():
                    found.extend(tests)
                case ast.If(test=test, body=body, orelse=orelse):
                    look(body, [*tests, test])
                    look(orelse, [*tests, test])
                case ast.With(body=body) | ast.AsyncWith(body=body):
                    look(body, tests)
                case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=finalbody):
                    for part in (body, *(handler.body for handler in handlers), orelse, finalbody):
                        look(part, tests)

    look(loop.body, [])
    return found


def _listed(source: Source) -> set[str] | None:
    """The names that a module's `__all__` lists, where that can be read."""
    for statement in source.tree.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=parts) | ast.Tuple(elts=parts)):
                names = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
                whole = sum(isinstance(node, ast.Name) and node.id == "__all__" for node in source.nodes) == 1
                return names if whole and len(names) == len(parts) else None
    return None
