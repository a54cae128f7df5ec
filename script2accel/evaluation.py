"""How each evaluation loop keeps its meaning on several ranks: gathered batch by batch, or run whole on every rank.

A loop is gathered only where the code shows that it can be: one forward per batch, its result and the batch's tensors
have the batch as their first dimension, nothing is carried from batch to batch, nothing leaves early. Every other
evaluation loop keeps its loader unprepared, so that each rank sees all of it: slower, and right (Accelerate's
`gather_for_metrics` cuts the last batch along the first dimension, so a guess here would lose samples silently).
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from script2accel.analysis.facts import EvalLoop, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk

RESULT_PARTS = frozenset({"loss", "logits", "last_hidden_state", "pooler_output", "hidden_states", "prediction_logits"})

ELEMENTWISE = frozenset({"detach", "float", "double", "long", "int", "bool", "sigmoid", "tanh", "relu", "exp", "log", "abs", "round", "sign"})
BY_DIMENSION = frozenset({"argmax", "argmin", "softmax", "log_softmax", "squeeze", "unsqueeze"})


@dataclass(frozen=True, eq=False)
class Gather:
    """Behind `statement`, gather these names in one call."""

    loop: EvalLoop
    statement: ast.stmt
    names: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class EveryRank:
    """The loop stays as it is, over the unprepared loader; `why` it isn't gathered."""

    loop: EvalLoop
    why: str
    node: ast.AST


def plan_evaluation(facts: Facts, loop: EvalLoop) -> Gather | EveryRank:
    """Decide one evaluation loop."""
    found = _gatherable(facts, loop)
    return found if isinstance(found, Gather) else EveryRank(loop, *found)


def _gatherable(facts: Facts, loop: EvalLoop) -> Gather | tuple[str, ast.AST]:
    node = loop.loop
    if loop.mixed:
        return "the same loop trains over another loader", node
    if len(loop.forwards) != 1:
        return "the model runs more than once per batch", node
    call = loop.forwards[0].call
    statement = facts.source.statement(call)
    if facts.function(call) is not facts.function(node) or facts.loops(call)[:1] != [node]:
        return "the model runs in a helper or an inner loop", call
    match statement:
        case ast.Assign(targets=[ast.Name(id=output)], value=value) if _row_by_row(value) is call:
            pass
        case _:
            return "what the model gives isn't bound to a single name", call
    if not _straight(facts, node, statement):
        return "the model runs under a condition", call
    for inner in walk(node):
        if isinstance(inner, (ast.Break, ast.Continue, ast.Return, ast.Yield)):
            return "the loop can end early or skip batches", inner
    why = _loader_problem(facts, loop)
    if why is not None:
        return why, node
    batch = _batch_names(facts, node)
    later = _read_behind(facts, node, statement)
    if problem := _carried(facts, node, output, batch):
        return problem, node
    used = [name for name in batch if name in later]
    early = _derived_before(facts, node, statement, batch) & later
    if early:
        return f"`{sorted(early)[0]}` is taken from this rank's batch before the model runs", statement
    if output not in later:
        return "what the model gives isn't used", call
    if not used:
        return "nothing of the batch is compared with what the model gives", call
    if not _paired(facts, node, output, set(used), statement):
        return f"`{output}` isn't compared with a tensor of the batch", call
    if problem := _unknown_shape(facts, node, output, used, loop):
        return problem, call
    return Gather(loop, statement, (output, *used))


def _row_by_row(value: ast.expr) -> ast.expr:
    """What an expression computes from, without the methods behind it that leave each sample to itself and in the first dimension."""
    while True:
        match value:
            case ast.Call(func=ast.Attribute(value=inner, attr=name), args=[], keywords=[]) if name in ELEMENTWISE:
                value = inner
            case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in BY_DIMENSION and _behind_the_batch(value):
                value = inner
            case ast.Subscript(value=ast.Call(func=ast.Attribute(attr="max" | "min" | "sort" | "topk")) as inner, slice=ast.Constant(value=0 | 1)):
                if not _behind_the_batch(inner) or not isinstance(inner.func, ast.Attribute):
                    return value
                value = inner.func.value
            case _:
                return value


def _behind_the_batch(call: ast.Call) -> bool:
    """Whether a method works along one dimension that is named and isn't the first; a negative one may be the first."""
    given = [*call.args, *(k.value for k in call.keywords if k.arg == "dim")]
    named = all(k.arg == "dim" for k in call.keywords)
    return named and len(given) == 1 and isinstance(given[0], ast.Constant) and type(given[0].value) is int and given[0].value > 0


def _straight(facts: Facts, loop: ast.AST, statement: ast.stmt) -> bool:
    """Whether only `with` blocks stand between the loop and the statement."""
    for parent in facts.source.ancestors(statement):
        if parent is loop:
            return True
        if not isinstance(parent, (ast.With, ast.AsyncWith)):
            return False
    return False


