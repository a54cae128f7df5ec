"""Where a script shows numbers of its training, and which parts of what it shows are to be brought together over the ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.evenly import guards, uneven
from script2accel.analysis.facts import FUNCTIONS, Facts, View
from script2accel.analysis.kinds import Kind, Kinds
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names
from script2accel.source import children, walk

LOGS = frozenset({"info", "debug", "warning", "error", "log", "critical"})
BAR = frozenset({"set_postfix", "set_postfix_str", "set_description", "set_description_str", "write", "update"})
FILE = frozenset({"write", "writerow", "writelines"})
APART = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
TRACKER = frozenset({"add_scalar", "add_scalars", "log", "log_metric", "log_metrics", "add_text", "line", "scalar_summary", "log_value"})


@dataclass(frozen=True, eq=False)
class Piece:
    """An expression in a report to bring together: by `mean`, by `sum`, or (alike on all ranks, and one rank's) times their number."""

    node: ast.expr
    how: str
    kind: Kind


@dataclass(frozen=True, eq=False)
class Report:
    """A statement that shows numbers; `front` is the statement before which all ranks still go together. `why`: what stands in the way, where."""

    statement: ast.stmt
    call: ast.Call
    front: ast.stmt
    pieces: tuple[Piece, ...]
    why: str = ""
    at: ast.expr | None = None


def reports(facts: View, kinds: Kinds) -> Iterator[Report]:
    """Every report that shows a number of one rank's own training."""
    finder = _Finder(facts, kinds)
    for call in facts.calls:
        statement = facts.source.parents[call]
        if not isinstance(statement, ast.Expr) or facts.in_module(call) or facts.inside_class(call, facts.dataset_classes):
            continue
        if (shows(facts, call) or finder.keeps(call)) and (report := finder.report(statement, call)) is not None:
            yield report


def shows(facts: Facts, call: ast.Call) -> bool:
    """Whether a call prints, logs, writes a line or speaks to a progress bar or tracker."""
    path = facts.path(call)
    if path == "print" or path.startswith(("logging.", "tqdm.")) or names.WRITER_MODULE.match(path) or _puts_out(path):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    name = call.func.attr
    objs = facts.machine.at.get(call.func.value, NOTHING).objs
    if any(facts.roles.of(o) == "progress bar" for o in objs) and name in BAR:
        return True
    if any(facts.roles.of(o) == "writer" for o in objs) or name in TRACKER:
        return True
    if name in LOGS:
        return any(o.path.startswith(("logging.", "loguru.")) or str(o.name).startswith(("logging", "loguru")) for o in objs)
    if name in FILE:
        return any(o.path in ("open", "io.open", "csv.writer", "csv.DictWriter") for o in objs)
    return name == "print" and any(facts.roles.of(o) == "accelerator" for o in objs)


def _puts_out(path: str) -> bool:
    """Whether a function of a library writes or draws what it is given."""
    return bool(names.WRITES.match(path)) or path.startswith("matplotlib.pyplot.")


class _Finder:
    """Takes reports apart."""

    def __init__(self, facts: View, kinds: Kinds) -> None:
        self.facts, self.kinds = facts, kinds
        self.own = _own_loops(facts)
        self.kept = self._kept()
        self.holders = _holders(facts) - self.kept

    def keeps(self, call: ast.Call) -> bool:
        """Whether a call appends a mean to a list that is only put out."""
        return self._list(call) is not None and self._list(call) <= self.kept  # type: ignore[operator]

    def _list(self, call: ast.Call) -> frozenset[Obj] | None:
        """The lists to which a call appends one number."""
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "append" or len(call.args) != 1:
            return None
        objs = self.facts.machine.at.get(call.func.value, NOTHING).objs
        return objs if objs and all(o.kind == "list" for o in objs) else None

    def _kept(self) -> frozenset[Obj]:
        """Lists that get means of training numbers, and that nothing reads but what prints, draws or writes them."""
        machine, source = self.facts.machine, self.facts.program.source
        found: set[Obj] = set()
        other: set[Obj] = set()
        for call in self.facts.program.calls:
            objs = self._list(call)
            if objs is None:
                continue
            kind = self.kinds.of_node(call.args[0])
            mean = kind.form == "number" and kind.varies and kind.degree == 0 and not kind.tensor
            (found if mean and isinstance(source.parents[call], ast.Expr) and not kind.sized else other).update(objs)
        found -= other
        for node in source.nodes if found else ():
            if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)) and node in machine.at and not isinstance(node.ctx, ast.Store):
                held = machine.at[node].objs & found
                if held and not self._only_put_out(node):
                    found -= held
        return frozenset(found)

    def _only_put_out(self, node: ast.expr) -> bool:
        """Whether a list goes on under another name, or to what puts it out."""
        parent = self.facts.source.parents[node]
        match parent:
            case ast.Attribute(attr="append" | "clear"):
                return True
            case ast.Call(func=func) if node is not func:
                path = self.facts.path(parent)
                return shows(self.facts, parent) or path in ("len", "json.dumps", "numpy.array", "numpy.asarray") or path.startswith("pandas.")
            case ast.Assign() | ast.AnnAssign() | ast.Return() | ast.Tuple() | ast.List() | ast.Dict() | ast.FormattedValue():
                return True
            case ast.Subscript():
                return parent.value is not node or not isinstance(parent.ctx, ast.Load)
        return False

    def report(self, statement: ast.Expr, call: ast.Call) -> Report | None:
        """What a statement shows, or None where nothing is one rank's own."""
        front = self._front(statement)
        pieces: list[Piece] = []
        missed: list[tuple[ast.expr, str]] = []
        for part in (*call.args, *(k.value for k in call.keywords)):
            self._take(part, pieces, missed)
        if not pieces and not missed:
            return None
        if not missed and (why := uneven(self.facts, front)):
            missed.append((pieces[0].node, why))
        if missed:
            return Report(statement, call, front, (), missed[0][1], missed[0][0])
        return Report(statement, call, front, tuple(pieces))

    def _front(self, statement: ast.stmt) -> ast.stmt:
        """The statement, or the outermost guard around it in its function that asks which process this is."""
        front = statement
        for parent in self.facts.source.ancestors(statement):
            if isinstance(parent, FUNCTIONS):
                break
            if isinstance(parent, ast.If) and guards(self.facts, parent.test):
                front = parent
        return front

    def _take(self, node: ast.expr, pieces: list[Piece], missed: list[tuple[ast.expr, str]]) -> None:
        facts = self.facts
        marks = {m for m in facts.machine.marks_of(node) if not (isinstance(m, ast.Call) and names.CLOCK.match(facts.path(m)))}
        kind = self.kinds.of_node(node)
        if isinstance(node, (ast.Constant, ast.JoinedStr, ast.FormattedValue)) or (
            kind.form == "lost" and _has_parts(node) and not self._of_samples(node)
        ):
            return self._take_parts(node, bool(marks), pieces, missed)
        strange = next((m for m in marks if m not in self.own), None)
        if kind.form == "lost" or strange is not None or (marks and kind.same) or kind.form == "samples":
            if marks or kind.sized or self._holds(node):
                missed.append((node, kind.why or "it can't be seen how it comes from the batches of the ranks"))
            return None
        if not marks and kind.varies:
            return None  # brought together already
        if kind.same:
            if self._holds(node):
                missed.append((node, "it holds numbers of this rank's own"))
            return None
        if why := next((why for n in walk(node) if isinstance(n, ast.expr) and (why := self.kinds.set_apart(n))), self.kinds.unweighted(node)):
            missed.append((node, why))
        elif kind.degree not in (0, 1):
            missed.append((node, "it grows in another way than a mean or a sum does"))
        elif kind.varies:
            pieces.append(Piece(node, "sum" if kind.degree else "mean", kind))
        else:
            pieces.append(Piece(node, "times", kind))
        return None

    def _take_parts(self, node: ast.expr, marked: bool, pieces: list[Piece], missed: list[tuple[ast.expr, str]]) -> None:
        before = len(pieces) + len(missed)
        if isinstance(node, (*APART, ast.IfExp, ast.BoolOp)):
            if marked:
                missed.append((node, "it is computed in a part of an expression that not every rank comes to"))
            return
        parts = [c.value if isinstance(c, ast.keyword) else c for c in children(node)]
        for child in parts:
            if isinstance(node, ast.Call) and child is node.func:
                child = child.value if isinstance(child, ast.Attribute) else None  # type: ignore[assignment]
            if isinstance(child, ast.expr):
                self._take(child, pieces, missed)
        if marked and len(pieces) + len(missed) == before and not isinstance(node, ast.Constant):
            missed.append((node, self.kinds.of_node(node).why or "it can't be seen how it comes from the batches of the ranks"))

    def _of_samples(self, node: ast.expr) -> bool:
        """Whether an operation takes a tensor of the batch: its parts aren't numbers."""
        parts = [c.value if isinstance(c, ast.keyword) else c for c in children(node)]
        parts += [p.value for p in parts if isinstance(p, ast.Attribute)]
        return any(isinstance(p, ast.expr) and self.kinds.of_node(p).form == "samples" for p in parts)

    def _holds(self, node: ast.expr) -> bool:
        """Whether an object of the script, or a collection, holds a number of this rank's own, which its text may show."""
        if not isinstance(node, (ast.Name, ast.Attribute)):
            return False
        return any(o in self.holders for o in self.facts.machine.at.get(node, NOTHING).objs)


def _has_parts(node: ast.expr) -> bool:
    return isinstance(
        node, (ast.BinOp, ast.UnaryOp, ast.Call, ast.Tuple, ast.List, ast.Dict, ast.Compare, *APART, ast.IfExp, ast.BoolOp, ast.Starred)
    )


def _own_loops(facts: Facts) -> frozenset[ast.AST]:
    """What marks the numbers of training alone: loops that read only what is trained on, and places that draw from it."""
    found: set[ast.AST] = set()
    for train in facts.program.train_loops:
        if set(facts.loaders_of(train.loop)) <= set(train.loaders) and not any(e.mixed and e.loop is train.loop for e in facts.program.eval_loops):
            found.add(train.loop)
        found |= {place for place, _ in train.draws}
    return frozenset(found)


def _holders(facts: Facts) -> frozenset[object]:
    """Objects of the script's classes, and collections, with a number in them that a training loop marks."""
    loops = {train.loop for train in facts.program.train_loops}
    return frozenset(
        owner
        for (owner, _), value in facts.machine.store.items()
        if not isinstance(owner, ast.AST) and getattr(owner, "kind", "") in ("instance", "list", "dict", "tuple", "made") and value.marks & loops
    )
