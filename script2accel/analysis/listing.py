"""The lines of `script2accel roles`: every name that is bound, with the role of what it holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from script2accel.analysis.roles import DEVICE_TEXT, Roles
from script2accel.analysis.values import Obj, Value
from script2accel.knowledge import torch as names
from script2accel.source import Source, spelled

Bound = tuple[int, str, ast.AST]
BINDING = (ast.Assign, ast.AnnAssign, ast.For, ast.AsyncFor, ast.NamedExpr, ast.AugAssign, ast.withitem, ast.FunctionDef, ast.AsyncFunctionDef)


def bindings(roles: Roles, source: Source | None = None) -> Iterator[Bound]:
    """Every place where a name gets a value: line, name as written, node."""
    for node in (roles.machine.source if source is None else source).every(*BINDING):
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from _targets(target)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                yield from _targets(target)
            case ast.For(target=target) | ast.AsyncFor(target=target) | ast.NamedExpr(target=target) | ast.AugAssign(target=target):
                yield from _targets(target)
            case ast.withitem(optional_vars=target) if target is not None:
                yield from _targets(target)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
                    yield node.lineno, arg.arg, arg


def _targets(target: ast.expr) -> Iterator[Bound]:
    if isinstance(target, (ast.Tuple, ast.List)):
        for part in target.elts:
            yield from _targets(part)
    elif isinstance(target, ast.Starred):
        yield from _targets(target.value)
    elif isinstance(target, (ast.Name, ast.Attribute, ast.Subscript)):
        yield target.lineno, spelled(target), target


def lines(roles: Roles, source: Source | None = None) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """(line, name, role, reasons) of every binding (of one file) whose role is known."""
    devices = device_names(roles)
    for line, name, node in sorted(bindings(roles, source), key=lambda bound: (bound[0], getattr(bound[2], "col_offset", 0))):
        if name == "self":
            continue
        value = roles.machine.at.get(node)
        if value is None:
            continue
        role, why = _shown(roles, value, name in devices)
        if role:
            yield line, name, role, why


def _shown(roles: Roles, value: Value, used_as_device: bool) -> tuple[str, tuple[str, ...]]:
    """The role to print for a value, and the reasons."""
    bars = [o for o in value.objs if names.PROGRESS.match(o.path)]
    role = "progress bar" if bars else roles.of_value(value)
    if role:
        found = {(e.line, e.why) for o in bars or value.objs for e in roles.why(o)[1] if roles.of(o) == role}
        return role, tuple(f"line {line}: {why}" if line else why for line, why in sorted(found))
    if why := _device_text(value, used_as_device):
        return "device", (why,)
    if value.objs and all(_of_batch(roles, o) for o in value.objs):
        return "batch", ("its elements are parts of a batch",)
    return "", ()


def _device_text(value: Value, used_as_device: bool) -> str:
    """Why a value of constants names a device, or ''."""
    texts = {str(o.name) for o in value.objs if o.kind == "const" and DEVICE_TEXT.match(str(o.name))}
    if texts and used_as_device:
        return "a device's name, given as a device"
    if len(texts) > 1 and len(texts) == len(value.objs):
        return "a choice between names of devices"
    return ""


def _of_batch(roles: Roles, obj: Obj) -> bool:
    """Whether a container holds parts of one batch, rebuilt by a comprehension over it."""
    site = obj.site
    if obj.kind not in ("list", "dict") or not isinstance(site, (ast.ListComp, ast.DictComp)):
        return False
    if roles.of_node(site.generators[0].iter) == "loader":
        return False
    contents = [o for o in roles.machine.anything_in(obj).objs if o.kind != "const"]
    return bool(contents) and all(roles.of(o) == "batch" for o in contents)


_DEVICE_CALL = re.compile(r"^torch\.(device|set_default_device|cuda\.set_device)$")


def device_names(roles: Roles) -> frozenset[str]:
    """Names (as written) that are given where a device belongs: `.to(x)`, `device=x`, `torch.device(x)`, `map_location=x`."""
    known = roles.__dict__
    if "device_names" not in known:
        known["device_names"] = frozenset(_device_names(roles))
    return known["device_names"]  # type: ignore[no-any-return]


def _device_names(roles: Roles) -> Iterator[str]:
    for node in roles.machine.source.every(ast.Call):
        callee = roles.machine.at.get(node.func)
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("device", "map_location")]
        if (isinstance(node.func, ast.Attribute) and node.func.attr in names.MOVES) or (
            callee is not None and any(o.kind == "external" and _DEVICE_CALL.match(str(o.name)) for o in callee.objs)
        ):
            given += node.args[:1]
        yield from (spelled(part) for part in given if isinstance(part, (ast.Name, ast.Attribute)))
