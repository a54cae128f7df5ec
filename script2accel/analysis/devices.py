"""Where the script speaks of devices: definitions, moves, and expressions that name one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import Facts
from script2accel.analysis.listing import device_names
from script2accel.analysis.overriding import overriding
from script2accel.analysis.roles import DEVICE_TEXT
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk

KEEPS_DEVICE = frozenset(
    {
        "items", "values", "copy", "get", "pop", "long", "float", "int", "bool", "double", "half", "type", "view", "reshape", "unsqueeze",
        "squeeze", "t", "transpose", "permute", "contiguous", "detach", "clone", "requires_grad_", "expand", "repeat", "flatten", "narrow", "data",
        "size_as", "to", "cuda", "pin_memory", "byte", "short", "view_as", "expand_as", "chunk", "split", "unbind", "mean",
    }
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Move:
    """A call that moves something: `device` is the argument that names the device (None for `.cuda()`), `dtype` what stays of the arguments."""

    call: ast.Call
    receiver: ast.expr
    device: ast.expr | None
    rest: tuple[str, ...]
    non_blocking: bool


def definitions(facts: Facts) -> list[ast.Assign | ast.AnnAssign]:
    """Assignments whose value chooses a device, in the order of the text."""
    known = device_names(facts.roles)
    found: list[ast.Assign | ast.AnnAssign] = []
    for node in facts.source.every(ast.Assign, ast.AnnAssign):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target = node.target
        else:
            continue
        if not isinstance(target, (ast.Name, ast.Attribute)) or facts.in_module(node) or node.value is None or node.value not in facts.machine.at:
            continue
        if isinstance(facts.function(node), ast.Module) and not facts.program.source.is_entry(node):
            continue  # no accelerator at import time: each use of the name is rewritten
        if chooses_device(facts, node.value, ast.unparse(target) in known) and not _set_again(facts, node, target):
            found.append(node)
    return sorted(found, key=lambda n: n.lineno)


def override(facts: Facts, definition: ast.stmt) -> ast.stmt | None:
    """The last statement behind a definition, in its module's body, that may set any global: the definition is but a default."""
    module = facts.source.parents[definition]
    if not isinstance(module, ast.Module):
        return None
    return next((s for s in reversed(overriding(facts.program.source.of(definition), module)) if s.lineno > definition.lineno), None)


def _set_again(facts: Facts, definition: ast.stmt, target: ast.expr) -> bool:
    """Whether the accelerator's device is set behind what may override a definition."""
    last = override(facts, definition)
    again = [s for s in facts.source.block(last) if isinstance(s, ast.Assign) and s.lineno > last.lineno] if last is not None else []
    return any([ast.unparse(t) for t in s.targets] == [ast.unparse(target)] and _accelerators(facts, s.value) for s in again)


def _accelerators(facts: Facts, value: ast.expr) -> bool:
    """Whether an expression is the accelerator's device, or its type or text."""
    return any(isinstance(n, ast.Attribute) and n.attr == "device" and facts.roles.of_node(n.value) == "accelerator" for n in walk(value))


def chooses_device(facts: Facts, value: ast.expr, used_as_device: bool) -> bool:
    """Whether an expression picks a device from the machine: a torch.device, a choice between device names."""
    match value:
        case ast.IfExp(body=body, orelse=orelse):
            return chooses_device(facts, body, used_as_device) and chooses_device(facts, orelse, used_as_device)
        case ast.Call():
            path = facts.path(value)
            return path == "torch.device" or names.CURRENT_DEVICE.match(path) is not None
        case ast.Constant(value=str(text)):
            return used_as_device and DEVICE_TEXT.match(text) is not None
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), *_]):
            return used_as_device and text.startswith("cuda")
        case ast.BinOp(left=ast.Constant(value=str(text))):
            return used_as_device and text.startswith("cuda")
        case ast.Attribute() | ast.Name():
            objs = facts.machine.at.get(value, NOTHING).objs
            return (
                used_as_device
                and isinstance(value, ast.Attribute)
                and value.attr in ("device", "gpu")
                and all(o.kind == "attr" for o in objs)
                and _from_arguments(objs)
            )
        case ast.BoolOp(values=parts):
            return all(chooses_device(facts, part, used_as_device) for part in parts)
    return False


def _from_arguments(objs: frozenset[Obj]) -> bool:
    """Whether values are attributes of the parsed command line (or of an unknown namespace), not of a tensor or model."""
    return all(o.base is not None and o.base.kind in ("made", "param") and (o.base.kind == "param" or ".parse" in _callee(o.base)) for o in objs)


