"""Which role an object plays, by how it was made and by what is done with it; each belief with its reasons."""

from __future__ import annotations

import ast
import re
from functools import cached_property

from script2accel.analysis.machine import Machine
from script2accel.analysis.values import Obj, Value
from script2accel.diagnostics import Evidence
from script2accel.knowledge import torch as names

CONSTRUCTORS: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("optimizer", names.OPTIMIZER, "made by `{path}`"),
    ("scheduler", names.SCHEDULER, "made by `{path}`"),
    ("loader", names.LOADER, "made by `{path}`"),
    ("sampler", names.SAMPLER, "made by `{path}`"),
    ("dataset", names.DATASET, "made by `{path}`"),
    ("criterion", names.LOSS_MODULE, "made by `{path}`"),
    ("scaler", names.SCALER, "made by `{path}`"),
    ("writer", names.WRITER, "made by `{path}`"),
    ("progress bar", names.PROGRESS, "made by `{path}`"),
    ("ema", names.EMA, "made by `{path}`"),
    ("model", names.DDP, "wrapped by `{path}`"),
    ("model", names.DATA_PARALLEL, "wrapped by `{path}`"),
    ("model", names.MODULE, "made by `{path}`"),
    ("device", re.compile(r"^torch\.device$|^torch\.accelerator\.current_accelerator$"), "made by `{path}`"),
    ("rank", re.compile(r"^torch\.distributed\.(get_rank|get_node_local_rank)$"), "given by `{path}`"),
    ("world size", re.compile(r"^torch\.distributed\.get_world_size$"), "given by `{path}`"),
    ("accelerator", re.compile(r"^accelerate\.(accelerator\.)?Accelerator$"), "made by `{path}`"),
    ("loss", names.LOSS_FUNCTION, "computed by `{path}`"),
)
CLASSES: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("dataset", names.DATASET_BASE, "its class is a Dataset"),
    ("loader", names.LOADER_BASE, "its class is a DataLoader"),
    ("sampler", names.SAMPLER_BASE, "its class is a Sampler"),
    ("optimizer", names.OPTIMIZER_BASE, "its class is an Optimizer"),
    ("scheduler", names.SCHEDULER_BASE, "its class is a learning rate scheduler"),
)
ENVIRONMENT = {"RANK": "rank", "LOCAL_RANK": "rank", "SLURM_PROCID": "rank", "SLURM_LOCALID": "rank", "WORLD_SIZE": "world size", "SLURM_NTASKS": "world size"}
DEVICE_TEXT = re.compile(r"^(cuda(:\d+)?|cpu|mps|xpu|npu|hpu)$")


