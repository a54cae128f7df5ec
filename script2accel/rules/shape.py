"""Refuse the shapes of training that aren't converted yet.

Several backward passes per batch, batches without a DataLoader, closures, gradients by `autograd.grad`,
optimizers with steps of their own: each needs a conversion of its own, and a wrong one
would train another model silently.
Left alone: one backward pass per batch of a DataLoader, and an optimizer of PyTorch's form.
Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import FUNCTIONS, Backward, TrainLoop, View
from script2accel.analysis.randomness import loop_draws
from script2accel.analysis.slicing import dealt_by_hand
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.knowledge.teaching import hint
from script2accel.source import walk

CODE, NAME = "S2A230", "training-shape"
SEVERAL = Message(
    "S2A231",
    Severity.ERROR,
    "this backward pass and that of line {first} go through one forward pass of a model ({why}): replicas would get different gradients (measured)",
    "sum the two losses into one backward pass, or detach what the second doesn't train, and convert again",
)
NO_LOADER = Message(
    "S2A232",
    Severity.ERROR,
    "this loop trains on batches that no DataLoader deals out{source}: every rank would train on the same data",
    "let a DataLoader give the batches{teach}, and convert again",
)
CLOSURE = Message(
    "S2A233",
    Severity.ERROR,
    "`{text}` steps with a closure: a prepared optimizer's step gives no loss back (measured)",
    "use an optimizer that steps without a closure",
)
BUFFERS = Message(
    "S2A234",
    Severity.ERROR,
    "`{text}` runs over a loader to renew batch statistics: on several ranks each would see its own part",
    "run it on the main process, over an unprepared loader, and share the buffers by hand",
)
COMPILED = Message(
    "S2A235",
    Severity.NOTE,
    "`{text}` stays in front of prepare: the compiled model is wrapped, and saved keys keep their `_orig_mod.` as before",
    "with FSDP, take it out and choose the dynamo backend in the accelerate config",
)
BY_HAND = Message(
    "S2A236",
    Severity.ERROR,
    "`{text}` takes gradients past the wrapped model: they'd not be synchronised between ranks (measured)",
    "reach the gradient through one backward pass of a summed loss",
)
OWN_STEP = Message(
    "S2A237",
    Severity.ERROR,
    "`{text}` isn't a step of PyTorch's form: prepare wouldn't reach the optimizer inside",
    "derive the optimizer from torch.optim.Optimizer, with `step(self, closure=None)`{teach}, and convert again",
)
ELSEWHERE = Message(
    "S2A240",
    Severity.ERROR,
    "{what} goes to `{text}`, whose code is in another file: what it does with it can't be seen",
    "move the loop into this file (projects of several files aren't converted yet)",
)
INSIDE = Message(
    "S2A243",
    Severity.ERROR,
    "the model trains itself, in a method of its own class: that goes past the wrapped model's `forward`",
    "move the training step out of the nn.Module's class, and call the model in it",
)
MANUAL = Message(
    "S2A241",
    Severity.ERROR,
    "`{text}` changes weights by hand: no optimizer does it, so nothing is left for prepare",
    "let an optimizer of torch.optim step{teach}",
)
LIBRARIES = frozenset(  # a call into one of these doesn't train
    "torch torchvision torchaudio torchtext numpy np tqdm accelerate transformers math copy functools itertools os sys time json random "  # noqa: SIM905
    "collections argparse logging datetime re pickle shutil glob csv sklearn scipy pandas matplotlib PIL cv2 evaluate datasets seaborn "
    "skimage einops timm typing pathlib string warnings contextlib operator statistics heapq yaml tensorboardX wandb nltk progress "
    "termcolor pprint inspect gc threading queue subprocess platform socket uuid hashlib dataclasses enum types textwrap traceback "
    "psutil h5py imageio torchmetrics".split()
)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    yield from _backwards(facts)
    sliced = {s.train.loop for s in decisions.plan.slices}  # told by the rule that deals them out
    for loop in facts.train_loops:
        if not loop.loaders and loop.loop not in sliced and not dealt_by_hand(facts, loop) and not _draws_its_data(facts, loop):
            path = _source(facts, loop)
            source = f" (they come from `{path}`)" if path else ""
            teach = hint("loader", _unknown_loader(facts, loop, path))
            yield NO_LOADER.at(loop.loop.lineno, loop.loop.col_offset + 1, source=source, teach=teach)
    yield from _steps(facts)
    yield from _calls(facts, decisions)
    yield from _other_files(facts, decisions)


def _backwards(facts: View) -> Iterator[Diagnostic]:
    for loop in facts.train_loops:
        seen: list[Backward] = []
        for backward in sorted(loop.backwards, key=lambda b: b.call.lineno):
            for other in seen:
                why = "" if _exclusive(facts, other.call, backward.call) else _shared(facts, other, backward)
                if why:
                    yield SEVERAL.at(backward.call.lineno, backward.call.col_offset + 1, first=other.call.lineno, why=why)
                    break
            seen.append(backward)
    closures = {n.id for step in facts.optimizer_steps for n in step.call.args if isinstance(n, ast.Name)}  # told by `_steps`
    loose = [b for b in facts.backwards if not facts.all_loops(b.call) and not facts.in_module(b.call)]
    loose = [b for b in loose if getattr(facts.function(b.call), "name", "") not in closures]
    for backward in loose:
        yield NO_LOADER.at(backward.call.lineno, backward.call.col_offset + 1, source="", teach="")


def _source(facts: View, loop: TrainLoop) -> str:
    """The library's function whose object a loop reads, where it is one, or ''."""
    if not isinstance(loop.loop, (ast.For, ast.AsyncFor)):
        return ""
    objs = [o for part in walk(loop.loop.iter) for o in facts.machine.at.get(part, NOTHING).objs]
    found: list[str] = []
    for obj in objs:
        probe: Obj | None = obj
        while probe is not None:
            found += [probe.path] if "." in probe.path and probe.path.partition(".")[0] not in LIBRARIES - {"torchtext", "datasets"} else []
            probe = probe.base
    return found[0] if found else ""


