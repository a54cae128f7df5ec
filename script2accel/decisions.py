"""Choices that several rules share, made once: which accelerator a place speaks to, and what it is made with."""

from __future__ import annotations

import ast
from functools import cached_property

from script2accel.analysis import tracking
from script2accel.analysis.devices import (
    Move,
    copied_before,
    definitions_cached,
    from_prepared_loader,
    leaves_device,
    may_have_parameters,
    runs_before,
    used_as_tensor,
)
from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.options import Options
from script2accel.placing import Draft, Prepare, draft, ident
from script2accel.rehearsal import rehearse

__all__ = ["Decisions", "Draft", "Prepare", "draft", "ident", "rehearse"]


class Decisions:
    """What was decided, over the facts of the rehearsed run."""

    def __init__(self, facts: Facts, plan: Draft, options: Options) -> None:
        self.facts, self.plan, self.options = facts, plan, options
        self.launch = plan.launch
        self.name = next(name for name in ("accelerator", "accel", "hf_accelerator") if name not in facts.source.names or self._is_ours(facts, name))
        self.global_modules = self._global_modules()
        self.needs: list[ast.AST] = []
        self.essential_needs: list[ast.AST] = []
        self.handovers: list[ast.AST] = []  # calls at which the accelerator is handed on
        self.unreached: list[ast.AST] = []  # functions and classes that the accelerator can't be handed to
        self.spared: frozenset[tuple[str, str]] = frozenset()  # (path, name) of functions whose signature must stay
        # what the accelerator is constructed with: keyword -> text, options of DataLoaderConfiguration, kwargs handlers, their imports
        self.arguments: dict[str, str] = {}
        self.loader_arguments: dict[str, str] = {}
        self.handlers: list[str] = []
        self.engines: dict[str, str] = {}  # parallelism_config and plugins, in their order; they stand in front of the other arguments
        self.ddp_arguments: dict[str, str] = {}  # of DistributedDataParallelKwargs
        self.imports: dict[tuple[str, str], None] = {}
        self.read: list[ast.expr] = []
        self.gone: set[ast.stmt] = set()  # statements that rules take out whole
        self.grouped: ast.expr | None = None  # how many batches make a group, as the script reads it
        self.changed: list[ast.AST] = []  # functions and classes that take the accelerator from now on

    def _is_ours(self, facts: Facts, name: str) -> bool:
        trees = [source.tree for source in facts.source.entries]
        return any(
            o.kind == "made" and o.path.startswith("accelerate.") for tree in trees for o in facts.machine.store.get((tree, name), NOTHING).objs
        )

    def _global_modules(self) -> set[ast.Module]:
        """The entry scripts whose accelerator is a module global: prepare stands at module level, or a device does that functions read."""
        found = {p.scope for p in self.plan.prepares if isinstance(p.scope, ast.Module)}
        for definition in definitions_cached(self.facts):
            scope = self.facts.function(definition)
            if isinstance(scope, ast.Module) and self.facts.source.is_entry(definition):
                found.add(scope)
        launched = {self.facts.source.root(call) for call in self.launch.calls} if self.launch is not None else set()
        return {tree for tree in found - launched if self.facts.source.is_entry(tree)}

    @cached_property
    def tracked(self) -> tracking.Found:
        """What becomes Accelerate's tracker, where that is asked for."""
        return tracking.find(self.facts) if self.options.trackers and self.plan.prepares else tracking.Found()

    def is_gone(self, node: ast.AST) -> bool:
        """Whether a node stands in a statement that some rule takes out whole."""
        return node in self.gone or any(parent in self.gone for parent in self.facts.source.ancestors(node))

    def is_state(self, node: ast.AST) -> bool:
        """Whether what a node does with a state, the accelerator's `save_state` or `load_state` will do."""
        return self.plan.states.takes(self.facts, node)

    def is_global(self, node: ast.AST) -> bool:
        """Whether, where a node stands, the accelerator is a global of the module."""
        return self.facts.source.root(node) in self.global_modules

    def accelerator(self, node: ast.AST, *, essential: bool = True) -> str:
        """How the accelerator is written at a place; the place is remembered as one that needs it (or, not essential, would like it)."""
        self.needs.append(node)
        if essential:
            self.essential_needs.append(node)
        return self.spoken(node)

    def spoken(self, node: ast.AST) -> str:
        """How the accelerator is written at a place, without asking for it there."""
        owner = self.method_of(node)
        return f"{owner}.{self.name}" if owner and not self.is_global(node) else self.name

    def may_ask(self, node: ast.AST) -> bool:
        """Whether output and downloads may want the accelerator at a place: not where other scripts call the function as it is, nor in a
        notebook's own process."""
        if self.launch is not None and self.facts.function(node) not in self.launch.inside:
            return False
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
        owner = self.facts.inside_class(node, self.facts.module_classes)
        if owner is None or may_have_parameters(self.facts, owner):
            return f"next({function.args.args[0].arg}.parameters()).device"
        given = next((arg for arg in function.args.args[1:] if used_as_tensor(self.facts, arg)), None)
        return f"{given.arg}.device" if given is not None else None

    def class_has(self, node: ast.AST) -> bool:
        """Whether the class of the method that a node stands in trains, evaluates, prepares, or was asked for: it has an accelerator anyway."""
        owner = self.facts.inside_class(node, set(self.facts.source.every(ast.ClassDef)))
        places = [
            *(b.call for b in self.facts.backwards),
            *(p.anchor for p in self.plan.prepares),
            *(g.statement for g in self.plan.gathers),
            *self.needs,
        ]
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

    def places(self, move: Move) -> bool:
        """Whether Accelerate places what a move moves, so that the move goes: a prepared model that hasn't run before, a prepared loader's batch."""
        facts = self.facts
        if facts.in_module(move.call):
            return False
        models = [*facts.roles.objects(move.receiver, "model"), *facts.roles.objects(move.receiver, "criterion")]
        if models and all(self.is_prepared(m) for m in models) and len(models) == len(facts.machine.at[move.receiver].objs):
            at = facts.machine.at[move.receiver].objs
            return not any(runs_before(facts, m.inner) or copied_before(facts, m.inner) or leaves_device(facts, o) for m in models for o in at)
        return from_prepared_loader(facts, move.receiver)

    def prepared_here(self, node: ast.AST, role: str) -> bool:
        """Whether, at this place, everything of a role that the expression can hold went through prepare."""
        found = self.facts.roles.objects(node, role)
        return bool(found) and all(o.kind == "prepared" for o in found)
