"""What the script does, each thing in one form, whatever its spelling. Built once from a finished abstract run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from script2accel.analysis.machine import Machine
from script2accel.analysis.program import Program
from script2accel.analysis.roles import Roles
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import Source, spelled, walk

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
Loop = ast.For | ast.AsyncFor | ast.While
LOOPS = (ast.For, ast.AsyncFor, ast.While)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
NO_PATH: tuple[str, tuple[str, ...]] = ("", ())


@dataclass(frozen=True, eq=False)
class Backward:
    """A backward pass: `loss` is the expression that it starts from (below `scaler.scale`); `done` when it goes through the accelerator."""

    call: ast.Call
    loss: ast.expr
    done: bool


@dataclass(frozen=True, eq=False)
class Forward:
    """A call of a model outside of any nn.Module's own methods."""

    call: ast.Call
    models: tuple[Obj, ...]


@dataclass(frozen=True, eq=False)
class Step:
    """`step()` of optimizers or schedulers, or `scaler.step(optimizer)`; `owner` is the expression that holds them."""

    call: ast.Call
    objs: tuple[Obj, ...]
    owner: ast.expr

    @property
    def given(self) -> list[ast.expr]:
        """What the step is given: a closure, a metric, an epoch."""
        return [arg for arg in (*self.call.args, *(k.value for k in self.call.keywords)) if arg is not self.owner]


@dataclass(frozen=True, eq=False)
class EvalLoop:
    """A loop over loaders that calls a model and trains nothing (or, `mixed`, trains over other loaders)."""

    loop: ast.For | ast.AsyncFor
    loaders: tuple[Obj, ...]
    forwards: tuple[Forward, ...]
    mixed: bool = False


@dataclass(frozen=True, eq=False)
class TrainLoop:
    """The innermost loop around a backward pass that brings data; `loaders` is empty for hand-made batches.

    `draws` are the places in it, or in generators that it runs, where `next` or a loop takes batches from loaders: (place, loader).
    """

    loop: Loop
    loaders: tuple[Obj, ...]
    backwards: tuple[Backward, ...]
    draws: tuple[tuple[ast.AST, Obj], ...] = ()


