"""Let Accelerate run mixed precision: autocast becomes `mixed_precision=` and `accelerator.autocast()`.

A prepared model's forward runs under autocast by itself, so a block that holds nothing else is dissolved; where losses or other things are
computed in the block, `accelerator.autocast()` takes its place. The precision (from the dtype) and the flag that switches it on go to the
accelerator, as expressions of the script.
Left alone: `autocast(enabled=False)`, autocast that only evaluation uses, and what stands inside a model beside an outer autocast. Refused:
apex, `model.half()` on trained weights, autocasts that disagree.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#mixed-precision
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, View
from script2accel.analysis.precision import Autocast, HandMade, definition, hand_made, keyword
from script2accel.analysis.values import NOTHING
from script2accel.change.edits import CannotEditError, dissolve, merge, remove_statement, replace, replace_range, wrap_statements
from script2accel.change.plan import Change, Edit, Remove
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import children, walk

CODE, NAME = "S2A301", "hand-made-precision"
APEX = Message(
    "S2A311",
    Severity.ERROR,
    "`{text}`: apex patches functions and optimizers by itself; beside Accelerate's mixed precision it would be applied twice",
    "take apex out (initialize, scale_loss, master_params), convert, and choose the precision with --mixed-precision",
)
HALF_KEPT = Message(
    "S2A318",
    Severity.WARNING,
    "warning: `{text}` makes trained weights half precision; it stays, and fits no fp16 in the accelerate config: unscaling their gradients fails",
    "take it out and choose the precision with --mixed-precision",
)
HALF = Message(
    "S2A312",
    Severity.ERROR,
    "`{text}` makes trained weights half precision: unscaling their gradients fails under fp16",
    "take it out and choose the precision with --mixed-precision",
)
DISAGREE = Message(
    "S2A313",
    Severity.ERROR,
    "this autocast and the one in line {first} differ (precision or flag): Accelerate has one precision for the whole training",
    "give both the same dtype and the same `enabled=`, and convert again",
)
UNREAD = Message(
    "S2A314",
    Severity.ERROR,
    "`{text}`: {why}",
    "write `with torch.autocast(device_type, dtype=..., enabled=...):` around the forward pass, and convert again",
)
EVALUATION = Message(
    "S2A315", Severity.NOTE, "this evaluation ran in another precision than the training; a prepared model runs both in the training's", ""
)
DEFAULT = Message(
    "S2A316",
    Severity.NOTE,
    "autocast without a dtype is float16 on a GPU and bfloat16 on a CPU; it becomes fp16, which Accelerate leaves off on a CPU",
    "",
)
PRECISIONS = {"torch.float16": '"fp16"', "torch.half": '"fp16"', "torch.bfloat16": '"bf16"', "torch.float32": '"no"', "torch.float": '"no"'}
Flag = tuple[ast.expr, bool]


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    yield from _refused(facts, decisions)
    made = hand_made(facts)
    ours = [a for a in made.autocasts if not a.off]
    outer = [a for a in ours if a.trains and (not a.in_module or _whole_forward(facts, a))]
    inner = [a for a in ours if a.trains and a.in_module and a not in outer]
    if not outer:
        for autocast in (a for a in inner if _here(facts, a.where)):
            yield UNREAD.at(autocast.node.lineno, text=facts.source.segment(autocast.node), why="it governs a part of the model only")  # type: ignore[attr-defined]
        if made.scalers and not inner and _here(facts, made.scalers[0]):
            yield UNREAD.at(
                made.scalers[0].lineno, text=facts.source.segment(made.scalers[0]), why="a GradScaler without an autocast around the training"
            )
        return
    yield from _argument(facts, decisions, made, outer)
    yield from _loose_calls(facts, made)
    for autocast in [*outer, *(a for a in ours if not a.trains and not a.in_module)]:
        if _here(facts, autocast.where):
            yield from _place(facts, decisions, made, autocast)
    yield from _definitions(facts, made, outer)
    yield from _full_precision(facts, decisions, made, ours)
    yield from _imports(facts, made, [a for a in ours if a in outer or (not a.trains and not a.in_module)])


def _here(facts: View, node: ast.AST) -> bool:
    return facts.source.root(node) is facts.source.tree


def _refused(facts: View, decisions: Decisions) -> Iterator[Diagnostic]:
    for call in facts.calls:
        if any(p.startswith("apex.") and "amp" in p for p in facts.any_path(call)):
            yield APEX.at(call.lineno, call.col_offset + 1, text=facts.source.segment(call.func))
            continue
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("half", "bfloat16") or facts.in_module(call):
            continue
        if any(decisions.is_prepared(o) and facts.roles.of(o) == "model" for o in facts.machine.at.get(call.func.value, NOTHING).objs):
            scaled = decisions.options.mixed_precision == "fp16" or "fp16" in decisions.arguments.get("mixed_precision", "")
            yield (HALF if scaled else HALF_KEPT).at(call.lineno, call.col_offset + 1, text=facts.source.segment(call))


def _whole_forward(facts: View, autocast: Autocast) -> bool:
    """Whether an autocast inside a model governs all of a trained model's `forward`."""
    function = autocast.where if isinstance(autocast.where, FUNCTIONS) else facts.source.function(autocast.where)
    if isinstance(function, ast.Module) or function.name != "forward":
        return False
    cls = facts.source.scope(function)
    if not any(o.base is not None and o.base.site is cls for o in facts.models):
        return False
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return isinstance(autocast.where, FUNCTIONS) or body == [autocast.where]


