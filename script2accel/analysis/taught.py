"""Where what the user says of roles contradicts what is seen."""

from __future__ import annotations

from collections.abc import Iterator

from script2accel.analysis.constructors import constructed
from script2accel.analysis.facts import Facts
from script2accel.analysis.teaching import Said
from script2accel.analysis.values import Obj
from script2accel.diagnostics import Diagnostic, Evidence, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.knowledge.teaching import SAME_KIND
from script2accel.source import Source

CONTRADICTED = Message(
    "S2A061",
    Severity.ERROR,
    "{what} is no {role}, though {why}: {seen}",
    "take the mark or the entry out, or put it where the {role} is made",
)
TENSORS = frozenset({"batch", "output", "loss"})
WEAK = frozenset({("optimizer", "scheduler"), ("dataset", "loader"), ("scheduler", "criterion")})
"""(told, seen): roles that only the use of an object speaks for, and that the user knows better."""


def faults(facts: Facts) -> Iterator[tuple[Source, Diagnostic]]:
    """Everything that is wrong with marks and with the table of roles, with its file."""
    teaching = facts.machine.teaching
    for source, marks in teaching.marks.items():
        yield from ((source, one) for one in marks.wrong)
    for said, obj in teaching.unfit:
        yield _told(facts, said, f"it holds {_thing(obj)}", ())
    for obj, every in teaching.said.items():
        for said in every:
            seen, evidence = _contradiction(facts, obj, said, list(every))
            if seen:
                yield _told(facts, said, seen, evidence)


def _told(facts: Facts, said: Said, seen: str, evidence: tuple[Evidence, ...]) -> tuple[Source, Diagnostic]:
    node = said.node
    at = CONTRADICTED.at(node.lineno, node.col_offset + 1, what=said.what, role=said.role, why=said.why, seen=seen, evidence=evidence)  # type: ignore[attr-defined]
    return facts.source.of(node), at


def _contradiction(facts: Facts, obj: Obj, said: Said, every: list[Said]) -> tuple[str, tuple[Evidence, ...]]:
    """What speaks against a role that the user gives an object, and the reasons."""
    other = next((one for one in every[: every.index(said)] if one.role != said.role), None)
    if other is not None:
        return f"as {_article(other.role)} {other.role} it is {other.why}" if other.what == said.what else f"{other.role}: {other.why}", ()
    if facts.machine.teaching.foreign(obj, said.role):
        return f"its class `{obj.name}` has no base that could make it one", ()
    if said.role not in TENSORS and names.CPU_TENSOR.match(obj.path):
        return f"it is a tensor, made by `{obj.path}`", ()
    seen, evidence = facts.roles.seen(obj)
    if said.role == "ema" and facts.roles.trained(obj):
        return "an optimizer trains its parameters", evidence
    if not seen or seen == said.role or _open(obj, said.role, seen):
        return "", ()
    return f"it is {_article(seen)} {seen}" + (f" ({evidence[0].why})" if evidence else ""), evidence


def _open(obj: Obj, told: str, seen: str) -> bool:
    """Whether what is seen of an object leaves the choice between two roles to the user."""
    made = constructed(obj.path)
    if (made and made[0] != "model") or (told, seen) == ("output", "loss"):
        return False
    return any({told, seen} <= kind for kind in SAME_KIND) or (told, seen) in WEAK


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _thing(obj: Obj) -> str:
    match obj.kind:
        case "const":
            return f"the constant {obj.name!r}"
        case "external" | "function" | "class" | "module":
            return f"`{obj.name}` itself"
        case "iter":
            return "an iterator"
    return f"a {obj.kind}"
