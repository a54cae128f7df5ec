"""The road of one file: bytes -> Source -> abstract run -> Draft -> rehearsed run -> Decisions -> Changes -> Plan -> new bytes -> Result."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from script2accel import birth
from script2accel.analysis import listing
from script2accel.analysis.facts import Facts
from script2accel.analysis.machine import Machine
from script2accel.change.edits import CannotEditError
from script2accel.change.plan import Change, Plan
from script2accel.decisions import Decisions, Draft, draft, rehearse
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.errors import SourceError
from script2accel.options import Options
from script2accel.result import Outcome, Result, RoleLine
from script2accel.rules import load
from script2accel.source import Source

CONTEST = Message("S2A900", Severity.ERROR, "`{loser}` and `{winner}` want to change the same text", "change this place by hand, and convert again")
LAYOUT = Message("S2A902", Severity.ERROR, "this place can't be edited: {why}", "put each statement on a line of its own, and convert again")
BROKEN = Message("S2A901", Severity.ERROR, "the converted text would not be right: {why}", "please report this script; nothing is written")
ALREADY = Message("S2A010", Severity.NOTE, "this file already uses Accelerate", "")
FRAMEWORK = Message("S2A011", Severity.NOTE, "training runs inside {name}, which distributes it itself", "")
HANDED_ON = Message(
    "S2A012",
    Severity.ERROR,
    "the {role} made here goes to `{text}`, and no training loop stands in this file: the loop is in another one",
    "convert the file that holds the loop (projects of several files aren't converted yet)",
)


def convert(source: bytes | str, options: Options = Options(), path: str = "train.py") -> Result:  # noqa: B008 (a frozen value)
    """Convert one script. Reads and writes nothing; never raises on what the text holds.

    Text is taken as UTF-8. The result's `outcome` says how it ended, its `diagnostics` what is left to a person.
    """
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    try:
        with _deep():
            parsed = Source.parse(raw, path)
            if b"torch" not in raw:
                return Result(path, Outcome.NOT_TRAINING, raw, raw, encoding=parsed.encoding)
            return _Road(parsed, options).travel()
    except SourceError as error:
        said = Diagnostic(error.id, Severity.ERROR, error.line, error.column, error.message, "", (), path)
        return Result(path, Outcome.ERROR, raw, raw, diagnostics=(said,))


@contextmanager
def _deep() -> Iterator[None]:
    """Room for the recursion that the deepest admitted tree needs."""
    old = sys.getrecursionlimit()
    sys.setrecursionlimit(max(old, 12_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(old)


class _Road:
    """One parsed file on its way to a Result."""

    def __init__(self, source: Source, options: Options) -> None:
        self.source, self.options = source, options
        self.facts = Facts(Machine(source).run())

    def travel(self) -> Result:
        if self._uses_accelerate():
            return self._checked()
        if not self.facts.backwards:
            return self._no_loop()
        plan = draft(self.facts)
        facts = Facts(rehearse(self.facts, plan)) if plan.prepares else self.facts
        found = self._found(facts, plan)
        changes = [item for item in found if isinstance(item, Change)]
        said = [item for item in found if isinstance(item, Diagnostic)]
        closed = Plan.close(self.source, changes)
        said += [CONTEST.at(loser.line, loser=loser.name, winner=winner.name) for loser, winner in closed.contested]
        return self._result(closed, said, facts)

    def _found(self, facts: Facts, plan: Draft) -> list[object]:
        """What all rules have to say; once more with a global accelerator where nothing else reaches every place."""
        everywhere = False
        while True:
            decisions = Decisions(facts, plan, self.options)
            decisions.everywhere = decisions.everywhere or everywhere
            found: list[object] = []
            for rule in load():
                try:
                    found += list(rule.rewrite(facts, decisions))
                except CannotEditError as error:
                    found.append(LAYOUT.at(getattr(error.node, "lineno", 1), why=error.why))
            reach = list(birth.connect(facts, decisions))
            if not everywhere and any(isinstance(item, birth.Everywhere) for item in reach):
                everywhere = True
                continue
            return found + reach

    # ends ------------------------------------------------------------------------------------------------

    def _uses_accelerate(self) -> bool:
        return any(
            (isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "accelerate" and n.level == 0)
            or (isinstance(n, ast.Import) and any(a.name.split(".")[0] == "accelerate" for a in n.names))
            for n in self.source.nodes
        )

    def _checked(self) -> Result:
        """A file that uses Accelerate is never changed: what a conversion would still change is a finding."""
        decisions = Decisions(self.facts, Draft(), self.options)
        said: list[Diagnostic] = [ALREADY.at(0)]
        for rule in load():
            for item in rule.rewrite(self.facts, decisions):
                if isinstance(item, Change) and item.essential:
                    said.append(Diagnostic(item.rule, Severity.ERROR, item.line, 1, f"not converted: {item.message}", f"see `script2accel rule {item.rule}`"))
                elif isinstance(item, Diagnostic):
                    said.append(item)
        errors = any(d.severity is Severity.ERROR for d in said)
        return self._end(Outcome.REFUSED if errors else Outcome.READY, said)

    def _no_loop(self) -> Result:
        for call in self.facts.calls:
            path = self.facts.path(call)
            if path.split(".")[0] in ("torch", "torchvision", "numpy") or "." not in path:
                continue
            for arg in (*call.args, *(k.value for k in call.keywords)):
                if self.facts.roles.of_node(arg) == "optimizer":
                    said = HANDED_ON.at(call.lineno, call.col_offset + 1, role="optimizer", text=self.source.segment(call.func))
                    return self._end(Outcome.REFUSED, [said])
        return self._end(Outcome.NOT_TRAINING, [])

    def _end(self, outcome: Outcome, said: list[Diagnostic]) -> Result:
        return Result(
            self.source.path,
            outcome,
            self.source.raw,
            self.source.raw,
            diagnostics=tuple(d.in_file(self.source.path) for d in _sorted(said)),
            roles=self._roles(),
            encoding=self.source.encoding,
        )

    def _roles(self) -> tuple[RoleLine, ...]:
        return tuple(RoleLine(*line) for line in listing.lines(self.facts.roles))

    def _result(self, plan: Plan, said: list[Diagnostic], facts: Facts) -> Result:
        errors = any(d.severity is Severity.ERROR for d in said)
        if not plan.applied and not errors:
            return self._end(Outcome.READY, said)
        after = plan.render()
        if not errors:
            said += self._proved(after)
            errors = any(d.severity is Severity.ERROR for d in said)
        outcome = Outcome.CONVERTED if not errors else Outcome.PARTIAL if _converts(plan) and not _stops(said) else Outcome.REFUSED
        writes = outcome is Outcome.CONVERTED or (outcome is Outcome.PARTIAL and self.options.partial)
        changes = tuple(sorted(plan.applied, key=lambda change: change.line)) if outcome is not Outcome.REFUSED else ()
        return Result(
            self.source.path,
            outcome,
            self.source.raw,
            after if writes else self.source.raw,
            changes,
            tuple(d.in_file(self.source.path) for d in _sorted(said)),
            self._roles(),
            tuple(_summary(facts, self.options, self.source.path)) if outcome is not Outcome.REFUSED else (),
            self.source.encoding,
            plan if outcome is not Outcome.REFUSED else None,
        )

    def _proved(self, after: bytes) -> list[Diagnostic]:
        """Compile and check what would be written: a text that doesn't pass is not offered."""
        try:
            converted = Source.parse(after, self.source.path)
            compile(converted.tree, "<converted>", "exec", dont_inherit=True)
        except (SourceError, SyntaxError) as error:
            return [BROKEN.at(0, why=str(error))]
        result = _Road(converted, self.options).travel()
        return [BROKEN.at(0, why=f"line {d.line} of the new text: {d.id} {d.message}") for d in result.errors]


