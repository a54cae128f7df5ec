"""The lines of `script2accel roles`: every name that is bound, with the role of what it holds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from script2accel.analysis.roles import DEVICE_TEXT, Roles
from script2accel.knowledge import torch as names

Bound = tuple[int, str, ast.AST]


def bindings(roles: Roles) -> Iterator[Bound]:
    """Every place where a name gets a value: line, name as written, node."""
    for node in roles.machine.source.nodes:
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
        yield target.lineno, ast.unparse(target), target


def lines(roles: Roles) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """(line, name, role, reasons) of every binding whose role is known."""
    devices = device_names(roles)
    for line, name, node in sorted(bindings(roles), key=lambda bound: (bound[0], getattr(bound[2], "col_offset", 0))):
        if name == "self":
            continue
        value = roles.machine.at.get(node)
        if value is None:
            continue
        role = roles.of_value(value)
        if not role and name in devices and any(_device_like(str(o.name)) for o in value.objs if o.kind == "const"):
            yield line, name, "device", ("a device's name, given as a device",)
            continue
        if role:
            why = [f"line {e.line}: {e.why}" if e.line else e.why for o in value.objs for e in roles.why(o)[1] if roles.of(o) == role]
            yield line, name, role, tuple(dict.fromkeys(why))


def _device_like(text: str) -> bool:
    return bool(DEVICE_TEXT.match(text))


_DEVICE_CALL = re.compile(r"^torch\.(device|set_default_device|cuda\.set_device)$")


def device_names(roles: Roles) -> frozenset[str]:
    """Names (as written) that are given where a device belongs: `.to(x)`, `device=x`, `torch.device(x)`, `map_location=x`."""
    found = set()
    for node in roles.machine.source.nodes:
        if not isinstance(node, ast.Call):
            continue
        callee = roles.machine.at.get(node.func)
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("device", "map_location")]
        if isinstance(node.func, ast.Attribute) and node.func.attr in names.MOVES or (
            callee is not None and any(o.kind == "external" and _DEVICE_CALL.match(str(o.name)) for o in callee.objs)
        ):
            given += node.args[:1]
        found |= {ast.unparse(part) for part in given if isinstance(part, (ast.Name, ast.Attribute))}
    return frozenset(found)
