"""What a script does to distribute itself: wrappers, samplers, collectives, gradients averaged by hand, ranks and the guards that ask them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk

RANK_WORDS = frozenset({"rank", "local_rank", "global_rank", "RANK", "LOCAL_RANK"})
ENVIRONMENT = {
    "RANK": "process_index",
    "SLURM_PROCID": "process_index",
    "OMPI_COMM_WORLD_RANK": "process_index",
    "LOCAL_RANK": "local_process_index",
    "SLURM_LOCALID": "local_process_index",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local_process_index",
    "WORLD_SIZE": "num_processes",
    "SLURM_NTASKS": "num_processes",
    "SLURM_NPROCS": "num_processes",
    "OMPI_COMM_WORLD_SIZE": "num_processes",
}
REDUCED_BY_ACCELERATE = frozenset({"reduce", "gather", "gather_for_metrics"})


def group_call(facts: Facts, call: ast.Call) -> str:
    """The function of torch.distributed that a call is, or ''."""
    match = names.GROUP_CALL.match(facts.path(call))
    return match.group(2) if match else ""


def synchronised_statistics(facts: Facts) -> bool:
    """Whether the script makes its layers of batch statistics count over all ranks (`SyncBatchNorm`)."""
    return any(facts.program.path(c).endswith(("convert_sync_batchnorm", "convert_syncbn_model")) for c in facts.program.calls)


# wrappers ------------------------------------------------------------------------------------------------


def wrappers(facts: Facts) -> list[ast.Call]:
    """Calls that put DataParallel or DistributedDataParallel around a model."""
    if "hand_wrappers" not in facts.__dict__:
        found = [call for call in facts.calls if any(names.HAND_WRAPPER.match(p) for p in facts.any_path(call)) and wrapped(call) is not None]
        facts.__dict__["hand_wrappers"] = found
    return facts.__dict__["hand_wrappers"]  # type: ignore[no-any-return]


def wrapped(call: ast.Call) -> ast.expr | None:
    """What a wrapper's call wraps."""
    if call.args:
        return None if isinstance(call.args[0], ast.Starred) else call.args[0]
    return next((k.value for k in call.keywords if k.arg == "module"), None)


def passes_wrapper(facts: Facts, node: ast.AST) -> bool:
    """Whether a node is the `.module` of a model that the script wraps by hand."""
    if not isinstance(node, ast.Attribute) or node.attr != "module":
        return False
    return any(facts.machine.used(o.inner, "wrapped") for o in facts.machine.at.get(node.value, NOTHING).objs)


def inside_wrapper(facts: Facts, node: ast.expr) -> ast.expr:
    """The model that an expression names, without `.module`."""
    while passes_wrapper(facts, node) and isinstance(node, ast.Attribute):
        node = node.value
    return node


# samplers ------------------------------------------------------------------------------------------------


def dealt(loader: Obj) -> bool:
    """Whether a DistributedSampler deals out a loader's samples."""
    return any(names.DISTRIBUTED_SAMPLER.match(o.path) for o in loader.keywords.get("sampler", NOTHING).objs)


# collectives ---------------------------------------------------------------------------------------------


def gives_agreement(facts: Facts, call: ast.Call) -> ast.expr | None:
    """The tensor or object that a call brings together over the ranks, in torch's spelling or Accelerate's; else None."""
    name = group_call(facts, call)
    if name in ("all_reduce", "reduce"):
        return _argument(call, 0, "tensor")
    if name in ("all_gather", "all_gather_object"):
        return _argument(call, 1, "tensor" if name == "all_gather" else "obj")
    if isinstance(call.func, ast.Attribute) and call.func.attr in REDUCED_BY_ACCELERATE and call.args:
        owner = facts.machine.at.get(call.func.value, NOTHING)
        return call.args[0] if facts.roles.of_value(owner) == "accelerator" else None
    return call.args[0] if facts.path(call).startswith("accelerate.utils.") and facts.path(call).endswith("gather_object") and call.args else None


def _argument(call: ast.Call, index: int, name: str) -> ast.expr | None:
    return call.args[index] if len(call.args) > index else next((k.value for k in call.keywords if k.arg == name), None)


def summed_by_hand(facts: Facts, loop: ast.AST) -> list[ast.Call]:
    """The calls that bring together over the ranks what a loop computed, in it or behind it."""
    found = []
    for call in facts.calls:
        node = gives_agreement(facts, call)
        if node is not None and any(loop in facts.machine.at[inner].marks for inner in walk(node) if inner in facts.machine.at):
            found.append(call)
    return found


def unsettled(facts: Facts, call: ast.AST, loop: ast.AST, seen: frozenset[ast.AST] = frozenset()) -> ast.expr | None:
    """A test between a loop and a call behind it that may be false although several processes run; None where there is none."""
    child = call
    for parent in facts.source.ancestors(call):
        if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test and not facts.inside(parent, loop):
            inverse = child is parent.orelse or (isinstance(parent, ast.If) and child in parent.orelse)
            if inverse or not asks_for_company(facts, parent.test):
                return parent.test
        if isinstance(parent, FUNCTIONS):
            if facts.inside(parent, loop) or parent in seen:
                return None
            found = [unsettled(facts, site, loop, seen | {parent}) for site in facts.callers(parent)]
            return next((test for test in found if test is not None), None)
        child = parent
    return None