def used_as_tensor(facts: Facts, node: ast.AST) -> bool:
    """Whether what an expression or a parameter holds is asked elsewhere for what tensors and models answer, and no namespace does."""
    objs = facts.machine.at.get(node, NOTHING).objs
    return any(what.removeprefix("attr:") in names.TENSOR_ANSWERS for o in objs for what, _ in facts.machine.uses.get(o, ()))


def may_have_parameters(facts: Facts, cls: ast.ClassDef) -> bool:
    """Whether an instance of a module's class can hold parameters: none does that keeps but numbers and layers without weights."""
    if any(o.kind != "external" or not names.MODULE_BASE.match(str(o.name)) for o in _bases(facts, cls)):
        return True
    made = next((s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
    for node in walk(made) if made is not None else ():
        if isinstance(node, ast.Assign) and facts.roles.of_node(node.value) in ("model", "criterion"):
            call = node.value
            if not (isinstance(call, ast.Call) and names.BARE_LAYER.match(facts.program.path(call))):
                return True
        if isinstance(node, ast.Call) and not _super(node):
            path = facts.program.path(node)
            plain = "." not in path or path.startswith(("torch.", "math.", "numpy.")) if path else False
            layer = path.startswith("torch.nn.") and not path.startswith("torch.nn.functional.")
            if not plain or (layer and not names.BARE_LAYER.match(path)):
                return True
    return False


def _bases(facts: Facts, cls: ast.ClassDef) -> list[Obj]:
    return [base for own, bases in facts.machine.bases.items() if own.site is cls for base in bases]


def _super(call: ast.Call) -> bool:
    inner = call.func.value if isinstance(call.func, ast.Attribute) else call
    return isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id == "super"


def _callee(obj: Obj) -> str:
    return f".{obj.base.name}" if obj.base is not None and obj.base.kind == "attr" else obj.path


def names_device(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression given to `.to` or `device=` names a device."""
    if isinstance(node, ast.Constant):
        return (
            isinstance(node.value, (str, int))
            and not isinstance(node.value, bool)
            and (isinstance(node.value, int) or DEVICE_TEXT.match(node.value) is not None)
        )
    value = facts.machine.at.get(node, NOTHING)
    if facts.roles.of_value(value) in ("device", "rank"):
        return True
    if chooses_device(facts, node, True):
        return True
    consts = [o.name for o in value.objs if o.kind == "const" and o.name is not None]
    if consts and all(isinstance(c, str) and DEVICE_TEXT.match(c) for c in consts):
        return True
    if isinstance(node, (ast.Name, ast.Attribute)):
        word = node.id if isinstance(node, ast.Name) else node.attr
        kinds = {o.kind for o in value.objs}
        return word in ("device", "dev", "gpu", "gpu_id", "local_rank", "rank", "cuda_id", "torch_device", "accelerator_device") and kinds <= {
            "param",
            "attr",
            "made",
            "const",
            "expr",
        }
    return False


def fixed_device(facts: Facts, node: ast.expr) -> bool:
    """Whether a device is written here, rather than read from a variable that the conversion redefines."""
    if facts.roles.of_node(node) == "rank":  # a number of a process is no device on a second machine, nor without GPUs
        return True
    if isinstance(node, (ast.Name, ast.Attribute)) and _from_import_time(facts, node):
        return True
    if isinstance(node, ast.Name):
        defined = {ast.unparse(t) for d in definitions_cached(facts) for t in _targets(d)}
        value = facts.machine.at.get(node, NOTHING)
        if node.id in defined or any(o.kind in ("param",) for o in value.objs):
            return False
        if any(o.kind == "attr" and o.name == "device" and not _from_arguments(frozenset((o,))) for o in value.objs):
            return False
        if any(o.kind == "attr" and o.name == "type" and o.base is not None and o.base.name == "device" for o in value.objs):
            return False
        return not any(o.kind == "made" or facts.roles.of(o) == "device" for o in value.objs) or any(o.kind == "const" for o in value.objs)
    if isinstance(node, ast.Attribute):
        text = ast.unparse(node)
        defined = {ast.unparse(t) for d in definitions_cached(facts) for t in _targets(d)}
        if text in defined or text.endswith(".accelerator.device") or (node.attr == "device" and used_as_tensor(facts, node.value)):
            return False
        objs = facts.machine.at.get(node, NOTHING).objs
        if any(o.kind == "attr" and o.base is not None and not _from_arguments(frozenset((o,))) for o in objs):
            return False
        return bool(objs) and all(o.kind in ("attr", "const") for o in objs)
    return True


def _from_import_time(facts: Facts, node: ast.expr) -> bool:
    """Whether the device was chosen in the body of an imported module: no accelerator exists there, so each use is rewritten."""
    objs = facts.machine.at.get(node, NOTHING).objs
    sites = [o.site for o in objs if o.kind == "made" and o.path == "torch.device" and o.site is not None]
    program = facts.program.source
    return bool(sites) and len(sites) == len(objs) and all(isinstance(facts.function(s), ast.Module) and not program.is_entry(s) for s in sites)


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def definitions_cached(facts: Facts) -> list[ast.Assign | ast.AnnAssign]:
    """`definitions` of all files, computed once per facts."""
    program = facts.program
    if "device_definitions" not in program.__dict__:
        program.__dict__["device_definitions"] = definitions(program)
    return program.__dict__["device_definitions"]  # type: ignore[no-any-return]


def own_definitions(facts: Facts) -> list[ast.Assign | ast.AnnAssign]:
    """The definitions that stand in the file at hand."""
    here: object = facts.source  # a file, where a rule asks; all files otherwise
    return [d for d in definitions_cached(facts) if here in (facts.program.source.of(d), facts.program.source)]


def moves(facts: Facts) -> list[Move]:
    """Every `.to(device)` and `.cuda()`."""
    found = []
    for call in facts.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in names.MOVES:
            continue
        if any(o.kind == "external" for o in facts.machine.at.get(call.func.value, NOTHING).objs):
            continue
        move = _move(facts, call, call.func)
        if move is not None:
            found.append(move)
    return found


def _move(facts: Facts, call: ast.Call, func: ast.Attribute) -> Move | None:
    segment = facts.source.segment
    non_blocking = any(
        k.arg in ("non_blocking", "async") and not (isinstance(k.value, ast.Constant) and k.value.value is False) for k in call.keywords
    )
    if func.attr == "cuda":
        if len(call.args) > 1:
            non_blocking = True
        return Move(call, func.value, call.args[0] if call.args else None, (), non_blocking)
    device = next((k.value for k in call.keywords if k.arg == "device"), None)
    rest = []
    for index, arg in enumerate(call.args):
        if device is None and index == 0 and names_device(facts, arg):
            device = arg
        elif isinstance(arg, ast.Starred):
            return None
        elif index == 2 or (isinstance(arg, ast.Constant) and isinstance(arg.value, bool)):
            non_blocking = True
        else:
            rest.append(segment(arg))
    rest += [segment(k) for k in call.keywords if k.arg not in ("device", "non_blocking", "async")]
    return Move(call, func.value, device, tuple(rest), non_blocking) if device is not None else None


def to_cpu(move: Move) -> bool:
    """Whether a move goes to the CPU by name."""
    match move.device:
        case ast.Constant(value="cpu"):
            return True
        case ast.Call(args=[ast.Constant(value="cpu")]):
            return True
    return False


def leaves_device(facts: Facts, model: Obj) -> bool:
    """Whether a model that was prepared is moved to the CPU (to be saved, say): a move behind that brings it back, and stays."""
    if model.kind != "prepared":
        return False
    for what, node in facts.machine.uses.get(model, ()):
        if what == ".cpu":
            return True
        if what == ".to" and isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            move = _move(facts.program, node, node.func)
            if move is not None and to_cpu(move):
                return True
    return False


def from_prepared_loader(facts: Facts, node: ast.expr) -> bool:
    """Whether everything an expression can hold is a tensor (or container) of batches that a prepared loader placed."""
    objs = [o for o in facts.machine.at.get(node, NOTHING).objs if o.kind != "const"]
    return bool(objs) and all(_placed(facts, o) for o in objs)


def _placed(facts: Facts, obj: Obj) -> bool:
    while True:
        if obj.kind == "prepared":
            return facts.roles.of(obj) == "loader" and not _stays_behind(facts, obj.inner)
        if obj.kind == "item" and obj.base is not None:
            obj = obj.base
        elif obj.kind == "made" and obj.base is not None and obj.base.kind == "attr" and obj.base.name in KEEPS_DEVICE and obj.base.base is not None:
            obj = obj.base.base
        elif obj.kind == "attr" and obj.name in ("data", "items", "T") and obj.base is not None:
            obj = obj.base
        elif obj.path == "torch.autograd.Variable" and obj.arguments:
            inner = [o for o in obj.arguments[0].objs if o.kind != "const"]
            if len(inner) != 1:
                return bool(inner) and all(_placed(facts, o) for o in inner)
            obj = inner[0]
        elif obj.kind in ("list", "dict", "tuple"):
            inner = [o for o in facts.machine.anything_in(obj).objs if o.kind != "const"]
            if not inner or any(o is obj for o in inner):
                return False
            return all(_placed(facts, o) for o in inner)
        else:
            return False


def moves_itself(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is a batch of a class of the script that Accelerate doesn't move: its own methods do."""
    objs = facts.machine.at.get(node, NOTHING).objs
    loaders = [o.base.inner for o in objs if o.kind == "item" and o.base is not None]
    return bool(loaders) and all(_stays_behind(facts, loader) for loader in loaders)


def _stays_behind(facts: Facts, loader: Obj) -> bool:
    """Whether a loader's batches are objects without `.to()`, which Accelerate leaves where they are (measured)."""
    return any(_unmoved(facts, cls) for o in loader.keywords.get("collate_fn", NOTHING).objs for cls in _collated(facts, o))


def _collated(facts: Facts, collate: Obj) -> list[Obj]:
    """The script's own classes that a `collate_fn` makes batches of."""
    if collate.kind == "class":
        return [collate]
    site = collate.site if collate.kind == "function" else None
    returns = [n for n in walk(site) if isinstance(n, ast.Return)] if site is not None else []
    values = [site.body] if isinstance(site, ast.Lambda) else [n.value for n in returns]
    called = {value.func.id for value in values if isinstance(value, ast.Call) and isinstance(value.func, ast.Name)}
    return [cls for cls in facts.machine.bases if isinstance(cls.site, ast.ClassDef) and cls.site.name in called]


def _unmoved(facts: Facts, cls: Obj) -> bool:
    """Whether a class of the script has no `to`, and no base from elsewhere that may have it (a dict, a named tuple)."""
    return facts.machine.lookup(cls, "to") is None and all(base.kind == "class" for base in facts.machine.bases.get(cls, ()))


def _keeps(path: str) -> bool:
    """Whether a library's function runs a model that it is given, or copies it where it lies."""
    foreign = "." in path and path.partition(".")[0] not in ("torch", "copy", "transformers")
    return path == "copy.deepcopy" or names.EMA.match(path) is not None or foreign


def runs_before(facts: Facts, model: Obj) -> bool:
    """Whether a model runs, or goes to a library that may run it, before it is prepared."""
    for what, node in facts.machine.uses.get(model, ()):
        if what == "call" and not facts.in_module(node):
            return True
        if what.startswith(".") and what[1:] not in names.MODULE_API | names.MODULE_NAMED and isinstance(node, ast.Call) and _raw(facts, node):
            return True
        if what == "given" and isinstance(node, ast.Call) and _keeps(facts.path(node)):
            return facts.roles.of_node(node) not in ("optimizer", "scheduler")
    return False


def copied_before(facts: Facts, model: Obj) -> bool:
    """Whether weights of a model are copied (for an average, by an optimizer around another) before it is prepared: copies lie where it lies."""
    known: frozenset[Obj] | None = facts.program.__dict__.get("copied_models")
    if known is None:
        known = facts.program.__dict__["copied_models"] = frozenset(_copied(facts.program))
    return model in known


def _copied(facts: Facts) -> Iterator[Obj]:
    inner = {o for held in facts.wrapped_optimizers.values() for o in held}
    yield from (m for m, by in facts.roles.training.items() if inner & set(by))
    for call in facts.calls:
        copied = call.func.value if isinstance(call.func, ast.Attribute) and call.func.attr in ("clone", "detach") else None
        if copied is None and call.args and (names.LIKE.match(facts.path(call)) or facts.path(call) == "copy.deepcopy"):
            copied = call.args[0]
        if copied is not None and not facts.roles.reads_prepared_weights(copied):
            yield from facts.roles.parameters_of([facts.machine.at.get(copied, NOTHING)])


def _raw(facts: Facts, call: ast.Call) -> bool:
    """Whether the model whose method is called has not been prepared, nor unwrapped again."""
    if not isinstance(call.func, ast.Attribute) or facts.in_module(call) or "unwrap_model" in facts.source.segment(call.func):
        return False
    return any(o.kind != "prepared" and facts.roles.of(o) == "model" for o in facts.machine.at[call.func.value].objs)