def _unknown_loader(facts: View, loop: TrainLoop, path: str) -> str:
    """What may be a DataLoader without being known as one, or '': what a library gives, and what looked like a loader before prepare."""
    if path and not names.FOREIGN_STREAM.match(path) and path.partition(".")[0] not in LIBRARIES | sys.stdlib_module_names:
        return f"what `{path}` gives"
    parts = walk(loop.loop.iter) if isinstance(loop.loop, (ast.For, ast.AsyncFor)) and not names.FOREIGN_STREAM.match(path) else ()
    looked = (p for p in parts if any(o.kind == "prepared" and o.inner.kind != "instance" for o in facts.machine.at.get(p, NOTHING).objs))
    return next((f"`{facts.source.segment(part)}`" for part in looked if isinstance(part, (ast.Name, ast.Attribute))), "")


def _shared(facts: View, one: Backward, other: Backward) -> str:
    """What two backward passes have in common: a forward pass, or something that can't be seen."""
    mine, theirs = (_forwards(facts, b) for b in (one, other))
    if not mine or not theirs:
        blind = one if not mine else other
        return f"which model the loss of line {blind.call.lineno} comes from can't be seen"
    both = sorted(getattr(call, "lineno", 0) for call in mine & theirs)
    return f"line {both[0]}" if both else ""


def _forwards(facts: View, backward: Backward) -> set[ast.AST]:
    return {call for call in facts.machine.forwards_into(backward.loss) if not quiet(facts, call)}


def _draws_its_data(facts: View, loop: TrainLoop) -> bool:
    """Whether every batch of a loop without a loader is drawn at random in it, by generators that ranks can be seeded apart in."""
    draws = set(loop_draws(facts.program))
    forwards = [f for f in facts.program.forwards if facts.inside(loop.loop, f.call) and not quiet(facts, f.call)]
    return bool(forwards) and all(
        any(facts.machine.at[a].marks & draws for a in (*f.call.args, *(k.value for k in f.call.keywords)) if a in facts.machine.at) for f in forwards
    )


def _exclusive(facts: View, one: ast.AST, other: ast.AST) -> bool:
    """Whether two places stand in different branches of one `if`."""
    above = {p: c for p, c in _branches(facts, one)}
    return any(p in above and above[p] != c for p, c in _branches(facts, other))


def _branches(facts: View, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    child = node
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.If):
            yield parent, "body" if child in parent.body else "orelse"
        child = parent


def _steps(facts: View) -> Iterator[Diagnostic]:
    for step in facts.optimizer_steps:
        text = facts.source.segment(step.call)
        if any(not _only_none(facts, given) for given in step.given):
            yield CLOSURE.at(step.call.lineno, step.call.col_offset + 1, text=text)
        elif any(_foreign(facts, o) for o in step.objs):
            maker = next((o.path for o in step.objs if _foreign(facts, o) and o.path), "")
            teach = hint("optimizer", f"what `{maker}` gives" if maker else "")
            yield OWN_STEP.at(step.call.lineno, step.call.col_offset + 1, text=text, teach=teach)
    for call in facts.calls:
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in ("first_step", "second_step", "swap_swa_sgd", "step_and_update_lr")
            and not _steps_inside(facts, call.func.value)
        ):
            yield OWN_STEP.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func), teach="")
    for backward in facts.backwards:
        if facts.in_module(backward.call):
            yield INSIDE.at(backward.call.lineno, backward.call.col_offset + 1)
    if facts.backwards and not facts.program.optimizer_steps and not facts.in_module(facts.backwards[0].call):
        call = facts.backwards[0].call
        stepped = next((facts.source.segment(owner) for owner in _stepped(facts)), "")
        teach = hint("optimizer", f"`{stepped}`" if stepped else "")
        yield MANUAL.at(call.lineno, call.col_offset + 1, text=facts.source.segment(facts.source.statement(call))[:60], teach=teach)