class Facts:
    """Everything that decisions and rules ask for."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.source: Program = machine.source
        self.roles = Roles(machine)
        self._found: dict[tuple[int, ast.AST], frozenset[int]] = {}
        self._index: dict[int, dict[ast.stmt, int]] = {}
        self._blocks: dict[int, list[ast.stmt]] = {}
        self._loops: dict[ast.AST, list[Loop]] = {}
        self._all_loops: dict[ast.AST, list[Loop]] = {}

    @property
    def program(self) -> Facts:
        """The facts of all files."""
        return self

    # calls -----------------------------------------------------------------------------------------------

    @cached_property
    def calls(self) -> list[ast.Call]:
        """Every call that can be reached, in the order of the text."""
        return [
            call
            for source in self.source.sources
            for call in sorted((n for n in source.every(ast.Call) if n.func in self.machine.at), key=lambda n: (n.lineno, n.col_offset))
        ]

    def path(self, call: ast.Call) -> str:
        """The dotted path of what is called, if it is one name of a library; else ''."""
        return self._called.get(call, NO_PATH)[0]

    def any_path(self, call: ast.Call) -> tuple[str, ...]:
        """Every dotted path that may be called."""
        return self._called.get(call, NO_PATH)[1]

    @cached_property
    def _called(self) -> dict[ast.Call, tuple[str, tuple[str, ...]]]:
        """Call -> the one path (or ''), and every path."""
        table = {}
        for call in self.calls:
            paths = {str(o.name) if o.kind == "external" else "" for o in self.machine.at[call.func].objs}
            table[call] = (next(iter(paths)) if len(paths) == 1 else "", tuple(sorted(paths - {""})))
        return table

    def objects(self, node: ast.AST, role: str) -> tuple[Obj, ...]:
        """The objects of a role that an expression can hold, without what prepare put around them."""
        return tuple(dict.fromkeys(o.inner for o in self.roles.objects(node, role)))

    def receiver(self, call: ast.Call, role: str) -> tuple[Obj, ...]:
        """The objects of a role whose method is called."""
        return self.objects(call.func.value, role) if isinstance(call.func, ast.Attribute) else ()

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """What is assigned to each name or attribute, by its text, anywhere in the file."""
        table: dict[str, list[ast.expr]] = {}
        for node in self.source.every(ast.Assign, ast.AnnAssign):
            if node.value is not None:
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    if isinstance(target, (ast.Name, ast.Attribute)):
                        table.setdefault(spelled(target), []).append(node.value)
        return table

    # structure -------------------------------------------------------------------------------------------

    def function(self, node: ast.AST) -> Function:
        """The function (or module) that a node runs in."""
        return self.source.function(node)

    @cached_property
    def module_classes(self) -> frozenset[ast.ClassDef]:
        """Classes of the script that reach nn.Module (and autograd functions)."""
        found = set()
        for cls in self.machine.bases:
            if self.machine.reaches(cls, names.MODULE_BASE) or self.machine.reaches(cls, names.FUNCTION_BASE):
                found.add(cls.site)
        return frozenset(found)  # type: ignore[arg-type]

    @cached_property
    def dataset_classes(self) -> frozenset[ast.ClassDef]:
        """Classes of the script that reach Dataset, Sampler or DataLoader."""
        patterns = (names.DATASET_BASE, names.SAMPLER_BASE, names.LOADER_BASE)
        return frozenset(cls.site for cls in self.machine.bases if any(self.machine.reaches(cls, p) for p in patterns))  # type: ignore[misc]

    @cached_property
    def optimizer_classes(self) -> frozenset[ast.AST]:
        """Classes of the script that reach torch's Optimizer."""
        return frozenset(cls.site for cls in self.machine.bases if cls.site is not None and self.machine.reaches(cls, names.OPTIMIZER_BASE))

    def inside_class(self, node: ast.AST, classes: Iterable[ast.AST]) -> ast.ClassDef | None:
        """The class among some, whose body a node stands in."""
        around = self.source.classes(node)
        wanted = set(classes) if around else ()
        return next((cls for cls in around if cls in wanted), None)

    def in_module(self, node: ast.AST) -> bool:
        """Whether a node stands in the class of an nn.Module."""
        return self.inside_class(node, self.module_classes) is not None

    def loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node in its own function, innermost first."""
        if node not in self._loops:
            self._loops[node] = self._loops_around(node)
        return list(self._loops[node])

    def _loops_around(self, node: ast.AST) -> list[Loop]:
        found: list[Loop] = []
        child = node
        for parent in self.source.ancestors(node):
            if isinstance(parent, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
                break
            if isinstance(parent, LOOPS) and (child in parent.body or (isinstance(parent, ast.While) and child is parent.test)):
                found.append(parent)
            child = parent
        return found

    def callers(self, function: ast.AST) -> list[ast.Call]:
        """Where a function of the script is called."""
        return list(self.machine.callers.get(function, ()))

    def inside(self, outer: ast.AST, node: ast.AST, _seen: set[ast.AST] | None = None) -> bool:
        """Whether a node runs within another: in its text, or in a function that is called there."""
        if node is outer or any(parent is outer for parent in self.source.ancestors(node)):
            return True
        function, seen = self.function(node), set() if _seen is None else _seen
        if function in seen or isinstance(function, ast.Module):
            return False
        seen.add(function)
        return any(self.inside(outer, call, seen) for call in self.callers(function))

    def all_loops(self, node: ast.AST) -> list[Loop]:
        """The loops around a node, innermost first, through the callers of its function."""
        if node not in self._all_loops:
            self._all_loops[node] = self._loops_through_callers(node, set())
        return list(self._all_loops[node])

    def _loops_through_callers(self, node: ast.AST, seen: set[ast.AST]) -> list[Loop]:
        found = self.loops(node)
        function = self.function(node)
        if not isinstance(function, ast.Module) and function not in seen:
            seen.add(function)
            for call in self.callers(function):
                found += [loop for loop in self._loops_through_callers(call, seen) if loop not in found]
        return found

    def places(self, block: list[ast.stmt], node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> frozenset[int]:
        """The statements of a block in which a node runs: in its text, or in a function that it calls."""
        key = (id(block), node)
        if key not in self._found:
            if id(block) not in self._index:
                self._index[id(block)] = {statement: i for i, statement in enumerate(block)}
                self._blocks[id(block)] = block  # the key is an id: keep the block alive
            index = self._index[id(block)]
            child = node
            found: frozenset[int] | None = None
            for parent in (node, *self.source.ancestors(node)):
                if isinstance(parent, FUNCTIONS) and parent is not node and child in parent.body:
                    if parent.body is block:
                        break
                    calls = self.callers(parent) if parent not in seen else []
                    found = frozenset(i for call in calls for i in self.places(block, call, seen | {parent}))
                    break
                if parent in index and not isinstance(parent, (*FUNCTIONS, ast.ClassDef)):
                    found = frozenset((index[parent],))
                    break
                child = parent
            if seen and found is None:
                return frozenset()
            self._found[key] = found or frozenset()
        return self._found[key]

    # training --------------------------------------------------------------------------------------------

    @cached_property
    def backwards(self) -> list[Backward]:
        """Every backward pass of the script, outside of autograd functions and of classes that aren't tensors."""
        found = []
        for call in self.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr != "backward":
                continue
            owner = call.func.value
            value = self.machine.at.get(owner, NOTHING)
            if self.path(call).startswith("torch.autograd") and call.args:
                found.append(Backward(call, call.args[0], False))
            elif (scaled := self.scaled(owner)) is not None:
                found.append(Backward(call, scaled, False))
            elif self.roles.of_value(value) == "accelerator" and call.args:
                found.append(Backward(call, call.args[0], True))
            elif self.roles.of_value(value) == "loss" or (
                value.objs and all(o.kind in ("expr", "made", "item", "param", "attr") for o in value.objs)
            ):
                if any(o.kind in ("instance", "class", "function") for o in value.objs):
                    continue
                found.append(Backward(call, owner, False))
        return found

    @cached_property
    def forwards(self) -> list[Forward]:
        """Every call of a model, outside of the models' own methods."""
        found = []
        for call in self.calls:
            if self.in_module(call):
                continue
            models = self.objects(call.func, "model")
            if isinstance(call.func, ast.Attribute) and call.func.attr == "forward" and not models:
                models = self.receiver(call, "model")
            if models:
                found.append(Forward(call, models))
        return found

    @cached_property
    def forward_calls(self) -> frozenset[ast.Call]:
        """The calls of all forward passes."""
        return frozenset(forward.call for forward in self.forwards)

    def scaled(self, node: ast.expr) -> ast.expr | None:
        """What `scaler.scale(...)` is given, or None where an expression isn't that."""
        match node:
            case ast.Call(func=ast.Attribute(value=scaler, attr="scale"), args=[loss]) if self.roles.of_node(scaler) == "scaler":
                return loss
        return None

    def _steps(self, role: str) -> list[Step]:
        found = []
        for call in self.calls:
            if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("step", "step_update") or self.in_module(call):
                continue
            owner = call.func.value
            if role == "optimizer" and call.args and self.roles.of_node(owner) == "scaler":
                owner = call.args[0]
            if objs := self.objects(owner, role):
                found.append(Step(call, objs, owner))
        return found

    @cached_property
    def optimizer_steps(self) -> list[Step]:
        """Every `optimizer.step()`."""
        return self._steps("optimizer")

    @cached_property
    def scheduler_steps(self) -> list[Step]:
        """Every `scheduler.step()`."""
        return self._steps("scheduler")

    @cached_property
    def optimizers(self) -> list[Obj]:
        """The optimizers that step, in the order of their making; one that an object of the script steps stands for that object."""
        return list(dict.fromkeys(obj for step in self.optimizer_steps for obj in step.objs if obj not in self.wrapped_optimizers))

    @cached_property
    def wrapped_optimizers(self) -> dict[Obj, tuple[Obj, ...]]:
        """Objects of the script's own classes that step an optimizer which they hold, and do nothing else of a training -> those optimizers."""
        stepped: dict[ast.AST, set[Obj]] = {}
        for step in self.optimizer_steps:
            stepped.setdefault(self.source.scope(self.function(step.call)), set()).update(step.objs)
        training = {self.source.scope(self.function(b.call)) for b in self.backwards}
        table: dict[Obj, tuple[Obj, ...]] = {}
        for holder, held in self.roles.held_optimizers.items():
            cls = holder.base.site if holder.base is not None else None
            inner = tuple(o for o in held if o in stepped.get(cls, ()))  # type: ignore[arg-type]
            given = {o.inner for value in (*holder.arguments, *holder.keywords.values()) for o in value.objs}
            own = holder.base is not None and self.machine.reaches(holder.base, names.OPTIMIZER_BASE)
            if inner and cls not in training and (own or given & set(inner)):
                table[holder] = inner
        return table

    @cached_property
    def models(self) -> list[Obj]:
        """The models that these optimizers train, and that are called, in the order of their optimizers."""
        trained = [m for o in self.optimizers for m, by in self.roles.training.items() if o in by]
        called = {m for f in self.forwards for m in f.models}
        found = list(dict.fromkeys(m for m in trained if m in called or self.roles.of(m) in ("model", "criterion")))
        return [m for m in found if m in called or any(what == "call" for what, _ in self.machine.uses.get(m, ()))]

    @cached_property
    def _iterated(self) -> dict[ast.AST, dict[Obj, None]]:
        """Node -> the loaders that it iterates over."""
        table: dict[ast.AST, dict[Obj, None]] = {}
        for obj, uses in self.machine.uses.items():
            nodes = [node for what, node in uses if what == "iterated"]
            if nodes and self.roles.of(obj) == "loader":
                for node in nodes:
                    table.setdefault(node, {})[obj.inner] = None
        return table

    def loaders_of(self, loop: ast.AST) -> tuple[Obj, ...]:
        """The loaders that a `for` runs over, through enumerate, zip and progress bars."""
        return tuple(self._iterated.get(loop, ())) if isinstance(loop, (ast.For, ast.AsyncFor)) else ()

    @cached_property
    def _backwards_in(self) -> dict[Loop, list[int]]:
        """Loop -> the backward passes that run in it, as indices."""
        table: dict[Loop, list[int]] = {}
        for index, backward in enumerate(self.backwards):
            for loop in self.all_loops(backward.call):
                table.setdefault(loop, []).append(index)
        return table

    def backwards_in(self, loops: Iterable[Loop]) -> list[Backward]:
        """The backward passes that run in one of some loops."""
        return [self.backwards[i] for i in sorted({i for loop in loops for i in self._backwards_in.get(loop, ())})]

    @cached_property
    def training_loops(self) -> frozenset[Loop]:
        """Every loop, at any distance, around a backward pass."""
        return frozenset(loop for backward in self.backwards for loop in self.all_loops(backward.call))

    @cached_property
    def train_loops(self) -> list[TrainLoop]:
        """The loops that train."""
        table: dict[Loop, list[Backward]] = {}
        draws: dict[Loop, dict[tuple[ast.AST, Obj], None]] = {}
        for backward in self.backwards:
            loops = self.all_loops(backward.call)
            drawn = {loop: self.draws_of(backward, loop) for loop in loops}
            with_data = [loop for loop in loops if self.loaders_of(loop) or drawn[loop]]
            chosen = (with_data or loops)[:1]
            for loop in chosen:
                table.setdefault(loop, []).append(backward)
                draws.setdefault(loop, {}).update(dict.fromkeys(drawn[loop]))
        return [
            TrainLoop(loop, tuple(dict.fromkeys((*self.trained_by(loop), *(o for _, o in draws[loop])))), tuple(found), tuple(draws[loop]))
            for loop, found in table.items()
        ]

    def draws_of(self, backward: Backward, loop: Loop) -> list[tuple[ast.AST, Obj]]:
        """Where a loop takes what a backward pass is computed from out of loaders, by `next` or through generators."""
        drawn = [(node, obj.inner) for node, obj in self.machine.drawn_into(backward.loss) if self.roles.of(obj) == "loader"]
        found = [(node, obj) for node, obj in dict.fromkeys(drawn) if node is not loop and self.runs_in(loop, node)]
        return sorted(found, key=lambda item: (getattr(item[0], "lineno", 0), item[1].number))

    def runs_in(self, loop: Loop, node: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> bool:
        """Whether a place runs while a loop does: in its text, in what it calls, or in a generator that it reads."""
        if self.inside(loop, node):
            return True
        function = self.function(node)
        if function in seen:
            return False
        cls = self.source.scope(function) if not isinstance(function, ast.Module) else None
        readers = [
            n for n, read in self.machine.drawings.values() if read.site is function or (isinstance(cls, ast.ClassDef) and self._made_of(read, cls))
        ]
        return any(n is loop or self.runs_in(loop, n, seen | {function}) for n in readers)

    def _made_of(self, obj: Obj, cls: ast.ClassDef) -> bool:
        """Whether an object is an instance of a class of the script, or of one below it."""
        return obj.kind == "instance" and obj.base is not None and any(o.site is cls for o in (obj.base, *self.machine.ancestors(obj.base)))

    @cached_property
    def _train_loop_order(self) -> dict[Loop, int]:
        return {train.loop: index for index, train in enumerate(self.train_loops)}

    def first_train_loop(self, loops: Iterable[Loop]) -> TrainLoop | None:
        """The first training loop of the script among some loops."""
        order = self._train_loop_order
        found = min((order[loop] for loop in loops if loop in order), default=None)
        return self.train_loops[found] if found is not None else None

    def trained_by(self, loop: ast.AST) -> tuple[Obj, ...]:
        """The loaders of a loop over which a backward pass was seen to run (not those of an evaluation in the same loop)."""
        trained = {o.inner for o in self.machine.trained.get(loop, ())}
        return tuple(o for o in self.loaders_of(loop) if o in trained) or self.loaders_of(loop)

    def in_train_loop(self, node: ast.AST) -> bool:
        """Whether a node runs in a loop that trains itself (not only in one around it, as an evaluation between epochs does)."""
        return any(loop in self._train_loop_order for loop in self.all_loops(node))

    @cached_property
    def eval_loops(self) -> list[EvalLoop]:
        """The loops that evaluate."""
        table: dict[Loop, list[Forward]] = {}
        for forward in self.forwards:
            for loop in self.all_loops(forward.call):
                table.setdefault(loop, []).append(forward)
        candidates = {loop for loop in table if self.loaders_of(loop) and loop not in self.training_loops and not self.in_module(loop)}
        outer = {loop for inner in candidates for loop in self.all_loops(inner)[1:]}
        mixed = [(t, tuple(o for o in self.loaders_of(t.loop) if o not in t.loaders)) for t in self.train_loops]
        return [
            EvalLoop(t.loop, rest, tuple(table.get(t.loop, ())), True) for t, rest in mixed if rest and isinstance(t.loop, (ast.For, ast.AsyncFor))
        ] + [
            EvalLoop(loop, self.loaders_of(loop), tuple(table[loop]))
            for loop in table
            if loop in candidates - outer and isinstance(loop, (ast.For, ast.AsyncFor))
        ]

    @cached_property
    def loaders(self) -> list[Obj]:
        """Every loader that a loop or `next` reads, in the order of their making."""
        found = []
        for obj, uses in self.machine.uses.items():
            if any(what in ("iterated", "iter", "next") for what, _ in uses) and self.roles.of(obj) == "loader":
                found.append(obj.inner)
        return sorted(dict.fromkeys(found), key=lambda o: getattr(o.site, "lineno", 0))

    # classes of values -----------------------------------------------------------------------------------

    def statements(self, block: list[ast.stmt]) -> Iterator[ast.AST]:
        """Every node below some statements."""
        for statement in block:
            yield from walk(statement)


if TYPE_CHECKING:
    _Facts = Facts  # a view answers all that facts answer, by handing the question on
else:
    _Facts = object


class View(_Facts):
    """The facts of a program as one of its files sees them: what is listed is that file's, what is asked is answered for all."""

    source: Source  # type: ignore[assignment]
    LISTS = ("calls", "backwards", "forwards", "optimizer_steps", "scheduler_steps", "train_loops", "eval_loops")

    def __init__(self, facts: Facts, source: Source) -> None:
        self.facts, self.source = facts, source

    @property
    def program(self) -> Facts:
        """The facts of all files."""
        return self.facts

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.facts, name)
        if name in self.LISTS:
            value = [item for item in value if self.source.root(_place(item)) is self.source.tree]
        self.__dict__[name] = value
        return value


def _place(item: object) -> ast.AST:
    if isinstance(item, ast.AST):
        return item
    return item.call if hasattr(item, "call") else item.loop  # type: ignore[no-any-return,attr-defined]
