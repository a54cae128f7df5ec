"""Let Accelerate accumulate gradients.

A loss divided by k and an optimizer that steps for every k-th batch become `gradient_accumulation_steps=k` and `with
accelerator.accumulate(model):` around the loop's body; division and gate go together (the division kept gives 1/k of the gradient, the gate
kept loses steps: measured). What else stood under the gate stands under `if accelerator.sync_gradients:`. A remainder at the end of the
loader keeps its fate: stepped, carried over or dropped. A sum that wasn't divided stays a sum.
With `--gradient-accumulation-steps N` the same for scripts that have none.
Left alone: an optimizer that steps as often as gradients are made, and loops that accumulate through the accelerator. Refused: chunks of
one batch, counts that can't be followed, `no_sync` by hand.
Source: https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.accumulation import (
    Accumulation,
    Division,
    Problem,
    accumulates,
    accumulations,
    begins_group,
    division,
    path_of,
    same,
    trained_in,
)
from script2accel.analysis.facts import FUNCTIONS, LOOPS, TrainLoop, View
from script2accel.analysis.homes import Homes
from script2accel.analysis.precision import hand_made
from script2accel.analysis.values import NOTHING, Obj
from script2accel.change.edits import (
    CannotEditError,
    add_before,
    append,
    dissolve,
    merge,
    remove_statement,
    replace,
    replace_range,
    wrap_expression,
    wrap_statements,
)
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import children

CODE, NAME = "S2A401", "hand-made-accumulation"
GATE = Message(
    "S2A411",
    Severity.ERROR,
    "the optimizer steps under a condition, the backward pass doesn't: gradients are accumulated by hand, and {why}",
    "write it as `loss = loss / k` and `if (i + 1) % k == 0:` with `i` from enumerate, and convert again",
)
MICRO = Message(
    "S2A412",
    Severity.ERROR,
    "several backward passes come to one optimizer step in an inner loop: how its batches come from the loader can't be shown",
    "let the loader give the small batches and step after k of them, and convert again",
)
CHUNKS = Message(
    "S2A423",
    Severity.WARNING,
    "one batch is trained in parts, with one step: this stays as it is, and gradients are synchronised at every part (right, but slower)",
    "don't launch it with DeepSpeed, which steps at every backward pass; give the loader the small batches to have Accelerate accumulate",
)
DIVISION = Message(
    "S2A413",
    Severity.ERROR,
    "gradients are accumulated by hand, and {why}",
    "divide the loss by the size of a group in one place, in front of the backward pass, and convert again",
)
ZERO = Message(
    "S2A414", Severity.ERROR, "gradients are accumulated by hand, and {why}", "zero the gradients right behind the step, and convert again"
)
CLIP = Message(
    "S2A415",
    Severity.ERROR,
    "gradients are clipped here for every batch, while the optimizer steps for a group of them: partial sums would be clipped",
    "clip right in front of the step, and convert again",
)
MODEL = Message(
    "S2A416",
    Severity.ERROR,
    "gradients are accumulated over this loop, and it has no name for {what}",
    "give the model to the function that holds the loop, and convert again",
)
CONFLICT = Message(
    "S2A417",
    Severity.ERROR,
    "this loop accumulates in another way than the one in line {first}: Accelerate has one way for the whole script",
    "use one size of groups, and convert again",
)
ASKED = Message(
    "S2A418",
    Severity.ERROR,
    "accumulation over {wanted} batches is asked for, and this script accumulates over `{text}`",
    "leave --gradient-accumulation-steps out, or set the script's own number",
)
NO_SYNC = Message(
    "S2A419", Severity.ERROR, "`{text}` chooses by hand when gradients are synchronised", "take it out (accumulate does it), and convert again"
)
SHAPE = Message(
    "S2A420",
    Severity.ERROR,
    "accumulation is asked for, and {why}",
    "write forward, backward, step and zero_grad in the loop itself, and convert again",
)
HORIZON = Message(
    "S2A421",
    Severity.WARNING,
    "this scheduler's horizon comes from the loader's length: it goes on stepping once per batch, the optimizer once for {wanted}",
    "",
)
ENDED = Message("S2A422", Severity.NOTE, "the learning rate advances with optimizer steps, of which there are 1/{wanted} now", "")
REASON = "the accelerator gathers the gradients of a group of batches, and synchronises them once"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    if accumulates(facts):
        return
    taken: set[ast.AST] = set()
    for found in accumulations(facts):
        if isinstance(found, Problem):
            yield _told(found)
            taken.add(found.node)
            continue
        taken.add(found.train.loop)
        if all(backward.done for backward in found.train.backwards):
            continue  # by hand beside Accelerate, which counts one batch to a step then: right, and the user's own choice
        yield from _Conversion(facts, decisions, found).changes()
    for node in _by_hand(facts):
        if not any(parent in taken for parent in facts.source.ancestors(node)):
            yield NO_SYNC.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))
    wanted = decisions.options.gradient_accumulation_steps
    if wanted is not None and wanted > 1:
        for train in facts.train_loops:
            if not taken and train.loop not in taken and train.loaders:
                yield from _Asked(facts, decisions, train, wanted).changes()


def _told(found: Problem) -> Diagnostic:
    message = {"gate": GATE, "micro": MICRO, "chunks": CHUNKS, "division": DIVISION}[found.kind]
    return message.at(getattr(found.node, "lineno", 1), getattr(found.node, "col_offset", 0) + 1, why=found.why)


def _by_hand(facts: View) -> Iterator[ast.Attribute]:
    """The places that choose by hand when gradients are synchronised."""
    for node in facts.source.every(ast.Attribute):
        context = node.attr == "no_sync" and facts.roles.of_node(node.value) != "accelerator"
        if context or (node.attr == "require_backward_grad_sync" and isinstance(node.ctx, ast.Store)):
            yield node


class _Stopped(Exception):
    def __init__(self, said: Diagnostic) -> None:
        super().__init__(said.message)
        self.said = said


class _Loop:
    """What both conversions need of a training loop."""

    def __init__(self, facts: View, decisions: Decisions, train: TrainLoop) -> None:
        self.facts, self.decisions, self.train = facts, decisions, train
        self.source, self.loop = facts.program.source.of(train.loop), train.loop
        self.homes = Homes(facts.program)

    def models(self, place: ast.AST) -> list[str]:
        """The names of the loop's models at a place."""
        found = []
        for model in trained_in(self.facts, self.train):
            path = path_of(self.facts, self.homes, model, place)
            if path is None:
                raise _Stopped(
                    MODEL.at(self.loop.lineno, what=f"the {self.facts.roles.of(model) or 'model'} of line {getattr(model.site, 'lineno', 0)}")
                )
            found.append(path)
        return list(dict.fromkeys(found))

    def wrap(self) -> tuple[Edit, ...]:
        """The loop's body under `accumulate`."""
        names_ = self.models(self.loop)
        if not names_:
            raise _Stopped(MODEL.at(self.loop.lineno, what="a model"))
        return wrap_statements(self.source, self.loop.body, f"with {self.decisions.accelerator(self.loop)}.accumulate({', '.join(names_)}):")

    def zeros(self) -> list[ast.Call]:
        """The calls of zero_grad on what the loop trains, in the order of the text."""
        models = set(trained_in(self.facts, self.train))
        optimizers = {o for m in models for o in self.facts.roles.training.get(m, ())}
        found = []
        for call in self.facts.program.calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "zero_grad":
                objs = {o.inner for o in self.facts.machine.at.get(call.func.value, NOTHING).objs}
                if objs & (models | optimizers):
                    found.append(call)
        return found

    def of_model(self, call: ast.Call) -> bool:
        """Whether a zero_grad is a model's own (not gated by a prepared optimizer)."""
        assert isinstance(call.func, ast.Attribute)
        return self.facts.roles.of_node(call.func.value) in ("model", "criterion")

    def within(self, node: ast.AST, outer: ast.AST) -> bool:
        """Whether a node stands in another's text."""
        return node is outer or any(p is outer for p in self.facts.program.source.ancestors(node))

    def leaves(self) -> bool:
        """Whether the loop can end in the middle of a group."""
        waiting: list[ast.AST] = list(self.loop.body)
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Break, ast.Return)):
                return True
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                continue
            inner = list(children(node))
            waiting += [n for n in inner if not isinstance(n, ast.Break)] if isinstance(node, LOOPS) else inner
        return False

    def clips(self) -> list[ast.Call]:
        """The gradient clips that run in the loop."""
        return [
            c
            for c in self.facts.program.calls
            if any(names.CLIP_NORM.match(p) or names.CLIP_VALUE.match(p) for p in self.facts.program.any_path(c)) and self.facts.inside(self.loop, c)
        ]


