"""What is prepared, and where: one call in front of the first use, behind the making of everything that it takes."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from script2accel.analysis.context import guarded
from script2accel.analysis.distribution import agreements, dealt, summed_by_hand, unsettled
from script2accel.analysis.facts import EvalLoop, Facts, Forward, Function, Loop
from script2accel.analysis.homes import Binding, Homes
from script2accel.analysis.slicing import Sliced, sliced_loops
from script2accel.analysis.values import NOTHING, Obj
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.evaluation import EveryRank, Gather, plan_evaluation
from script2accel.launched import Launch, find, inside_name, places, renamed
from script2accel.options import Options
from script2accel.source import walk
from script2accel.states import States, covered, states

UNPLACED = Message(
    "S2A200",
    Severity.ERROR,
    "no place is found where {what} can be prepared: {why}",
    "create model, optimizer and loaders in one function, before the loops, and convert again",
)
UNCALLED = Message(
    "S2A295",
    Severity.ERROR,
    "this model is trained, and never called: training goes through its parts or methods, whose gradients would not be synchronised between ranks",
    "call the model itself (let `forward` do what training calls), and convert again",
)
DEPENDS = Message(
    "S2A256",
    Severity.ERROR,
    "the ranks' results are brought together here only if `{test}`, which needn't be true when several processes run",
    "test `accelerator.num_processes > 1` instead, and convert again",
)
SHARED = Message(
    "S2A209",
    Severity.ERROR,
    "this evaluation adds up what each rank counted, and its loader is also read whole by another loop",
    "give the two loops a loader each, and convert again",
)
MIXED = Message(
    "S2A291",
    Severity.ERROR,
    "what `{name}` holds can't be told: by how it is made it may be {roles}",
    "say which it is at the end of this line ({marks}), or make each in a way of its own, and convert again",
)
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
    shares: list[EvalLoop] = field(default_factory=list)
    agreements: list[tuple[ast.stmt, str]] = field(default_factory=list)
    slices: list[Sliced] = field(default_factory=list)
    prepared: frozenset[Ident] = frozenset()
    states: States = field(default_factory=States)
    launch: Launch | None = None
    unlaunched: str = ""  # why a notebook is asked for several processes, and trains in one


def draft(facts: Facts, options: Options) -> Draft:
    """Decide what is prepared and where, and how evaluation is kept: whole on every rank where several processes share a batch."""
    whole = options.grouped
    result = Draft()
    if options.checkpointing == "state":
        result.states = states(facts)
    training = {ident(o) for loop in facts.train_loops for o in loop.loaders}
    blocked = set()
    result.agreements = list(agreements(facts))
    result.slices = sliced_loops(facts)
    for loop in facts.eval_loops:
        sums = summed_by_hand(facts, loop.loop) if any(dealt(o) for o in loop.loaders) else []
        for call in sums:
            if (test := unsettled(facts, call, loop.loop)) is not None:
                result.problems.append(DEPENDS.at(call.lineno, call.col_offset + 1, test=ast.unparse(test)))
        if sums:
            result.shares.append(loop)  # each rank counts its own part, and the script adds them up
            continue
        plan = plan_evaluation(facts, loop)
        if guarded(facts, loop.loop):
            plan = EveryRank(loop, "only the main process runs it", loop.loop)
        elif whole:  # a gather over all ranks would count a batch once for each process that works on it (measured)
            plan = EveryRank(loop, "several processes share a batch", loop.loop)
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
    for loop in result.shares:
        if any(ident(o) in blocked for o in loop.loaders):
            result.problems.append(SHARED.at(loop.loop.lineno, loop.loop.col_offset + 1))
    read = {o for loops in (facts.train_loops, facts.eval_loops) for loop in loops for o in loop.loaders}
    loaders = [o for o in facts.loaders if ident(o) not in blocked and o in read]
    result.problems += _optional(facts)
    placer = Placer(facts, result)
    placer.place(facts.models, facts.optimizers, loaders)
    result.problems += _mixed(facts, placer.homes, result.prepares)
    launch = find(facts, options.num_processes, options.num_machines)
    moved = _launched(facts, result.prepares, launch) if isinstance(launch, Launch) else launch
    if isinstance(moved, str):
        result.unlaunched = moved
    else:
        result.prepares, result.launch = moved
    if result.states.saves:
        result.states.problems += covered(facts, result.states, [(p.anchor, [o for _, o in p.items]) for p in result.prepares])
    result.prepared = frozenset(ident(o) for p in result.prepares for _, o in p.items)
    return result


def _launched(facts: Facts, prepares: list[Prepare], launch: Launch) -> tuple[list[Prepare], Launch] | str:
    """What cells would prepare, prepared in the function that is launched; or why that can't be."""
    homes, found = Homes(facts), [p for p in prepares if not isinstance(p.scope, ast.Module)]
    tree = facts.source.root(launch.calls[0])
    body = tree.body
    for prepare in (p for p in prepares if isinstance(p.scope, ast.Module)):
        items = []
        for path, obj in prepare.items:
            name = inside_name(facts, homes, launch, path, obj)
            uses = [n for what, n in facts.machine.uses.get(obj, ()) if what in ("len", "attr:batch_size")]
            early = sorted(i for n in uses for i in facts.places(body, n) if i not in places(facts, tree, launch))
            kept = [o for (o, _), value in facts.machine.store.items() if isinstance(o, Obj) and _keeps(facts, o) and obj in value.objs]
            if name is None or early or kept:
                return f"cells make `{path}`" + (f" and count its batches (line {body[early[0]].lineno})" if early else "")
            items.append((name, obj))
        _join(facts, found, launch, items)
        given = {a.arg for a in walk(launch.function.args) if isinstance(a, ast.arg)}
        launch = renamed(launch, [name for name, _ in items if name not in given])
    return found, launch


