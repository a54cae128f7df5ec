"""Save once, on the main process, with the keys that the script's own loading code expects.

`torch.save(state, path)` becomes `accelerator.save(state, path)`, which writes on the main process only; a pickled model is unwrapped first.
File name, format and keys stay what they were. A checkpoint that is loaded into the script gets `map_location="cpu"`, so that the ranks don't all
load it onto the first GPU.
Left alone when a rank guard stands around it, or the target is an open file or buffer.
Source: https://huggingface.co/docs/accelerate/package_reference/accelerator#accelerate.Accelerator.save
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import guarded
from script2accel.analysis.facts import Facts
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import add_argument, merge, replace, wrap_expression
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A601", "save"
IN_MODULE = Message(
    "S2A611",
    Severity.ERROR,
    "`torch.save` inside an nn.Module's method: every process would write the file",
    "save from the training code, with `accelerator.save(accelerator.get_state_dict(model), path)`",
)
ARGUMENTS = Message(
    "S2A612",
    Severity.ERROR,
    "`torch.save` with `{argument}`, which `accelerator.save` doesn't take",
    "drop the argument, or write `if accelerator.is_main_process:` around it by hand",
)
EXAMPLES: list[tuple[str, str | None]] = []


def rewrite(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    for call in facts.calls:
        path = facts.path(call)
        if path == "torch.save" and not guarded(facts, call) and not _into_buffer(facts, call):
            yield _save(facts, decisions, call)
        elif path == "torch.load" and _is_state(facts, call) and len(call.args) < 2 and not any(k.arg in ("map_location", None) for k in call.keywords):
            edits = add_argument(facts.source, call, 'map_location="cpu"')
            yield Change(CODE, NAME, "loaded on the CPU, and copied by load_state_dict: the ranks don't share the first GPU", call.lineno, edits, source="R31")


def _save(facts: Facts, decisions: Decisions, call: ast.Call) -> Change | Diagnostic:
    if facts.in_module(call) and not decisions.everywhere:
        return IN_MODULE.at(call.lineno, call.col_offset + 1)
    extra = next((k.arg or "**" for k in call.keywords if k.arg not in ("obj", "f")), None) or ("a third argument" if len(call.args) > 2 else None)
    if extra is not None:
        return ARGUMENTS.at(call.lineno, call.col_offset + 1, argument=extra)
    accelerator = decisions.accelerator(call)
    edits: list[tuple[Edit, ...]] = [replace(facts.source, call.func, f"{accelerator}.save")]
    for node in (*call.args, *(k.value for k in call.keywords)):
        if isinstance(node, (ast.Name, ast.Attribute)) and facts.roles.objects(node, "model") and decisions.prepared_here(node, "model"):
            edits.append(wrap_expression(facts.source, node, f"{accelerator}.unwrap_model(", ")"))
    return Change(CODE, NAME, "one file is written once: on the main process", call.lineno, merge(edits), source="R30")


def _into_buffer(facts: Facts, call: ast.Call) -> bool:
    target = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "f"), None)
    objs = facts.machine.at.get(target, NOTHING).objs if target is not None else frozenset()
    return any(o.path in ("open", "io.BytesIO", "io.open") for o in objs)


def _is_state(facts: Facts, call: ast.Call) -> bool:
    """Whether what is loaded, or a part of it, goes into `load_state_dict`."""
    made = {o for o in facts.machine.at.get(call, NOTHING).objs if o.kind == "made"}
    for other in facts.calls:
        if isinstance(other.func, ast.Attribute) and other.func.attr == "load_state_dict":
            for arg in other.args:
                for obj in facts.machine.at.get(arg, NOTHING).objs:
                    if obj in made or obj.base in made:
                        return True
    return False