# the accelerator's argument ------------------------------------------------------------------------------


def _argument(facts: View, decisions: Decisions, made: HandMade, outer: list[Autocast]) -> Iterator[Diagnostic]:
    first: tuple[str, Autocast] | None = None
    for autocast in outer:
        try:
            text = _precision_and_flag(facts, decisions, made, autocast)
        except _UnreadError as error:
            if _here(facts, error.node):
                yield UNREAD.at(getattr(error.node, "lineno", 1), text=facts.program.source.segment(error.node), why=error.why)
            continue
        if first is None:
            first = text, autocast
        elif _compared(facts, decisions, text) != _compared(facts, decisions, first[0]) and _here(facts, autocast.where):
            yield DISAGREE.at(autocast.node.lineno, first=first[1].node.lineno)  # type: ignore[attr-defined]
    if first is None:
        return
    text, autocast = first
    if autocast.call is not None and _here(facts, autocast.call) and _default_dtype(facts, autocast.call):
        yield DEFAULT.at(autocast.call.lineno, autocast.call.col_offset + 1)
    decisions.arguments["mixed_precision"] = text if decisions.options.mixed_precision is None else f'"{decisions.options.mixed_precision}"'
    _handlers(facts, decisions, made, autocast, text)


def _compared(facts: View, decisions: Decisions, text: str) -> str:
    """A text whose expressions of the script are named by what they hold, so that two places can be compared."""
    for index, node in enumerate(decisions.read):
        if f"\0{index}\0" in text:
            text = text.replace(f"\0{index}\0", _held(facts, node))
    return text


def _held(facts: View, node: ast.AST) -> str:
    if isinstance(node, (ast.Name, ast.Attribute)):
        objs = facts.machine.at.get(node, NOTHING).objs
        return f"<{sorted(o.number for o in objs)}>" if objs else ast.unparse(node)
    inner = [_held(facts, child) for child in children(node) if isinstance(child, ast.expr)]
    return f"{type(node).__name__}({', '.join(inner)})" if inner else ast.unparse(node)


