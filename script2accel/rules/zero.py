"""Give the accelerator a `DeepSpeedPlugin`, and the engine the script's gradient clipping.

The engine clips for itself, at 1.0 unless its table says otherwise (measured): `gradient_clipping` is the script's own norm, or 0.0 where it doesn't
clip, and the script's clip goes. One engine takes one model, one optimizer and a loader that says its batch size, in one call of prepare. With
`--parallelism from-config` DeepSpeed's own file holds the table, and must clip as the script does.
Left alone without DeepSpeed.
Source: https://huggingface.co/docs/accelerate/usage_guides/deepspeed
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import remove_statement
from script2accel.change.plan import Change
from script2accel.decisions import Decisions, Prepare
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.knowledge.accelerate import MODULES
from script2accel.knowledge.deepspeed import KEPT, offload_refusal, table
from script2accel.plugins import Expression, deepspeed_plugin
from script2accel.source import walk

CODE, NAME = "S2A845", "zero"
ONE = Message(
    "S2A855",
    Severity.ERROR,
    "DeepSpeed makes one engine of one model, one optimizer and a loader, and {why}",
    "train one model with one optimizer, over a DataLoader with a `batch_size`, all made once in one function; or convert with `--fsdp`",
)
CLIP = Message(
    "S2A875",
    Severity.ERROR,
    "DeepSpeed clips by the norm of all gradients, always at one number, and {why}",
    "clip all parameters of the model by one fixed 2-norm (`clip_grad_norm_(model.parameters(), max_norm)`), or convert with `--fsdp`",
)
FILE = Message(
    "S2A885",
    Severity.ERROR,
    "the script clips at {script}, and DeepSpeed, which alone clips, would by its file clip at {file} (0.0: not at all)",
    "`script2accel init --gradient-clipping {nearest}` and write the file anew, or convert with `--parallelism in-script`",
)
OFFLOAD = Message(
    "S2A895", Severity.ERROR, "this can't be offloaded: {why}", "convert with `--offload none`, or use Adam or AdamW without other options"
)
TOLD = Message("S2A325", Severity.NOTE, "DeepSpeed takes the step, clips ({clip}) and zeroes gradients within `accelerator.backward`", "")


@dataclass(frozen=True)
class Clip:
    """How the script clips: the norm, and the condition that switches it on."""

    call: ast.Call
    norm: ast.expr
    test: ast.expr | None


class _UnequalError(Exception):
    """The script clips as the engine can't; `why` says how."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    options = decisions.options
    if not options.zero or not decisions.plan.prepares:
        return
    try:
        clips = [_read(facts, call) for call in _clips(facts)]
    except _UnequalError as error:
        yield CLIP.at(getattr(error.node, "lineno", 1), why=error.why)
        return
    if options.parallelism == "in-script":
        for clip in clips:
            statement = _whole(facts, clip)
            decisions.gone.add(statement)
            edits = remove_statement(facts.source, statement)
            yield Change(CODE, NAME, "DeepSpeed clips for itself: the norm stands in its table", statement.lineno, edits, source="R14")
    if facts.source is not facts.program.source.entries[0]:
        return
    if not facts.program.train_loops:
        return
    yield from _one(facts, decisions)
    yield from _offload(facts, decisions)
    yield from _plugin(facts, decisions)


# the plugin ------------------------------------------------------------------------------------------------


