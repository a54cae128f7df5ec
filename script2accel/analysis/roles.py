"""Which role an object plays, by how it was made and by what is done with it; each belief with its reasons."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from functools import cached_property

from script2accel.analysis.constructors import CLASSES, constructed
from script2accel.analysis.machine import Machine
from script2accel.analysis.values import NOTHING, Obj, Value
from script2accel.diagnostics import Evidence
from script2accel.knowledge import torch as names
from script2accel.source import walk

ANNOTATIONS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("scheduler", names.SCHEDULER_BASE),
    ("optimizer", names.OPTIMIZER_BASE),
    ("loader", names.LOADER_BASE),
    ("sampler", names.SAMPLER_BASE),
    ("dataset", names.DATASET_BASE),
    ("scaler", names.SCALER),
    ("writer", names.WRITER),
    ("criterion", names.LOSS_MODULE),
    ("model", names.MODULE_BASE),
    ("device", re.compile(r"^torch\.device$")),
    ("accelerator", re.compile(r"^accelerate\.(accelerator\.)?Accelerator$")),
)
ENVIRONMENT = {
    "RANK": "rank",
    "LOCAL_RANK": "rank",
    "SLURM_PROCID": "rank",
    "SLURM_LOCALID": "rank",
    "WORLD_SIZE": "world size",
    "SLURM_NTASKS": "world size",
}
KEYWORDS = {"rank": "rank", "world_size": "world size", "num_replicas": "world size"}
DEVICE_TEXT = re.compile(r"^(cuda(:\d+)?|cpu|mps|xpu|npu|hpu)$")


class Roles:
    """The roles of one finished abstract run."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[Obj, tuple[str, tuple[Evidence, ...]]] = {}
        self._busy: dict[Obj, int] = {}
        self._lowest = _NEVER
        self._tentative: dict[Obj, int] = {}
        self._did: dict[Obj, frozenset[str]] = {}
        self._terms: dict[bool, frozenset[Obj]] = {}

    # values ----------------------------------------------------------------------------------------------

    def of_value(self, value: Value) -> str:
        """The role that every object with a role in the value shares; '' when there is none or they differ."""
        found = {role for obj in value.objs if (role := self.of(obj))}
        found -= {"progress bar"} if len(found) > 1 else set()
        return found.pop() if len(found) == 1 else ""

    def of_node(self, node: ast.AST) -> str:
        """The role of what an expression holds."""
        return self.of_value(self.machine.at[node]) if node in self.machine.at else ""

    def objects(self, node: ast.AST, role: str) -> list[Obj]:
        """The objects of a role that an expression can hold."""
        value = self.machine.at.get(node)
        if value is None:
            return []
        objs = sorted(value.objs, key=_line) if len(value.objs) > 1 else value.objs
        return [o for o in objs if self.of(o) == role]

    # objects ---------------------------------------------------------------------------------------------

    def of(self, obj: Obj) -> str:
        """The role of one object, or ''."""
        return self.why(obj)[0]

    def why(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """The role of one object and the reasons."""
        if obj in self._known:
            return self._known[obj]
        if obj in self._busy or obj in self._tentative:  # a question that this one depends on: no evidence yet
            self._lowest = min(self._lowest, self._busy[obj] if obj in self._busy else self._tentative[obj])
            return "", ()
        depth = len(self._busy)
        self._busy[obj] = depth
        outer, self._lowest = self._lowest, _NEVER
        found = self._find(obj)
        del self._busy[obj]
        self._remember(obj, found, depth)
        self._lowest = min(outer, self._lowest) if self._lowest < depth else outer
        return found

    def _remember(self, obj: Obj, found: tuple[str, tuple[Evidence, ...]], depth: int) -> None:
        """Keep an answer; one that found nothing while a question below was open is kept only until that is answered."""
        if self._lowest < depth and not found[0]:
            self._tentative[obj] = self._lowest
            return
        self._known[obj] = found
        if self._lowest == depth:
            self._tentative = {other: low for other, low in self._tentative.items() if low < depth}

    def _done(self, obj: Obj) -> frozenset[str]:
        """What was done with an object anywhere."""
        if obj not in self._did:
            uses = self.machine.uses.get(obj)
            self._did[obj] = frozenset([what for what, _ in uses]) if uses else _NOTHING
        return self._did[obj]

    def _find(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        if obj.kind == "prepared" and obj.base is not None:
            return self.why(obj.base)
        if said := self.machine.teaching.said.get(obj):
            return next(iter(said)).role, tuple(Evidence(0, one.why) for one in said)
        return self.seen(obj)

    def seen(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """The role that an object has by how it is made and used, whatever the user says of it, and the reasons."""
        if obj.kind == "external":
            return ("criterion", (Evidence(0, f"`{obj.name}` computes a loss"),)) if names.LOSS_FUNCTION.match(str(obj.name)) else ("", ())
        if obj.kind in ("made", "instance"):
            found = self._by_construction(obj)
            if found[0]:
                return found
        if obj.kind in ("made", "expr", "param", "attr", "item") and self._backpropagated(obj):
            return "loss", (Evidence(_line(obj), "it is backpropagated"),)
        for look in (self._by_origin, self._by_terms, self._by_use, self._by_annotation):
            found = look(obj)
            if found[0]:
                return found
        return "", ()

    def _by_construction(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        line = _line(obj)
        if obj.kind == "instance" and obj.base is not None:
            cls = obj.base
            if self.machine.reaches(cls, names.MODULE_BASE):
                return self._module(obj, line)
            for role, pattern, why in CLASSES:
                if self.machine.reaches(cls, pattern):
                    return role, (Evidence(line, why),)
            return "", ()
        path = obj.path
        if made := constructed(path):
            return made[0], (Evidence(line, made[1]),)
        if path == "copy.deepcopy" and obj.arguments and any(self.of(o) == "model" for o in obj.arguments[0].objs) and not self.trained(obj):
            return ("ema", (Evidence(line, "a copy of the model that no optimizer trains"),))
        if path in ("os.getenv", "os.environ.get") and obj.arguments:
            for const in obj.arguments[0].objs:
                if const.name in ENVIRONMENT:
                    return ENVIRONMENT[str(const.name)], (Evidence(line, f"the environment's {const.name}"),)
        same = _SAME_ROLE.get(path)
        for inner in obj.arguments[0].objs if same and obj.arguments else ():
            if self.of(inner) in (same or ()):
                return self.why(inner)
        return "", ()

    def _module(self, obj: Obj, line: int) -> tuple[str, tuple[Evidence, ...]]:
        reason = Evidence(line, f"its class `{obj.name}` is an nn.Module")
        if self.trained(obj):
            return "model", (reason, Evidence(line, "an optimizer trains its parameters"))
        name = str(obj.name).lower()
        loss_like = name.endswith(("loss", "criterion")) or any(self._is_loss_call(node) for node in self.machine.used(obj, "call"))
        return ("criterion" if loss_like else "model"), (reason,)

    def _is_loss_call(self, node: ast.AST) -> bool:
        """Whether what a call gives is backpropagated as it is."""
        return (
            any("backward" in what for o in self.machine.at[node].objs for what, _ in self.machine.uses.get(o, ()))
            if node in self.machine.at
            else False
        )

    def _by_origin(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        if obj.base is None:
            return "", ()
        found: tuple[str, tuple[Evidence, ...]] = ("", ())
        match obj.kind:
            case "item":
                found = self._part_of(obj, obj.base)
            case "attr":
                found = self._attribute_of(obj, obj.base)
            case "made":
                found = self._given_by(obj, obj.base)
        if found[0] == "output" and obj in self._backpropagated_terms(False):
            return "loss", (Evidence(_line(obj), "a loss that the model gave: it is backpropagated"),)
        return found

    def _part_of(self, obj: Obj, base: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """An element of something."""
        line = _line(obj)
        if base.kind == "external" and base.name == "os.environ" and obj.name in ENVIRONMENT:
            return ENVIRONMENT[str(obj.name)], (Evidence(line, f"the environment's {obj.name}"),)
        if _is_key(obj):
            return "", ()
        role = self.of(base)
        if role == "loader":
            return "batch", (Evidence(line, "what the loader gives"),)
        if role == "batch" or self._view_of_batch(base):
            return "batch", (Evidence(line, "part of a batch"),)
        if role == "output":
            return "output", (Evidence(line, "part of what the model gave"),)
        if base.path in ("torch.utils.data.random_split", "torch.utils.data.dataset.random_split"):
            return "dataset", (Evidence(line, "a part made by random_split"),)
        return "", ()

    def _view_of_batch(self, obj: Obj) -> bool:
        """Whether an object is what `batch.items()` and the like give, or an element of it."""
        while obj.kind == "item" and obj.base is not None:
            obj = obj.base
        method = obj.base
        return (
            obj.kind == "made"
            and method is not None
            and method.kind == "attr"
            and method.name in ("items", "values")
            and self.of(method.base or obj) == "batch"
        )

    def _attribute_of(self, obj: Obj, base: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """An attribute of something that isn't the script's."""
        line = _line(obj)
        if obj.name in _PLACE and self.of(base) == "accelerator":
            return _PLACE[str(obj.name)], (Evidence(line, f"the accelerator's {obj.name}"),)
        if obj.name == "device" and (self.of(base) in ("accelerator", "model", "batch", "output", "loss") or self.parameters_of([_only(base)])):
            return "device", (Evidence(line, f"where the {self.of(base) or 'parameter'} is"),)
        if self.of(base) == "output" and obj.name not in names.TENSOR_FACTS and not self.machine.used(base, f".{obj.name}"):
            if obj.name == "loss":
                return "loss", (Evidence(line, "the loss that the model gave"),)
            return "output", (Evidence(line, "part of what the model gave"),)
        return "", ()

    def _given_by(self, obj: Obj, base: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """What a call gave."""
        line = _line(obj)
        callee = base.inner
        if callee.kind in ("instance", "made", "param", "attr", "item"):
            role = self.of(callee)
            if role == "model":
                return "output", (Evidence(line, "what the model gives"),)
            if role == "criterion":
                return "loss", (Evidence(line, "what the criterion gives"),)
            if base.kind == "attr" and base.base is not None and self.of(base.base.inner) == "model" and base.name in ("forward", "generate"):
                return "output", (Evidence(line, "what the model gives"),)
        return "", ()

    def _backpropagated(self, obj: Obj) -> bool:
        """Whether a backward pass starts from an object (which isn't an accelerator or engine that is told to run one)."""
        if obj in self._scaled:
            return True
        did = self._done(obj)
        return (
            bool(did & {"backward", ".backward"}) and not did & {"call", ".step", ".zero_grad", ".prepare"} and not self.machine.is_accelerator(obj)
        )

    @cached_property
    def _scaled(self) -> frozenset[Obj]:
        """What GradScalers scale before a backward pass."""
        return self._given_to_scalers("scale")

    @cached_property
    def _stepped_by_scalers(self) -> frozenset[Obj]:
        """The optimizers that GradScalers step."""
        return self._given_to_scalers("step")

    def _given_to_scalers(self, method: str) -> frozenset[Obj]:
        found: set[Obj] = set()
        for obj, uses in self.machine.uses.items():
            if names.SCALER.match(obj.path):
                found.update(
                    o for what, node in uses if what == f".{method}" and isinstance(node, ast.Call) and node.args for o in self._held(node.args[0])
                )
        return frozenset(o for o in found if o.kind != "const")

    # arithmetic ------------------------------------------------------------------------------------------

    def _by_terms(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """A sum, product or mean of losses is a loss; a sum or product of outputs an output."""
        if not _terms_of(self.machine, obj):
            return "", ()
        leaves, reduced = self._leaves(obj)
        found = {self.of(leaf) for leaf in leaves}
        if "loss" in found and not any(leaf.kind == "const" and isinstance(leaf.name, str) for leaf in leaves):
            return "loss", (Evidence(_line(obj), "computed from a loss"),)
        if "output" in found and found <= {"output", ""} and not reduced and all(self.of(o) or o.kind in ("const", "attr", "param") for o in leaves):
            return "output", (Evidence(_line(obj), "computed from what the model gave"),)
        return "", ()

    def _leaves(self, obj: Obj) -> tuple[list[Obj], bool]:
        """What an object is computed from by arithmetic, and whether a mean or sum over dimensions is on the way."""
        leaves: dict[Obj, None] = {}
        seen = {obj}
        waiting, reduced = [obj], False
        while waiting:
            here = waiting.pop()
            terms = _terms_of(self.machine, here) if here is obj or (here not in self._known and len(seen) < _MOST_TERMS) else []
            reduced = reduced or (bool(terms) and here.kind == "made" and here.path != "sum")
            if not terms:
                leaves[here] = None
            for term in terms:
                if term not in seen:
                    seen.add(term)
                    waiting.append(term)
        return list(leaves), reduced

    def _backpropagated_terms(self, reduced: bool) -> frozenset[Obj]:
        """Everything that a backpropagated value is computed from by arithmetic; means and sums over dimensions too, with `reduced`."""
        if reduced not in self._terms:
            found: set[Obj] = set()
            waiting = [obj for obj in self.machine.uses if self._backpropagated(obj)]
            while waiting:
                here = waiting.pop()
                if here not in found:
                    found.add(here)
                    waiting += _terms_of(self.machine, here) if reduced or here.kind == "expr" else []
            self._terms[reduced] = frozenset(found)
        return self._terms[reduced]

    # use -------------------------------------------------------------------------------------------------

    def _by_annotation(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """A parameter that nothing else tells about is what its annotation says."""
        if obj.kind != "param" or not isinstance(obj.site, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return "", ()
        arguments = obj.site.args
        for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if arg.arg == obj.name and arg.annotation is not None:
                path = self._path_of(arg.annotation, self.machine.source.scope(obj.site))
                for role, pattern in ANNOTATIONS:
                    if pattern.match(path):
                        return role, (Evidence(_line(obj), f"annotated as `{path}`"),)
        return "", ()

    def _path_of(self, node: ast.expr, scope: ast.AST) -> str:
        """The dotted path that an annotation names, or ''."""
        match node:
            case ast.Name(id=name):
                value = self.machine.store.get((self.machine.owner(scope, name), name))
                return next((str(o.name) for o in value.objs if o.kind == "external"), "") if value is not None else ""
            case ast.Attribute(value=owner, attr=name):
                path = self._path_of(owner, scope)
                return f"{path}.{name}" if path else ""
            case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
                return self._path_of(left, scope)
            case ast.Subscript(value=owner, slice=inner):
                path = self._path_of(owner, scope)
                return self._path_of(inner, scope) if path == "typing.Optional" else path
        return ""

    def _by_use(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        if obj.kind not in ("made", "param", "attr", "item", "instance", "expr"):
            return "", ()
        did = self._done(obj)
        line = _line(obj)
        if self.machine.is_accelerator(obj):
            return "accelerator", (Evidence(line, "used as an Accelerator is"),)
        if obj.kind != "expr" and self.trained(obj):
            return "model", (Evidence(line, "its parameters go to an optimizer"),)
        called = obj.kind != "expr" and bool(self._calls(obj))
        if called and self._model_like(obj, did) and not self._called_with_loss(obj):
            return "model", (Evidence(line, "it is called, and " + _listing(did & _MODEL_SIGNS) + " is used"),)
        if ".zero_grad" in did and "call" not in did and ".train" not in did:
            if ".step" in did:
                return "optimizer", (Evidence(line, "`zero_grad` and `step` are called on it"),)
            if obj in self._stepped_by_scalers:
                return "optimizer", (Evidence(line, "`zero_grad` is called on it, and a GradScaler steps it"),)
        if ".step" in did and obj.kind in ("made", "instance") and not did & _OPTIMIZER_SIGNS and self._given_role(obj, "optimizer"):
            return "scheduler", (Evidence(line, "made from the optimizer, and `step` is called on it"),)
        if ".step" in did and ({".get_last_lr", ".get_lr"} & did) and ".zero_grad" not in did:
            return "scheduler", (Evidence(line, "`step` and its learning rate are used"),)
        if "iterated" in did and self._may_be_loader(obj) and self._feeds_model(obj):
            return "loader", (Evidence(line, "what iterating over it gives goes into a model"),)
        if {".scale", ".update"} <= did and ".step" in did:
            return "scaler", (Evidence(line, "`scale`, `step` and `update` are called on it"),)
        if {".add_scalar"} & did:
            return "writer", (Evidence(line, "`add_scalar` is called on it"),)
        if obj.kind in ("made", "param") and self._given_to(obj, names.LOADER):
            return "dataset", (Evidence(line, "a DataLoader reads it"),)
        if called and not did & _MODEL_SIGNS and self._called_as_criterion(obj):
            return "criterion", (Evidence(line, "it is called with what a model gave, and the result is backpropagated"),)
        if obj.kind == "instance" and self._sets_learning_rate(obj):
            return "scheduler", (Evidence(line, "its `step` is called, and its class sets the optimizer's learning rate"),)
        return self._by_keyword(obj)

    def _by_keyword(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """What is given to libraries as rank, world size or device."""
        line = _line(obj)
        if obj.kind == "param" and self._spawned(obj):
            return "rank", (Evidence(line, "`torch.multiprocessing.spawn` gives it"),)
        for node in self.machine.used(obj, "given"):
            if not isinstance(node, ast.Call):
                continue
            paths = [str(o.name) for o in self.machine.at[node.func].objs if o.kind == "external"] if node.func in self.machine.at else []
            for path in paths:
                keyword = next((k.arg for k in node.keywords if k.value in self.machine.at and obj in self.machine.at[k.value].objs), None)
                if names.TAKES_RANK.match(path) and keyword in KEYWORDS:
                    return KEYWORDS[keyword], (Evidence(node.lineno, f"given to `{path}` as `{keyword}`"),)
                if keyword == "device" and path.startswith("torch.") and obj.kind in ("param", "attr"):
                    return "device", (Evidence(node.lineno, f"given to `{path}` as `device`"),)
        return "", ()

    def _spawned(self, obj: Obj) -> bool:
        """Whether a parameter is the first of a function that torch starts as processes."""
        function = obj.site
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)) or not function.args.args or function.args.args[0].arg != obj.name:
            return False
        calls = [node for node in self.machine.escapes.get(function, ()) if isinstance(node, ast.Call)]
        return any(o.kind == "external" and names.SPAWN.match(str(o.name)) for call in calls for o in self.machine.at[call.func].objs)

    def _called_as_criterion(self, obj: Obj) -> bool:
        """Whether calls take what a model gave and something else, and their result is backpropagated, alone or in a sum."""
        for node in self._calls(obj):
            if len(node.args) + len(node.keywords) < 2 or node not in self.machine.at:
                continue
            if not self.machine.at[node].objs & self._backpropagated_terms(True):
                continue
            given = (*node.args, *(keyword.value for keyword in node.keywords))
            if any(self.of(o) == "output" for arg in given if arg in self.machine.at for o in self.machine.at[arg].objs):
                return True
        return False

    def _sets_learning_rate(self, obj: Obj) -> bool:
        """Whether an instance's `step` is called, and its class writes `lr` into an optimizer's groups without stepping the optimizer."""
        step = self.machine.lookup(obj.base, "step") if obj.base is not None else None
        site = obj.base.site if obj.base is not None else None
        if step is None or site is None or not any(self.machine.callers.get(o.site) for o in step.objs if o.site is not None):
            return False
        if any(self.of(o) == "optimizer" for node in _called_on(site, "step") for o in self._held(node)):
            return False
        return any(self._group_of_optimizer(o) for node in _written(site, "lr") for o in self._held(node))

    def _held(self, node: ast.AST) -> frozenset[Obj]:
        return self.machine.at[node].objs if node in self.machine.at else frozenset()

    def _group_of_optimizer(self, obj: Obj) -> bool:
        groups = obj.base if obj.kind == "item" else None
        return (
            groups is not None
            and groups.kind == "attr"
            and groups.name == "param_groups"
            and groups.base is not None
            and self.of(groups.base) == "optimizer"
        )

    def _model_like(self, obj: Obj, did: frozenset[str]) -> bool:
        if did & {".fit", ".compile", ".predict"}:
            return False
        return (
            bool(did & {".parameters", ".named_parameters", ".zero_grad", ".load_state_dict", ".state_dict"})
            or {".train", ".eval"} <= did
            or (bool(did & {".train", ".eval"}) and obj.kind in ("param", "attr", "item"))
        )

    def _may_be_loader(self, obj: Obj) -> bool:
        """Whether a `for` (or `iter`, `next`) reads an object that can be a loader: not a part of a batch, not what torch or Python make."""
        if not any(isinstance(node, (ast.For, ast.AsyncFor, ast.Call)) for node in self.machine.used(obj, "iterated")):
            return False
        if obj.kind == "item":
            return obj.base is not None and obj.base.kind == "made" and self._made_elsewhere(obj.base) and obj.base.path != ""
        if obj.kind == "made":
            return self._made_elsewhere(obj)
        return obj.kind in ("param", "attr", "instance")

    def _made_elsewhere(self, obj: Obj) -> bool:
        """Whether a function that isn't the script's, Python's or torch's made an object."""
        callee = obj.base
        if callee is not None and callee.kind == "attr":
            return callee.name not in names.PARTS and callee.base is not None and self.of(callee.base) not in ("batch", "output", "loss", "model")
        return not names.LIBRARY.match(obj.path) and obj.path not in dir(builtins)

    def _calls(self, obj: Obj) -> list[ast.Call]:
        """Where an object is called; an attribute of something unknown too."""
        nodes = self.machine.used(obj, "call")
        if obj.kind == "attr" and obj.base is not None:
            nodes = [*nodes, *self.machine.used(obj.base, f".{obj.name}")]
        return [node for node in nodes if isinstance(node, ast.Call)]

    def _called_with_loss(self, obj: Obj) -> bool:
        """Whether calls are given a loss or an optimizer, as a scaler or a metric is, and no model."""
        return any(self.of(o) in ("loss", "optimizer") for call in self._calls(obj) for arg in call.args for o in self._held(arg))

    def _given_role(self, obj: Obj, role: str) -> bool:
        return any(self.of(o) == role for value in (*obj.arguments, *obj.keywords.values()) for o in value.objs)

    def _given_to(self, obj: Obj, pattern: re.Pattern[str]) -> bool:
        for node in self.machine.used(obj, "given"):
            if isinstance(node, ast.Call) and any(o.kind == "external" and pattern.match(str(o.name)) for o in self.machine.at[node.func].objs):
                first = node.args[0] if node.args else next((k.value for k in node.keywords if k.arg == "dataset"), None)
                if first is not None and obj in self.machine.at[first].objs:
                    return True
        return False

    def _feeds_model(self, obj: Obj) -> bool:
        """Whether elements of an object, or their parts, are given to a model: as they are, or (parts and moved ones) after one step of computing."""
        for child in self._children.get(obj, ()):
            parts = self._children.get(child, [])
            if any(self._given_to_model(other) for other in (child, *parts)):
                return True
            moved = any(self.machine.used(child, f".{name}") for name in names.MOVES)
            if any(self._given_to_model(d) for other in (*parts, *((child,) if moved else ())) for d in self._computed_from(other)):
                return True
        return False

    def _computed_from(self, obj: Obj) -> list[Obj]:
        """What one call or one formula makes of an object, and the parts of that."""
        found: dict[Obj, None] = {}
        waiting = list(self._derived.get(obj, ()))
        while waiting and len(found) < 64:
            here = waiting.pop()
            if here not in found:
                found[here] = None
                found.update(dict.fromkeys(self._children.get(here, ())))
                waiting += [o for o in self._derived.get(here, ()) if o.kind == "expr"] if here.kind == "expr" else []
        return list(found)

    def _given_to_model(self, obj: Obj) -> bool:
        return any(
            isinstance(node, ast.Call) and any(self.of(o) == "model" for o in self.machine.at[node.func].objs)
            for node in self.machine.used(obj, "given")
        )

    @cached_property
    def _derived(self) -> dict[Obj, list[Obj]]:
        """Object -> what is computed from it in one step."""
        table: dict[Obj, list[Obj]] = {}
        for obj in self.machine.world.table.values():
            sources: list[Obj] = []
            if obj.kind == "made":
                sources = [o for value in (*obj.arguments, *obj.keywords.values()) for o in value.objs]
                if obj.base is not None and obj.base.kind == "attr" and obj.base.base is not None:
                    sources.append(obj.base.base)
            elif obj.kind == "expr":
                sources = _terms_of(self.machine, obj)
            for source in sources:
                table.setdefault(source, []).append(obj)
        return table

    @cached_property
    def _children(self) -> dict[Obj, list[Obj]]:
        table: dict[Obj, list[Obj]] = {}
        for obj in self.machine.world.table.values():
            if obj.kind in ("item", "attr") and obj.base is not None:
                table.setdefault(obj.base, []).append(obj)
        return table

    # what optimizers train -------------------------------------------------------------------------------

    def trained(self, obj: Obj) -> bool:
        """Whether an optimizer was given the object's parameters."""
        return obj.inner in self._given_to_optimizers

    @cached_property
    def training(self) -> dict[Obj, list[Obj]]:
        """Model -> the optimizers that train it, from what the optimizers were given."""
        table = {model: list(optimizers) for model, optimizers in self._given_to_optimizers.items()}
        for holder, inner in self.held_optimizers.items():  # an optimizer inside another has that one's parameters
            for by in table.values():
                if holder in by:
                    by += [o for o in inner if o not in by and not any(o in others for others in table.values())]
        return table

    @cached_property
    def _given_to_optimizers(self) -> dict[Obj, list[Obj]]:
        table: dict[Obj, list[Obj]] = {}
        for obj in list(self.machine.world.table.values()):
            if obj.kind in ("made", "instance") and self._is_optimizer(obj):
                given = (*obj.arguments, *obj.keywords.values())
                for model in self.parameters_of(given) or self._whole_models(obj, given):
                    table.setdefault(model, []).append(obj)
        for optimizer in self._blind(table):
            for model in self._beside(optimizer, table):
                table.setdefault(model, []).append(optimizer)
        for obj, uses in list(self.machine.uses.items()):  # optimizer.add_param_group({"params": model.parameters()})
            for what, node in uses:
                if what == ".add_param_group" and isinstance(node, ast.Call):
                    for model in self.parameters_of([self.machine.at[arg] for arg in node.args]):
                        table.setdefault(model, []).append(obj.inner)
        return table

    def _blind(self, table: dict[Obj, list[Obj]]) -> list[Obj]:
        """The optimizers that the user tells of, and of which it can't be seen what they train."""
        seen = {o for by in table.values() for o in by}
        taught = self.machine.teaching.said
        return [o for o in taught if o not in seen and self.machine.teaching.role(o) == "optimizer"]

    def _beside(self, optimizer: Obj, table: dict[Obj, list[Obj]]) -> list[Obj]:
        """The models that such an optimizer must train: those that came with it, else the only one that is called and that nothing else trains."""
        taught = [o for o in self.machine.teaching.said if self.machine.teaching.role(o) == "model"]
        together = [o for o in taught if o.kind == "item" and o.base is optimizer.base and o not in table]
        if optimizer.kind == "item" and together:
            return together
        modules = (*taught, *(o.inner for o in self.machine.uses if self._known_module(o.inner)))
        called = [o for o in dict.fromkeys(modules) if o not in table and o not in self._owners and self.machine.used(o, "call")]
        return called if len(called) == 1 else []

    def _known_module(self, obj: Obj) -> bool:
        """Whether the class or function that made an object says that it is a module, and no loss."""
        made = names.MODULE.match(obj.path) is not None and not names.LOSS_MODULE.match(obj.path)
        return made or (obj.kind == "instance" and self.machine.is_module(obj))

    @cached_property
    def held_optimizers(self) -> dict[Obj, list[Obj]]:
        """Instances of the script's classes (no nn.Module) -> the optimizers in their attributes."""
        table: dict[Obj, list[Obj]] = {}
        for (owner, name), value in self.machine.store.items():
            if isinstance(owner, Obj) and owner.kind == "instance" and isinstance(name, str) and not self.machine.is_module(owner):
                found = [o.inner for o in value.objs if o.inner is not owner and self.of(o) == "optimizer"]
                table.setdefault(owner, []).extend(found)
        return {owner: list(dict.fromkeys(found)) for owner, found in table.items() if found}

    def _is_optimizer(self, obj: Obj) -> bool:
        if obj.kind == "instance":
            return obj.base is not None and self.machine.reaches(obj.base, names.OPTIMIZER_BASE)
        if names.OPTIMIZER.match(obj.path) or self.machine.teaching.role(obj) == "optimizer":
            return True
        did = self._done(obj)
        return ".zero_grad" in did and (".step" in did or obj in self._stepped_by_scalers)

    def _whole_models(self, optimizer: Obj, given: tuple[Value, ...]) -> list[Obj]:
        """The models that a function which made an optimizer was given whole, or whose method made it."""
        maker = optimizer.base
        candidates = [o for value in given for o in value.objs]
        if maker is not None and maker.kind == "attr" and maker.base is not None:
            candidates.append(maker.base)
        return sorted({self.whole(_holder(o)) for o in candidates if self._is_called_module(o.inner)}, key=_position)

    def _is_called_module(self, obj: Obj) -> bool:
        if self.machine.teaching.role(obj) == "model":
            return True
        if self._known_module(obj):
            return bool(self.machine.used(obj, "call"))
        did = self._done(obj)
        return obj.kind in ("made", "instance", "param", "attr") and "call" in did and self._model_like(obj, did)

    def parameters_of(self, values: list[Value] | tuple[Value, ...]) -> list[Obj]:
        """The objects whose parameters the values hold, at any depth of lists, groups and filters."""
        found: dict[Obj, None] = {}
        for obj in self._held_in(values):
            method = obj.base if obj.kind == "made" else None
            if method is not None and method.base is not None and _gives_parameters(obj):
                found[self.whole(_holder(method.base))] = None
            elif obj.kind == "attr" and obj.base is not None and obj.name in ("weight", "bias"):
                found[self.whole(_holder(obj.base))] = None
        return sorted(found, key=_position)

    def owners_of_parameters(self, values: list[Value]) -> list[Obj]:
        """The objects whose `parameters()` the values hold, as they are written: a part counts as the part."""
        return [o.base.base.inner for o in self._held_in(values) if _gives_parameters(o) and o.base is not None and o.base.base is not None]

    def holder(self, obj: Obj) -> Obj:
        """The outermost object that an attribute is reached through."""
        return _holder(obj)

    def reads_prepared_weights(self, node: ast.AST) -> bool:
        """Whether an expression can hold weights of a prepared model (or their gradients)."""
        while isinstance(node, ast.Subscript) or (isinstance(node, ast.Attribute) and node.attr in ("data", "grad")):
            node = node.value
        if isinstance(node, ast.Attribute) and node.attr in ("weight", "bias"):
            root: ast.AST = node
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if any(o.kind == "prepared" for o in self._held(root)):
                return True
        value = self.machine.at.get(node, NOTHING)
        methods = [o.base for o in self._held_in([value]) if _gives_parameters(o)]
        return any(m is not None and m.base is not None and m.base.kind == "prepared" and self.of(m.base) in ("model", "criterion") for m in methods)

    def loose_parameters(self, optimizer: Obj) -> list[Obj]:
        """The tensors that an optimizer is given to train and that no module of the script holds."""
        given = [optimizer.keywords.get("params", optimizer.arguments[0] if optimizer.arguments else NOTHING)]
        added = [node for node in self.machine.used(optimizer, ".add_param_group") if isinstance(node, ast.Call)]
        given += [self.machine.at[arg] for node in added for arg in node.args]
        found = [o for o in self._held_in(given) if _is_tensor(o) and o not in self._owners]
        return sorted(dict.fromkeys(found), key=_position)

    def _held_in(self, values: list[Value] | tuple[Value, ...]) -> Iterator[Obj]:
        """Everything that lists, groups, filters and sums of them hold, down to modules' parameters and tensors."""
        seen: set[Obj] = set()
        waiting = [o for value in values for o in value.objs]
        while waiting:
            obj = waiting.pop()
            if obj in seen:
                continue
            seen.add(obj)
            yield obj
            if _gives_parameters(obj) or _is_tensor(obj):
                continue
            waiting += [o for value in (*obj.arguments, *obj.keywords.values()) for o in value.objs]
            if obj.kind in ("list", "tuple", "dict"):
                waiting += list(self.machine.anything_in(obj).objs)
            if obj.kind == "iter":
                waiting += [o for i in range(4) if (obj, i) in self.machine.store for o in self.machine.store[obj, i].objs]
            part = obj.kind in ("item", "made") or (obj.kind == "attr" and obj.name in ("data", "grad"))
            if part and obj.base is not None and obj.base.kind != "external":
                waiting.append(obj.base)
            if obj.kind == "expr" and obj.site is not None:
                waiting += [o for values_ in self.machine.operands.get(obj.site, ()) for value in values_ for o in value.objs]

    def whole(self, obj: Obj) -> Obj:
        """The outermost nn.Module of the script that holds a module as a part."""
        seen = {obj}
        while obj in self._owners and self._owners[obj] not in seen:
            obj = self._owners[obj]
            seen.add(obj)
        return obj

    @cached_property
    def _owners(self) -> dict[Obj, Obj]:
        """Part -> the module instance that has it as an attribute (of its own class's instances only)."""
        table: dict[Obj, Obj] = {}
        for (owner, name), value in self.machine.store.items():
            if isinstance(owner, Obj) and owner.kind == "instance" and isinstance(name, str) and self.machine.is_module(owner):
                for obj in value.objs:
                    if obj.kind in ("made", "instance") and obj is not owner:
                        table[obj] = owner
        return table


_NEVER = 1 << 30
_MOST_TERMS = 256
_NOTHING: frozenset[str] = frozenset()
_PLACE = {"process_index": "rank", "local_process_index": "rank", "num_processes": "world size"}
_SAME_ROLE = {
    "int": ("rank", "world size"),
    "float": ("rank", "world size"),
    "torch.autograd.Variable": ("batch",),
}
_ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_REDUCTIONS = frozenset({"mean", "sum", "abs", "clamp", "pow", "add", "mul", "div", "sub", "squeeze", "sqrt", "add_", "mul_", "div_", "sub_"})


def _terms_of(machine: Machine, obj: Obj) -> list[Obj]:
    """What an object is computed from in one step of arithmetic; nothing where it isn't."""
    if obj.kind == "expr" and obj.site is not None:
        node = obj.site
        if (isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, _ARITHMETIC)) or (
            isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        ):
            return [o for values in machine.operands.get(node, ()) for value in values for o in value.objs]
    if obj.kind == "made" and obj.base is not None:
        if obj.base.kind == "attr" and obj.base.base is not None and obj.base.name in _REDUCTIONS:
            return [obj.base.base]
        if obj.path in ("sum", "torch.mean", "torch.sum", "torch.stack") and obj.arguments:
            return [part for o in obj.arguments[0].objs for part in (_contents(machine, o) or [o])]
    return []


def _contents(machine: Machine, obj: Obj) -> list[Obj]:
    """The elements of a container that the script fills."""
    if obj.kind in ("list", "tuple", "dict"):
        return list(machine.anything_in(obj).objs)
    if obj.kind == "iter" and obj.name in ("values", "through") and (obj, 0) in machine.store:
        return [part for o in machine.store[obj, 0].objs for part in (_contents(machine, o) if obj.name == "through" else [o])]
    return []


def _is_key(obj: Obj) -> bool:
    """Whether an object is the key of a pair that `items()` of an unknown mapping gives."""
    pair = obj.base
    view = pair.base if pair is not None and pair.kind == "item" else None
    return (
        obj.name == 0
        and view is not None
        and view.kind == "made"
        and view.base is not None
        and view.base.kind == "attr"
        and view.base.name == "items"
    )


def _called_on(tree: ast.AST, method: str) -> list[ast.expr]:
    """What a method of some name is called on, anywhere below a node."""
    calls = [node.func for node in walk(tree) if isinstance(node, ast.Call)]
    return [func.value for func in calls if isinstance(func, ast.Attribute) and func.attr == method]


def _written(tree: ast.AST, key: str) -> list[ast.expr]:
    """The mappings whose `key` is set, anywhere below a node."""
    stores = [node for node in walk(tree) if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store)]
    return [node.value for node in stores if isinstance(node.slice, ast.Constant) and node.slice.value == key]


def _gives_parameters(obj: Obj) -> bool:
    """Whether an object is what `module.parameters()` gives."""
    method = obj.base if obj.kind == "made" else None
    return method is not None and method.kind == "attr" and method.base is not None and method.name in ("parameters", "named_parameters")


def _is_tensor(obj: Obj) -> bool:
    """Whether a call made a tensor, which an optimizer that is given it trains."""
    return obj.kind == "made" and bool(names.PARAMETER.match(obj.path) or names.CPU_TENSOR.match(obj.path))


def _only(obj: Obj) -> Value:
    return obj.alone


_OPTIMIZER_SIGNS = frozenset({".zero_grad", ".backward", ".add_param_group", "attr:param_groups"})
_MODEL_SIGNS = frozenset({".parameters", ".named_parameters", ".zero_grad", ".load_state_dict", ".state_dict", ".train", ".eval"})


def _holder(obj: Obj) -> Obj:
    """`model.fc.parameters()` are the model's, `model[0].parameters()` too: the outermost object that is no attribute or layer of an unknown."""
    obj = obj.inner
    while obj.base is not None and (
        (obj.kind == "attr" and obj.base.kind in ("made", "instance", "prepared", "attr"))
        or (obj.kind == "item" and obj.base.inner.kind == "made" and names.MODULE.match(obj.base.inner.path))
    ):
        obj = obj.base.inner
    return obj


def _listing(words: frozenset[str]) -> str:
    return " and ".join(f"`{word.lstrip('.')}`" for word in sorted(words))


def _position(obj: Obj) -> tuple[int, int, int]:
    return getattr(obj.site, "lineno", 0), getattr(obj.site, "col_offset", 0), obj.number


def _line(obj: Obj) -> int:
    probe: Obj | None = obj
    while probe is not None:
        line: int | None = getattr(probe.site, "lineno", None)
        if line is not None:
            return line
        probe = probe.base
    return 0