def _handlers(facts: View, decisions: Decisions, made: HandMade, autocast: Autocast, text: str) -> None:
    cache = keyword(autocast.call, "cache_enabled")
    if cache is not None and not any(h.startswith("AutocastKwargs") for h in decisions.handlers):
        decisions.handlers.append(f"AutocastKwargs(cache_enabled={decisions.reads(cache)})")
        decisions.imports["accelerate.utils", "AutocastKwargs"] = None
    if "fp16" not in text or any(h.startswith("GradScalerKwargs") for h in decisions.handlers):
        return
    given: dict[str, str] = {}
    for call in made.scalers[:1]:
        fields = ["init_scale", "growth_factor", "backoff_factor", "growth_interval"]
        positional = (
            call.args[1:]
            if any(p == "torch.amp.GradScaler" or (p.endswith("amp.grad_scaler.GradScaler") and "cuda" not in p) for p in facts.any_path(call))
            else call.args
        )
        given |= {name: decisions.reads(arg) for name, arg in zip(fields, positional, strict=False)}
        given |= {k.arg: decisions.reads(k.value) for k in call.keywords if k.arg in fields}
    if not made.scalers:
        given["enabled"] = "False"
    if given:
        decisions.handlers.append(f"GradScalerKwargs({', '.join(f'{k}={v}' for k, v in given.items())})")
        decisions.imports["accelerate.utils", "GradScalerKwargs"] = None


class _UnreadError(Exception):
    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


def _precision_and_flag(facts: View, decisions: Decisions, made: HandMade, autocast: Autocast) -> str:
    precision, index, table = _dtype(facts, decisions, autocast.call)
    flags = list(_flags(facts, made, autocast))
    texts: list[str] = []
    for test, wanted in flags:
        text = _flag(facts, decisions, test, wanted, precision, index, table)
        if text and text not in texts:
            texts.append(text)
    if not texts:
        return precision
    if "False" in texts:
        return '"no"'
    body = precision if precision.startswith('"') or precision.startswith("{") else f"({precision})"
    return f'{body} if {" and ".join(texts)} else "no"'


def _default_dtype(facts: View, call: ast.Call) -> bool:
    device = keyword(call, "device_type") or (call.args[0] if call.args else None)
    generic = any(".cuda." not in p and ".cpu." not in p for p in facts.program.any_path(call))
    return generic and keyword(call, "dtype") is None and len(call.args) < 2 and not isinstance(device, ast.Constant)


def _dtype(facts: View, decisions: Decisions, call: ast.Call | None) -> tuple[str, str, dict[object, str]]:
    """The precision as text; where it is looked up in a dict, the index's text and what it gives for each key."""
    if call is None:
        return '"fp16"', "", {}
    paths = facts.program.any_path(call)
    cuda_only = any(".cuda." in p or ".cpu." in p for p in paths)
    places = call.args if not cuda_only else []
    device = keyword(call, "device_type") or (places[0] if places else None)
    dtype = keyword(call, "dtype") or (places[1] if len(places) > 1 else call.args[1] if cuda_only and len(call.args) > 1 else None)
    if dtype is None:
        on_cpu = any(".cpu." in p for p in paths) or (isinstance(device, ast.Constant) and device.value == "cpu")
        return ('"bf16"' if on_cpu else '"fp16"'), "", {}
    return _named(facts, decisions, dtype, 0)


def _named(facts: View, decisions: Decisions, node: ast.expr, depth: int) -> tuple[str, str, dict[object, str]]:
    if depth < 6:
        match node:
            case ast.IfExp(test=test, body=body, orelse=orelse):
                one, other = _named(facts, decisions, body, depth + 1)[0], _named(facts, decisions, orelse, depth + 1)[0]
                return (one if one == other else f"{one} if {decisions.reads(test)} else {other}"), "", {}
            case ast.Subscript(value=table, slice=index):
                found = table if isinstance(table, ast.Dict) else definition(facts, table)
                if isinstance(found, ast.Dict) and all(isinstance(k, ast.Constant) for k in found.keys):
                    values: dict[object, str] = {
                        k.value: _named(facts, decisions, v, depth + 1)[0]
                        for k, v in zip(found.keys, found.values, strict=True)
                        if isinstance(k, ast.Constant)
                    }
                    pairs = ", ".join(f"{_quoted(k)}: {v}" for k, v in values.items())
                    return f"{{{pairs}}}[{decisions.reads(index)}]", facts.program.source.segment(index), values
            case ast.Name() | ast.Attribute() if (value := definition(facts, node)) is not None:
                return _named(facts, decisions, value, depth + 1)
    paths = {str(o.name) if o.kind == "external" else "" for o in facts.machine.at.get(node, NOTHING).objs}
    if len(paths) == 1 and (path := next(iter(paths))) in PRECISIONS:
        return PRECISIONS[path], "", {}
    raise _UnreadError(node, "which precision this is can't be told from the text")


