"""Show training numbers of the joint batch, on request (`--reduce-train-metrics`).

A loss or count that a training loop prints, logs or hands to a tracker is the main process's own. With the option each such number is brought
together over the ranks in front of the report, where both parts of a ratio are known: what is a mean over the batch is averaged, what grows with the
batch is summed, the size of a batch is multiplied. Only the report reads the result, so nothing that trains is touched.
Left alone without the option, in evaluation, and where the script brings its numbers together itself. A report of which some part can't be followed
stays whole as it was, and is named. A loss that a library's model gives is taken for a mean over the batch, or over labels that are weighted.
Source: https://huggingface.co/docs/accelerate/package_reference/utilities
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.averages import averages
from script2accel.analysis.facts import View
from script2accel.analysis.kinds import Kinds
from script2accel.analysis.reports import Piece, Report, reports
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import CannotEditError, add_before, ensure_import, merge, replace_range
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import children, walk

CODE, NAME = "S2A723", "train-metric"
MISSED = Message(
    "S2A733",
    Severity.WARNING,
    "--reduce-train-metrics: `{text}` is shown as this rank's own: {why}",
    "bring it together in front of this line by hand (`accelerator.reduce`, `accelerate.utils.gather_object`), or read it as the main process's",
)
NONE = Message(
    "S2A773",
    Severity.NOTE,
    "--reduce-train-metrics: nothing shown here is seen to be one rank's own; texts that objects make of themselves are not looked into",
    "",
)
REASON = "the number of the joint batch, not of the main process's part of it"
CLOSED = (ast.Call, ast.keyword, ast.FormattedValue, ast.Tuple, ast.List, ast.Dict)


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if not decisions.options.reduce_train_metrics or not (decisions.plan.prepares or facts.program.train_loops):
        return
    kinds = Kinds(facts.program, split=decisions.options.batch == "global", evened=_evened(facts, decisions))
    writer = _Writer(facts, decisions)
    found = False
    for report in reports(facts, kinds):
        found = True
        yield writer.change(report)
    if not found and (loop := next(iter(facts.train_loops), None)) is not None:
        yield NONE.at(loop.loop.lineno)


def _evened(facts: View, decisions: Decisions) -> frozenset[ast.expr]:
    """The losses of all files that are weighted by what counts on each rank."""
    program = facts.program
    found = (average for source in program.source.sources for average in averages(View(program, source)))
    return frozenset(a.loss for a in found if not a.problem and decisions.may_ask(a.loss)) if decisions.plan.prepares else frozenset()


class _Writer:
    """Writes the lines in front of reports; reports one below the other share them."""

    def __init__(self, facts: View, decisions: Decisions) -> None:
        self.facts, self.decisions = facts, decisions
        self.last: ast.stmt | None = None
        self.shared: dict[tuple[str, str], str] = {}

    def change(self, report: Report) -> Change | Diagnostic:
        if why := report.why or self._in_the_way(report):
            return _missed(self.facts, report.at or report.call, why)
        if not self._follows(report.front):
            self.shared = {}
        lines: list[str] = []
        edits: list[tuple[Edit, ...]] = []
        try:
            for piece in report.pieces:
                edits.append(self._replace(piece, self._text(piece, report, lines)))
            if lines:
                edits.append(add_before(self.facts.source, report.front, "\n".join(lines), rank=5))
                if any("gather_object(" in line for line in lines):
                    edits.append(ensure_import(self.facts.source, "accelerate.utils", "gather_object"))
        except CannotEditError as error:
            return _missed(self.facts, report.call, error.why)
        self.last = report.front
        if (
            isinstance(report.call.func, ast.Attribute) and report.call.func.attr == "append"
        ):  # its list has grown: what is made of it is another number
            grown = self.facts.source.segment(report.call.func.value)
            self.shared = {key: name for key, name in self.shared.items() if grown not in key[0]}
        return Change(CODE, NAME, REASON, report.statement.lineno, merge(edits), essential=False, source="R90")

    def _follows(self, front: ast.stmt) -> bool:
        """Whether a report stands right below the last one, so that its numbers are still those."""
        block = self.facts.source.block(front)
        at = next(i for i, s in enumerate(block) if s is front)
        return at > 0 and block[at - 1] is self.last and isinstance(self.last, ast.Expr)

    def _text(self, piece: Piece, report: Report, lines: list[str]) -> str:
        """What stands in the piece's place; the line that makes it is added."""
        accelerator = self.decisions.accelerator(report.call, essential=False)
        own = _own_text(self.facts, piece.node)
        if piece.how == "times":
            closed = isinstance(self.facts.source.parents[piece.node], CLOSED)
            times = isinstance(piece.node, ast.BinOp) and isinstance(piece.node.op, (ast.Mult, ast.Div))
            factor = f"{own if _tight(piece.node) or times else f'({own})'} * {accelerator}.num_processes"
            return factor if closed else f"({factor})"
        if (known := self.shared.get((own, piece.how))) is not None:
            return known
        name = self._name(piece, own)
        joint = self._joint(piece, own, accelerator, lines)
        lines.append(f"{name} = {joint}")
        self.shared[own, piece.how] = name
        return name

    def _joint(self, piece: Piece, own: str, accelerator: str, lines: list[str]) -> str:
        """The joint batch's number; lines that it needs are added."""
        if piece.kind.tensor:
            tensor = f"{own if _tight(piece.node) else f'({own})'}.detach()"
            place = f".to({accelerator}.device)" if self._off_device(piece.node) else ""
            return f'{accelerator}.reduce({tensor}{place}, reduction="{piece.how}")'
        total = f"sum(gather_object([{own}]))"
        if piece.how == "mean":
            return f"{total} / {accelerator}.num_processes"
        if piece.kind.whole and (loader := self._filled(piece)):
            size = f"len({loader}.dataset)"
            if (known := self.shared.get((size, "filled"))) is not None:
                return f"{total} * ({size} / {known})"
            seen = self._free("joint_size")
            self.shared[size, "filled"] = seen
            filled = f"max({size}, len({loader}) * {loader}.total_batch_size)"
            lines.append(f"{seen} = {filled} if {accelerator}.num_processes > 1 else {size}")
            return f"{total} * ({size} / {seen})"
        return total

    def _name(self, piece: Piece, own: str) -> str:
        """A name that the file doesn't use: after the first name of the expression."""
        at = self.facts.machine.at
        words = [_word(n) for n in _in_order(piece.node) if any(o.kind not in ("external", "function", "class") for o in at.get(n, NOTHING).objs)]
        return self._free(f"joint_{next((word for word in words if word), 'number')}")

    def _free(self, base: str) -> str:
        """A name that neither the file nor another line in front of these reports uses."""
        taken = {*self.facts.program.source.names, *self.shared.values()}
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        return name

    def _replace(self, piece: Piece, text: str) -> tuple[Edit, ...]:
        source = self.facts.source
        return replace_range(source.start(piece.node), source.end(piece.node), text)

    # what stands in the way --------------------------------------------------------------------------------

    def _in_the_way(self, report: Report) -> str:
        decisions, call = self.decisions, report.call
        if decisions.options.grouped:
            return "several ranks work on one batch"
        if "even_batches" in decisions.loader_arguments:
            return "the ranks' batches may have different sizes"
        if not decisions.may_ask(call) or (decisions.method_of(call) and not decisions.is_global(call) and not decisions.class_has(call)):
            return "nothing here has an accelerator"
        for piece in report.pieces:
            if not _readable(self.facts, piece.node):
                return "its place in the text can't be told"
            if piece.how == "sum" and (line := self._decides(piece.node)):
                return f"it also decides (line {line}), where it is averaged"
            if piece.how == "sum" and piece.kind.whole and not self._exact(piece) and not self._filled(piece):
                return "it is divided by the size of the dataset, and the last batch of several ranks is filled up with samples of the first"
        return ""

    def _decides(self, node: ast.expr) -> int:
        """The line of a test, or of a scheduler's step, that asks for the same number."""
        machine = self.facts.machine
        objs = machine.at.get(node, NOTHING).objs
        program = self.facts.program
        tests = [n.test for n in program.source.every(ast.If, ast.While, ast.IfExp) if machine.marks_of(n.test)]
        tests += [arg for step in program.scheduler_steps for arg in step.given]
        for test in tests:
            for inner in walk(test):
                if inner in machine.at and {o for o in machine.at[inner].objs if o.kind != "const"} & objs:
                    return test.lineno
        return 0

    def _exact(self, piece: Piece) -> bool:
        """Whether every loader that is trained on drops its last batch."""
        loaders = [o for loop in self.facts.program.train_loops for o in loop.loaders]
        given = [{o.name for o in loader.keywords.get("drop_last", NOTHING).objs} for loader in loaders]
        return bool(given) and all(names == {True} for names in given)

    def _filled(self, piece: Piece) -> str:
        """How the one loader that is trained on is written at the report, where an epoch has ended; else ''."""
        facts = self.facts
        loaders = {o for loop in facts.program.train_loops for o in loop.loaders}
        if len(loaders) != 1 or facts.in_train_loop(piece.node) or self._exact(piece):
            return ""
        loader = next(iter(loaders))
        if {"sampler", "batch_sampler"} & set(loader.keywords):
            return ""
        function = facts.function(piece.node)
        for node in walk(function):
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load) and facts.function(node) is function:
                objs = facts.machine.at.get(node, NOTHING).objs
                if objs and all(o.kind == "prepared" and o.inner is loader for o in objs):
                    return facts.source.segment(node)
        return ""

    def _off_device(self, node: ast.expr) -> bool:
        """Whether a tensor may be on the CPU: made there, or something of it moved there."""
        machine = self.facts.machine
        waiting = list(machine.at.get(node, NOTHING).objs)
        seen: set[Obj] = set()
        while waiting:
            obj = waiting.pop()
            if obj in seen:
                continue
            seen.add(obj)
            if machine.used(obj, ".cpu"):
                return True
            operands = machine.operands.get(obj.site, ()) if obj.site is not None else ()
            waiting += [o for values in operands for value in values for o in value.objs]
            waiting += [obj.base] if obj.base is not None else []
        return bool(machine.made_into(node))


