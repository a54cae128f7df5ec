"""What the accelerator is constructed with: the text of the call, written as its birthplace knows what the script decides elsewhere.

A number of batches to an optimizer step that is known later only is set in front of prepare (`accelerator.gradient_accumulation_steps = k`).
"""

from __future__ import annotations

import ast
import re

from script2accel.analysis.facts import Facts, Function
from script2accel.analysis.origins import NotKnownError, Origins, plain
from script2accel.analysis.randomness import seedings
from script2accel.change.edits import add_before, add_behind, ensure_import, remove_statement
from script2accel.change.plan import Edit, Remove
from script2accel.decisions import Decisions
from script2accel.source import Source, walk

WIDTH = 110
MARK = re.compile("\0(\\d+)\0")  # stands for an expression of the script (`Decisions.reads`)
BIRTH = -10  # in front of whatever else is put before the same statement
COUNT = -5  # in front of prepare


def late_count(facts: Facts, decisions: Decisions, scope: Function, anchor: ast.stmt) -> list[tuple[Edit, ...]]:
    """The number of batches to a step, set in front of prepare where the birthplace can't know it; it is out of the construction then.

    Not behind prepare: DeepSpeed's engine is made there, and keeps the number of that moment. Raises NotKnownError.
    """
    size = decisions.grouped
    if size is None:
        return []
    try:
        known(facts, decisions, facts.source.of(anchor), scope, anchor, decisions.reads(size))
        return []
    except NotKnownError as error:
        source, scopes = facts.source.of(anchor), {prepare.scope for prepare in decisions.plan.prepares}
        if not scopes:
            raise
        place = min(decisions.plan.prepares, key=lambda prepare: prepare.anchor.lineno)
        if len(scopes) > 1 or facts.source.of(place.anchor) is not source:
            raise
        origin = Origins(facts, place.scope).write(size)
        if any(s.lineno > place.anchor.lineno or (s is place.anchor and not place.behind) for s in origin.behind):
            raise error
    mark = decisions.reads(size)
    decisions.arguments.pop("gradient_accumulation_steps", None)
    decisions.arguments |= {k: text.replace(mark, "1") for k, text in decisions.arguments.items() if k == "gradient_accumulation_plugin"}
    add = add_behind if place.behind else add_before
    code = _filled(f"{decisions.spoken(place.anchor)}.gradient_accumulation_steps = \0", "\0", origin.text)
    return [add(source, place.anchor, code, rank=COUNT)]


def birth_lines(facts: Facts, decisions: Decisions, source: Source, target: str) -> tuple[str, list[tuple[Edit, ...]]]:
    """`accelerator = Accelerator(...)` with what the script and the options decided, and the imports that it takes."""
    options, arguments, loader = decisions.options, {**decisions.engines, **decisions.arguments}, dict(decisions.loader_arguments)
    wanted = dict.fromkeys([("accelerate", "Accelerator"), *decisions.imports])
    if options.mixed_precision is not None:
        arguments.setdefault("mixed_precision", f'"{options.mixed_precision}"')
    if options.batch == "global":
        loader = {"split_batches": "True", **loader}
    if loader:
        arguments["dataloader_config"] = f"DataLoaderConfiguration({', '.join(f'{k}={v}' for k, v in loader.items())})"
        wanted["accelerate.utils", "DataLoaderConfiguration"] = None
    if options.find_unused_parameters:
        decisions.ddp_arguments["find_unused_parameters"] = "True"
    if decisions.ddp_arguments.get("static_graph", "False") != "False" and options.wrapped:
        _synchronised_each_batch(arguments, wanted)
    handlers = list(decisions.handlers)
    if decisions.ddp_arguments and options.wrapped:
        handlers.append(f"DistributedDataParallelKwargs({', '.join(f'{k}={v}' for k, v in decisions.ddp_arguments.items())})")
        wanted["accelerate", "DistributedDataParallelKwargs"] = None
    if handlers:
        arguments["kwargs_handlers"] = f"[{', '.join(handlers)}]"
    lines = [f"{target} = Accelerator({', '.join(f'{k}={v}' for k, v in arguments.items())})"]
    if decisions.engines and len(lines[0]) > WIDTH:
        lines = [f"{target} = Accelerator(", *(line for k, v in arguments.items() for line in _spread(k, v)), ")"]
    imports = [ensure_import(source, module, name) for module, name in wanted]
    if options.seed is not None and not seedings(facts):
        lines.append(f"set_seed({options.seed})")
        imports.append(ensure_import(source, "accelerate.utils", "set_seed"))
    return "\n".join(lines), imports


