"""Losses whose mean isn't over samples: labels that are ignored, classes that have weights. What each divides by, as text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.context import quiet
from script2accel.analysis.devices import from_prepared_loader
from script2accel.analysis.facts import FUNCTIONS, Facts, Forward, View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk

SAME_COUNT = frozenset({"view", "reshape", "flatten", "contiguous", "long", "squeeze", "unsqueeze", "clone", "detach", "t", "transpose", "permute"})
"""Methods that leave every value of a tensor in it, once."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp, ast.Lambda)


@dataclass(frozen=True, eq=False)
class Average:
    """A loss that averages over what counts in the batch. `counted` is what it divides by, as text; or `problem` says why that can't be written."""

    loss: ast.expr
    what: str
    counted: str = ""
    problem: str = ""


def averages(facts: View) -> Iterator[Average]:
    """The losses of one file's training that divide by a number of each rank's own."""
    for call in facts.calls:
        if (loss := _criterion(facts, call)) is not None and _trains(facts, call):
            yield loss
    for forward in facts.forwards:
        if _trains(facts, forward.call):
            yield from _pretrained(facts, forward)


def _trains(facts: View, node: ast.AST) -> bool:
    return facts.in_train_loop(node) and not quiet(facts, node)


# losses of torch -----------------------------------------------------------------------------------------


def _criterion(facts: View, call: ast.Call) -> Average | None:
    """A call of cross entropy or its like, where it ignores labels or weighs classes and gives the mean."""
    function = any(names.INDEXED_LOSS.match(path) for path in facts.any_path(call))
    made = [o for o in facts.machine.at.get(call.func, NOTHING).objs if o.kind == "made" and names.INDEXED_LOSS.match(o.path)]
    if any(_partial(o) for o in facts.machine.at.get(call.func, NOTHING).objs):
        return Average(call, "may ignore labels", "", "its settings are bound elsewhere")
    sites = [call] if function else [o.site for o in made if isinstance(o.site, ast.Call)]
    if not sites:
        return None
    losses = [o for o in (facts.machine.at.get(call, NOTHING).objs if function else made) if _unpacked(o)]
    if losses:
        reduced = {r.name for o in losses for r in o.keywords.get("reduction", NOTHING).objs}
        return None if reduced and "mean" not in reduced else Average(call, "may ignore labels", "", "its settings are unpacked from a dict")
    settings = [_settings(site, 2 if function else 0) for site in sites]
    if any(s.get("reduction", "'mean'") != "'mean'" or s.get("reduce", "True") == "False" for s in settings):
        return None
    owner = ast.unparse(call.func)
    ignored, weights = (_setting(facts, settings, name, "" if function else f"{owner}.{name}") for name in ("ignore_index", "weight"))
    if not ignored and ignores(facts):
        ignored = "-100"
    if not ignored and not weights:
        return None
    what = " and ".join((["ignores labels"] if ignored else []) + (["weighs classes"] if weights else []))
    target = call.args[1] if len(call.args) > 1 else next((k.value for k in call.keywords if k.arg == "target"), None)
    called = "" if _plain(call.func) and all(map(_plain_text, (ignored, weights))) else "what it is given is made in the call"
    problem = _problem(facts, call) or called or (_unclear_target(facts, target, weighted=bool(weights)))
    if weights and not function and any(not _given(o, "weight") for o in made):
        problem = problem or "whether classes have weights is only known at run time"
    if problem or target is None:
        return Average(call, what, "", problem or "its target can't be seen")
    return Average(call, what, _divisor(*_bare(facts, target), ignored, weights))


def _partial(obj: Obj) -> bool:
    """Whether an object is such a loss with some arguments bound."""
    given = obj.arguments[0].objs if obj.path == "functools.partial" and obj.arguments else ()
    return any(names.INDEXED_LOSS.match(o.path) for o in given)


def _unpacked(obj: Obj) -> bool:
    """Whether what bears on the mean of a loss is given, or may be, by an unpacked dict."""
    site = obj.site
    if not isinstance(site, ast.Call) or not any(k.arg is None for k in site.keywords):
        return False
    hidden = set(obj.keywords) - {k.arg for k in site.keywords if k.arg is not None}
    return bool(hidden & {None, *names.INDEXED_LOSS_ARGUMENTS})


