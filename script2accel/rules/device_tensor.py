"""Make tensors on the accelerator's device, not on a hard-coded one.

`torch.zeros(n, device="cuda")`, `map_location="cuda:0"` and `generator=torch.Generator(device="cuda")` name the accelerator's device;
`torch.cuda.FloatTensor(x)` becomes `torch.FloatTensor(x).to(...)`, and `x.type(torch.cuda.FloatTensor)` a `.to` with the dtype.
Left alone when the device is a variable that already follows the accelerator, or the CPU.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import loads_state
from script2accel.analysis.devices import fixed_device, names_device
from script2accel.analysis.facts import Facts
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import merge, replace, replace_range, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names

CODE, NAME = "S2A103", "device-tensor"
DEFAULT = Message(
    "S2A113",
    Severity.ERROR,
    "`{call}` changes where every tensor is made: which of them Accelerate should place can't be seen",
    "remove it and give tensors a device where they are made",
)
INSIDE = Message(
    "S2A114",
    Severity.ERROR,
    "a hard-coded device in the constructor of an nn.Module, which has no accelerator",
    "register the tensor as a buffer (`self.register_buffer`), which moves with the module",
)
REASON = "a tensor is made on a hard-coded device: the accelerator names it"
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        for keyword in call.keywords:
            if keyword.arg == "map_location" and loads_state(facts, call):
                continue  # loaded on the CPU, by the save rule
            if keyword.arg in ("device", "map_location") and _hard_coded(facts, keyword.value, call):
                device = decisions.device(call)
                if device is None:
                    yield INSIDE.at(call.lineno, call.col_offset + 1)
                    continue
                yield Change(CODE, NAME, REASON, call.lineno, replace(facts.source, keyword.value, device), source="R02")
        if any(names.SET_DEFAULT.match(path) for path in facts.any_path(call)) and "cuda" in facts.source.segment(call):
            yield DEFAULT.at(call.lineno, call.col_offset + 1, call=facts.source.segment(call))
    yield from _tensor_types(facts, decisions)


def _hard_coded(facts: Facts, node: ast.expr, call: ast.Call) -> bool:
    if "cpu" in facts.source.segment(node) and "cuda" not in facts.source.segment(node):
        return False
    if isinstance(call.func, ast.Attribute) and call.func.attr in names.MOVES:
        return False  # a move
    if facts.path(call) in ("torch.device", "torch.autocast", "torch.amp.autocast", "torch.amp.GradScaler"):
        return False
    return not isinstance(node, ast.Lambda) and names_device(facts, node) and fixed_device(facts, node)


def _tensor_types(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    """`torch.cuda.FloatTensor` where it is called, given to `.type()`, or chosen for a name."""
    for node in facts.source.nodes:
        if not isinstance(node, ast.Attribute) or not _cuda_type(facts, node):
            continue
        parent = facts.source.parents[node]
        if isinstance(parent, ast.IfExp):
            statement = facts.source.statement(node)
            if isinstance(statement, ast.Assign) and statement.value is parent and isinstance(statement.targets[0], ast.Name):
                yield from _alias(facts, decisions, statement, parent, node)
        elif isinstance(parent, ast.Call) and parent.func is node:
            edits = merge([replace(facts.source, node, f"torch.{node.attr}"), _moved(facts, decisions, parent)])
            yield Change(CODE, NAME, REASON, node.lineno, edits, source="R02")
        elif isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and parent.func.attr == "type":
            yield Change(CODE, NAME, REASON, node.lineno, _typed(facts, decisions, parent, node.attr), source="R02")
        elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
            yield from _alias(facts, decisions, parent, None, node)


def _cuda_type(facts: Facts, node: ast.Attribute) -> bool:
    return any(o.kind == "external" and names.CUDA_TENSOR_TYPE.match(str(o.name)) for o in facts.machine.at.get(node, NOTHING).objs)


def _alias(facts: Facts, decisions: Decisions, statement: ast.Assign, choice: ast.IfExp | None, node: ast.Attribute) -> Iterator[Change]:
    """`Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor`: the name stays, its calls move what they make."""
    edits: list[tuple[Edit, ...]] = [replace(facts.source, choice or node, f"torch.{node.attr}")]
    for call in facts.calls:
        if isinstance(call.func, ast.Name) and _holds(facts, call.func, node.attr):
            edits.append(_moved(facts, decisions, call))
        elif isinstance(call.func, ast.Attribute) and call.func.attr == "type" and call.args and isinstance(call.args[0], ast.Name) and _holds(facts, call.args[0], node.attr):
            edits.append(_typed(facts, decisions, call, node.attr))
    yield Change(CODE, NAME, REASON, statement.lineno, merge(edits), source="R02")


def _holds(facts: Facts, node: ast.Name, tensor: str) -> bool:
    """Whether a name can hold the CUDA tensor type."""
    return any(o.kind == "external" and o.name == f"torch.cuda.{tensor}" for o in facts.machine.at.get(node, NOTHING).objs)


def _moved(facts: Facts, decisions: Decisions, call: ast.Call) -> tuple[Edit, ...]:
    return wrap_expression(facts.source, call, "", f".to({decisions.accelerator(call)}.device)")


def _typed(facts: Facts, decisions: Decisions, call: ast.Call, tensor: str) -> tuple[Edit, ...]:
    dtype = names.TENSOR_DTYPE[tensor.removesuffix("Tensor")]
    start = facts.source.dot(call.func)  # type: ignore[arg-type]


    return replace_range(start, facts.source.end(call), f".to({decisions.accelerator(call)}.device, torch.{dtype})")
