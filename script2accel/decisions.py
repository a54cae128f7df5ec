"""Choices that several rules share, made once: what is prepared, where, in what order; which accelerator a place speaks to."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field

from script2accel.analysis.devices import definitions_cached
from script2accel.analysis.facts import FUNCTIONS, Facts, Function
from script2accel.analysis.homes import Binding, Homes
from script2accel.analysis.machine import Machine
from script2accel.analysis.values import NOTHING, Obj, Value
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.evaluation import EveryRank, Gather, plan_evaluation
from script2accel.options import Options

UNPLACED = Message(
    "S2A200",
    Severity.ERROR,
    "no place is found where {what} can be prepared: {why}",
    "create model, optimizer and loaders in one function, before the loops, and convert again",
)
ORDER = ("model", "criterion", "optimizer", "loader")
Ident = tuple[object, ...]


def ident(obj: Obj) -> Ident:
    """What an object is, the same in every run over the same tree."""
    obj = obj.inner
    return (obj.kind, obj.name, obj.site, obj.context, ident(obj.base) if obj.base is not None else None)


@dataclass(frozen=True, eq=False)
class Prepare:
    """One call of prepare: in front of `anchor` (behind it, with `behind`); `items` are (path, object) in order."""

    scope: Function
    anchor: ast.stmt
    behind: bool
    items: tuple[tuple[str, Obj], ...]


@dataclass(eq=False)
class Draft:
    """What was decided from the script as it stands."""

    prepares: list[Prepare] = field(default_factory=list)
    gathers: list[Gather] = field(default_factory=list)
    every_rank: list[EveryRank] = field(default_factory=list)
    problems: list[Diagnostic] = field(default_factory=list)
    prepared: frozenset[Ident] = frozenset()


def draft(facts: Facts) -> Draft:
    """Decide what is prepared and where, and how evaluation is kept."""
    result = Draft()
    training = {ident(o) for loop in facts.train_loops for o in loop.loaders}
    blocked = set()
    for loop in facts.eval_loops:
        plan = plan_evaluation(facts, loop)
        if isinstance(plan, Gather):
            result.gathers.append(plan)
        else:
            result.every_rank.append(plan)
            blocked |= {ident(o) for o in loop.loaders} - training
    # a loader that one loop can't gather stays whole for all its evaluation loops
    while True:
        more = [g for g in result.gathers if any(ident(o) in blocked for o in g.loop.loaders)]
        if not more:
            break
        for gather in more:
            result.gathers.remove(gather)
            result.every_rank.append(EveryRank(gather.loop, "its loader is also read by a loop that can't be gathered", gather.loop.loop))
            blocked |= {ident(o) for o in gather.loop.loaders} - training
    loaders = [o for o in facts.loaders if ident(o) not in blocked and _in_loops(facts, o)]
    _Placer(facts, result).place(facts.models, facts.optimizers, loaders)
    result.prepared = frozenset(ident(o) for p in result.prepares for _, o in p.items)
    return result


def _in_loops(facts: Facts, loader: Obj) -> bool:
    loops = [*(t.loaders for t in facts.train_loops), *(e.loaders for e in facts.eval_loops)]
    return any(loader in found for found in loops)


class _Placer:
    """Finds the place of every prepare call."""

    def __init__(self, facts: Facts, result: Draft) -> None:
        self.facts, self.result, self.homes = facts, result, Homes(facts)

    def place(self, models: list[Obj], optimizers: list[Obj], loaders: list[Obj]) -> None:
        """Place everything: one call where that is possible."""
        if not optimizers or not models:
            return
        groups: dict[Function, list[Obj]] = {}
        for optimizer in optimizers:
            scopes = self.homes.outermost(optimizer)
            if not scopes:
                self._fail(optimizer, "the optimizer", "the optimizer isn't held by a name")
                return
            groups.setdefault(scopes[0], []).append(optimizer)
        placed: set[Obj] = set()
        for scope, own in groups.items():
            trained = [m for m in models if any(o in self.facts.roles.training.get(m, ()) for o in own) and m not in placed]
            wanted = [o for o in loaders if o not in placed and (len(groups) == 1 or self._serves(o, own))]
            self._group(scope, trained, own, wanted)
            placed |= {*trained, *wanted}
        for loader in loaders:
            if loader not in placed:
                self._loader_alone(loader)

    def _serves(self, loader: Obj, optimizers: list[Obj]) -> bool:
        """Whether one of the optimizers steps in a loop over the loader, or the loader is evaluated beside it in one function."""
        facts = self.facts
        loops = [t.loop for t in facts.train_loops if loader in t.loaders] + [e.loop for e in facts.eval_loops if loader in e.loaders]
        for step in facts.optimizer_steps:
            if any(o in step.objs for o in optimizers) and any(facts.inside(loop, step.call) for loop in loops):
                return True
        mine = {s for o in optimizers for s in self.homes.outermost(o)}
        return any(self._path(loader, s) is not None for s in mine)

    def _group(self, scope: Function, models: list[Obj], optimizers: list[Obj], loaders: list[Obj]) -> None:
        """Place the objects of the optimizers that one scope makes."""
        core = [*models, *optimizers]
        paths = {o: self._path(o, scope) for o in (*core, *loaders)}
        missing = next((o for o in core if paths[o] is None), None)
        if missing is not None:
            role = self.facts.roles.of(missing)
            self._fail(missing, f"the {role}", f"`{_where(scope)}`, where the optimizer is made, has no name for it")
            return
        here = [o for o in loaders if paths[o] is not None and not self._only_parameter_of_loop(o, scope)]
        if not self._call(scope, [*core, *here], paths):
            first = self._call(scope, here, paths) if here else True
            if not (first and self._call(scope, core, paths)):
                self._fail((models or optimizers)[0], "the model", f"in `{_where(scope)}` something is used before all of it exists")
                return
        for loader in loaders:
            if loader not in here:
                self._loader_alone(loader)

    def _only_parameter_of_loop(self, obj: Obj, scope: Function) -> bool:
        """A loader that the scope got as a parameter while it is run again and again is prepared where it is made."""
        bindings = self.homes.bindings(obj, scope)
        return bool(bindings) and all(b.statement is None for b in bindings) and bool(self.facts.all_loops(scope) if not isinstance(scope, ast.Module) else ())

    def _loader_alone(self, loader: Obj) -> None:
        for scope in self.homes.outermost(loader):
            path = self._path(loader, scope)
            if path is not None and self._call(scope, [loader], {loader: path}):
                return
        self._fail(loader, "a loader", "no name holds it between its making and the loop")

    def _path(self, obj: Obj, scope: Function) -> str | None:
        found = self.homes.bindings(obj, scope)
        good = [b.path for b in found if b.path.isidentifier() or b.path.startswith("self.") or "[" in b.path]
        used = self._used_names(obj)
        return next((path for path in reversed(good) if path in used), good[-1] if good else None)

    def _used_names(self, obj: Obj) -> set[str]:
        """The names under which loops read, and statements call or step, an object (not those of a progress bar around it)."""
        facts = self.facts
        nodes: list[ast.expr] = [f.call.func for f in facts.forwards if obj in f.models]
        nodes += [s.owner for s in facts.optimizer_steps if obj in s.objs]
        for what, node in facts.machine.uses.get(obj, ()):
            if what in ("iterated", "iter", "len", "given"):
                nodes += [n for n in ast.walk(getattr(node, "iter", node)) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))]
        exact = [n for n in nodes if {o.inner for o in facts.machine.at.get(n, NOTHING).objs} == {obj}]
        return {ast.unparse(n) for n in exact}

    def _fail(self, obj: Obj, what: str, why: str) -> None:
        line = getattr(obj.site, "lineno", 1)
        path = self.facts.source.of(obj.site).path if obj.site is not None else self.facts.source.entries[0].path
        self.result.problems.append(UNPLACED.at(line, path=path, what=what, why=why))

    # one call --------------------------------------------------------------------------------------------

    def _call(self, scope: Function, objs: list[Obj], paths: dict[Obj, str | None]) -> bool:
        """Find the interval in which all objects exist and none is used yet; add the call."""
        bindings = [b for o in objs for b in self.homes.bindings(o, scope) if b.path == paths[o]]
        block = self._block(scope, [b for b in bindings if b.statement is not None and b.scope is scope])
        if block is None or not block:
            return False
        if any(not self._same_times(o, block[0]) for o in objs):
            return False
        earliest = 0
        latest = len(block)
        for obj in objs:
            made = self._made_before(block, [b for b in bindings if b.path == paths[obj] and b.scope is scope and obj in self._objs(b)], obj)
            earliest = max(earliest, made)
            latest = min(latest, self._first_use(block, obj, made))
        if earliest > latest:
            return False
        for index in range(earliest, latest):
            if self._loads(block[index], objs):
                earliest = index + 1
        behind = earliest == len(block) or (earliest > 0 and self.facts.source.alone(block[earliest - 1]))
        anchor = block[earliest - 1] if behind else block[earliest]
        items = tuple((str(paths[o]), o) for o in sorted(objs, key=self._rank))
        unique: dict[str, Obj] = {}
        for path, obj in items:
            unique.setdefault(path, obj)
        self.result.prepares.append(Prepare(scope, anchor, behind, tuple((p, o) for p, o in items if unique[p] is o or True)))
        return True

    def _objs(self, binding: Binding) -> list[Obj]:
        return [o for o, found in self.homes.table.items() if binding in found]

    def _rank(self, obj: Obj) -> tuple[int, int]:
        role = self.facts.roles.of(obj)
        if role in ("model", "criterion"):
            return 0, self.facts.models.index(obj)
        if role == "optimizer":
            return 1, self.facts.optimizers.index(obj)
        train = any(obj in loop.loaders for loop in self.facts.train_loops)
        return (2 if train else 3), getattr(obj.site, "lineno", 0)

    def _block(self, scope: Function, bindings: list[Binding]) -> list[ast.stmt] | None:
        """The innermost list of statements that holds all the bindings."""
        chains = []
        for binding in bindings:
            assert binding.statement is not None
            chain: list[list[ast.stmt]] = []
            node: ast.AST = binding.statement
            while isinstance(node, ast.stmt) and node is not scope:
                chain.append(self.facts.source.block(node))
                node = self.facts.source.parents[node]
                while not isinstance(node, (ast.stmt, ast.Module)):
                    node = self.facts.source.parents[node]
            chains.append(chain)
        if not chains:
            return scope.body
        shared = [block for block in chains[0] if all(any(other is block for other in chain) for chain in chains[1:])]
        return shared[0] if shared else None

    def _same_times(self, obj: Obj, anchor: ast.stmt) -> bool:
        """Whether the object is made as often as the place runs: not once for a place inside a loop."""
        if self.facts.roles.of(obj) == "loader":
            return True
        around = set(self.facts.all_loops(anchor))
        made = [b for b in self.homes.bindings(obj) if b.statement is not None]
        return not around or any(around <= set(self.facts.all_loops(b.statement)) for b in made if b.statement is not None)

    def _made_before(self, block: list[ast.stmt], bindings: list[Binding], obj: Obj) -> int:
        last = 0
        first_loop = self._first_loop(block, obj)
        for binding in bindings:
            for index, statement in enumerate(block):
                if binding.statement is not None and _within(self.facts, statement, binding.statement) and index < first_loop:
                    last = max(last, index + 1)
        return last

    def _first_loop(self, block: list[ast.stmt], obj: Obj) -> int:
        """Where the first loop over the object, or with it, starts: a rebinding in there is no making."""
        for index, statement in enumerate(block):
            if isinstance(statement, (ast.For, ast.While, ast.AsyncFor)) and self._needs(statement, obj):
                return index
        return len(block)

    def _first_use(self, block: list[ast.stmt], obj: Obj, start: int) -> int:
        for index in range(start, len(block)):
            if self._needs(block[index], obj):
                return index
        return len(block)

    def _needs(self, statement: ast.stmt, obj: Obj) -> bool:
        """Whether a statement uses the object in a way that wants it prepared."""
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            return False
        facts = self.facts
        role = facts.roles.of(obj)
        if role == "loader":
            uses = [n for what, n in facts.machine.uses.get(obj, ()) if what in ("iterated", "iter", "next", "len", "attr:batch_size")]
            if any(facts.inside(statement, n) for n in uses):
                return True
        elif role in ("model", "criterion"):
            if any(facts.inside(statement, f.call) for f in facts.forwards if obj in f.models):
                return True
        elif any(facts.inside(statement, s.call) for s in facts.optimizer_steps if obj in s.objs):
            return True
        return self._handed_on(statement, obj)

    def _handed_on(self, statement: ast.stmt, obj: Obj) -> bool:
        """Whether the statement gives the object to a class of the script that keeps it (no nn.Module)."""
        for call in ast.walk(statement):
            if not isinstance(call, ast.Call) or call.func not in self.facts.machine.at:
                continue
            classes = [o for o in self.facts.machine.at[call.func].objs if o.kind == "class" and o.site not in self.facts.module_classes]
            if not classes or self.facts.roles.of_node(call) in ("optimizer", "scheduler", "loader", "dataset", "sampler"):
                continue
            given = [*call.args, *(k.value for k in call.keywords)]
            if any(obj is o.inner for g in given for o in self.facts.machine.at.get(g, NOTHING).objs):
                return True
        return False

    def _loads(self, statement: ast.stmt, objs: list[Obj]) -> bool:
        """Whether a statement loads weights or state into one of the objects."""
        for obj in objs:
            if any(what == ".load_state_dict" and _within(self.facts, statement, n) for what, n in self.facts.machine.uses.get(obj, ())):
                return True
        return False


def _within(facts: Facts, outer: ast.stmt, node: ast.AST) -> bool:
    return node is outer or any(parent is outer for parent in facts.source.ancestors(node))


def _where(scope: Function) -> str:
    return "the module" if isinstance(scope, ast.Module) else scope.name


# what the planned edits will do, told to a second abstract run ----------------------------------------------------

Bind = Callable[[Machine], None]


def rehearse(facts: Facts, plan: Draft) -> Machine:
    """Run the script again as if prepare and gather stood in it."""
    before: dict[ast.AST, list[Bind]] = {}
    behind: dict[ast.AST, list[Bind]] = {}
    for prepare in plan.prepares:
        (behind if prepare.behind else before).setdefault(prepare.anchor, []).append(_binder(prepare))
    for gather in plan.gathers:
        behind.setdefault(gather.statement, []).append(_agreement(facts, gather))
    return Machine(facts.source, before, behind).run()


def _binder(prepare: Prepare) -> Bind:
    wanted = {path: {ident(o) for p, o in prepare.items if p == path} for path, _ in prepare.items}

    def bind(machine: Machine) -> None:
        for path, idents in wanted.items():
            for key in _keys(machine, prepare.scope, path):
                old = machine.store.get(key)
                if old is not None:
                    new = frozenset(machine.world.obj("prepared", "", o, None) if o.kind != "prepared" and ident(o) in idents else o for o in old.objs)
                    machine.put(key, Value(new, old.marks))

    return bind


def _keys(machine: Machine, scope: Function, path: str) -> list[tuple[object, object]]:
    """The store's keys of a path in a scope: a name, `self.x`, `name["key"]`."""
    tree = ast.parse(path, mode="eval").body
    match tree:
        case ast.Name(id=name):
            return [(machine.owner(scope, name), name)]
        case ast.Attribute(value=owner, attr=name):
            return [(o, name) for key in _keys(machine, scope, ast.unparse(owner)) for o in machine.store.get(key, NOTHING).objs]
        case ast.Subscript(value=owner, slice=ast.Constant(value=index)):
            return [(o, ("key", index)) for key in _keys(machine, scope, ast.unparse(owner)) for o in machine.store.get(key, NOTHING).objs]
    return []