def _plugin(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """The table, in the script or in DeepSpeed's own file."""
    options, line = decisions.options, facts.program.train_loops[0].loop.lineno
    try:
        clips = [_read(facts, call) for source in facts.program.source.sources for call in _clips(View(facts.program, source))]
        _agree(facts, clips)
    except _UnequalError as error:
        yield CLIP.at(getattr(error.node, "lineno", 1), why=error.why)
        return
    clip = clips[0] if clips else None
    if options.parallelism == "from-config":
        yield from _in_file(facts, decisions, clip)
        return
    said = "not at all"
    value: object = 0.0
    if clip is not None:
        text, said = decisions.reads(clip.norm), f"at `{facts.program.source.of(clip.norm).segment(clip.norm)}`"
        value = Expression(text if clip.test is None else f"{text} if {decisions.reads(clip.test)} else 0.0", ())
    plugin = deepspeed_plugin(table(options.zero, value, options.offload), whole=options.zero == 3)
    decisions.engines["deepspeed_plugin"] = plugin.text
    decisions.imports |= {(MODULES[name], name): None for name in plugin.names}
    yield TOLD.at(line, clip=said)


def _in_file(facts: View, decisions: Decisions, clip: Clip | None) -> Iterator[Diagnostic]:
    """Whether the file that the saved answers make clips as the script does."""
    wanted, norm = decisions.options.gradient_clipping, clip.norm if clip is not None else None
    number = norm.value if isinstance(norm, ast.Constant) and clip is not None and clip.test is None else None
    if clip is None and not wanted:
        yield TOLD.at(facts.program.train_loops[0].loop.lineno, clip='its file must hold `"gradient_clipping": 0.0`')
    elif clip is not None and isinstance(number, (int, float)) and number == wanted:
        yield TOLD.at(facts.program.train_loops[0].loop.lineno, clip=f'its file must hold `"gradient_clipping": {number}`')
    else:
        script = facts.program.source.of(norm).segment(norm) if norm is not None else "nothing"
        line = clip.call.lineno if clip is not None else facts.program.train_loops[0].loop.lineno
        nearest = number if number is not None else "0" if clip is None else "NUMBER"
        yield FILE.at(line, script=f"`{script}`" if norm is not None else script, file=wanted or 0.0, nearest=nearest)


# clipping --------------------------------------------------------------------------------------------------


def _clips(facts: View) -> list[ast.Call]:
    return [call for call in facts.calls if any(names.CLIP_NORM.match(path) for path in facts.any_path(call))]


def _read(facts: View, call: ast.Call) -> Clip:
    """A clip as the engine can make it. Raises _UnequalError."""
    source = facts.program.source
    given = dict(zip(("parameters", "max_norm", "norm_type"), call.args, strict=False)) | {k.arg or "": k.value for k in call.keywords}
    kind = given.get("norm_type")
    if kind is not None and not (isinstance(kind, ast.Constant) and kind.value in (2, 2.0, "2")):
        raise _UnequalError(call, "this clip is by another norm")
    norm = given.get("max_norm")
    if norm is None or isinstance(call.args[0] if call.args else None, ast.Starred):
        raise _UnequalError(call, "this clip names no norm")
    if isinstance(norm, ast.Constant) and not (isinstance(norm.value, (int, float)) and norm.value > 0):
        raise _UnequalError(call, f"`{source.of(norm).segment(norm)}` switches its clipping off")
    if not _all_weights(facts, given.get("parameters")):
        raise _UnequalError(call, "this clip takes a part of the weights, or weights that can't be followed")
    extra = next((key for key in given if key not in ("parameters", "max_norm", "norm_type", "foreach")), None)
    if extra is not None:
        raise _UnequalError(call, f"`{extra or '**'}` of this clip has no counterpart")
    clip = Clip(call, norm, _switch(facts, call))
    for node in (norm, clip.test):
        if node is not None and not _fixed(facts, node):
            raise _UnequalError(call, f"`{source.of(node).segment(node)}` can change while the script trains")
    if not _in_front_of_step(facts, _whole(facts, clip)):
        raise _UnequalError(call, "this clip doesn't stand between a backward pass and its step, where they stand")
    return clip


def _switch(facts: View, call: ast.Call) -> ast.expr | None:
    """The condition of an `if` that holds a clip alone."""
    statement = facts.program.source.statement(call)
    parent = facts.program.source.parents[statement]
    alone = isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse and not facts.program.source.of(parent).is_elif(parent)
    return parent.test if alone and isinstance(parent, ast.If) else None


def _in_front_of_step(facts: View, statement: ast.stmt) -> bool:
    """Whether a step follows in the same block, and no backward pass before it."""
    source = facts.program.source
    steps = {source.statement(step.call) for step in facts.program.optimizer_steps}
    passes = {source.statement(backward.call) for backward in facts.program.backwards}
    block = source.block(statement)
    behind = block[block.index(statement) + 1 :]
    step = next((i for i, other in enumerate(behind) if other in steps), None)
    return step is not None and not any(other in passes for other in behind[:step])


def _all_weights(facts: View, given: ast.expr | None) -> bool:
    """Whether a clip takes `model.parameters()`, of a model that trains whole."""
    if not isinstance(given, ast.Call) or not isinstance(given.func, ast.Attribute) or given.func.attr != "parameters" or given.args:
        return False
    owners = facts.machine.at.get(given.func.value, NOTHING).objs
    if not owners or not all(o.inner in facts.program.models for o in owners):
        return False
    return not any(_part(facts, model, optimizer) for model in facts.program.models for optimizer in facts.program.optimizers)


def _part(facts: View, model: Obj, optimizer: Obj) -> bool:
    """Whether an optimizer is given parts of a model by name: the norm of what it holds is then another."""
    call = optimizer.site
    parts = [n for n in walk(call) if isinstance(n, ast.Attribute)] if isinstance(call, ast.Call) else []
    for node in parts:
        inner = node.value
        if node.attr in ("parameters", "named_parameters") and not any(o.inner is model for o in facts.machine.at.get(inner, NOTHING).objs):
            return True
    return False


def _fixed(facts: View, node: ast.expr) -> bool:
    """Whether an expression has one value for the whole run: what it reads holds one thing, is set once, and it calls nothing."""
    machine = facts.machine
    for leaf in walk(node):
        if isinstance(leaf, (ast.Call, ast.NamedExpr, ast.Await, ast.Subscript)):
            return False
        if isinstance(leaf, (ast.Name, ast.Attribute)) and isinstance(leaf.ctx, ast.Load):
            stores = list(_stores(facts, leaf))
            if len(stores) > 1 or any(facts.loops(n) for n in stores) or machine.marks_of(leaf) or len(machine.at.get(leaf, NOTHING).objs) > 1:
                return False
    return True


def _stores(facts: View, leaf: ast.Name | ast.Attribute) -> Iterator[ast.AST]:
    """The places that may set what is read: of a name in its scope, of an attribute anywhere."""
    source = facts.program.source
    nodes = walk(source.scope(leaf)) if isinstance(leaf, ast.Name) else source.nodes
    for node in nodes:
        match node, leaf:
            case (ast.Name(id=one, ctx=ast.Store() | ast.Del()), ast.Name(id=other)) | (
                ast.Attribute(attr=one, ctx=ast.Store() | ast.Del()),
                ast.Attribute(attr=other),
            ) if one == other:
                yield node


def _alike(facts: View, one: ast.expr | None, other: ast.expr | None) -> bool:
    """Whether two expressions are written alike, and what they read holds the same."""
    if one is None or other is None:
        return one is other
    at = facts.machine.at
    return ast.dump(one) == ast.dump(other) and at.get(one, NOTHING).objs == at.get(other, NOTHING).objs


def _agree(facts: View, clips: list[Clip]) -> None:
    """Raise _UnequalError unless all training loops clip alike."""
    for clip in clips[1:]:
        same = _alike(facts, clip.norm, clips[0].norm) and _alike(facts, clip.test, clips[0].test)
        if not same:
            raise _UnequalError(clip.call, f"the clip in line {clips[0].call.lineno} is another")
    for train in facts.program.train_loops if clips else ():
        if not any(facts.program.inside(train.loop, clip.call) for clip in clips):
            raise _UnequalError(train.loop, f"this loop doesn't clip, as the one of line {clips[0].call.lineno} does")


def _whole(facts: View, clip: Clip) -> ast.stmt:
    """The statement that goes with a clip: its switch, if it has one."""
    statement = facts.program.source.statement(clip.call)
    parent = facts.program.source.parents[statement]
    return parent if clip.test is not None and isinstance(parent, ast.If) else statement


# one engine ------------------------------------------------------------------------------------------------


def _one(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """Whether one call of prepare makes one engine of what trains."""
    program = facts.program
    if len(program.optimizers) > 1:
        yield ONE.at(_line(program.optimizers[1]), why="the script steps several optimizers")
    ours = [p for p in decisions.plan.prepares if any(program.roles.of(o) in ("model", "criterion") for _, o in p.items)]
    for prepare in ours[1:]:
        yield ONE.at(prepare.anchor.lineno, why="the script prepares models in several places")
    for prepare in ours[:1]:
        yield from _call(facts, prepare)


def _line(obj: Obj) -> int:
    return getattr(obj.site, "lineno", 1)


def _call(facts: View, prepare: Prepare) -> Iterator[Diagnostic]:
    roles = facts.program.roles
    line = prepare.anchor.lineno
    found = {roles.of(obj) for _, obj in prepare.items}
    if "optimizer" not in found:
        yield ONE.at(line, why="model and optimizer can't be prepared in one call here")
    elif "loader" not in found:
        yield ONE.at(line, why="no loader can be prepared together with the model here: the engine would not know its batch size")
    if facts.program.all_loops(prepare.anchor) or _often(facts, prepare.scope):
        yield ONE.at(line, why="this place runs again and again: a second engine would not be the one that `accelerator.backward` steps")
    for _, obj in prepare.items:
        if roles.of(obj) == "loader" and not _sized(obj):
            yield ONE.at(_line(obj), why="this loader doesn't say its batch size")


def _often(facts: View, scope: ast.AST) -> bool:
    return isinstance(scope, FUNCTIONS) and len(facts.program.callers(scope)) > 1


def _sized(loader: Obj) -> bool:
    """Whether a loader has a batch size, as the engine asks for it."""
    if not names.LOADER_BASE.match(loader.path):
        return False
    size = loader.keywords.get("batch_size") or (loader.arguments[1] if len(loader.arguments) > 1 else None)
    unsized = size is not None and any(o.kind == "const" and o.name is None for o in size.objs)
    return not unsized and "batch_sampler" not in loader.keywords and None not in loader.keywords


def _offload(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """Whether what is offloaded is trained as before."""
    options = decisions.options
    if options.offload == "none":
        return
    optimizer = facts.program.optimizers[0]
    if options.zero == 1:
        yield OFFLOAD.at(_line(optimizer), why="offload goes with zero2 and zero3, not with zero1 (accelerate docs, usage_guides/deepspeed)")
    elif options.offload == "all" and options.zero == 2:
        yield OFFLOAD.at(_line(optimizer), why="parameters are offloaded by ZeRO 3 alone (accelerate docs, usage_guides/deepspeed)")
    values = {str(key): _value(value.objs) for key, value in optimizer.keywords.items() if key not in KEPT}
    why = offload_refusal(optimizer.path or str(optimizer.name), values)
    if why:
        yield OFFLOAD.at(_line(optimizer), why=why)


def _value(objs: frozenset[Obj]) -> object:
    """What a keyword says, if it is a constant."""
    return next(iter(objs)).name if len(objs) == 1 and all(o.kind == "const" for o in objs) else "..."


SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
torch.save(model.state_dict(), "model.pt")
"""
CLIPPING = "    nn.utils.clip_grad_norm_(model.parameters(), 0.5)\n"
ZERO2: dict[str, object] = {"strategy": "zero2", "num_processes": 2}
FROM_FILE: dict[str, object] = {**ZERO2, "parallelism": "from-config"}
EXAMPLES: list[tuple[str, str | None, dict[str, object]]] = [
    (
        SCRIPT,
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import DeepSpeedPlugin

torch.manual_seed(0)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
accelerator = Accelerator(
    deepspeed_plugin=DeepSpeedPlugin(
        hf_ds_config={
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": 0.5,
            "zero_optimization": {"stage": 2},
        },
    ),
)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
accelerator.save(accelerator.get_state_dict(model), "model.pt")
""",
        ZERO2,
    ),
    (SCRIPT.replace(CLIPPING, ""), "S2A325", ZERO2),
    (SCRIPT.replace(CLIPPING, CLIPPING.replace("model.", "model[0].")), "S2A875", ZERO2),
    (SCRIPT.replace("0.5)", "0.5, norm_type=1)"), "S2A875", ZERO2),
    (SCRIPT.replace("0.5)", "0.5 * loss.item())"), "S2A875", ZERO2),
    (SCRIPT.replace(CLIPPING, "    if loss > 1:\n    " + CLIPPING), "S2A875", ZERO2),
    (SCRIPT, "S2A885", FROM_FILE),
    (SCRIPT, "S2A325", {**FROM_FILE, "gradient_clipping": 0.5}),
    (SCRIPT.replace(CLIPPING, ""), "S2A885", {**FROM_FILE, "gradient_clipping": 1.0}),
    (SCRIPT.replace(CLIPPING, "").replace("AdamW", "SGD"), "S2A895", {**ZERO2, "offload": "optimizer"}),
    (SCRIPT.replace("batch_size=16, shuffle=True", "batch_sampler=torch.utils.data.BatchSampler(range(64), 16, True)"), "S2A855", ZERO2),
    (
        SCRIPT.replace("model.parameters(), lr", "model[0].parameters(), lr")
        .replace(CLIPPING, "    other.step()\n")
        .replace("\n\nfor", "\nother = torch.optim.AdamW(model[2].parameters())\n\nfor"),
        "S2A855",
        ZERO2,
    ),
    (SCRIPT, None, {}),
]