class Roles:
    """The roles of one finished abstract run."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._known: dict[Obj, tuple[str, tuple[Evidence, ...]]] = {}
        self._busy: set[Obj] = set()

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
        return [o for o in sorted(value.objs, key=_line) if self.of(o) == role] if value is not None else []

    # objects ---------------------------------------------------------------------------------------------

    def of(self, obj: Obj) -> str:
        """The role of one object, or ''."""
        return self.why(obj)[0]

    def why(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        """The role of one object and the reasons."""
        if obj in self._known:
            return self._known[obj]
        if obj in self._busy:
            return "", ()
        self._busy.add(obj)
        found = self._find(obj)
        self._busy.discard(obj)
        self._known[obj] = found
        return found

    def _find(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        if obj.kind == "prepared" and obj.base is not None:
            return self.why(obj.base)
        if obj.kind in ("made", "instance"):
            found = self._by_construction(obj)
            if found[0]:
                return found
        if obj.kind in ("item", "made") and obj.base is not None:
            found = self._by_origin(obj)
            if found[0]:
                return found
        if obj.kind in ("made", "param", "attr", "item", "instance", "expr"):
            return self._by_use(obj)
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
        for role, pattern, why in CONSTRUCTORS:
            if path and pattern.match(path):
                return role, (Evidence(line, why.format(path=path)),)
        if path == "copy.deepcopy" and obj.arguments and any(self.of(o) == "model" for o in obj.arguments[0].objs) and not self.trained(obj):
            return ("ema", (Evidence(line, "a copy of the model that no optimizer trains"),))
        if path in ("os.getenv", "os.environ.get") and obj.arguments:
            for const in obj.arguments[0].objs:
                if const.name in ENVIRONMENT:
                    return ENVIRONMENT[const.name], (Evidence(line, f"the environment's {const.name}"),)  # type: ignore[index]
        if path in ("int", "float") and obj.arguments:
            for inner in obj.arguments[0].objs:
                if self.of(inner) in ("rank", "world size"):
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
        return any("backward" in what for o in self.machine.at[node].objs for what, _ in self.machine.uses.get(o, ())) if node in self.machine.at else False

    def _by_origin(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        base, line = obj.base, _line(obj)
        assert base is not None
        if obj.kind == "item":
            if base.kind == "external" and base.name == "os.environ" and obj.name in ENVIRONMENT:
                return ENVIRONMENT[str(obj.name)], (Evidence(line, f"the environment's {obj.name}"),)
            role = self.of(base)
            if role == "loader":
                return "batch", (Evidence(line, "what the loader gives"),)
            if role == "batch":
                return "batch", (Evidence(line, "part of a batch"),)
            if role == "output":
                return "output", (Evidence(line, "part of what the model gave"),)
            if base.path == "torch.utils.data.random_split" or base.path == "torch.utils.data.dataset.random_split":
                return "dataset", (Evidence(line, "a part made by random_split"),)
            return "", ()
        if self._backpropagated(obj):
            return "loss", (Evidence(line, "it is backpropagated"),)
        callee = base.inner
        if callee.kind in ("instance", "made", "param", "attr") and base.kind != "external":
            role = self.of(callee)
            if role == "model" and (base.kind != "attr" or callee is not base):
                return "output", (Evidence(line, "what the model gives"),)
            if role == "criterion":
                return "loss", (Evidence(line, "what the criterion gives"),)
            if base.kind == "attr" and base.base is not None and self.of(base.base.inner) == "model" and base.name in ("forward", "generate"):
                return "output", (Evidence(line, "what the model gives"),)
        return "", ()

    def _backpropagated(self, obj: Obj) -> bool:
        return any(what in ("backward", ".backward") for what, _ in self.machine.uses.get(obj, ()))

    def _by_use(self, obj: Obj) -> tuple[str, tuple[Evidence, ...]]:
        uses = self.machine.uses.get(obj, {})
        did = {what for what, _ in uses}
        line = _line(obj)
        if self.machine.is_accelerator(obj):
            return "accelerator", (Evidence(line, "used as an Accelerator is"),)
        if obj.kind != "expr" and self.trained(obj):
            return "model", (Evidence(line, "its parameters go to an optimizer"),)
        if "call" in did and obj.kind != "expr" and self._model_like(obj, did):
            return "model", (Evidence(line, "it is called, and " + _listing(did & _MODEL_SIGNS) + " is used"),)
        if self._backpropagated(obj) and obj.kind in ("made", "expr", "param", "attr", "item"):
            return "loss", (Evidence(line, "it is backpropagated"),)
        if {".zero_grad", ".step"} <= did and "call" not in did and ".train" not in did:
            return "optimizer", (Evidence(line, "`zero_grad` and `step` are called on it"),)
        if ".step" in did and obj.kind in ("made", "instance") and self._given_role(obj, "optimizer"):
            return "scheduler", (Evidence(line, "made from the optimizer, and `step` is called on it"),)
        if ".step" in did and ({".get_last_lr", ".get_lr"} & did) and ".zero_grad" not in did:
            return "scheduler", (Evidence(line, "`step` and its learning rate are used"),)
        if obj.kind in ("made", "param", "attr", "instance") and "iterated" in did and self._feeds_model(obj):
            return "loader", (Evidence(line, "what iterating over it gives goes into a model"),)
        if {".scale", ".update"} <= did and ".step" in did:
            return "scaler", (Evidence(line, "`scale`, `step` and `update` are called on it"),)
        if {".add_scalar"} & did:
            return "writer", (Evidence(line, "`add_scalar` is called on it"),)
        if obj.kind == "made" and obj.base is not None and obj.base.kind == "attr" and self.of(obj.base.base or obj) == "loss" and obj.base.name in ("mean", "sum"):
            return "loss", (Evidence(line, "reduced from a loss"),)
        if obj.kind in ("made", "param") and self._given_to(obj, names.LOADER):
            return "dataset", (Evidence(line, "a DataLoader reads it"),)
        return "", ()

    def _model_like(self, obj: Obj, did: set[str]) -> bool:
        if did & {".fit", ".compile", ".predict"}:
            return False
        return bool(did & {".parameters", ".named_parameters", ".zero_grad", ".load_state_dict", ".state_dict"}) or {".train", ".eval"} <= did or (
            bool(did & {".train", ".eval"}) and obj.kind == "param"
        )

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
        """Whether elements of an object, or their parts, are given to a model."""
        for child in self._children.get(obj, ()):
            for other in (child, *self._children.get(child, ())):
                for node in self.machine.used(other, "given"):
                    if isinstance(node, ast.Call) and any(self.of(o) == "model" for o in self.machine.at[node.func].objs):
                        return True
        return False

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
        return obj.inner in self.training

    @cached_property
    def training(self) -> dict[Obj, list[Obj]]:
        """Model -> the optimizers that train it, from what the optimizers were given."""
        table: dict[Obj, list[Obj]] = {}
        for obj in list(self.machine.world.table.values()):
            if obj.kind in ("made", "instance") and self._is_optimizer(obj):
                for model in self.parameters_of((*obj.arguments, *obj.keywords.values())):
                    table.setdefault(model, []).append(obj)
        for obj, uses in list(self.machine.uses.items()):  # optimizer.add_param_group({"params": model.parameters()})
            for what, node in uses:
                if what == ".add_param_group" and isinstance(node, ast.Call):
                    for model in self.parameters_of([self.machine.at[arg] for arg in node.args]):
                        table.setdefault(model, []).append(obj.inner)
        return table

    def _is_optimizer(self, obj: Obj) -> bool:
        if obj.kind == "instance":
            return obj.base is not None and self.machine.reaches(obj.base, names.OPTIMIZER_BASE)
        if names.OPTIMIZER.match(obj.path):
            return True
        did = {what for what, _ in self.machine.uses.get(obj, ())}
        return ".step" in did and ".zero_grad" in did

    def parameters_of(self, values: list[Value] | tuple[Value, ...]) -> list[Obj]:
        """The objects whose parameters the values hold, at any depth of lists, groups and filters."""
        found: dict[Obj, None] = {}
        seen: set[Obj] = set()
        waiting = [o for value in values for o in value.objs]
        while waiting:
            obj = waiting.pop()
            if obj in seen:
                continue
            seen.add(obj)
            if obj.kind == "made" and obj.base is not None and obj.base.kind == "attr":
                if obj.base.name in ("parameters", "named_parameters") and obj.base.base is not None:
                    found[self.whole(_holder(obj.base.base))] = None
                    continue
            if obj.kind == "attr" and obj.base is not None and obj.name in ("weight", "bias"):
                found[self.whole(_holder(obj.base))] = None
            waiting += [o for value in (*obj.arguments, *obj.keywords.values()) for o in value.objs]
            if obj.kind in ("list", "tuple", "dict"):
                waiting += list(self.machine.anything_in(obj).objs)
            if obj.kind == "iter":
                waiting += [o for i in range(4) if (obj, i) in self.machine.store for o in self.machine.store[obj, i].objs]
            if obj.kind in ("item", "made") and obj.base is not None and obj.base.kind != "external":
                waiting.append(obj.base)
            if obj.kind == "expr" and obj.site is not None:
                waiting += [o for values_ in self.machine.operands.get(obj.site, ()) for value in values_ for o in value.objs]
        return list(found)

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


_MODEL_SIGNS = {".parameters", ".named_parameters", ".zero_grad", ".load_state_dict", ".state_dict", ".train", ".eval"}


def _holder(obj: Obj) -> Obj:
    """`model.fc.parameters()` are the model's: the outermost object that is no attribute of an unknown."""
    obj = obj.inner
    while obj.kind == "attr" and obj.base is not None and obj.base.kind in ("made", "instance", "prepared", "attr"):
        obj = obj.base.inner
    return obj


def _listing(words: set[str]) -> str:
    return " and ".join(f"`{word.lstrip('.')}`" for word in sorted(words))


def _line(obj: Obj) -> int:
    probe: Obj | None = obj
    while probe is not None:
        if probe.site is not None and hasattr(probe.site, "lineno"):
            return int(probe.site.lineno)
        probe = probe.base
    return 0