def _quoted(value: object) -> str:
    return f'"{value}"' if isinstance(value, str) else repr(value)


# flags ---------------------------------------------------------------------------------------------------


def _flags(facts: View, made: HandMade, autocast: Autocast) -> Iterator[Flag]:
    """The conditions under which an autocast is on: its flag, the conditional expressions and branches around it and its making."""
    enabled = keyword(autocast.call, "enabled")
    if autocast.call is not None and enabled is None and any(".cuda." in p for p in facts.program.any_path(autocast.call)) and autocast.call.args:
        enabled = autocast.call.args[0]
    if enabled is not None:
        yield enabled, True
    if autocast.call is not None:
        yield from _around(facts, made, autocast.call)
        if autocast.item is not None and autocast.call is not autocast.item.context_expr:
            statement = facts.program.source.statement(autocast.call)
            yield from _branches(facts, made, statement)
    if not isinstance(autocast.where, FUNCTIONS):
        yield from _branches(facts, made, autocast.where)


def _around(facts: View, made: HandMade, node: ast.AST) -> Iterator[Flag]:
    child = node
    for parent in facts.program.source.ancestors(node):
        if isinstance(parent, ast.IfExp) and child is not parent.test:
            yield parent.test, child is parent.body
        if isinstance(parent, ast.stmt):
            return
        child = parent


def _branches(facts: View, made: HandMade, node: ast.AST) -> Iterator[Flag]:
    """The `if`s around a place that choose between it and another way to compute the same, or ask for a scaler."""
    child = node
    for parent in facts.program.source.ancestors(node):
        if isinstance(parent, (*FUNCTIONS, ast.For, ast.While)):
            return
        if isinstance(parent, ast.If) and child is not parent.test and (parent.orelse or _asks_scaler(made, parent.test)):
            yield parent.test, child in parent.body
        child = parent


def _asks_scaler(made: HandMade, test: ast.expr) -> bool:
    return any(made.is_scaler(n) for n in walk(test) if isinstance(n, (ast.Name, ast.Attribute)))


def _flag(facts: View, decisions: Decisions, test: ast.expr, wanted: bool, precision: str, index: str, table: dict[object, str]) -> str:
    """One condition as text for the accelerator's birthplace; '' where it decides nothing there."""
    made = hand_made(facts)
    match test:
        case ast.Constant(value=value):
            return "" if bool(value) is wanted else "False"
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return _flag(facts, decisions, inner, not wanted, precision, index, table)
        case ast.BoolOp(op=ast.And(), values=parts) if wanted:
            texts = [_flag(facts, decisions, p, True, precision, index, table) for p in parts]
            return " and ".join(dict.fromkeys(t for t in texts if t))
        case ast.Call(func=ast.Name(id="bool"), args=[inner]):
            return _flag(facts, decisions, inner, wanted, precision, index, table)
        case ast.Compare(left=left, ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]) if made.is_scaler(left):
            return _scaler_flag(facts, decisions, made, isinstance(op, ast.IsNot) is wanted, precision, index, table)
        case ast.Name() | ast.Attribute() if made.is_scaler(test):
            return _scaler_flag(facts, decisions, made, wanted, precision, index, table)
        case ast.Call(func=ast.Attribute(value=owner, attr="is_enabled")) if made.is_scaler(owner):
            return _scaler_flag(facts, decisions, made, wanted, precision, index, table)
        case ast.Compare(left=left, ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant(value=key)]) if (
            table and facts.program.source.segment(left) == index
        ):
            if isinstance(op, ast.Eq) is not wanted and table.get(key) == '"no"':
                return ""
    cuda = _about_cuda(facts, test)
    if cuda is not None:
        return (
            ""
            if "bf16" not in precision and cuda is wanted
            else ("" if wanted else "not ") + "torch.cuda.is_available()"
            if cuda
            else ("not " if wanted else "") + "torch.cuda.is_available()"
        )
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and not wanted and isinstance(test.ops[0], (ast.Eq, ast.NotEq)):
        return f"{decisions.reads(test.left)} {'!=' if isinstance(test.ops[0], ast.Eq) else '=='} {decisions.reads(test.comparators[0])}"
    text = decisions.reads(test)
    if wanted:
        return f"({text})" if isinstance(test, (ast.BoolOp, ast.IfExp)) else text
    return f"not {text}" if isinstance(test, (ast.Name, ast.Attribute, ast.Call)) else f"not ({text})"


