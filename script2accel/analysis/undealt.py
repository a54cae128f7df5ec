"""Why batches that a loop slices by hand can't be dealt out to several processes."""

from __future__ import annotations

import ast

from script2accel.analysis.context import quiet
from script2accel.analysis.facts import FUNCTIONS, Facts, Forward, TrainLoop
from script2accel.analysis.rows import closure, events, leaves, ordered, reads_and_stores, text_of
from script2accel.analysis.values import NOTHING
from script2accel.knowledge import torch as names
from script2accel.source import walk

JUMPS = (ast.Break, ast.Continue, ast.Return)
FILLING = frozenset({"append", "extend", "insert", "add", "update", "push", "put", "appendleft", "copy_", "fill_", "index_copy_"})
REFORMING = frozenset(
    {
        "to", "cuda", "cpu", "float", "double", "long", "int", "half", "view", "reshape", "permute", "transpose", "t", "contiguous", "numpy",
        "tolist", "copy", "clone", "detach", "size", "astype", "unsqueeze", "squeeze", "flatten", "pin_memory", "repeat", "type", "permutation",
        "shuffle", "sample", "item",
    }
)  # fmt: skip
SHOWING = frozenset({"info", "debug", "warning", "set_description", "set_postfix", "set_postfix_str", "write", "append"})