_FLAG = re.compile(r"(^|\.)(is_|use_)?(distributed|dist|ddp|multi_process)$")


def asks_for_company(facts: Facts, test: ast.AST, depth: int = 0) -> bool:
    """Whether a test is true when several processes run: by the group, the world size, or a flag that follows from them."""
    if isinstance(test, ast.BoolOp):
        return (all if isinstance(test.op, ast.And) else any)(asks_for_company(facts, part, depth) for part in test.values)
    for node in walk(test):
        if isinstance(node, ast.Call):
            if group_call(facts, node) in ("is_available", "is_initialized", "get_world_size"):
                return True
            functions = [o.site for o in facts.machine.at.get(node.func, NOTHING).objs if isinstance(o.site, FUNCTIONS)]
            if functions and depth < 3 and all(_returns_company(facts, f, depth) for f in functions):
                return True
        if isinstance(node, ast.Constant) and node.value in ENVIRONMENT:
            return True
        if isinstance(node, ast.expr) and facts.roles.of_node(node) == "world size":
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and (ast.unparse(node) in company_flags(facts)):
            return True
    return False


def _returns_company(facts: Facts, function: ast.AST, depth: int) -> bool:
    return any(isinstance(n, ast.Call) and asks_for_company(facts, n, depth + 1) for n in walk(function))


def company_flags(facts: Facts) -> dict[str, list[ast.expr]]:
    """`args.distributed = args.world_size > 1 or ...`: flags that say whether several processes run, and what is assigned to them."""
    if "company_flags" not in facts.__dict__:
        found = {}
        for text, values in facts.assigned.items():
            computed = [v for v in values if of_ranks(facts, v)]
            constants = {v.value for v in values if isinstance(v, ast.Constant)}
            whole = len(computed) + sum(isinstance(v, ast.Constant) for v in values) == len(values)
            if _FLAG.search(text) and whole and (computed or constants == {True, False}):
                found[text] = computed
        facts.__dict__["company_flags"] = found
    return facts.__dict__["company_flags"]  # type: ignore[no-any-return]


def of_ranks(facts: Facts, value: ast.expr) -> bool:
    """Whether a truth value is computed from the number of processes, or from this one's."""
    if not isinstance(value, (ast.Compare, ast.BoolOp)):
        return False
    for node in walk(value):
        if isinstance(node, ast.expr) and node in facts.machine.at and (facts.roles.of_node(node) in ("world size", "rank") or is_rank(facts, node)):
            return True
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node).rsplit(".", 1)[-1] in ("world_size", "num_processes", "ngpus", "n_gpu"):
            return True
        if isinstance(node, ast.Constant) and node.value in ENVIRONMENT:
            return True
    return False


def agreements(facts: Facts) -> Iterator[tuple[ast.stmt, str]]:
    """(statement, name) of every value that is equal on all ranks behind the statement."""
    for call in facts.calls:
        if group_call(facts, call) in ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_object", "broadcast_object_list"):
            target = _argument(call, 0, "tensor")
            if isinstance(target, (ast.Name, ast.Attribute)):
                yield facts.source.statement(call), ast.unparse(target)


# gradients and weights by hand ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ByHand:
    """A loop over a model's parameters that averages gradients or sends weights; `function` when its body does nothing else."""

    loop: ast.For
    what: str  # "gradients" or "weights"
    calls: tuple[ast.Call, ...]
    averaged: bool
    function: ast.FunctionDef | None


def by_hand(facts: Facts) -> list[ByHand]:
    """The loops that do what a wrapped model does itself; computed once per facts."""
    if "distribution_by_hand" not in facts.__dict__:
        facts.__dict__["distribution_by_hand"] = list(_by_hand(facts))
    return facts.__dict__["distribution_by_hand"]  # type: ignore[no-any-return]


def _by_hand(facts: Facts) -> Iterator[ByHand]:
    loops: dict[ast.For, list[ast.Call]] = {}
    for call in facts.calls:
        if group_call(facts, call) in ("all_reduce", "broadcast"):
            loop = next((p for p in facts.loops(call) if isinstance(p, ast.For)), None)
            if loop is not None and _over_parameters(loop):
                loops.setdefault(loop, []).append(call)
    for loop, calls in loops.items():
        reduces = all(group_call(facts, c) == "all_reduce" for c in calls)
        sends = all(group_call(facts, c) == "broadcast" for c in calls)
        grads = all(_of_gradient(facts, c, loop) for c in calls)
        if (reduces and grads) or (sends and not grads):
            yield ByHand(loop, "gradients" if reduces else "weights", tuple(calls), sends or _divides(loop), _whole_function(facts, loop))