def _agreement(facts: Facts, gather: Gather) -> Bind:
    scope = facts.source.scope(gather.statement)

    def bind(machine: Machine) -> None:
        for name in gather.names:
            key = (machine.owner(scope, name), name)
            old = machine.store.get(key)
            if old is not None:
                machine.put(key, Value(old.objs, frozenset()))

    return bind


class Decisions:
    """What was decided, over the facts of the rehearsed run."""

    def __init__(self, facts: Facts, plan: Draft, options: Options) -> None:
        self.facts, self.plan, self.options = facts, plan, options
        self.name = next(name for name in ("accelerator", "accel", "hf_accelerator") if name not in facts.source.names or self._is_ours(facts, name))
        self.global_modules = self._global_modules()
        self.needs: list[ast.AST] = []
        self.essential_needs: list[ast.AST] = []
        self.unreached: list[ast.AST] = []  # functions and classes that the accelerator can't be handed to
        self.spared: frozenset[tuple[str, str]] = frozenset()  # (path, name) of functions whose signature must stay
        # what the accelerator is constructed with: keyword -> text, options of DataLoaderConfiguration, kwargs handlers, and the imports that these take
        self.arguments: dict[str, str] = {}
        self.loader_arguments: dict[str, str] = {}
        self.handlers: list[str] = []
        self.imports: dict[tuple[str, str], None] = {}
        self.read: list[ast.expr] = []
        self.grouped: ast.expr | None = None  # how many batches make a group, as the script reads it
        self.changed: list[ast.AST] = []  # functions and classes that take the accelerator from now on

    def _is_ours(self, facts: Facts, name: str) -> bool:
        trees = [source.tree for source in facts.source.entries]
        return any(o.kind == "made" and o.path.startswith("accelerate.") for tree in trees for o in facts.machine.store.get((tree, name), NOTHING).objs)

    def _global_modules(self) -> set[ast.Module]:
        """The entry scripts whose accelerator is a module global: prepare stands at module level, or a device does that functions read."""
        found = {p.scope for p in self.plan.prepares if isinstance(p.scope, ast.Module)}
        for definition in definitions_cached(self.facts):
            scope = self.facts.function(definition)
            if isinstance(scope, ast.Module) and self.facts.source.is_entry(definition):
                found.add(scope)
        return {tree for tree in found if self.facts.source.is_entry(tree)}

    def is_global(self, node: ast.AST) -> bool:
        """Whether, where a node stands, the accelerator is a global of the module."""
        return self.facts.source.root(node) in self.global_modules

    def accelerator(self, node: ast.AST, *, essential: bool = True) -> str:
        """How the accelerator is written at a place; the place is remembered as one that needs it (or, not essential, would like it)."""
        self.needs.append(node)
        if essential:
            self.essential_needs.append(node)
        owner = self.method_of(node)
        return f"{owner}.{self.name}" if owner and not self.is_global(node) else self.name

    def may_ask(self, node: ast.AST) -> bool:
        """Whether output and downloads may want the accelerator at a place: not where other scripts call the function as it is."""
        names = {getattr(p, "name", "") for p in (node, *self.facts.source.ancestors(node)) if isinstance(p, (*FUNCTIONS, ast.ClassDef))}
        path = self.facts.source.of(node).path
        return not any((path, name) in self.spared for name in names)

    def reads(self, node: ast.expr) -> str:
        """Stands, in the text of an argument of the accelerator, for an expression of the script: it is written there as the birthplace knows it."""
        if not any(known is node for known in self.read):
            self.read.append(node)
        return f"\0{next(i for i, known in enumerate(self.read) if known is node)}\0"

    def device(self, node: ast.AST) -> str | None:
        """How a place writes the device: the accelerator's, or in an nn.Module's methods that of its own parameters."""
        if not self.facts.in_module(node) or self.is_global(node):
            return f"{self.accelerator(node)}.device"
        function = self.facts.function(node)
        if isinstance(function, ast.Module) or function.name == "__init__" or not function.args.args:
            return None
        return f"next({function.args.args[0].arg}.parameters()).device"

    def class_has(self, node: ast.AST) -> bool:
        """Whether the class of the method that a node stands in trains, evaluates, prepares, or was asked for: it has an accelerator anyway."""
        owner = self.facts.inside_class(node, {n for n in self.facts.source.nodes if isinstance(n, ast.ClassDef)})
        places = [*(b.call for b in self.facts.backwards), *(p.anchor for p in self.plan.prepares), *(g.statement for g in self.plan.gathers), *self.needs]
        return owner is not None and any(parent is owner for place in places for parent in self.facts.source.ancestors(place))

    def method_of(self, node: ast.AST) -> str:
        """The name of `self` where the node stands in a method of a class of the script, else ''."""
        child: ast.AST = self.facts.function(node)
        while isinstance(child, FUNCTIONS):
            owner = self.facts.source.scope(child)
            if isinstance(owner, ast.ClassDef):
                static = any(ast.unparse(d) in ("staticmethod", "classmethod") for d in child.decorator_list)
                return child.args.args[0].arg if child.args.args and not static else ""
            child = self.facts.function(owner) if not isinstance(owner, ast.Module) else owner
        return ""

    def is_prepared(self, obj: Obj) -> bool:
        """Whether an object is (or will be) prepared somewhere."""
        return ident(obj) in self.plan.prepared or obj.kind == "prepared"

    def prepared_here(self, node: ast.AST, role: str) -> bool:
        """Whether, at this place, everything of a role that the expression can hold went through prepare."""
        found = self.facts.roles.objects(node, role)
        return bool(found) and all(o.kind == "prepared" for o in found)