class Judge:
    """Whether the batches of one loop can be dealt out to several processes."""

    def __init__(self, facts: Facts, train: TrainLoop, loop: ast.For, index: str, stop: ast.expr) -> None:
        self.facts, self.train, self.loop, self.index = facts, train, loop, index
        self.counts = leaves(facts, stop)
        self.forwards = [f for f in facts.forwards if facts.inside(train.loop, f.call) and not quiet(facts, f.call)]

    def problem(self, draws: tuple[ast.stmt, ...]) -> tuple[ast.AST, str] | None:
        """The first thing that is in the way."""
        for look in (self._shared, self._made_on_the_way, self._carried, self._cut_short, self._horizon, self._counted):
            found = look()
            if found is not None:
                return found
        for draw in draws:
            if ordered(draw) is None or self.facts.function(draw) is not self.facts.function(self.loop):
                return draw, "the order of the rows is drawn in a way that can't be made equal on all processes"
        return _strays(self.facts, self.loop.body, self.index)

    def only_carries(self) -> bool:
        """Whether a state goes from batch to batch, and nothing is in the way of going along parts of the data from their beginning to their end."""
        return self._carried() is not None and not any(look() is not None for look in (self._shared, self._horizon, self._counted))

    def _shared(self) -> tuple[ast.AST, str] | None:
        """A loop that also evaluates would be dealt out there too."""
        facts = self.facts
        for backward in self.train.backwards:
            for parent in facts.source.ancestors(backward.call):
                if parent is self.train.loop:
                    break
                if isinstance(parent, ast.If):
                    return parent, "the same loop runs without training too, and there every process must see all rows"
        if self.loop is self.train.loop:
            return None
        function = facts.function(self.loop)
        endless = any(isinstance(loop, ast.While) for loop in facts.loops(self.loop))
        for node, obj in facts.machine.drawings.values():
            if obj.name == "generator" and obj.site is function:
                if node is not self.train.loop and not facts.inside(self.train.loop, node):
                    return self.loop, "other loops read the same generator"
                if isinstance(node, ast.Call) and not endless:
                    return node, "as many batches are asked for as one process makes of the data"
        return None

    def _made_on_the_way(self) -> tuple[ast.AST, str] | None:
        """Rows that are made between the passes, as a rollout is: each process has its own, and would leave out some of them."""
        facts = self.facts
        inside = {n for loop in (self.loop, self.train.loop) for n in walk(loop)}
        around = [loop for loop in facts.all_loops(self.train.loop) if loop is not self.train.loop]
        wanted = self._wanted(self.train.loop) | self._wanted(self.loop)
        for loop in around:
            wanted = closure(loop, wanted)
        for statement in (n for loop in around for s in loop.body for n in walk(s) if isinstance(n, ast.stmt) and n not in inside):
            made = isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value is not None
            targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)] if made else []
            stored = {text for t in targets if t is not None for n in walk(t) if (text := text_of(n)) is not None}
            if stored & wanted and any(isinstance(n, ast.Call) and not self._only_reorders(n) for n in walk(statement.value)):  # type: ignore[attr-defined]
                return statement, f"`{sorted(stored & wanted)[0]}` is made anew between the passes over it"
            kept = statement.value if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) else None
            owner = kept.func.value if kept is not None and isinstance(kept.func, ast.Attribute) else None
            if kept is not None and owner is not None and kept.func.attr in FILLING and text_of(owner) in wanted:  # type: ignore[attr-defined]
                return statement, f"`{text_of(owner)}` is filled between the passes over it"
        return None

    def _only_reorders(self, call: ast.Call) -> bool:
        """Whether a call of a library, or of a tensor's own method, makes nothing but another order or form of what is there."""
        path = self.facts.path(call)
        if path:
            return "." not in path or path.startswith(("numpy.", "torch.", "random.", "math.", "sklearn.utils."))
        return isinstance(call.func, ast.Attribute) and call.func.attr in REFORMING

    def _carried(self) -> tuple[ast.AST, str] | None:
        """What one batch hands on to the next, other than through the weights."""
        facts = self.facts
        for loop in dict.fromkeys((self.loop, self.train.loop)):
            wanted = self._wanted(loop)
            targets = reads_and_stores(loop.target) if isinstance(loop, (ast.For, ast.AsyncFor)) else ()
            first = {text: "store" for _, text, _ in targets}
            for what, text, node in events(loop.body):
                first.setdefault(text, what)
                if what == "store" and first[text] == "load" and text in wanted:
                    return node, f"`{text}` is carried from one batch to the next"
            for node in walk(loop):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FILLING:
                    owner = text_of(node.func.value)
                    if owner in wanted and first.get(str(owner)) != "store":
                        return node, f"`{owner}` is carried from one batch to the next"
        for cls in sorted(facts.module_classes, key=lambda c: c.lineno):
            if (state := _state(cls)) is not None:
                return state, f"`{cls.name}` keeps `{ast.unparse(state)}` from one batch to the next"
        for forward in self.forwards:
            function = facts.function(forward.call)
            if function is facts.function(self.train.loop):
                continue
            said = next((n for n in walk(function) if isinstance(n, (ast.Global, ast.Nonlocal))), None)
            kept: ast.AST | None = _state(function) or said
            if kept is not None:
                return kept, f"`{ast.unparse(kept)}` is kept from one batch to the next"
        return None

    def _wanted(self, loop: ast.For | ast.AsyncFor | ast.While) -> set[str]:
        """The names and attributes from which a loop's text computes batches and what models are given."""
        inside = set(walk(loop))
        calls = [f.call for f in self.forwards if f.call in inside]
        calls += [c for c in self.facts.calls if c in inside and any(self.facts.inside(c, f.call) or self._runs(c, f) for f in self.forwards)]
        given = [a for c in calls for a in (*c.args, *(k.value for k in c.keywords))]
        given += [n.value for n in inside if isinstance(n, (ast.Yield, ast.YieldFrom)) and n.value is not None]
        given += [b.loss for b in self.train.backwards if b.loss in inside]
        return closure(loop, {text for arg in given for _, text, _ in reads_and_stores(arg)})

    def _runs(self, call: ast.Call, forward: Forward) -> bool:
        function = self.facts.function(forward.call)
        return any(call is c for c in self.facts.callers(function))

    def _cut_short(self) -> tuple[ast.AST, str] | None:
        """A jump that depends on the rows at hand: the last batches differ in size."""
        for loop in dict.fromkeys((self.loop, self.train.loop)):
            wanted = self._wanted(loop) | {self.index}
            for node in (n for s in loop.body for n in walk(s)):
                jumps = isinstance(node, ast.If) and any(isinstance(n, JUMPS) for s in (*node.body, *node.orelse) for n in walk(s))
                if isinstance(node, ast.If) and jumps and wanted & {text for _, text, _ in reads_and_stores(node.test)}:
                    return node, f"`{ast.unparse(node.test)}` leaves out batches, and not the same ones on each process"
        return None

    def _counted(self) -> tuple[ast.AST, str] | None:
        """A number of batches that the loop asks for, as a schedule written by hand does: it is that of one process."""
        facts = self.facts
        for node in (n for s in self.train.loop.body for n in walk(s)):
            counting = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Div)) and bool(leaves(facts, node.left) & self.counts)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id != self.index:
                values = facts.program.assigned.get(node.id, [])
                counting = any(
                    isinstance(v, ast.BinOp) and isinstance(v.op, (ast.FloorDiv, ast.Div)) and leaves(facts, v) & self.counts for v in values
                )
            if counting and not self._for_rows_or_show(node):
                return node, f"`{ast.unparse(node)}` is a number of batches of one process"
        return None

    def _for_rows_or_show(self, node: ast.AST) -> bool:
        child = node
        for parent in self.facts.source.ancestors(node):
            if isinstance(parent, ast.Subscript) and child is parent.slice:
                return True
            if isinstance(parent, ast.stmt):
                return isinstance(parent, ast.Expr) and _harmless(self.facts, parent)
            child = parent
        return False

    def _horizon(self) -> tuple[ast.AST, str] | None:
        """A scheduler that steps with the batches and was told how many one process makes."""
        facts = self.facts
        for step in facts.scheduler_steps:
            for scheduler in step.objs if facts.inside(self.train.loop, step.call) else ():
                site = scheduler.site
                given = [*site.args, *(k.value for k in site.keywords)][1:] if isinstance(site, ast.Call) else []
                if site is not None and leaves(facts, *given) & self.counts:
                    return site, "the scheduler's horizon is a number of batches of one process"
        return None


