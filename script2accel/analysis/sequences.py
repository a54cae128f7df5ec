"""What a step of a causal language model is made of: what the model is given, where its loss goes, what is read of it later."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from script2accel.analysis.facts import Backward, Facts, Forward
from script2accel.analysis.values import NOTHING, Obj
from script2accel.source import walk


class UnclearError(Exception):
    """Why a step can't be cut along the sequence; `node` is where."""

    def __init__(self, node: ast.AST, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


@dataclass(frozen=True, eq=False)
class SequenceStep:
    """Forward and backward pass in one block: `given` is name -> text of what the model gets, `statements` the stretch from one to the other."""

    forward: Forward
    backward: Backward
    given: dict[str, str]
    statements: tuple[ast.stmt, ...]
    loss: str
    reported: bool


def sequence_step(facts: Facts, backward: Backward) -> SequenceStep:
    """The step that a backward pass ends. Raises UnclearError where its parts can't be told."""
    end = facts.source.statement(backward.call)
    block = facts.source.block(end)
    here = [f for f in facts.forwards if facts.source.statement(f.call) in block and facts.in_train_loop(f.call)]
    loops = facts.loops(backward.call)
    if len(here) != 1 or not loops or block is not loops[0].body:
        raise UnclearError(end, "forward and backward pass don't stand in the loop's own block, one of each")
    forward = here[0]
    start = facts.source.statement(forward.call)
    first, last = (next(i for i, s in enumerate(block) if s is one) for one in (start, end))
    if first > last or not isinstance(end, ast.Expr):
        raise UnclearError(end, "the backward pass doesn't follow the forward pass as a statement of its own")
    stretch = tuple(block[first : last + 1])
    names = _computed(facts, forward, stretch)
    loss = backward.loss.id if isinstance(backward.loss, ast.Name) else ""
    reads = [n for n in walk(loops[0]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > (end.end_lineno or end.lineno)]
    for node in reads:
        if node.id in names and node.id != loss:
            raise UnclearError(node, f"`{node.id}` is read behind the backward pass, and holds one process's part of the sequence")
    return SequenceStep(forward, backward, inputs(facts, forward), stretch, loss, any(n.id == loss for n in reads))


def _computed(facts: Facts, forward: Forward, stretch: tuple[ast.stmt, ...]) -> set[str]:
    """The names that the stretch computes: the model's output, its loss, a part of that. Raises UnclearError on anything else."""
    output: set[str] = set()
    loss: set[str] = set()
    for statement in stretch[:-1]:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if value is forward.call:
                output.add(name)
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_loss(value, forward, output, loss):
                loss.add(name)
            case ast.Expr(value=ast.Call(func=ast.Attribute(attr="zero_grad"))):
                pass
            case _:
                raise UnclearError(statement, "between forward and backward pass only the loss that the model gives may be taken")
    if not loss:
        raise UnclearError(stretch[-1], "the loss isn't the one that the model gives")
    return output | loss


def _is_loss(value: ast.expr, forward: Forward, output: set[str], loss: set[str]) -> bool:
    """`output.loss`, or a part of it by a number that is the same everywhere."""
    match value:
        case ast.Attribute(value=ast.Name(id=name), attr="loss"):
            return name in output
        case ast.Attribute(value=call, attr="loss"):
            return call is forward.call
        case ast.BinOp(left=ast.Name(id=name), op=ast.Div(), right=ast.Constant() | ast.Name() | ast.Attribute()):
            return name in loss
        case ast.BinOp(left=left, op=ast.Div(), right=ast.Constant() | ast.Name() | ast.Attribute()):
            return _is_loss(left, forward, output, loss)
    return False


def inputs(facts: Facts, forward: Forward) -> dict[str, str]:
    """What a model is given, by name; of `**batch`, what the loader's dataset or collate function puts in. Raises UnclearError."""
    call, found = forward.call, {}
    if call.args:
        raise UnclearError(call, "the model is given something by position")
    for keyword in call.keywords:
        if keyword.arg is not None:
            found[keyword.arg] = facts.source.of(call).segment(keyword.value)
        elif isinstance(keyword.value, ast.Name):
            found |= {key: f'{keyword.value.id}["{key}"]' for key in batch_keys(facts, forward)}
        else:
            raise UnclearError(call, "what the model is given can't be seen")
    return found


def batch_keys(facts: Facts, forward: Forward) -> tuple[str, ...]:
    """The keys of the batches of the loop around a forward pass. Raises UnclearError where no one table is seen."""
    loaders = [o for loop in facts.loops(forward.call) for o in facts.loaders_of(loop)]
    keys = {_keys(facts, loader) for loader in loaders}
    if len(keys) != 1 or not (found := next(iter(keys))):
        raise UnclearError(forward.call, "the keys of the batch can't be seen: give them to the model by name (`input_ids=..., labels=...`)")
    return found


def _keys(facts: Facts, loader: Obj) -> tuple[str, ...]:
    collate = loader.keywords.get("collate_fn")
    dataset = loader.arguments[0] if loader.arguments else loader.keywords.get("dataset", NOTHING)
    makers: list[ast.AST] = []
    for obj in (collate or dataset).objs:
        if collate is not None and obj.kind == "function" and obj.site is not None:
            makers.append(obj.site)
        elif collate is None and obj.kind == "instance" and obj.base is not None:
            makers += [m.site for m in (facts.machine.lookup(obj.base, "__getitem__") or NOTHING).objs if m.site is not None]
        else:
            return ()
    tables = {_returned(maker) for maker in makers}
    return next(iter(tables)) if len(tables) == 1 else ()


def _returned(function: ast.AST) -> tuple[str, ...]:
    """The keys of the one table that a function gives back."""
    found = []
    for node in walk(function):
        if isinstance(node, ast.Return):
            match node.value:
                case ast.Dict(keys=keys) if all(isinstance(key, ast.Constant) for key in keys):
                    found.append(tuple(str(key.value) for key in keys if isinstance(key, ast.Constant)))
                case _:
                    return ()
    return found[0] if len(set(found)) == 1 else ()