class _Conversion(_Loop):
    """One hand-made accumulation."""

    def __init__(self, facts: View, decisions: Decisions, found: Accumulation) -> None:
        super().__init__(facts, decisions, found.train)
        self.found, self.gate, self.edits = found, found.gate, list[tuple[Edit, ...]]()
        self.place: ast.stmt = found.gate or found.train.loop

    def changes(self) -> Iterator[Change | Diagnostic]:
        if self.facts.source.root(self.loop) is not self.facts.source.tree:
            yield GATE.at(self.place.lineno, why="the loop over the batches stands in another file")
            return
        try:
            self._argument()
            self.edits.append(self.wrap())
            self._synchronised_by_hand()
            self._gate()
            self._zeros()
            self._losses()
            self._count()
        except _Stopped as stopped:
            yield stopped.said
            return
        except CannotEditError as error:
            yield GATE.at(getattr(error.node, "lineno", 1), why=error.why)
            return
        yield Change(CODE, NAME, REASON, self.place.lineno, merge(self.edits), source="R07")

    def _argument(self) -> None:
        found, decisions = self.found, self.decisions
        wanted = decisions.options.gradient_accumulation_steps
        if wanted is not None and not (isinstance(found.size, ast.Constant) and found.size.value == wanted) and not self._holds(wanted):
            raise _Stopped(ASKED.at(self.place.lineno, wanted=wanted, text=self.source.segment(found.size)))
        if found.ends:
            name, text = "gradient_accumulation_steps", decisions.reads(found.size)
        else:
            name, text = (
                "gradient_accumulation_plugin",
                f"GradientAccumulationPlugin(num_steps={decisions.reads(found.size)}, sync_with_dataloader=False)",
            )
            decisions.imports["accelerate.utils", "GradientAccumulationPlugin"] = None
        known = {k: v for k, v in decisions.arguments.items() if k.startswith("gradient_accumulation")}
        if known and not self._equal(known, name):
            raise _Stopped(CONFLICT.at(self.place.lineno, first=decisions.grouped.lineno if decisions.grouped is not None else 0))
        if not known:
            decisions.arguments[name] = text
            decisions.grouped = found.size

    def _equal(self, known: dict[str, str], name: str) -> bool:
        return name in known and self.decisions.grouped is not None and same(self.facts, self.found.size, self.decisions.grouped)

    def _holds(self, wanted: int) -> bool:
        objs = self.facts.machine.at.get(self.found.size, NOTHING).objs
        return bool(objs) and all(o.kind == "const" and o.name == wanted for o in objs)

    def _synchronised_by_hand(self) -> None:
        """`model.require_backward_grad_sync = ...` goes: accumulate chooses when gradients are synchronised."""
        for node in _by_hand(self.facts):
            statement = self.source.statement(node)
            if not self.within(node, self.loop):
                continue
            if not isinstance(statement, ast.Assign) or statement.targets != [node]:
                raise _Stopped(NO_SYNC.at(node.lineno, node.col_offset + 1, text=self.source.segment(node)))
            parent = self.source.parents[statement]
            alone = isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse and not self.source.is_elif(parent)
            self.edits.append(remove_statement(self.source, parent if alone and isinstance(parent, ast.If) else statement))

    # the gate --------------------------------------------------------------------------------------------

    def _gate(self) -> None:
        steps = {s.call for s in self.found.steps}
        for clip in self.clips():
            if self.gate is None or not self.facts.inside(self.gate, clip):
                raise _Stopped(CLIP.at(clip.lineno, clip.col_offset + 1))
        if self.gate is None:
            return
        if not self.gate.orelse and all(self._only_steps(s, steps) for s in self.gate.body):
            try:
                self.edits.append(dissolve(self.source, self.gate))
            except CannotEditError:
                self._sync()
        else:
            self._sync()
        if self.found.flag is not None:
            self.edits.append(remove_statement(self.source, self.found.flag))

    def _sync(self) -> None:
        assert self.gate is not None
        start, end = self.source.outer(self.gate.test)
        self.edits.append(replace_range(start, end, f"{self.decisions.accelerator(self.gate)}.sync_gradients"))

    def _only_steps(self, statement: ast.stmt, steps: set[ast.Call]) -> bool:
        """Whether a statement is one that a prepared optimizer gates itself, or that goes with the scaler."""
        if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call) or not self.source.alone(statement):
            return False
        call = statement.value
        if call in steps or any(u.call is call and u.what in ("update", "unscale_") for u in hand_made(self.facts).uses):
            return True
        return call in self.zeros() and not self.of_model(call)

    # zero_grad -------------------------------------------------------------------------------------------

    def _zeros(self) -> None:
        found = self.found
        last = max((s.call for s in found.steps), key=lambda c: c.lineno)
        dropped = False
        for call in self.zeros():
            if self.gate is not None and self.within(call, self.gate):
                if call.lineno < min(s.call.lineno for s in found.steps):
                    raise _Stopped(ZERO.at(call.lineno, why="gradients are zeroed in front of the step"))
            elif self.within(call, self.loop):
                self._first_of_group(call, last)
                dropped = True
            elif self.facts.inside(self.loop, call):
                raise _Stopped(ZERO.at(call.lineno, why="gradients are zeroed in another function for every batch"))
            elif self.gate is not None and self._each_run(call) and (not found.ends or self.leaves()):
                self._of_models(call)
        if dropped and found.restarts and (not found.ends or self.leaves()) and self.facts.all_loops(self.loop):
            text = "\n".join(f"{name}.zero_grad()" for name in self.models(self.loop))
            self.edits.append(add_before(self.source, self.loop, text, rank=7))

    def _each_run(self, call: ast.Call) -> bool:
        """Whether a zero_grad runs in front of each run of the loop: a prepared optimizer's does nothing in the middle of a group (measured)."""
        around = self.facts.all_loops(call)
        return bool(around) and set(around) <= set(self.facts.all_loops(self.loop))

    def _of_models(self, call: ast.Call) -> None:
        if self.of_model(call):
            return
        statement = self.facts.program.source.statement(call)
        if not isinstance(statement, ast.Expr) or statement.value is not call or self.facts.source.root(call) is not self.facts.source.tree:
            raise _Stopped(ZERO.at(call.lineno, why="what is left of a group can't be dropped here"))
        models = self.models(call)
        given = self.source.text[self.source.end(call.func) : self.source.end(call)]
        text = ("\n" + self.source.indent(statement)).join(f"{name}.zero_grad{given}" for name in models)
        self.edits.append(replace(self.source, call, text))

    def _first_of_group(self, call: ast.Call, last: ast.Call) -> None:
        """`if i % k == 0: optimizer.zero_grad()` in front of the forward pass moves behind the step."""
        statement = self.source.statement(call)
        gate = self.source.parents[statement]
        alone = isinstance(gate, ast.If) and gate.body == [statement] and not self.source.is_elif(gate)
        first = min(b.call.lineno for b in self.train.backwards)
        if not isinstance(gate, ast.If) or not alone or call.lineno > first or not begins_group(self.facts.program, self.found, gate):
            raise _Stopped(ZERO.at(call.lineno, why="gradients are zeroed for every batch, which loses all but the last of a group"))
        if self.of_model(call):
            raise _Stopped(ZERO.at(call.lineno, why="the model's own `zero_grad` isn't gated by the accelerator"))
        self.edits.append(remove_statement(self.source, gate))
        self.edits.append(append(self.source, self.source.statement(last), self.source.segment(call)))

    # the loss --------------------------------------------------------------------------------------------

    def _losses(self) -> None:
        statements: set[ast.AST] = set()
        for backward in self.train.backwards:
            if self.facts.source.root(backward.call) is not self.facts.source.tree:
                raise _Stopped(DIVISION.at(self.place.lineno, why="the backward pass stands in another file"))
            found = division(self.facts, self.train, backward, self.found.size)
            if isinstance(found, Problem):
                raise _Stopped(_told(found))
            if found is None:
                self._multiply(backward.loss)
            elif (found.statement or found.whole) not in statements:
                statements.add(found.statement or found.whole)
                self._undivide(found)

    def _multiply(self, loss: ast.expr) -> None:
        if self.facts.function(loss) is not self.facts.function(self.place):
            raise _Stopped(DIVISION.at(loss.lineno, why="the loss isn't divided, and the size of a group isn't known where it is made"))
        plain = isinstance(loss, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        size = self.source.segment(self.found.size)
        if self.source.outer(loss)[0] != self.source.start(loss):
            plain = True
            end = self.source.outer(loss)[1]
            self.edits.append(replace_range(end, end, f" * {size}"))
            return
        self.edits.append(wrap_expression(self.source, loss, "" if plain else "(", f" * {size}" if plain else f") * {size}"))

    def _undivide(self, found: Division) -> None:
        source = self.source
        if found.statement is not None:
            above = source.parents[found.statement]  # `if k > 1:` goes with the division
            conditional = isinstance(above, ast.If) and above not in set(source.ancestors(found.backward.call))
            self.edits.append(remove_statement(source, above if conditional and isinstance(above, ast.If) else found.statement))
        else:
            start, end = source.outer(found.whole)
            inner_start, inner_end = source.outer(found.part)
            self.edits.append(replace_range(start, inner_start, "") if start < inner_start else ())
            self.edits.append(replace_range(inner_end, end, ""))
        by = source.segment(found.by)
        done: set[ast.AST] = set()
        for node in found.reads:
            undone = self._undone(node)
            if undone is not None:
                whole, value = undone
                if whole not in done:
                    done.add(whole)
                    self.edits.append(self._keep(whole, value))
                continue
            parent = source.parents[node]
            loose = isinstance(
                parent, (ast.Call, ast.Return, ast.Assign, ast.FormattedValue, ast.keyword, ast.Tuple, ast.List, ast.Dict, ast.Expr)
            ) and node is not getattr(parent, "func", None)
            text = f"{node.id} / {by}" if loose else f"({node.id} / {by})"
            self.edits.append(replace(source, node, text))

    def _undone(self, node: ast.Name) -> tuple[ast.BinOp, ast.expr] | None:
        """`loss.item() * k`, which multiplies the division away: the product, and what stays of it."""
        source = self.source
        value: ast.expr = node
        while True:
            parent = source.parents[value]
            if isinstance(parent, ast.Attribute) or (
                isinstance(parent, ast.Call) and (parent.func is value or (isinstance(parent.func, ast.Name) and parent.func.id == "float"))
            ):
                value = parent
                continue
            break
        if isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Mult):
            other = parent.right if parent.left is value else parent.left
            if same(self.facts, other, self.found.size):
                return parent, value
        return None

    def _keep(self, whole: ast.BinOp, value: ast.expr) -> tuple[Edit, ...]:
        source = self.source
        start, end = source.start(whole), source.end(whole)
        inner_start, inner_end = source.outer(value)
        return merge(
            [replace_range(start, inner_start, "") if start < inner_start else (), replace_range(inner_end, end, "") if inner_end < end else ()]
        )

    # the count -------------------------------------------------------------------------------------------

    def _count(self) -> None:
        found = self.found
        again = bool(self.facts.all_loops(self.loop))
        if found.restarts and (found.start or (again and (not found.ends or self.leaves()))):
            self.edits.append(add_before(self.source, self.loop, f"{self.decisions.accelerator(self.loop)}.step = {found.start}", rank=6))


