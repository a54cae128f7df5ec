"""The block that a model repeats: the class that FSDP wraps, one unit for each instance."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.facts import FUNCTIONS, LOOPS, Facts
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk


def blocks(facts: Facts, model: Obj) -> tuple[str, ...]:
    """The names of the classes that a model of the script repeats, outermost first; empty where none is seen to be repeated.

    Only classes that every instance of the model holds (a class that is never made would be looked for in vain), and that are used by calling them:
    FSDP gathers a block's weights when its `forward` is called, and for nothing else.
    """
    found: dict[str, None] = {}
    for root in _roots(facts, model):
        for name, cls in _repeated(facts, root, frozenset()):
            if cls is None or not _opened(facts, cls):
                found[name] = None
    return tuple(found)


def _roots(facts: Facts, model: Obj) -> list[ast.AST]:
    if model.kind == "instance" and model.base is not None and model.base.site is not None:
        return _with_bases(facts, model.base)
    return [model.site] if model.site is not None else []


def _with_bases(facts: Facts, cls: Obj) -> list[ast.AST]:
    """A class and the script's own classes below it."""
    return [o.site for o in (cls, *facts.machine.ancestors(cls)) if o.kind == "class" and o.site is not None]


def _repeated(facts: Facts, root: ast.AST, seen: frozenset[ast.AST]) -> Iterator[tuple[str, ast.ClassDef | None]]:
    """What a class, or a call of `nn.Sequential`, repeats; where it repeats nothing, what the modules that it makes repeat."""
    if root in seen:
        return
    own: dict[str, ast.ClassDef | None] = {}
    inner: list[ast.AST] = []
    for call in (n for n in walk(root) if isinstance(n, ast.Call) and n.func in facts.machine.at):
        if _may_not_run(facts, call, root):
            continue
        path = facts.path(call)
        if layer := names.REPEATING.get(path.rpartition(".")[2] if path.startswith("torch.nn.") else ""):
            own[layer] = None
        for element, many in _elements(facts, call):
            if many and (cls := _class(facts, element)) is not None:
                own[cls.name] = cls
        if (made := _class(facts, call)) is not None:
            inner.append(made)
    yield from own.items()
    for cls_def in inner:
        if cls_def not in own.values():
            yield from _repeated(facts, cls_def, seen | {root})


def _elements(facts: Facts, call: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    """The calls that make the elements of a container of modules, and whether more than one comes of each."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and call.args and facts.loops(call):
        yield call.args[0], True
    if not names.CONTAINER.match(facts.path(call)):
        return
    given = [arg.value if isinstance(arg, ast.Starred) else arg for arg in call.args]
    flat = [inner for arg in given for inner in (arg.elts if isinstance(arg, (ast.List, ast.Tuple)) else [arg])]
    classes = [_class(facts, one) for one in flat]
    for one, cls in zip(flat, classes, strict=True):
        if isinstance(one, (ast.ListComp, ast.GeneratorExp)):
            yield one.elt, True
        else:
            yield one, classes.count(cls) > 1


def _class(facts: Facts, node: ast.expr) -> ast.ClassDef | None:
    """The module class of the script that a call makes an instance of."""
    if not isinstance(node, ast.Call):
        return None
    found = {o.site for o in facts.machine.at.get(node.func, NOTHING).objs if o.kind == "class"}
    cls = next(iter(found)) if len(found) == 1 else None
    return cls if isinstance(cls, ast.ClassDef) and cls in facts.module_classes else None


def _may_not_run(facts: Facts, node: ast.AST, root: ast.AST) -> bool:
    """Whether a condition decides if a place runs, or it stands in another method than the constructor."""
    for parent in facts.source.ancestors(node):
        if parent is root:
            return False
        if isinstance(parent, (ast.If, ast.IfExp, ast.Try)) or (isinstance(parent, FUNCTIONS) and parent.name != "__init__"):
            return True
        if isinstance(parent, LOOPS) and isinstance(parent, ast.While):
            return True
    return False


def _opened(facts: Facts, cls: ast.ClassDef) -> bool:
    """Whether something outside of a class reads attributes of its instances that aren't those of any module."""
    for node in facts.source.every(ast.Attribute):
        if node.attr in names.MODULE_API or facts.inside_class(node, {cls}) is not None:
            continue
        if any(o.kind == "instance" and o.base is not None and o.base.site is cls for o in facts.machine.at.get(node.value, NOTHING).objs):
            return True
    return False