def _synchronised_each_batch(arguments: dict[str, str], wanted: dict[tuple[str, str], None]) -> None:
    """A static graph has to see every backward pass: without synchronisation in between, DDP ends with an internal error (measured)."""
    steps = arguments.pop("gradient_accumulation_steps", None)
    plugin = arguments.get("gradient_accumulation_plugin", f"GradientAccumulationPlugin(num_steps={steps})" if steps is not None else None)
    if plugin is not None:
        arguments["gradient_accumulation_plugin"] = plugin.removesuffix(")") + ", sync_each_batch=True)"
        wanted["accelerate.utils", "GradientAccumulationPlugin"] = None


def _spread(keyword: str, text: str) -> list[str]:
    """An argument on a line of its own; a call of Accelerate's that is too long for one, with its own arguments below each other."""
    if len(text) <= WIDTH - 16:
        return [f"\t{keyword}={text},"]
    bare = MARK.sub(r"_mark_\1_", text)
    call = ast.parse(bare, mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        return [f"\t{keyword}={text},"]
    inner = [f"\t\t{line}" for k in call.keywords for line in _below(f"{k.arg}=", k.value, bare)]
    return [re.sub(r"_mark_(\d+)_", "\0\\1\0", line) for line in (f"\t{keyword}={ast.unparse(call.func)}(", *inner, "\t),")]


def _below(name: str, value: ast.expr, text: str) -> list[str]:
    """An argument's lines: a table that is too long for one has its entries below each other."""
    whole = ast.get_source_segment(text, value) or ""
    if not isinstance(value, ast.Dict) or len(whole) <= WIDTH - 24:
        return [f"{name}{whole},"]
    entries = [f"\t{ast.get_source_segment(text, k)}: {ast.get_source_segment(text, v)}," for k, v in zip(value.keys, value.values, strict=True) if k]
    return [f"{name}{{", *entries, "},"]


def known(facts: Facts, decisions: Decisions, source: Source, scope: Function, anchor: ast.stmt, code: str) -> tuple[str, list[tuple[Edit, ...]]]:
    """The script's own expressions written into the construction, and edits that bring what they read in front of it. Raises NotKnownError."""
    origins, hoisted = Origins(facts, scope), []
    moved: dict[ast.stmt, None] = {}
    for index, node in enumerate(decisions.read):
        if f"\0{index}\0" not in code:
            continue
        origin = origins.write(node)
        code = _filled(code, f"\0{index}\0", origin.text)
        for statement in origin.behind:
            if statement.lineno >= anchor.lineno and statement not in moved:
                _may_move(facts, origins, statement, anchor, node)
                moved[statement] = None
    for statement in moved:
        removal = remove_statement(source, statement)[0]
        first, last = (removal.first, removal.last) if isinstance(removal, Remove) else (statement.lineno, statement.lineno)
        text = "\n".join(source.line_text(number).strip() for number in range(first, last + 1))
        hoisted.append((removal, *add_before(source, anchor, text, rank=BIRTH)))
    return code, hoisted


def _filled(code: str, mark: str, text: str) -> str:
    """The text in the place of its mark, without parentheses where nothing stands beside it."""
    bare = text[1:-1] if text.startswith("(") and text.endswith(")") and _balanced(text[1:-1]) else text
    for before, after in (("=", ","), ("=", ")"), (" if ", " else "), (": ", ",")):
        code = code.replace(f"{before}{mark}{after}", f"{before}{bare}{after}")
    return code.replace(mark, text)


def _balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            return False
    return depth == 0


def _may_move(facts: Facts, origins: Origins, statement: ast.stmt, anchor: ast.stmt, node: ast.expr) -> None:
    """Raise NotKnownError unless a statement behind the anchor can stand in front of it: a plain value of what is known there, set once."""
    source = facts.source.of(statement)
    if (
        not isinstance(statement, ast.Assign)
        or len(statement.targets) != 1
        or not isinstance(statement.targets[0], ast.Name)
        or not plain(statement.value)
    ):
        raise NotKnownError(node, f"it is computed in line {statement.lineno}")
    one_line = source.line_of(source.start(statement)) == source.line_of(source.end(statement) - 1)
    same = facts.source.block(statement) is facts.source.block(anchor) and one_line and source.alone(statement)
    late = [s for s in origins.write(statement.value).behind if s.lineno >= anchor.lineno]
    name = statement.targets[0].id
    stores = [n for n in walk(facts.source.scope(statement)) if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)]
    if not same or late or len(stores) != 1:
        raise NotKnownError(node, f"it is set in line {statement.lineno}")