def _settings(site: ast.Call, first: int) -> dict[str, str]:
    """The arguments of a loss, or of its constructor, by name; those by position stand behind the first `first`."""
    found = {k.arg: ast.unparse(k.value) for k in site.keywords if k.arg is not None}
    return {**dict(zip(names.INDEXED_LOSS_ARGUMENTS, map(ast.unparse, site.args[first:]), strict=False)), **found}


def _setting(facts: View, settings: list[dict[str, str]], name: str, otherwise: str) -> str:
    """One argument as text, where it stands anywhere; a constant as it is, else as the criterion's own attribute."""
    texts = {s[name] for s in settings if s.get(name, "None") != "None"}
    if not texts:
        return ""
    text = next(iter(texts))
    return text if len(texts) == 1 and (not otherwise or text.lstrip("-").isdigit()) else otherwise


def _plain_text(text: str) -> bool:
    return not text or _plain(ast.parse(text, mode="eval").body)


def _plain(node: ast.expr) -> bool:
    """Whether an expression can be written a second time: it calls nothing and makes nothing."""
    return not any(isinstance(n, (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.List, *COMPREHENSIONS)) for n in walk(node))


def _given(criterion: Obj, name: str) -> bool:
    value = criterion.keywords.get(name) or (criterion.arguments[0] if criterion.arguments else NOTHING)
    return bool(value.objs) and not any(o.kind == "const" and o.name is None for o in value.objs)


def _divisor(target: str, device: str, ignored: str, weights: str) -> str:
    if weights:
        target = f"{target}[{target} != {ignored}]" if ignored else target
        return f"{weights}[{target}].sum(){device}"
    return f"({target} != {ignored}).sum().float(){device}"


def _bare(facts: View, target: ast.expr) -> tuple[str, str]:
    """A target without what only shapes or moves it, and whether the count has to be moved: ".to" or nothing."""
    moved = ""
    while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute):
        moved = ".to" if target.func.attr in names.MOVES else moved
        target = target.func.value
    return facts.source.segment(target), "" if from_prepared_loader(facts, target) else moved


def _unclear_target(facts: View, target: ast.expr | None, *, weighted: bool) -> str:
    """Why a target can't be written a second time, in front of the statement; '' where it can."""
    while isinstance(target, ast.Call) and isinstance(target.func, ast.Attribute) and target.func.attr in SAME_COUNT | names.MOVES:
        target = target.func.value
    if target is None or not _plain(target):
        return "its target is computed in the call"
    if weighted and any(isinstance(n, ast.BinOp) for n in walk(target)):
        return "its target may hold shares of classes"
    return ""


# losses of pretrained models -----------------------------------------------------------------------------


def _pretrained(facts: View, forward: Forward) -> Iterator[Average]:
    """The reads of a loss that a transformers model takes over labelled tokens."""
    kinds = {names.TOKEN_MODEL.match(model.path) for model in forward.models}
    if None in kinds or not ignores(facts) or any(k.arg == "num_items_in_batch" for k in forward.call.keywords):
        return
    shifted = {bool(match and names.SHIFTS_LABELS.search(match[0])) for match in kinds}
    labels = next((k.value for k in forward.call.keywords if k.arg == "labels"), None)
    batch = next((k.value for k in forward.call.keywords if k.arg is None), None)
    for loss in _losses_of(facts, forward):
        problem = _problem(facts, loss)
        if labels is not None:
            problem = problem or _unclear_target(facts, labels, weighted=False)
            text, device = _bare(facts, labels)
        elif isinstance(batch, ast.Name):
            text, device = f'{batch.id}["labels"]', ""
        else:
            problem, text, device = problem or "the labels that the model is given can't be seen", "", ""
        if len(shifted) > 1:
            problem = problem or "it may be that of models of two kinds"
        if facts.function(loss) is not facts.function(forward.call):
            problem = problem or "the model is called in another function"
        divisor = "" if problem else _divisor(text + ("[..., 1:]" if True in shifted else ""), device, "-100", "")
        yield Average(loss, "ignores labels", divisor, problem)