class _Asked(_Loop):
    """Accumulation that the script doesn't have, and the user wants."""

    def __init__(self, facts: View, decisions: Decisions, train: TrainLoop, wanted: int) -> None:
        super().__init__(facts, decisions, train)
        self.wanted, self.edits = wanted, list[tuple[Edit, ...]]()

    def changes(self) -> Iterator[Change | Diagnostic]:
        said: list[Diagnostic] = []
        try:
            self.decisions.arguments["gradient_accumulation_steps"] = str(self.wanted)
            self.edits.append(self.wrap())
            self._zeros(self._step())
            self._clips()
            said = list(self._schedulers())
        except _Stopped as stopped:
            yield stopped.said
            return
        except CannotEditError as error:
            yield SHAPE.at(getattr(error.node, "lineno", 1), why=error.why)
            return
        yield from said
        yield Change(CODE, NAME, f"asked for: {REASON}", self.loop.lineno, merge(self.edits), source="R07")

    def _stop(self, node: ast.AST, why: str) -> _Stopped:
        return _Stopped(SHAPE.at(getattr(node, "lineno", 1), why=why))

    def _step(self) -> ast.stmt:
        steps = [s for s in self.facts.program.optimizer_steps if self.facts.inside(self.loop, s.call)]
        if not steps:
            raise self._stop(self.loop, "no optimizer steps in this loop")
        if len(steps) != 1 or len(self.train.backwards) != 1:
            raise self._stop(steps[-1].call, "more than one optimizer steps, or more than one backward pass runs, for a batch")
        statement = self.source.statement(steps[0].call)
        if not self.within(steps[0].call, self.loop) or not isinstance(statement, ast.Expr):
            raise self._stop(steps[0].call, "the optimizer steps in another function than the loop's")
        return statement

    def _zeros(self, step: ast.stmt) -> None:
        backward = self.train.backwards[0].call
        moved = None
        for call in self.zeros():
            if not self.facts.inside(self.loop, call):
                continue
            statement = self.source.statement(call) if self.within(call, self.loop) else None
            if statement is None or not isinstance(statement, ast.Expr) or statement.value is not call:
                raise self._stop(call, "gradients are zeroed in another function than the loop's")
            if call.lineno > step.lineno:
                if self.of_model(call):
                    self.edits.append(wrap_statements(self.source, [statement], f"if {self.decisions.accelerator(call)}.sync_gradients:"))
                continue
            if self.within(backward, self.loop) and call.lineno > backward.lineno:
                raise self._stop(call, "gradients are zeroed between the backward pass and the step")
            if self.source.block(statement) is not self.loop.body and not isinstance(self.source.parents[statement], (ast.With, ast.AsyncWith)):
                raise self._stop(call, "gradients are zeroed under a condition")
            moved = self.source.segment(call)
            self.edits.append(remove_statement(self.source, statement))
            if self.of_model(call):
                moved = f"if {self.decisions.accelerator(call)}.sync_gradients:\n\t{moved}"
        if moved is not None:
            self.edits.append(append(self.source, step, moved))

    def _clips(self) -> None:
        for clip in self.clips():
            statement = self.source.statement(clip) if self.within(clip, self.loop) else None
            if not isinstance(statement, ast.Expr) or statement.value is not clip:
                raise self._stop(clip, "the gradient clip's result is used, or it stands in another function")
            self.edits.append(wrap_statements(self.source, [statement], f"if {self.decisions.accelerator(clip)}.sync_gradients:"))

    def _schedulers(self) -> Iterator[Diagnostic]:
        for step in self.facts.program.scheduler_steps:
            if not self.facts.inside(self.loop, step.call):
                continue
            if any(_counts_batches(self.facts, o, 0) for o in step.objs):
                yield HORIZON.at(step.call.lineno, step.call.col_offset + 1, wanted=self.wanted)
                continue
            statement = self.source.statement(step.call) if self.within(step.call, self.loop) else None
            if not isinstance(statement, ast.Expr):
                raise self._stop(step.call, "the scheduler steps in another function than the loop's")
            self.edits.append(wrap_statements(self.source, [statement], f"if {self.decisions.accelerator(statement)}.sync_gradients:"))
            yield ENDED.at(step.call.lineno, step.call.col_offset + 1, wanted=self.wanted)