def _about_cuda(facts: View, test: ast.expr) -> bool | None:
    """Whether a condition asks for a GPU (True) or for the lack of one (False); None where it asks for something else."""
    match test:
        case ast.Compare(ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant(value="cuda" | "cpu" as name)]):
            return (name == "cuda") is isinstance(op, ast.Eq)
        case ast.Compare(left=ast.Constant(value="cuda"), ops=[ast.In()], comparators=[_]):
            return True
        case ast.Call() if names.CUDA_QUERY.match(facts.program.path(test)) and facts.program.path(test).endswith("is_available"):
            return True
        case ast.Call(func=ast.Attribute(attr="startswith"), args=[ast.Constant(value="cuda")]):
            return True
    return None


def _scaler_flag(facts: View, decisions: Decisions, made: HandMade, wanted: bool, precision: str, index: str, table: dict[object, str]) -> str:
    """When the scaler is there (or isn't): its own flag, and the conditions around its making."""
    if not made.scalers:
        raise _UnreadError(facts.program.backwards[0].call, "where its GradScaler comes from can't be seen")
    call = made.scalers[0]
    found = list(_around(facts, made, call)) + [f for f in _making(facts, call)]
    enabled = keyword(call, "enabled")
    if enabled is not None:
        found.append((enabled, True))
    texts = [_flag(facts, decisions, test, on, precision, index, table) for test, on in found]
    texts = list(dict.fromkeys(t for t in texts if t))
    if not texts:
        return "" if wanted else "False"
    joined = " and ".join(texts)
    return joined if wanted else f"not ({joined})"


def _making(facts: View, call: ast.Call) -> Iterator[Flag]:
    child: ast.AST = call
    for parent in facts.program.source.ancestors(call):
        if isinstance(parent, FUNCTIONS):
            return
        if isinstance(parent, ast.If) and child is not parent.test and not facts.machine.truth(parent.test):
            yield parent.test, child in parent.body
        child = parent


# the places ----------------------------------------------------------------------------------------------


def _place(facts: View, decisions: Decisions, made: HandMade, autocast: Autocast) -> Iterator[Change | Diagnostic]:
    source = facts.source
    line = autocast.node.lineno  # type: ignore[attr-defined]
    if isinstance(autocast.where, FUNCTIONS):
        yield from _decorator(facts, decisions, autocast)
        return
    assert autocast.item is not None
    if _only_forward(facts, decisions, autocast) or autocast.in_module:
        edits = _without_item(facts, autocast)
        if edits is not None:
            yield Change(CODE, NAME, "a prepared model's forward runs in mixed precision by itself", line, edits, source="R16")
            return
        if autocast.in_module:
            yield UNREAD.at(line, text=source.segment(autocast.node), why="its block can't be taken apart")
            return
    accelerator = decisions.accelerator(autocast.where)
    edits = replace(source, autocast.item.context_expr, f"{accelerator}.autocast()")
    yield Change(
        CODE, NAME, "the accelerator chooses the precision; what is computed beside the model's forward runs in it too", line, edits, source="R16"
    )


def _decorator(facts: View, decisions: Decisions, autocast: Autocast) -> Iterator[Change | Diagnostic]:
    source, function = facts.source, autocast.where
    assert isinstance(function, FUNCTIONS)
    line = autocast.node.lineno  # type: ignore[attr-defined]
    own = source.text[source.starts[line - 1] : source.start(autocast.node)].strip() == "@"
    if not own:
        yield UNREAD.at(line, text=source.segment(autocast.node), why="a decorator that shares its line")
        return
    edits: tuple[Edit, ...] = (Remove(line, source.line_of(source.end(autocast.node) - 1)),)
    if not autocast.in_module:
        body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str))]
        edits = merge([edits, wrap_statements(source, body, f"with {decisions.accelerator(function.body[0])}.autocast():")])
    yield Change(CODE, NAME, "the accelerator chooses the precision", line, edits, source="R16")