def _strays(facts: Facts, body: list[ast.stmt], index: str, depth: int = 0) -> tuple[ast.AST, str] | None:
    """Where an index, or what is computed from it, does more than choose rows: each process has other indices."""
    tainted = {index}
    growing = True
    while growing:
        growing = False
        for node in (n for s in body for n in walk(s)):
            if not isinstance(node, ast.Name) or node.id not in tainted:
                continue
            if isinstance(node.ctx, ast.Store):
                if node.id == index:
                    return node, f"`{index}` is set again in the loop"
                continue
            kept = _chooses_rows(facts, node, depth)
            if isinstance(kept, set):
                growing = growing or bool(kept - tainted)
                tainted |= kept
            elif kept is not None:
                return kept, f"`{node.id}` does more than choose rows there, and it is another one on each process"
    return None


def _chooses_rows(facts: Facts, node: ast.Name, depth: int) -> ast.AST | set[str] | None:
    """Nothing where a name's use only chooses rows or is printed, the names that it is assigned to, or the place where it does more."""
    child: ast.AST = node
    for parent in facts.source.ancestors(node):
        if isinstance(parent, ast.Subscript) and child is parent.slice:
            return None
        if isinstance(parent, ast.Call) and child is not parent.func:
            functions = [o.site for o in facts.machine.at.get(parent.func, NOTHING).objs if o.kind in ("function", "method")]
            if functions:
                return _inside_function(facts, parent, child, functions, depth)
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            parts = [p for t in targets for p in (t.elts if isinstance(t, (ast.Tuple, ast.List)) else [t])]
            return {p.id for p in parts if isinstance(p, ast.Name)} if all(isinstance(p, ast.Name) for p in parts) else parent
        if isinstance(parent, ast.If) and child is parent.test:
            return None if all(_harmless(facts, s) for s in (*parent.body, *parent.orelse)) else parent
        if isinstance(parent, ast.Expr):
            return None if _harmless(facts, parent) else parent
        if isinstance(parent, ast.stmt):
            return parent
        child = parent
    return node


def _inside_function(facts: Facts, call: ast.Call, given: ast.AST, functions: list[ast.AST | None], depth: int) -> ast.AST | None:
    """Where a function of the script that is given an index does more with it than choose rows."""
    for function in functions:
        if not isinstance(function, FUNCTIONS) or depth > 2:
            return call
        names_ = [a.arg for a in (*function.args.posonlyargs, *function.args.args)]
        names_ = names_[1:] if names_[:1] == ["self"] else names_
        keyword = next((k.arg for k in call.keywords if k is given or k.value is given), None)
        place = next((i for i, a in enumerate(call.args) if a is given), None)
        name = keyword or (names_[place] if place is not None and place < len(names_) else None)
        found = _strays(facts, function.body, name, depth + 1) if name is not None else (call, "")
        if found is not None:
            return found[0]
    return None


def _harmless(facts: Facts, statement: ast.stmt) -> bool:
    """Whether a statement sets something, or only shows or collects what it is given."""
    if isinstance(statement, (ast.Assign, ast.AugAssign, ast.Pass)):
        return True
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not isinstance(call, ast.Call):
        return False
    path = facts.path(call)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    return path == "print" or path.startswith("logging.") or method in SHOWING or names.WRITER_METHODS.match(method) is not None


def _state(scope: ast.AST) -> ast.Attribute | None:
    """An attribute of `self` that methods set while they run, and read."""
    methods = [f for f in walk(scope) if isinstance(f, FUNCTIONS) and f.name not in ("__init__", "reset_parameters")]
    attributes = [n for f in methods for n in walk(f) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == "self"]
    read = {n.attr for n in attributes if isinstance(n.ctx, ast.Load)}
    return next((n for n in attributes if isinstance(n.ctx, ast.Store) and n.attr in read), None)