def _losses_of(facts: View, forward: Forward) -> Iterator[ast.expr]:
    """Where the loss of a model's output is read to train by it: `output.loss`, `output["loss"]`, `output[0]`."""
    for node in facts.source.every(ast.Attribute, ast.Subscript):
        match node:
            case (
                ast.Attribute(value=owner, attr="loss", ctx=ast.Load())
                | ast.Subscript(value=owner, slice=ast.Constant(value=0 | "loss"), ctx=ast.Load())
            ) if any(o.site is forward.call for o in facts.machine.at.get(owner, NOTHING).objs):
                shown = facts.source.parents[node]
                if _trains(facts, node) and not (isinstance(shown, ast.Attribute) and shown.attr in names.OUT_OF_GRAPH):
                    yield node


def ignores(facts: Facts) -> bool:
    """Whether a script shows that labels may be -100, which losses ignore unless told otherwise."""
    known = facts.program.__dict__
    if "ignores_labels" not in known:
        collates = any(names.TOKEN_COLLATOR.match(path) for call in facts.program.calls for path in facts.program.any_path(call))
        known["ignores_labels"] = collates or any(_minus_hundred(source.nodes) for source in facts.program.source.sources)
    return bool(known["ignores_labels"])


def _minus_hundred(nodes: list[ast.AST]) -> bool:
    return any(
        isinstance(n, ast.UnaryOp) and isinstance(n.op, ast.USub) and isinstance(n.operand, ast.Constant) and n.operand.value == 100 for n in nodes
    )


# where all ranks come to ----------------------------------------------------------------------------------


def _problem(facts: View, loss: ast.expr) -> str:
    """Why the count can't be brought together at a loss: not every rank may come to it, as often; '' where it can."""
    if facts.in_module(loss):
        return "it is computed inside a module"
    if any(isinstance(parent, COMPREHENSIONS) for parent in _within(facts, loss)):
        return "it is computed in a comprehension"
    if any(facts.inside(loop.loop, loss) and not loop.mixed for loop in facts.program.eval_loops):
        return "an evaluation computes it at the same place"
    return _unlike(facts, loss, frozenset())


def _within(facts: View, node: ast.AST) -> Iterator[ast.AST]:
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.stmt):
            return
        yield parent


def _unlike(facts: Facts, node: ast.AST, seen: frozenset[ast.AST]) -> str:
    """What stands between a place and its training loop that a batch decides."""
    training = {train.loop for train in facts.program.train_loops}
    child = node
    for parent in facts.source.ancestors(node):
        match parent:
            case ast.For() | ast.AsyncFor() | ast.While() if parent in training:
                return ""
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) if child is not test and of_batch(facts, test):
                return f"`{ast.unparse(test)[:40]}` may differ between ranks"
            case ast.For(iter=over) | ast.AsyncFor(iter=over) if child in parent.body and of_batch(facts, over):
                return f"`{ast.unparse(over)[:40]}` may be longer on one rank than on another"
            case ast.BoolOp():
                return "it is computed in a condition"
        if isinstance(parent, FUNCTIONS) and parent not in seen:
            found = (_unlike(facts, call, seen | {parent}) for call in facts.callers(parent) if facts.in_train_loop(call))
            return next((text for text in found if text), "")
        child = parent
    return ""


def of_batch(facts: Facts, node: ast.expr) -> bool:
    """Whether a value comes from a loader's batch or a model's output, be it only its length."""
    return any(
        facts.machine.marks_of(n) or any(_from_batch(facts, o, 6) for o in facts.machine.at.get(n, NOTHING).objs)
        for n in walk(node)
        if isinstance(n, ast.expr)
    )


def _from_batch(facts: Facts, obj: Obj | None, depth: int) -> bool:
    if obj is None or not depth:
        return False
    if obj.kind == "prepared" and facts.roles.of(obj) in ("loader", "model"):
        return obj.base is not None
    given = [o for value in (*obj.arguments, *obj.keywords.values()) for o in value.objs] if obj.kind == "made" else []
    return _from_batch(facts, obj.base, depth) or any(_from_batch(facts, o, depth - 1) for o in given)
