"""Refuse orders that come from a set.

Python orders a set of strings anew in each process: a vocabulary numbered by `list(set(words))` would be another one on each rank, and
gradients for different words would be averaged.
Left alone when the order is lost again at once (`sorted`, `len`, a list that is sorted in the next statement), when the elements are numbers
or parameters, or when only one process runs it.
Source: https://docs.python.org/3/reference/datamodel.html#object.__hash__
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import guarded
from script2accel.analysis.facts import View
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import walk

CODE, NAME = "S2A257", "set-order"
ORDER = Message(
    "S2A267",
    Severity.ERROR,
    "`{text}` takes its order from a set, and each process orders a set of strings differently: the ranks would train with different numberings",
    "sort it, as in `sorted(...)`, and convert again",
)
KEEPS_ORDER = frozenset({"list", "tuple", "enumerate", "dict.fromkeys"})
LOSES_ORDER = frozenset({"sorted", "set", "frozenset", "len", "sum", "min", "max", "any", "all", "collections.Counter"})
NUMBERS = frozenset({"range", "numpy.arange", "numpy.unique", "torch.arange"})
OBJECTS = frozenset({"parameters", "named_parameters", "modules", "named_modules", "state_dict", "buffers"})


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.plan.prepares:
        return
    for node in facts.source.every(ast.Call, ast.ListComp, ast.For):
        if _ordered(facts, node) and not _lost(facts, node) and not guarded(facts, node):
            shown = node.iter if isinstance(node, ast.For) else node
            yield ORDER.at(node.lineno, node.col_offset + 1, text=facts.source.segment(shown)[:60])


def _ordered(facts: View, node: ast.Call | ast.ListComp | ast.For) -> bool:
    """Whether what an expression or loop makes is in the order of a set of strings."""
    match node:
        case ast.Call(args=[given, *_]):
            return _name(facts, node) in KEEPS_ORDER and _is_set(facts, given)
        case ast.ListComp():
            return _is_set(facts, node.generators[0].iter)
        case ast.For():
            return _is_set(facts, node.iter) and any(_numbers(n) for n in walk(node))
    return False


def _numbers(node: ast.AST) -> bool:
    """Whether a statement numbers things in the order they come: `index[word] = len(index)`, `count += 1`, `names.append(word)`."""
    match node:
        case ast.Assign(targets=[ast.Subscript()], value=value):
            return any(isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "len" for n in walk(value))
        case ast.AugAssign(target=ast.Name(), op=ast.Add(), value=ast.Constant()) | ast.Call(func=ast.Attribute(attr="append")):
            return True
    return False


def _name(facts: View, call: ast.Call) -> str:
    return ast.unparse(call.func) if isinstance(call.func, (ast.Name, ast.Attribute)) and not facts.path(call) else facts.path(call)


def _is_set(facts: View, node: ast.expr) -> bool:
    """Whether an expression can be a set of strings, itself or by an assignment to its name."""
    held = facts.assigned.get(ast.unparse(node), []) if isinstance(node, (ast.Name, ast.Attribute)) else []
    return any(_made(facts, made) for made in (node, *held))


def _made(facts: View, node: ast.AST) -> bool:
    match node:
        case ast.Set(elts):
            return any(not isinstance(e, ast.Constant) or isinstance(e.value, (str, bytes)) for e in elts)
        case ast.SetComp():
            return True
        case ast.Call(func=ast.Name(id="set" | "frozenset"), args=given):
            return not any(_harmless(facts, n) for argument in given for n in walk(argument) if isinstance(n, ast.Call))
    return False


def _harmless(facts: View, call: ast.Call) -> bool:
    return _name(facts, call) in NUMBERS or (isinstance(call.func, ast.Attribute) and call.func.attr in OBJECTS)


def _lost(facts: View, call: ast.AST) -> bool:
    """Whether nothing reads the order: the list is sorted or counted at once."""
    parent = facts.source.parents[call]
    if isinstance(parent, ast.Call) and call in parent.args and _name(facts, parent) in LOSES_ORDER:
        return True
    if not isinstance(parent, ast.Assign) or parent.value is not call:
        return False
    kept = {ast.unparse(target) for target in parent.targets}
    block = next((b for b in _blocks(facts.source.parents[parent]) if parent in b), [])
    match block[block.index(parent) + 1 :][:1] if block else []:
        case [ast.Expr(ast.Call(func=ast.Attribute(value=owner, attr="sort")))]:
            return ast.unparse(owner) in kept
    return False


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(node, field, None)
        if isinstance(block, list):
            yield block


_SCRIPT = """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

words = "the cat sat on the mat".split()
{numbering}
tokens = torch.tensor([index[word] for word in words])
loader = DataLoader(TensorDataset(tokens[:-1], tokens[1:]), batch_size=1)
model = nn.Sequential(nn.Embedding(len(index), 4), nn.Linear(4, len(index)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""


def _example(numbering: str) -> str:
    return _SCRIPT.format(numbering=numbering)


EXAMPLES: list[tuple[str, str | None]] = [
    (_example("vocabulary = list(set(words))\nindex = {word: i for i, word in enumerate(vocabulary)}"), "S2A267"),
    (_example("index = {word: i for i, word in enumerate(set(words))}"), "S2A267"),
    (_example("unique = {word.lower() for word in words}\nindex = {word: i for i, word in enumerate(unique)}"), "S2A267"),
    (_example("seen = set()\nseen.update(words)\nindex = {}\nfor word in seen:\n    index[word] = len(index)"), "S2A267"),
    (_example("vocabulary = sorted(set(words))\nindex = {word: i for i, word in enumerate(vocabulary)}"), None),
    (_example("vocabulary = list(set(words))\nvocabulary.sort()\nindex = {word: i for i, word in enumerate(vocabulary)}"), None),
    (_example("vocabulary = sorted(list(set(words)))\nindex = {word: i for i, word in enumerate(vocabulary)}"), None),
    (_example("numbers = list(set(range(3)))\nindex = {word: i for i, word in enumerate(sorted(words))}"), None),
]