def _join(facts: Facts, prepares: list[Prepare], launch: Launch, items: list[tuple[str, Obj]]) -> None:
    """Objects into the call of prepare that the launched function has, where none of them is used in front of it; else into one at its top."""
    body = launch.function.body
    used = [i for _, o in items for what, n in facts.machine.uses.get(o, ()) if what not in ("made", "given") for i in facts.places(body, n)]
    for number, other in enumerate(prepares):
        if other.scope is launch.function and max(facts.places(body, other.anchor), default=0) + other.behind <= min(used, default=len(body)):
            prepares[number] = Prepare(other.scope, other.anchor, other.behind, (*other.items, *items))
            return
    prepares.append(Prepare(launch.function, launch.anchor, False, tuple(items)))


def _keeps(facts: Facts, owner: Obj) -> bool:
    """Whether an object is one of a class of the script, no nn.Module, that a cell makes."""
    made = owner.kind == "instance" and owner.base is not None and owner.base.site not in facts.module_classes
    return made and owner.site is not None and isinstance(facts.function(owner.site), ast.Module)


def _optional(facts: Facts) -> Iterator[Diagnostic]:
    """Optimizers that are made, and step, under one condition: where it doesn't hold there is nothing of that name to prepare."""
    for optimizer in facts.optimizers:
        made = _conditions(facts, optimizer.site) if optimizer.site is not None else set()
        steps = [_conditions(facts, s.call) for s in facts.optimizer_steps if optimizer in s.objs]
        shared = made.intersection(*steps) if steps else set()
        if shared and optimizer.site is not None and not any(facts.inside(loop, optimizer.site) for loop in facts.training_loops):
            why = f"it is made, and steps, only if `{sorted(shared)[0]}`"
            path = facts.source.of(optimizer.site).path
            yield UNPLACED.at(getattr(optimizer.site, "lineno", 1), path=path, what="the optimizer", why=why)


def _mixed(facts: Facts, homes: Homes, prepares: list[Prepare]) -> Iterator[Diagnostic]:
    """Names that are prepared and hold objects of several roles, as what one registry of everything gives."""
    prepared = {item for prepare in prepares for item in prepare.items}
    held: dict[tuple[str, ast.stmt], set[Obj]] = defaultdict(set)
    for obj, bindings in homes.table.items():
        for binding in bindings:
            if binding.statement is not None:
                held[binding.path, binding.statement].add(obj)
    for (path, statement), objs in held.items():
        mine = len(objs) > 1 and any((path, o) in prepared for o in objs)
        roles = sorted({facts.roles.of(obj) for obj in objs} - {"", "progress bar"}) if mine else []
        if len(roles) > 1:
            marks = " or ".join(f"`# s2a: {role}`" for role in roles)
            where = facts.source.of(statement).path
            yield MIXED.at(statement.lineno, statement.col_offset + 1, path=where, name=path, roles=_either(roles), marks=marks)