def _stepped(facts: View) -> Iterator[ast.expr]:
    """What an optimizer may be that isn't known as one: unknown objects whose `step` is called in a training loop."""
    for call in facts.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr == "step" and facts.in_train_loop(call):
            held = facts.machine.at.get(call.func.value, NOTHING).objs
            if all(o.kind in ("made", "attr", "param", "item") and not facts.roles.of(o) for o in held):
                yield call.func.value


def _steps_inside(facts: View, node: ast.expr) -> bool:
    """Whether an object of the script's own steps an optimizer that it holds."""
    objs = facts.machine.at.get(node, NOTHING).objs
    return bool(objs) and all(o in facts.wrapped_optimizers for o in objs)


def _foreign(facts: View, obj: Obj) -> bool:
    """An optimizer that prepare can't take and that holds none that it can: of a class of its own, or whose making isn't seen."""
    if obj in facts.wrapped_optimizers:
        return False
    if obj.kind == "instance" and obj.base is not None:
        return not (facts.machine.reaches(obj.base, names.OPTIMIZER_BASE) and _takes_closure(facts, obj.base))
    if names.BY_CONFIG.match(obj.path) or facts.machine.teaching.role(obj) == "optimizer":
        return False
    return obj.kind == "made" and not names.OPTIMIZER.match(obj.path) and obj.path.startswith("torch.") is False and bool(obj.path)


def _takes_closure(facts: View, cls: Obj) -> bool:
    """Whether the `step` of a class can be given a closure, as a prepared optimizer gives it one."""
    found = facts.machine.lookup(cls, "step")
    functions = [o.site for o in found.objs] if found is not None else []
    return all(isinstance(f, FUNCTIONS) and (len(f.args.args) > 1 or f.args.vararg is not None) for f in functions)


def _only_none(facts: View, node: ast.expr) -> bool:
    """Whether a closure that a step is given is always None: a parameter that no caller sets."""
    objs = facts.machine.at.get(node, NOTHING).objs
    return bool(objs) and all(o.kind == "const" and o.name is None for o in objs)


def _calls(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    for call in facts.calls:
        paths = facts.any_path(call)
        text = facts.source.segment(call.func)
        place = (call.lineno, call.col_offset + 1)
        if any(p == "torch.optim.swa_utils.update_bn" for p in paths):
            yield BUFFERS.at(*place, text=text)
        elif any(p == "torch.compile" for p in paths) and decisions.plan.prepares:
            yield COMPILED.at(*place, text=text)
        elif any(names.PAST_AUTOGRAD.match(p) for p in paths) and not quiet(facts, call):
            yield BY_HAND.at(*place, text=text)


def _other_files(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    """Prepared objects that go to functions of unknown files."""
    for call in facts.calls:
        root = facts.path(call).lstrip(".").split(".")[0]
        path = facts.path(call)
        if not path or (root in LIBRARIES and not path.startswith(".")) or "." not in path or facts.roles.of_node(call) == "scheduler":
            continue
        for arg in (*call.args, *(k.value for k in call.keywords)):
            for obj in facts.machine.at.get(arg, NOTHING).objs:
                role = facts.roles.of(obj)
                if obj.kind == "prepared" and role in ("model", "optimizer", "loader"):
                    yield ELSEWHERE.at(call.lineno, call.col_offset + 1, what=f"the {role}", text=facts.source.segment(call.func))
                    break


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import torch
import webdataset
from torch import nn

data = webdataset.WebDataset("rows.tar").decode().to_tuple("x.pyd", "y.pyd").batched(16)
loader = webdataset.WebLoader(data, batch_size=None)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A232",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward(retain_graph=True)
    output.mean().backward()
    optimizer.step()
""",
        "S2A231",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    model(-x).mean().backward()
    optimizer.step()
""",
        None,
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = torch.ones(64, 8)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for step in range(100):
    optimizer.zero_grad()
    loss = model(rows).mean()
    loss.backward()
    optimizer.step()
""",
        "S2A232",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1)

for x, y in loader:

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)
""",
        "S2A233",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = torch.compile(nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A235",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    (grad,) = torch.autograd.grad(loss, [model.weight], create_graph=True)
    (loss + grad.norm()).backward()
    optimizer.step()
""",
        "S2A236",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Signs(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for p in self.param_groups[0]["params"]:
            p.sub_(p.grad.sign(), alpha=0.01)


data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = Signs(model.parameters())

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A237",
    ),
    (
        """\
import engine
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
engine.report(model)
""",
        "S2A240",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)

for x, y in loader:
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
""",
        "S2A241",
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
    ),
]
