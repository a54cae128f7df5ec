"""Let the accelerator name the device.

`device = torch.device("cuda" if torch.cuda.is_available() else "cpu")` becomes `device = accelerator.device`: each process
then has the device that the launcher gave it. The variable stays, since other code may use it.
Left alone when the value isn't a choice of a device, or stands in an nn.Module's class.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.devices import own_definitions
from script2accel.analysis.facts import Facts
from script2accel.change.edits import replace
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A101", "device-name"
NO_EFFECT = Message("S2A111", Severity.NOTE, "`{flag}` no longer decides anything: the launcher gives each process its device", "drop the flag, or keep it for old command lines")
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    done: set[ast.AST] = set()
    for definition in own_definitions(facts):
        if definition in done:
            continue
        whole = _choice(facts, definition)
        if whole is not None:
            done |= {node for node in ast.walk(whole) if isinstance(node, ast.stmt)}
            target = definition.targets[0] if isinstance(definition, ast.Assign) else definition.target
            text = f"{facts.source.segment(target)} = {decisions.accelerator(definition)}.device"
            edits = replace(facts.source, whole, text)
        else:
            assert definition.value is not None
            edits = replace(facts.source, definition.value, f"{decisions.accelerator(definition)}.device")
        yield Change(CODE, NAME, "each process has its own device: the accelerator names it", definition.lineno, edits, source="R02")
    yield from _flags(facts)


def _choice(facts: Facts, definition: ast.Assign | ast.AnnAssign) -> ast.If | None:
    """An `if`/`else` that only chooses the device: it becomes one line."""
    parent = facts.source.parents[definition]
    if not isinstance(parent, ast.If) or definition not in parent.body or not facts.source.alone(parent):
        return None
    known = set(own_definitions(facts))
    target = ast.unparse(definition.targets[0] if isinstance(definition, ast.Assign) else definition.target)
    node: ast.If = parent
    while True:
        if len(node.body) != 1 or node.body[0] not in known or not _same_target(node.body[0], target) or "#" in facts.source.segment(parent):
            return None
        if len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If):
            node = node.orelse[0]
            continue
        if len(node.orelse) != 1 or node.orelse[0] not in known or not _same_target(node.orelse[0], target):
            return None
        break
    outer = facts.source.parents[parent]
    return None if isinstance(outer, ast.If) and parent in outer.orelse else parent


def _same_target(node: ast.stmt, target: str) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == target


def _flags(facts: Facts) -> Iterator[Diagnostic]:
    """Command line flags that only the replaced definitions read."""
    replaced = {n for d in own_definitions(facts) if d.value is not None for n in ast.walk(d.value)}
    if not replaced:
        return
    read: dict[str, list[ast.AST]] = {}
    for node in facts.source.nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            read.setdefault(node.attr, []).append(node)
    for call in facts.calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        options = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        if not options:
            continue
        dest = next((str(k.value.value) for k in call.keywords if k.arg == "dest" and isinstance(k.value, ast.Constant)), max(options, key=len).lstrip("-").replace("-", "_"))
        uses = [n for n in read.get(dest, []) if not (isinstance(n, ast.Attribute) and n is call.func)]
        if uses and all(n in replaced for n in uses):
            yield NO_EFFECT.at(call.lineno, call.col_offset + 1, flag=options[-1])