def _over_parameters(loop: ast.For) -> bool:
    found = [n.func.attr for n in walk(loop.iter) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
    return any(name in ("parameters", "named_parameters", "state_dict", "buffers") for name in found)


def _of_gradient(facts: Facts, call: ast.Call, loop: ast.For) -> bool:
    target = _argument(call, 0, "tensor")
    if target is None:
        return False
    if isinstance(target, ast.Name):  # grad = param.grad.data
        values = [n.value for n in walk(loop) if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == target.id for t in n.targets)]
        return any(isinstance(n, ast.Attribute) and n.attr == "grad" for v in values for n in walk(v))
    return any(isinstance(n, ast.Attribute) and n.attr == "grad" for n in walk(target))


def _divides(loop: ast.For) -> bool:
    for node in walk(loop):
        if isinstance(node, (ast.AugAssign, ast.BinOp)) and isinstance(node.op, ast.Div):
            return True
        if isinstance(node, ast.Attribute) and node.attr in ("div_", "div", "AVG"):
            return True
    return False


def _whole_function(facts: Facts, loop: ast.For) -> ast.FunctionDef | None:
    """The function whose body is this loop, and what it needs for it."""
    function = facts.function(loop)
    if not isinstance(function, ast.FunctionDef) or loop not in function.body:
        return None
    for statement in function.body:
        if statement is loop or isinstance(statement, ast.Pass):
            continue
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            continue
        if isinstance(statement, ast.Assign) and all(isinstance(t, ast.Name) for t in statement.targets):
            continue
        return None
    return function


# ranks and guards ----------------------------------------------------------------------------------------


def is_rank(facts: Facts, node: ast.expr) -> bool:
    """Whether an expression is this process's number."""
    if any(o.kind == "param" for o in facts.machine.at.get(node, NOTHING).objs):
        return False  # nobody is seen to call the function: what it is given isn't known
    if facts.roles.of_node(node) == "rank":
        return True
    word = node.attr if isinstance(node, ast.Attribute) else ""
    return word in RANK_WORDS and all(o.kind in ("attr", "const", "made", "expr") for o in facts.machine.at.get(node, NOTHING).objs)


def proves_main(facts: Facts, test: ast.expr, *, value: bool = True, depth: int = 0) -> bool:
    """Whether a test that came out as `value` shows that this is the main process."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            if is_rank(facts, inner):
                return value
            return proves_main(facts, inner, value=not value, depth=depth)
        case ast.BoolOp(op=op, values=parts):
            some = isinstance(op, ast.And) == value
            return (any if some else all)(proves_main(facts, part, value=value, depth=depth) for part in parts)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            if not (is_rank(facts, left) or is_rank(facts, right)):
                return False
            other = right if is_rank(facts, left) else left
            return _first(op, other, value)
        case ast.Name() | ast.Attribute():
            if is_rank(facts, test):
                return not value
            return _named(facts, test, value, depth)
        case ast.Call():
            return _asked(facts, test, value, depth)
    return False


def _first(op: ast.cmpop, other: ast.expr, value: bool) -> bool:
    number = ast.unparse(other)
    if value:
        return (
            (isinstance(op, (ast.Eq, ast.LtE, ast.Is)) and number == "0")
            or (isinstance(op, ast.Lt) and number == "1")
            or (isinstance(op, ast.In) and number in ("[-1, 0]", "(-1, 0)", "{-1, 0}", "[0, -1]", "(0, -1)", "{0, -1}", "[0]", "(0,)"))
        )
    return (isinstance(op, (ast.NotEq, ast.Gt, ast.IsNot)) and number == "0") or (
        isinstance(op, ast.NotIn) and number in ("[-1, 0]", "(-1, 0)", "[0, -1]", "(0, -1)", "[0]")
    )


def _named(facts: Facts, test: ast.Name | ast.Attribute, value: bool, depth: int) -> bool:
    """`is_master = rank == 0`: a name that only ever holds such a test."""
    if "is_main_process" in ast.unparse(test) or "is_local_main_process" in ast.unparse(test):
        return value
    if depth > 3:
        return False
    text = ast.unparse(test)
    values = facts.assigned.get(text, [])
    return bool(values) and all(proves_main(facts, v, value=value, depth=depth + 1) for v in values)


def _asked(facts: Facts, call: ast.Call, value: bool, depth: int) -> bool:
    """`is_main_process()`: a function of the script that only ever returns such a test."""
    functions = [o.site for o in facts.machine.at.get(call.func, NOTHING).objs]
    if not functions or depth > 3 or not all(isinstance(f, FUNCTIONS) for f in functions):
        return value and "is_main_process" in ast.unparse(call)
    for function in functions:
        given = [n.value for n in walk(function) if isinstance(n, ast.Return)]  # type: ignore[arg-type]
        if not given or not all(v is not None and proves_main(facts, v, value=value, depth=depth + 1) for v in given):
            return value and "is_main_process" in ast.unparse(call)
    return True
