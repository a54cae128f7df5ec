"""What decides the order of a sampler's or stream's samples: nothing but its own state, draws from global generators, or the process's place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.analysis.randomness import drawn_by
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import walk


@dataclass(frozen=True, eq=False)
class Order:
    """How a class of the script orders samples.

    `draws` are the global generators that it draws from while it is iterated over; `late`: it draws again between samples; `shares` is where it
    asks for the process's place; `unknown` where what it does can't be followed.
    """

    draws: tuple[str, ...] = ()
    late: bool = False
    shares: ast.AST | None = None
    unknown: ast.AST | None = None


def order_of(facts: Facts, obj: Obj) -> Order:
    """The order of an instance of a sampler or stream class."""
    draws: dict[str, None] = {}
    late, shares, unknown = False, None, None
    classes = [obj.base, *facts.machine.ancestors(obj.base)] if obj.base is not None else []
    if any(facts.machine.reaches(cls, names.DISTRIBUTED_SAMPLER) for cls in classes):
        shares = obj.site
    for function in (f for cls in classes if cls.site is not None for f in walk(cls.site) if isinstance(f, FUNCTIONS)):
        for node in walk(function):
            if facts.roles.of_node(node) in ("rank", "world size"):
                shares = shares or node
            if not isinstance(node, ast.Call) or function.name == "__init__":
                continue
            kind = _draw(facts, node)
            if kind == "?":
                unknown = unknown or node
            elif kind:
                draws[kind] = None
                late = late or _between(facts, node)
    return Order(tuple(draws), late, shares, unknown)


def _draw(facts: Facts, call: ast.Call) -> str:
    """The global generator that a call draws from, '?' for one that can't be told, '' for none."""
    paths = facts.any_path(call)
    generator = next((k.value for k in call.keywords if k.arg == "generator"), None)
    if any(names.RANDOM_FACTORY.match(path) for path in paths):
        return drawn_by(facts, call) if generator is None else "" if _own(facts, generator) else "?"
    if not isinstance(call.func, ast.Attribute) or paths or call.func.attr not in names.DRAWING_METHODS:
        return ""
    if call.func.attr.endswith("_"):
        return "torch" if generator is None else "" if _own(facts, generator) else "?"
    return "" if _own(facts, call.func.value) else "?"


def _own(facts: Facts, generator: ast.expr) -> bool:
    """Whether a generator is seeded with the same number on every rank, or is the attribute that Accelerate keeps equal."""
    if isinstance(generator, ast.Attribute) and generator.attr == "generator":
        return True
    objs = [o for o in facts.machine.at.get(generator, NOTHING).objs if not (o.kind == "const" and o.name is None)]
    return bool(objs) and all(_seeded(facts, o) for o in objs)


def _seeded(facts: Facts, obj: Obj) -> bool:
    given: list[ast.expr] = [a for node in facts.machine.used(obj, ".manual_seed") if isinstance(node, ast.Call) for a in node.args]
    if names.GENERATOR.match(obj.path) and isinstance(obj.site, ast.Call):
        given += [*obj.site.args, *(k.value for k in obj.site.keywords if k.arg == "seed")] if not obj.path.startswith("torch.") else []
    elif not (obj.kind == "made" and obj.base is not None and obj.base.kind == "attr" and obj.base.name == "manual_seed"):
        return False
    else:
        given += obj.site.args if isinstance(obj.site, ast.Call) else []
    return bool(given) and not any(_differs(facts, node) for node in given)


def _differs(facts: Facts, node: ast.expr) -> bool:
    drawn = any(isinstance(n, ast.Call) and _draw(facts, n) for n in walk(node))
    return drawn or bool(facts.machine.marks_of(node)) or any(o.kind == "const" and o.name is None for o in facts.machine.at.get(node, NOTHING).objs)


def _between(facts: Facts, draw: ast.Call) -> bool:
    """Whether a draw happens between two samples: in a loop that yields, or in a helper of a class that yields."""
    function = facts.function(draw)
    yields = (ast.Yield, ast.YieldFrom)
    if getattr(function, "name", "") != "__iter__":
        cls = facts.source.scope(function) if not isinstance(function, ast.Module) else None
        return cls is None or any(isinstance(n, yields) for n in walk(cls))
    return any(isinstance(n, yields) for loop in facts.loops(draw) for n in walk(loop))


def loader_part(loader: Obj, name: str, place: int) -> Iterator[Obj]:
    """What a DataLoader was given: by keyword, or in its place."""
    value = loader.keywords.get(name, loader.arguments[place] if len(loader.arguments) > place else NOTHING)
    yield from (o for o in value.objs if not (o.kind == "const" and o.name is None))