def _either(words: list[str]) -> str:
    return " or ".join(f"an {word}" if word[0] in "aeiou" else f"a {word}" for word in words)


def _conditions(facts: Facts, node: ast.AST) -> set[str]:
    """The conditions, as they are written, under which a place of a function is come to."""
    found: set[str] = set()
    child = node
    for parent in facts.source.ancestors(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            break
        if isinstance(parent, ast.If) and child in parent.body and not facts.machine.truth(parent.test):
            found.add(ast.unparse(parent.test))
        child = parent
    return found


class Placer:
    """Finds the place of every prepare call."""

    def __init__(self, facts: Facts, result: Draft) -> None:
        self.facts, self.result, self.homes = facts, result, Homes(facts)
        self._used: dict[tuple[int, Obj], frozenset[int]] = {}

    def place(self, models: list[Obj], optimizers: list[Obj], loaders: list[Obj]) -> None:
        """Place everything: one call where that is possible."""
        if not optimizers or not models:
            self._uncalled(optimizers)
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

    def _uncalled(self, optimizers: list[Obj]) -> None:
        """Say which models are trained and never called: training goes through their parts or methods."""
        for model, by in self.facts.roles.training.items():
            site = model.site if model.kind in ("made", "instance") and self.facts.roles.of(model) == "model" else None
            if isinstance(site, ast.expr) and set(by) & set(optimizers) and self.facts.train_loops:
                self.result.problems.append(UNCALLED.at(site.lineno, site.col_offset + 1, path=self.facts.source.of(site).path))

    def _serves(self, loader: Obj, optimizers: list[Obj]) -> bool:
        """Whether one of the optimizers steps in a loop over the loader, or the loader is evaluated beside it in one function."""
        if any(o in self._steppers.get(loader, ()) for o in optimizers):
            return True
        mine = {s for o in optimizers for s in self.homes.outermost(o)}
        return any(self._path(loader, s) is not None for s in mine)

    @cached_property
    def _steppers(self) -> dict[Obj, set[Obj]]:
        """Loader -> the optimizers that step in a loop over it."""
        facts = self.facts
        read: dict[ast.AST, list[Obj]] = {}
        for node, loaders in (*((t.loop, t.loaders) for t in facts.train_loops), *((e.loop, e.loaders) for e in facts.eval_loops)):
            read.setdefault(node, []).extend(loaders)
        table: dict[Obj, set[Obj]] = {}
        for step in facts.optimizer_steps:
            for loader in (o for around in facts.all_loops(step.call) for o in read.get(around, ())):
                table.setdefault(loader, set()).update(step.objs)
        return table

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
            kept = len(self.result.prepares)
            first = self._call(scope, here, paths) if here else True
            if not (first and self._call(scope, core, paths)) and not self._one_by_one(scope, models, optimizers, here, paths):
                del self.result.prepares[kept:]
                here = self._late_apart(scope, core, here, paths)
            if len(self.result.prepares) == kept:
                self._fail((models or optimizers)[0], "the model", f"in `{_where(scope)}` something is used before all of it exists")
                return
        for loader in loaders:
            if loader not in here:
                self._loader_alone(loader)

    def _late_apart(self, scope: Function, core: list[Obj], loaders: list[Obj], paths: dict[Obj, str | None]) -> list[Obj]:
        """One call without the loaders that only evaluation reads, which may be made behind the training; gives those that it took."""
        training = [o for o in loaders if self._fed_by[o]]
        return training if len(training) < len(loaders) and self._call(scope, [*core, *training], paths) else loaders

    def _one_by_one(self, scope: Function, models: list[Obj], optimizers: list[Obj], loaders: list[Obj], paths: dict[Obj, str | None]) -> bool:
        """A call for each optimizer, with its models and the loaders of its loops: trainings that follow one another."""
        if len(optimizers) < 2:
            return False
        done: set[Obj] = set()
        for optimizer in optimizers:
            own = [m for m in models if optimizer in self.facts.roles.training.get(m, ()) and m not in done]
            fed = [o for o in loaders if o not in done and self._steps_over(optimizer, o)]
            if not self._call(scope, [*own, optimizer, *fed], paths):
                return False
            done |= {*own, *fed}
        return all(o in done or self._call(scope, [o], paths) for o in loaders)

    def _steps_over(self, optimizer: Obj, loader: Obj) -> bool:
        return not self._fed_by[loader].isdisjoint(self._stepped_in[optimizer])

    @cached_property
    def _fed_by(self) -> dict[Obj, set[Loop]]:
        """Loader -> the loops that train over it."""
        table: dict[Obj, set[Loop]] = defaultdict(set)
        for train in self.facts.train_loops:
            for loader in train.loaders:
                table[loader].add(train.loop)
        return table

    @cached_property
    def _stepped_in(self) -> dict[Obj, set[Loop]]:
        """Optimizer -> the loops that it steps in."""
        table: dict[Obj, set[Loop]] = defaultdict(set)
        for step in self.facts.optimizer_steps:
            for optimizer in step.objs:
                table[optimizer].update(self.facts.all_loops(step.call))
        return table

    def _only_parameter_of_loop(self, obj: Obj, scope: Function) -> bool:
        """A loader that the scope got as a parameter while it is run again and again is prepared where it is made."""
        bindings = self.homes.bindings(obj, scope)
        return (
            bool(bindings)
            and all(b.statement is None for b in bindings)
            and bool(self.facts.all_loops(scope) if not isinstance(scope, ast.Module) else ())
        )

    def _loader_alone(self, loader: Obj) -> None:
        given = [b.scope for b in self.homes.bindings(loader) if b.statement is None and self._runs_once(b.scope)]
        for scope in (*self.homes.outermost(loader), *dict.fromkeys(given)):
            path = self._path(loader, scope)
            if path is not None and self._call(scope, [loader], {loader: path}):
                return
        self._fail(loader, "a loader", "no name holds it between its making and the loop")

    def _runs_once(self, scope: Function) -> bool:
        """Whether a function is called in one place, in no loop: what it is given may be prepared at its top."""
        return len(self.facts.callers(scope)) == 1 and not self.facts.all_loops(scope.body[0])

    def _path(self, obj: Obj, scope: Function) -> str | None:
        found = self.homes.bindings(obj, scope)
        good = [b.path for b in found if b.path.replace(".", "").isidentifier() or "[" in b.path]
        if len(set(good)) < 2:
            return good[0] if good else None
        used = self._used_names(obj)
        return next((path for path in reversed(good) if path in used), good[-1] if good else None)

    def _used_names(self, obj: Obj) -> set[str]:
        """The names under which loops read, and statements call or step, an object (not those of a progress bar around it)."""
        facts = self.facts
        nodes: list[ast.expr] = [f.call.func for f in facts.forwards if obj in f.models]
        nodes += [s.owner for s in facts.optimizer_steps if obj in s.objs]
        for what, node in facts.machine.uses.get(obj, ()):
            if what in ("iterated", "iter", "len", "given"):
                nodes += [n for n in walk(getattr(node, "iter", node)) if isinstance(n, (ast.Name, ast.Attribute, ast.Subscript))]
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
        earliest = 1 if block is scope.body and ast.get_docstring(scope, clean=False) is not None else 0
        latest = len(block)
        for obj in objs:
            made = self._made_before(block, [b for b in self.homes.bindings(obj, scope) if b.path == paths[obj] and b.scope is scope], obj)
            earliest = max(earliest, made)
            latest = min(latest, self._first_use(block, obj, made))
        if earliest > latest:
            return False
        if not any(o in self.facts.models for o in objs):  # preparing a shuffled loader draws a random number: first the weights
            drawn = [b.statement for m in self.facts.models for b in self.homes.bindings(m, scope) if b.statement is not None]
            earliest = max([earliest, *(i + 1 for s in drawn for i in self.facts.places(block, s) if i < latest)])
        for index in range(earliest, latest):
            if self._loads(block[index], objs):
                earliest = index + 1
        behind = earliest == len(block) or (earliest > 0 and self.facts.source.alone(block[earliest - 1]))
        anchor = block[earliest - 1] if behind else block[earliest]
        items = tuple((str(paths[o]), o) for o in sorted(objs, key=self._rank))
        self.result.prepares.append(Prepare(scope, anchor, behind, items))
        return True

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
        uses = self._uses(block, obj)
        first_loop = min((i for i in uses if isinstance(block[i], (ast.For, ast.While, ast.AsyncFor))), default=len(block))
        made = {i for b in bindings if b.statement is not None for i in self.facts.places(block, b.statement) if i < first_loop}
        fresh = {i for i in made if i not in uses or i == min(made)}  # `model = train(model)`, a rebinding in a loop are no making
        return max(fresh, default=-1) + 1

    def _first_use(self, block: list[ast.stmt], obj: Obj, start: int) -> int:
        return min((index for index in self._uses(block, obj) if index >= start), default=len(block))

    def _uses(self, block: list[ast.stmt], obj: Obj) -> frozenset[int]:
        """The statements of a block that use the object in a way that wants it prepared."""
        key = (id(block), obj)
        if key not in self._used:
            facts = self.facts
            role = facts.roles.of(obj)
            if role == "loader":
                nodes: list[ast.AST] = [
                    n for what, n in facts.machine.uses.get(obj, ()) if what in ("iterated", "iter", "next", "len", "attr:batch_size")
                ]
            elif role in ("model", "criterion"):
                nodes = [f.call for f in self._forwards.get(obj, ())]
            else:
                nodes = [s.call for s in facts.optimizer_steps if obj in s.objs]
            nodes += self._keepers.get(obj, [])
            self._used[key] = frozenset(index for node in nodes for index in self.facts.places(block, node))
        return self._used[key]

    @cached_property
    def _forwards(self) -> dict[Obj, list[Forward]]:
        table: dict[Obj, list[Forward]] = {}
        for forward in self.facts.forwards:
            for model in forward.models:
                table.setdefault(model, []).append(forward)
        return table

    @cached_property
    def _keepers(self) -> dict[Obj, list[ast.AST]]:
        """Object -> the calls that give it to a class of the script that keeps it (no nn.Module)."""
        table: dict[Obj, list[ast.AST]] = {}
        for call in self.facts.calls:
            classes = [o for o in self.facts.machine.at[call.func].objs if o.kind == "class" and o.site not in self.facts.module_classes]
            if not classes or self.facts.roles.of_node(call) in ("optimizer", "scheduler", "loader", "dataset", "sampler"):
                continue
            for given in (*call.args, *(k.value for k in call.keywords)):
                for obj in self.facts.machine.at.get(given, NOTHING).objs:
                    if obj.kind not in ("const", "external") and any(self._works_with(cls, obj.inner) for cls in classes):
                        table.setdefault(obj.inner, []).append(call)
        return table

    def _works_with(self, cls: Obj, obj: Obj) -> bool:
        """Whether a class calls, loops over or steps an object in its methods (one that only reads weights, as EMA does, keeps the plain model)."""
        classes = {cls.site, *(base.site for base in self.facts.machine.bases.get(cls, ()) if base.kind == "class")}
        uses = [n for what, n in self.facts.machine.uses.get(obj, ()) if what in ("call", "iterated", "iter", "next", ".step", "len")]
        return any(parent in classes for node in uses for parent in self.facts.source.ancestors(node))

    def _loads(self, statement: ast.stmt, objs: list[Obj]) -> bool:
        """Whether a statement loads weights or state into one of the objects."""
        for obj in objs:
            loads = (n for what, n in self.facts.machine.uses.get(obj, ()) if what == ".load_state_dict" and not self.result.states.restores(n))
            if any(_within(self.facts, statement, n) for n in loads):
                return True
        return False


def _within(facts: Facts, outer: ast.stmt, node: ast.AST) -> bool:
    return node is outer or any(parent is outer for parent in facts.source.ancestors(node))


def _where(scope: Function) -> str:
    return "the module" if isinstance(scope, ast.Module) else scope.name