def _only_forward(facts: View, decisions: Decisions, autocast: Autocast) -> bool:
    """Whether nothing but calls of prepared models (and moves) stands in the block."""
    forwards = {f.call: f for f in facts.forwards}
    for statement in autocast.where.body:
        for node in walk(statement):
            if isinstance(node, ast.Call):
                found = forwards.get(node)
                if found is not None and decisions.prepared_here(node.func, "model"):
                    continue
                if isinstance(node.func, ast.Attribute) and node.func.attr in ("to", "cuda", "size"):
                    continue
                return False
            if isinstance(node, (ast.BinOp, ast.AugAssign, ast.For, ast.While, ast.comprehension)):
                return False
    return True


def _without_item(facts: View, autocast: Autocast) -> tuple[Edit, ...] | None:
    source, node = facts.source, autocast.where
    assert isinstance(node, (ast.With, ast.AsyncWith)) and autocast.item is not None
    if len(node.items) > 1:
        index = node.items.index(autocast.item)
        if index + 1 < len(node.items):
            return replace_range(source.start(autocast.item.context_expr), source.start(node.items[index + 1].context_expr), "")
        before = node.items[index - 1]
        return replace_range(source.end(before.optional_vars or before.context_expr), source.end(autocast.item.context_expr), "")
    try:
        return dissolve(source, node)
    except CannotEditError:
        return None


def _loose_calls(facts: View, made: HandMade) -> Iterator[Diagnostic]:
    """Autocasts that are made and used in a way that isn't followed."""
    known = {a.call for a in made.autocasts}
    for call in facts.calls:
        paths = facts.any_path(call)
        if not any(names.AUTOCAST.match(p) for p in paths):
            continue
        if call not in known:
            yield UNREAD.at(
                call.lineno, call.col_offset + 1, text=facts.source.segment(call.func), why="where this autocast is entered can't be seen"
            )
        elif not all(names.AUTOCAST.match(p) for p in paths):
            yield UNREAD.at(
                call.lineno, call.col_offset + 1, text=facts.source.segment(call.func), why="whether this is autocast is decided elsewhere"
            )


def _definitions(facts: View, made: HandMade, outer: list[Autocast]) -> Iterator[Change | Diagnostic]:
    """Names that held an autocast hold nothing that is used any more."""
    done: set[ast.stmt] = set()
    for autocast in made.autocasts:
        if autocast.call is None or autocast.item is None or autocast.call is autocast.item.context_expr or not _here(facts, autocast.call):
            continue
        statement = facts.source.statement(autocast.call)
        if statement in done or isinstance(statement, (ast.With, ast.AsyncWith)):
            continue
        done.add(statement)
        context = {a.item.context_expr for a in made.autocasts if a.item is not None}
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        loads = [
            n
            for n in facts.program.source.nodes
            if isinstance(n, type(target))
            and target is not None
            and ast.unparse(n) == ast.unparse(target)
            and isinstance(getattr(n, "ctx", None), ast.Load)
        ]
        if target is None or any(n not in context for n in loads):
            yield UNREAD.at(statement.lineno, text=facts.source.segment(statement)[:60], why="this context is used in other ways than `with`")
            continue
        stores = [
            n
            for n in facts.source.nodes
            if isinstance(n, type(target)) and ast.unparse(n) == ast.unparse(target) and isinstance(getattr(n, "ctx", None), ast.Store)
        ]
        for store in stores:
            yield Change(
                CODE,
                NAME,
                "the accelerator makes the context where it is entered",
                statement.lineno,
                remove_statement(facts.source, facts.source.statement(store)),
                source="R16",
            )


