"""What the script itself brings together over the ranks."""

from __future__ import annotations

from script2accel.analysis.distribution import gives_agreement
from script2accel.analysis.facts import Facts
from script2accel.analysis.values import NOTHING, Obj, Value


def agreed_objects(facts: Facts) -> frozenset[Obj]:
    """Every object that goes into a collective, or lies in a container that does."""
    found: set[Obj] = set()
    for call in facts.program.calls:
        node = gives_agreement(facts, call)
        if node is not None:
            _with_parts(facts, facts.machine.at.get(node, NOTHING), found)
    return frozenset(o for o in found if o.kind != "const")


def _with_parts(facts: Facts, value: Value, found: set[Obj]) -> None:
    for obj in value.objs:
        if obj not in found:
            found.add(obj)
            if obj.kind in ("list", "tuple", "dict"):
                _with_parts(facts, facts.machine.anything_in(obj), found)