def _counts_batches(facts: View, obj: Obj, depth: int) -> bool:
    """Whether a loader's length enters the making of a scheduler."""
    if depth > 6:
        return False
    if obj.kind == "made" and obj.path == "len":
        return any(facts.roles.of(o) == "loader" for value in obj.arguments for o in value.objs)
    inner = [o for value in (*obj.arguments, *obj.keywords.values()) for o in value.objs]
    if obj.kind == "expr" and obj.site is not None:
        inner += [o for values in facts.machine.operands.get(obj.site, ()) for value in values for o in value.objs]
    return any(o is not obj and _counts_batches(facts, o, depth + 1) for o in inner)


EXAMPLES: list[tuple[str, str | None] | tuple[str, str | None, dict[str, int]]] = [
    (
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 4

for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / steps
        loss.backward()
        if (i + 1) % steps == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
    print(loss.item() * steps)
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
steps = 4
accelerator = Accelerator(gradient_accumulation_steps=steps)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    for i, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(loss.item())
""",
    ),
    (
        """\
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
args.steps = max(1, args.steps // int(os.environ.get("WORLD_SIZE", 1)))
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / args.steps
    loss.backward()
    if (i + 1) % args.steps == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
""",
        """\
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
accelerator = Accelerator()
args.steps = max(1, args.steps // accelerator.num_processes)
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accelerator.gradient_accumulation_steps = args.steps
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for i, (x, y) in enumerate(loader):
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
""",
    ),
    (
        """\
import argparse
import os

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=4)
args = parser.parse_args()
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / args.steps
    loss.backward()
    if (i + 1) % args.steps == 0 or i + 1 == len(loader):
        optimizer.step()
        optimizer.zero_grad()
        args.steps += 1
""",
        "S2A229",
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

for epoch in range(2):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        if i % 4 == 3:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator
from accelerate.utils import GradientAccumulationPlugin

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(2):
    model.zero_grad()
    accelerator.step = 0
    for i, (x, y) in enumerate(loader):
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss * 4)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
""",
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

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
""",
        """\
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator(gradient_accumulation_steps=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
""",
        {"gradient_accumulation_steps": 4},
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

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        None,
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

for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if i % 4 == 3 and i > 8:
        optimizer.step()
        optimizer.zero_grad()
""",
        "S2A411",
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

for x, y in loader:
    while len(x):
        loss = nn.functional.cross_entropy(model(x[:4]), y[:4])
        loss.backward()
        x, y = x[4:], y[4:]
    optimizer.step()
    optimizer.zero_grad()
""",
        "S2A412",
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
k = 4

for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) * (1 / k)
    loss.backward()
    if (i + 1) % k == 0:
        optimizer.step()
        optimizer.zero_grad()
""",
        "S2A413",
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

for i, (x, y) in enumerate(loader):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y) / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
""",
        "S2A414",
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

for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / 4
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
        "S2A415",
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

for i, (x, y) in enumerate(loader):
    loss = nn.functional.cross_entropy(model(x), y) / 4
    loss.backward()
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
        "S2A418",
        {"gradient_accumulation_steps": 2},
    ),
]