def _full_precision(facts: View, decisions: Decisions, made: HandMade, ours: list[Autocast]) -> Iterator[Diagnostic]:
    """Evaluations whose precision was another than the training's."""
    text = decisions.arguments.get("mixed_precision", "")
    for loop in facts.eval_loops:
        around = {parent for f in loop.forwards for parent in facts.program.source.ancestors(f.call)}
        around |= {n for f in loop.forwards for n in facts.program.source.ancestors(loop.loop)}
        governed = [a for a in ours if a.where in around or a.in_module]
        try:
            same = any(
                a.in_module or _compared(facts, decisions, _precision_and_flag(facts, decisions, made, a)) == _compared(facts, decisions, text)
                for a in governed
            )
        except _UnreadError:
            same = False
        if not same and not loop.mixed and decisions.options.mixed_precision is None:
            yield EVALUATION.at(loop.loop.lineno, loop.loop.col_offset + 1)


def _imports(facts: View, made: HandMade, placed: list[Autocast]) -> Iterator[Change]:
    """`from torch.cuda.amp import GradScaler, autocast` goes where nothing reads the names any more."""
    source = facts.source
    gone: set[ast.AST] = set()
    for autocast in placed:
        gone |= set(walk(autocast.node))
        gone |= (
            set(
                walk(
                    source.statement(autocast.call)
                    if autocast.item is not None and autocast.call is not autocast.item.context_expr
                    else autocast.call
                )
            )
            if autocast.call is not None
            else set()
        )
    for call in made.scalers:
        gone |= set(walk(facts.program.source.statement(call)))
    for use in made.uses:
        gone |= set(walk(use.node.annotation)) if isinstance(use.node, ast.arg) and use.node.annotation is not None else set()
    for statement in source.every(ast.ImportFrom):
        if not source.alone(statement):
            continue
        paths = {alias: f"{statement.module}.{alias.name}" for alias in statement.names}
        ours = [a for a, path in paths.items() if names.AUTOCAST.match(path) or names.SCALER.match(path) or path == "contextlib.nullcontext"]
        dead = []
        for alias in ours:
            name = alias.asname or alias.name
            loads = [n for n in source.every(ast.Name) if n.id == name and isinstance(n.ctx, ast.Load)]
            if loads and all(n in gone for n in loads):
                dead.append(alias)
        if not dead:
            continue
        if len(dead) == len(statement.names):
            edits = remove_statement(source, statement)
        else:
            kept = ", ".join(source.segment(a) for a in statement.names if a not in dead)
            edits = replace_range(source.start(statement.names[0]), source.end(statement.names[-1]), kept)
        yield Change(CODE, NAME, "nothing reads these names any more", statement.lineno, edits, source="R16")


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
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
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(mixed_precision="bf16")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    with accelerator.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
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
    with torch.autocast("cuda", dtype=torch.bfloat16):
        output = model(x)
    loss = nn.functional.cross_entropy(output.float(), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(mixed_precision="bf16")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.cross_entropy(output.float(), y)
    accelerator.backward(loss)
    optimizer.step()
""",
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
use_amp = torch.cuda.is_available()
dtype = torch.float16

for x, y in loader:
    optimizer.zero_grad()
    with torch.cuda.amp.autocast(enabled=use_amp, dtype=dtype):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import GradScalerKwargs

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
use_amp = torch.cuda.is_available()
accelerator = Accelerator(mixed_precision="fp16" if use_amp else "no", kwargs_handlers=[GradScalerKwargs(enabled=False)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
dtype = torch.float16

for x, y in loader:
    optimizer.zero_grad()
    with accelerator.autocast():
        loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
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
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()

with torch.no_grad(), torch.autocast("cuda"):
    print(model(torch.ones(1, 8)))
""",
        None,
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
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        "S2A313",
    ),
    (
        """\
from apex import amp
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = amp.initialize(model, optimizer, opt_level="O1")

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    with amp.scale_loss(loss, optimizer) as scaled:
        scaled.backward()
    optimizer.step()
""",
        "S2A311",
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
model.half()

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x.half()), y)
    loss.backward()
    optimizer.step()
""",
        "S2A312",
        {"mixed-precision": "fp16"},
    ),
]