def _in_order(node: ast.AST) -> Iterator[ast.expr]:
    """The names and attributes in an expression, from left to right, of an attribute the whole first."""
    if isinstance(node, (ast.Name, ast.Attribute)):
        yield node
    for child in children(node):
        yield from _in_order(child)


def _word(node: ast.expr) -> str:
    """A word for what a name or attribute holds; of a method none, since its receiver follows."""
    word = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return "" if word in ("item", "detach", "data", "double", "float", "mean", "sum", "cpu", "self") else word.strip("_")


def _missed(facts: View, node: ast.expr, why: str) -> Diagnostic:
    return MISSED.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node)[:60].split("\n")[0], why=why)


def _own_text(facts: View, node: ast.expr) -> str:
    return facts.source.segment(node)


def _readable(facts: View, node: ast.expr) -> bool:
    """Whether the text at a node's place is the node (inside strings, older versions of Python give places that aren't)."""
    try:
        found = ast.parse(f"({facts.source.segment(node)})", mode="eval").body
    except (SyntaxError, ValueError):
        return False
    return ast.dump(found) == ast.dump(node)


def _tight(node: ast.expr) -> bool:
    return isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call, ast.Constant))


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, object]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

running, right, seen = 0.0, 0, 0
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    running += loss.item()
    right += (output.argmax(1) == y).sum().item()
    seen += y.size(0)
print(f"loss {running / len(loader):.4f}, {right} of {seen} right")
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import gather_object

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

running, right, seen = 0.0, 0, 0
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    accelerator.backward(loss)
    optimizer.step()
    running += loss.item()
    right += (output.argmax(1) == y).sum().item()
    seen += y.size(0)
joint_running = sum(gather_object([running / len(loader)])) / accelerator.num_processes
joint_right = sum(gather_object([right]))
accelerator.print(f"loss {joint_running:.4f}, {joint_right} of {seen * accelerator.num_processes} right")
""",
        {"reduce_train_metrics": True},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

running, right, seen = 0.0, 0, 0
for x, y in loader:
    optimizer.zero_grad()
    output = model(x)
    loss = nn.functional.cross_entropy(output, y)
    loss.backward()
    optimizer.step()
    running += loss.item()
    right += (output.argmax(1) == y).sum().item()
    seen += y.size(0)
print(f"loss {running / len(loader):.4f}, {right} of {seen} right")
""",
        None,
        {},
    ),
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

worst = 0.0
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    worst = max(worst, loss.item())
print(f"worst batch {worst:.4f}")
""",
        "S2A733",
        {"reduce_train_metrics": True},
    ),
]