def _converts(plan: Plan) -> bool:
    return any("backward" in change.name for change in plan.applied)


def _stops(said: list[Diagnostic]) -> bool:
    """Whether something makes any conversion wrong, rather than one place unfinished."""
    return any(d.severity is Severity.ERROR and d.id[3] in "234589" for d in said)


def _sorted(said: list[Diagnostic]) -> list[Diagnostic]:
    return sorted(dict.fromkeys(said), key=lambda d: (d.line, d.column, d.id))


def _summary(facts: Facts, options: Options, path: str) -> Iterator[tuple[str, str]]:
    sizes = []
    for loop in facts.train_loops:
        for loader in loop.loaders:
            call = loader.site
            if isinstance(call, ast.Call):
                node = next((k.value for k in call.keywords if k.arg == "batch_size"), call.args[1] if len(call.args) > 1 else None)
                sizes.append(facts.source.segment(node) if node is not None else "the loader's batch size")
    size = sizes[0] if sizes else "the loader's batch size"
    if options.batch == "global":
        yield "global batch", f"{size} (split over the processes; it must be a multiple of their number), as many optimizer steps per epoch as before"
    else:
        yield "global batch", f"{size} x number of processes; optimizer steps per epoch are divided by the number of processes"
    yield "launch", f"accelerate launch {path}"