def _loader_problem(facts: Facts, loop: EvalLoop) -> str | None:
    for loader in loop.loaders:
        if not names.LOADER.match(loader.path):
            return "the loader isn't a plain torch DataLoader, so what its batches look like isn't known"
        for key in ("collate_fn", "batch_sampler"):
            if key in loader.keywords and any(o.name is not None or o.kind != "const" for o in loader.keywords[key].objs):
                return f"the loader has a `{key}`, so the first dimension of its tensors isn't known to be the batch"
        size = loader.arguments[1] if len(loader.arguments) > 1 else loader.keywords.get("batch_size")
        if size is not None and any(o.kind == "const" and o.name is None for o in size.objs):
            return "the loader doesn't batch"
        dataset = loader.arguments[0] if loader.arguments else loader.keywords.get("dataset", NOTHING)
        for obj in dataset.objs:
            if obj.kind == "instance" and obj.base is not None and facts.machine.reaches(obj.base, names.ITERABLE_DATASET_BASE):
                return "the dataset is iterable"
    if isinstance(loop.loop.iter, ast.Call) and facts.path(loop.loop.iter) == "zip":
        return "two loaders are zipped"
    for model in (m for f in loop.forwards for m in f.models):
        if problem := _time_first(facts, model):
            return problem
    return None


def _time_first(facts: Facts, model: Obj) -> str | None:
    """A recurrent or attention layer without `batch_first` puts time, not the batch, into the first dimension."""
    site = model.base.site if model.kind == "instance" and model.base is not None else None
    if "recurrent_layers" not in facts.__dict__:
        facts.__dict__["recurrent_layers"] = [c for c in facts.calls if names.RECURRENT.match(facts.path(c)) and not facts.path(c).endswith("Cell")]
    for call in facts.__dict__["recurrent_layers"]:
        path = facts.path(call)
        if site is not None and not any(p is site for p in facts.source.ancestors(call)) and facts.in_module(call):
            continue
        first = next((k.value for k in call.keywords if k.arg == "batch_first"), None)
        if not (isinstance(first, ast.Constant) and first.value is True):
            return f"`{path.rsplit('.', 1)[-1]}` without `batch_first=True` (line {call.lineno}): the first dimension isn't the batch"
    return None


def _batch_names(facts: Facts, loop: ast.For | ast.AsyncFor) -> list[str]:
    """Names of the loop's batch and its parts, moved or unpacked, in order."""
    found: dict[str, None] = {}
    for node in sorted((n for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)), key=lambda n: (n.lineno, n.col_offset)):
        if facts.roles.of_node(node) == "batch" and node.id not in ("_", "__"):
            found[node.id] = None
    return list(found)


def _read_behind(facts: Facts, loop: ast.AST, statement: ast.stmt) -> set[str]:
    """Names that the loop reads behind a statement."""
    end = facts.source.end(statement)
    return {n.id for n in walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and facts.source.start(n) > end}


def _carried(facts: Facts, loop: ast.For | ast.AsyncFor, output: str, batch: list[str]) -> str | None:
    for call in walk(loop):
        if isinstance(call, ast.Call) and call in facts.forward_calls:
            given = {n.id for arg in (*call.args, *(k.value for k in call.keywords)) for n in walk(arg) if isinstance(n, ast.Name)}
            if output in given:
                return f"`{output}` goes back into the model"
            hidden = {name for name in given if name not in batch and _assigned_in(loop, name)}
            if hidden - _comprehension_names(loop):
                return f"`{sorted(hidden)[0]}` is carried into the model from batch to batch"
    return None


def _comprehension_names(loop: ast.AST) -> set[str]:
    return {n.id for c in walk(loop) if isinstance(c, ast.comprehension) for n in walk(c.target) if isinstance(n, ast.Name)}


def _assigned_in(loop: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store) for n in walk(loop))


def _derived_before(facts: Facts, loop: ast.For | ast.AsyncFor, statement: ast.stmt, batch: list[str]) -> set[str]:
    """Names, not of the batch, computed from it in front of the forward."""
    found: set[str] = set()
    start = facts.source.start(statement)
    for node in walk(loop):
        if isinstance(node, (ast.Assign, ast.AugAssign)) and facts.source.start(node) < start and node is not statement:
            reads = {n.id for n in walk(node.value) if isinstance(n, ast.Name)}
            if reads & (set(batch) | found):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {n.id for t in targets for n in walk(t) if isinstance(n, ast.Name)}
    return found - set(batch)


def _paired(facts: Facts, loop: ast.AST, output: str, used: set[str], statement: ast.stmt) -> bool:
    """Whether the result, or what is computed from it, meets a tensor of the batch in a call or comparison."""
    derived = {output}
    for node in sorted((n for n in walk(loop) if isinstance(n, ast.Assign)), key=lambda n: n.lineno):
        if node is not statement and derived & {n.id for n in walk(node.value) if isinstance(n, ast.Name)}:
            derived |= {n.id for t in node.targets for n in walk(t) if isinstance(n, ast.Name)}
    for meeting in walk(loop):
        if isinstance(meeting, (ast.Call, ast.Compare, ast.BinOp)):
            read = {n.id for n in walk(meeting) if isinstance(n, ast.Name)}
            if read & derived and read & used and meeting is not statement.value:  # type: ignore[attr-defined]
                return True
    return False


def _unknown_shape(facts: Facts, loop: ast.AST, output: str, used: list[str], plan: EvalLoop) -> str | None:
    """Uses that only a plain tensor with the batch in front, or only a result object, would have."""
    for node in walk(loop):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == output and node.attr in RESULT_PARTS:
            return f"`{output}` is a result object (`{output}.{node.attr}`), not a tensor"
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == output:
            if isinstance(node.slice, ast.Constant) and not isinstance(node.slice.value, int):
                return f"`{output}` is indexed by a name, not a tensor"
            if isinstance(node.slice, ast.Constant):
                return f"`{output}` is indexed (`{output}[{node.slice.value!r}]`): a tuple, or a single sample"
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == output and isinstance(node.targets[0], ast.Tuple):
            return f"`{output}` is unpacked: it is no tensor"
    return None
