"""The road: bytes -> Source -> abstract run -> Draft -> rehearsed run -> Decisions -> Changes -> Plans -> new bytes -> Results.

One road for a single script and for a project: the files that training runs through are read through a function that the caller gives,
converted together, and all of them or none.
"""

from __future__ import annotations

import ast
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from script2accel import birth
from script2accel.analysis import listing
from script2accel.analysis.facts import Facts, View
from script2accel.analysis.frameworks import at_work
from script2accel.analysis.machine import Machine
from script2accel.analysis.program import Program, Read
from script2accel.analysis.taught import faults
from script2accel.change.edits import CannotEditError
from script2accel.change.plan import Change, Plan
from script2accel.decisions import Decisions, Draft, draft, rehearse
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.errors import SourceError
from script2accel.knowledge.frameworks import FRAMEWORKS
from script2accel.launched import Launch, beside, find
from script2accel.options import Options
from script2accel.result import Outcome, Result, RoleLine
from script2accel.rules import load
from script2accel.source import Source
from script2accel.workflow.callers import outside_callers

CONTEST = Message("S2A900", Severity.ERROR, "`{loser}` and `{winner}` want to change the same text", "change this place by hand, and convert again")
LAYOUT = Message("S2A902", Severity.ERROR, "this place can't be edited: {why}", "put each statement on a line of its own, and convert again")
BROKEN = Message("S2A901", Severity.ERROR, "the converted text would not be right: {why}", "please report this script; nothing is written")
ALREADY = Message("S2A010", Severity.NOTE, "this file already uses Accelerate", "")
HANDED_ON = Message(
    "S2A012",
    Severity.ERROR,
    "the {role} made here goes to `{text}`, and no training loop is seen: the loop is in code that can't be read",
    "convert the script together with the file that holds the loop",
)
FRAMEWORK = Message(
    "S2A015",
    Severity.NOTE,
    "this file already uses {name}, which runs the training loop itself: there is no plain loop to convert",
    "see {docs}",
)
IN_THE_WAY = Message(
    "S2A013",
    Severity.ERROR,
    "`{name}` must take the accelerator, and {callers} calls it too, which can't be converted with this script",
    "convert those scripts first by hand, or give this script a copy of the function",
)
OF_SEVERAL_PROCESSES = frozenset(
    ("S2A103", "S2A205", "S2A207", "S2A212", "S2A217", "S2A225", "S2A601", "S2A603", "S2A604", "S2A611", "S2A612", "S2A613", "S2A614", "S2A701")
)
"""Rules and messages that have nothing to say of what a single process without an accelerator does."""
WORTH_READING = (b"torch", b"transformers", b"keras", b"fastai", b"mmengine")
Others = Callable[[], Iterable[str]]
MOST_ENTRIES = 8


def convert(source: bytes | str, options: Options = Options(), path: str = "train.py") -> Result:  # noqa: B008 (a frozen value)
    """Convert one script on its own. Reads and writes nothing; never raises on what the text holds.

    Text is taken as UTF-8. The result's `outcome` says how it ended, its `diagnostics` what is left to a person.
    """
    raw = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else source
    return convert_project({path: raw}, options)[0]


def convert_project(
    entries: Mapping[str, bytes],
    options: Options = Options(),  # noqa: B008 (a frozen value)
    read: Read | None = None,
    others: Others | None = None,
) -> list[Result]:
    """Convert entry scripts with the modules of their project that they import; one result for each entry and each file that changes.

    Paths are relative to the project's root, with forward slashes. `read` gives a file's bytes or None; `others` lists the project's files, so that
    scripts which call a changed function are found: they are converted in the same change, or the whole is refused.
    """
    failed: list[Result] = []
    parsed: list[Source] = []
    with _deep():
        for path, raw in entries.items():
            try:
                parsed.append(Source.parse(raw, path))
            except SourceError as error:
                said = Diagnostic(error.id, Severity.ERROR, error.line, error.column, error.message, "", (), path)
                failed.append(Result(path, Outcome.ERROR, raw, raw, diagnostics=(said,)))
        return failed + (_travel(parsed, options, read, others) if parsed else [])


@contextmanager
def _deep() -> Iterator[None]:
    """Room for the recursion that the deepest admitted tree needs; garbage isn't collected meanwhile (a quarter of the time, and little is found)."""
    old, collecting = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(old, 12_000))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(old)
        if collecting:
            gc.enable()


def _travel(parsed: list[Source], options: Options, read: Read | None, others: Others | None) -> list[Result]:
    """The road, once more with every script that calls what the first way would change."""
    results = Road(parsed, options, read).travel()
    spared: frozenset[tuple[str, str]] = frozenset()
    while others is not None and read is not None and results.changed and len(parsed) < MOST_ENTRIES:
        found = outside_callers(results.changed, results.program, read, others())
        fresh = {path: name for path, name in found.items() if path not in {s.path for s in parsed}}
        if not fresh:
            break
        units = {(results.program.of(unit).path, unit.name) for unit in results.changed if unit.name in fresh.values()}  # type: ignore[attr-defined]
        if units - spared:  # what others call keeps its signature where only output and downloads would want the accelerator
            spared |= units
            results = Road([Source.parse(s.raw, s.path) for s in parsed], options, read, spared).travel()
            continue
        more = []
        for path in fresh:
            try:
                more.append(Source.parse(read(path) or b"", path))
            except SourceError:
                return results.refused(IN_THE_WAY.at(0, name=fresh[path], callers=path))
        again = Road([Source.parse(s.raw, s.path) for s in parsed] + more, options, read, spared).travel()
        if any(r.outcome in (Outcome.REFUSED, Outcome.ERROR, Outcome.PARTIAL) for r in again.results):
            name = next(iter(fresh.values()))
            return results.refused(IN_THE_WAY.at(0, name=name, callers=" and ".join(f"`{p}`" for p in fresh)), *again.errors(set(fresh)))
        parsed, results = parsed + more, again
    return results.results


@dataclass
class Travelled:
    """What the road came to: the results, the units whose signature changes, the program."""

    results: list[Result]
    program: Program
    changed: list[ast.AST] = field(default_factory=list)

    def refused(self, *said: Diagnostic) -> list[Result]:
        """The same results with nothing to write, and the reason."""
        out = []
        for index, result in enumerate(self.results):
            extra = tuple(d if d.path else d.in_file(result.path) for d in said) if index == 0 else ()
            out.append(
                Result(
                    result.path, Outcome.REFUSED, result.before, result.before, (), (*result.diagnostics, *extra), result.roles, (), result.encoding
                )
            )
        return out

    def errors(self, paths: set[str]) -> list[Diagnostic]:
        """The errors that stand in some files."""
        return [d for r in self.results for d in r.errors if r.path in paths]


class Road:
    """Entry scripts on their way to results; `proving` what was converted, for which nobody reads what was understood."""

    def __init__(
        self, entries: list[Source], options: Options, read: Read | None, spared: frozenset[tuple[str, str]] = frozenset(), proving: bool = False
    ) -> None:
        self.options, self.spared, self.proving = options, spared, proving
        self.program = Program(entries, read, options.roles)
        self.said: dict[Source, list[Diagnostic]] = {}
        self.changes: dict[Source, list[Change]] = {}

    def travel(self) -> Travelled:
        """Go the whole way."""
        if not any(word in source.raw for source in self.program.entries for word in WORTH_READING) and self.program.read is None:
            return self._end(Outcome.NOT_TRAINING)
        self.facts = Facts(Machine(self.program).run())
        wrong = list(faults(self.facts))
        for source, one in wrong:
            self._take(source, one)
        if wrong:
            return self._end(Outcome.REFUSED)
        if any(_uses_accelerate(source) for source in self.program.sources if source.tree in self.facts.machine.imported):
            return self._checked()
        if not self.facts.backwards:
            return self._no_loop()
        plan = draft(self.facts, self.options)
        facts = Facts(rehearse(self.facts, plan)) if plan.prepares else self.facts
        decisions = self._ask_rules(facts, plan)
        return self._results(facts, decisions)

    def _ask_rules(self, facts: Facts, plan: Draft) -> Decisions:
        """What all rules have to say; once more with a global accelerator where nothing else reaches every place."""
        extra: set[ast.Module] = set()
        spared = self.spared
        while True:
            self.said, self.changes = {}, {}
            decisions = Decisions(facts, plan, self.options)
            decisions.global_modules |= extra
            decisions.spared = spared
            for source in self.program.sources:
                if source.tree in facts.machine.imported:
                    self._ask(View(facts, source), decisions)
            reach = list(birth.connect(facts, decisions))
            wanted = {item.tree for item in reach if isinstance(item, birth.Everywhere)}
            if wanted - extra:
                extra |= wanted
                continue
            idle = {(self.program.of(u).path, u.name) for u in decisions.unreached if not any(facts.inside(u, n) for n in decisions.essential_needs)}  # type: ignore[attr-defined]
            if idle - spared:  # only output and downloads would like the accelerator there: they do without
                spared |= idle
                continue
            self.spared = spared
            for item in reach:
                if not isinstance(item, birth.Everywhere):
                    self._take(*item)
            return decisions

    def _ask(self, view: View, decisions: Decisions) -> None:
        for rule in load():
            items = rule.rewrite(view, decisions)
            try:
                while True:
                    known = len(decisions.needs), len(decisions.essential_needs)
                    item = next(items, None)
                    if item is None:
                        break
                    if self._in_own_process(view, decisions, item):
                        del decisions.needs[known[0] :], decisions.essential_needs[known[1] :]
                    else:
                        self._take(view.source, item)
            except CannotEditError as error:
                self._take(view.source, LAYOUT.at(getattr(error.node, "lineno", 1), why=error.why))

    def _in_own_process(self, view: View, decisions: Decisions, item: Change | Diagnostic) -> bool:
        """Whether a finding is about cells beside a launch, which run in the notebook's own process, and nothing has to be done there."""
        launch = decisions.launch
        if launch is None or not view.source.notebook or (item.rule if isinstance(item, Change) else item.id) not in OF_SEVERAL_PROCESSES:
            return False
        elsewhere = isinstance(item, Diagnostic) and item.path not in ("", view.source.path)
        return not elsewhere and beside(view, launch, item.line)

    def _take(self, source: Source, item: Change | Diagnostic) -> None:
        if isinstance(item, Change):
            self.changes.setdefault(source, []).append(item)
        else:
            self.said.setdefault(source, []).append(item)

    # ends ------------------------------------------------------------------------------------------------

    def _checked(self) -> Travelled:
        """Files that use Accelerate are never changed: what a conversion would still change is a finding."""
        launch = find(self.facts, None, None)
        decisions = Decisions(self.facts, Draft(launch=launch if isinstance(launch, Launch) else None), self.options)
        for source in self.program.sources:
            if source.tree in self.facts.machine.imported:
                self._ask(View(self.facts, source), decisions)
        for source, changes in self.changes.items():
            for change in changes:
                if change.essential:
                    self._take(
                        source,
                        Diagnostic(
                            change.rule, Severity.ERROR, change.line, 1, f"not converted: {change.message}", f"see `script2accel rule {change.rule}`"
                        ),
                    )
        for entry in self.program.entries:
            self.said.setdefault(entry, []).insert(0, ALREADY.at(0))
        errors = any(d.severity is Severity.ERROR for said in self.said.values() for d in said)
        return self._end(Outcome.REFUSED if errors else Outcome.READY)

    def _no_loop(self) -> Travelled:
        if self._framework():
            return self._end(Outcome.NOT_TRAINING)
        for call in self.facts.calls:
            path = self.facts.path(call)
            if path.split(".")[0] in ("torch", "torchvision", "numpy") or "." not in path:
                continue
            for arg in (*call.args, *(k.value for k in call.keywords)):
                if self.facts.roles.of_node(arg) == "optimizer":
                    source = self.program.of(call)
                    self._take(source, HANDED_ON.at(call.lineno, call.col_offset + 1, role="optimizer", text=source.segment(call.func)))
                    return self._end(Outcome.REFUSED)
        return self._end(Outcome.NOT_TRAINING)

    def _framework(self) -> bool:
        """Whether a library runs the training; told, if so."""
        found = at_work(self.facts, FRAMEWORKS)
        if found is not None:
            place = found[1]
            self._take(self.program.of(place), FRAMEWORK.at(place.lineno, place.col_offset + 1, name=found[0].name, docs=found[0].docs))  # type: ignore[attr-defined]
        return found is not None

    def _end(self, outcome: Outcome) -> Travelled:
        shown = [s for s in self.program.sources if s in self.program.entries or any(d.severity is Severity.ERROR for d in self.said.get(s, ()))]
        return Travelled([self._result(source, outcome, source.raw, None) for source in shown], self.program)

    def _result(self, source: Source, outcome: Outcome, after: bytes, plan: Plan | None, facts: tuple[tuple[str, str], ...] = ()) -> Result:
        said = sorted(dict.fromkeys(self.said.get(source, ())), key=lambda d: (d.line, d.column, d.id))
        changes = tuple(sorted(plan.applied, key=lambda change: change.line)) if plan is not None else ()
        roles = self._roles(source) if outcome is not Outcome.NOT_TRAINING or hasattr(self, "facts") else ()
        return Result(
            source.path,
            outcome,
            source.raw,
            after,
            changes,
            tuple(d if d.path else d.in_file(source.path) for d in said),
            roles,
            facts,
            source.encoding,
            plan,
        )

    def _roles(self, source: Source) -> tuple[RoleLine, ...]:
        return tuple(RoleLine(*line) for line in listing.lines(self.facts.roles, source)) if hasattr(self, "facts") and not self.proving else ()

    def _results(self, facts: Facts, decisions: Decisions) -> Travelled:
        plans = {source: Plan.close(source, changes) for source, changes in self.changes.items()}
        for source, plan in plans.items():
            for loser, winner in plan.contested:
                self._take(source, CONTEST.at(loser.line, loser=loser.name, winner=winner.name))
        if not plans and not self._errors():
            return self._end(Outcome.READY)
        after = {source: plan.render() for source, plan in plans.items()}
        if not self._errors():
            self._prove(after)
        outcome = Outcome.CONVERTED if not self._errors() else Outcome.PARTIAL if self._unfinished() else Outcome.REFUSED
        writes = outcome is Outcome.CONVERTED or (outcome is Outcome.PARTIAL and self.options.partial)
        wrong = {s for s, said in self.said.items() if any(d.severity is Severity.ERROR for d in said)}
        concerned = set(self.said) | set(plans) if outcome is Outcome.CONVERTED else wrong
        shown = [s for s in self.program.sources if s in concerned or s in self.program.entries]
        results = []
        for source in shown:
            entry = source in self.program.entries
            text = after.get(source, source.raw) if writes else source.raw
            told = tuple(_summary(facts, self.options, source, decisions.launch)) if entry and outcome is not Outcome.REFUSED else ()
            results.append(self._result(source, outcome, text, plans.get(source) if outcome is not Outcome.REFUSED else None, told))
        return Travelled(results, self.program, decisions.changed if outcome is Outcome.CONVERTED else [])

    def _errors(self) -> list[Diagnostic]:
        return [d for said in self.said.values() for d in said if d.severity is Severity.ERROR]

    def _unfinished(self) -> bool:
        """Whether every error leaves one place unfinished, rather than making any conversion wrong."""
        return bool(self.changes) and not any(d.id[3] in "0234589" for d in self._errors())

    def _prove(self, after: dict[Source, bytes]) -> None:
        """Compile and check what would be written: a text that doesn't pass is not offered."""
        texts = {source.path: raw for source, raw in after.items()}
        entries = []
        for source in self.program.sources:
            raw = texts.get(source.path, source.raw)
            try:
                converted = Source.parse(raw, source.path)
                compile(converted.tree, "<converted>", "exec", dont_inherit=True)
            except (SourceError, SyntaxError) as error:
                self._take(source, _never_ran(source) or BROKEN.at(0, why=str(error)))
                return
            if source in self.program.entries:
                entries.append(converted)
        old = self.program.read
        read = (lambda path: texts[path] if path in texts else old(path)) if old is not None else None
        again = Road(entries, self.options, read, self.spared, proving=True).travel()
        for result in again.results:
            for found in result.errors:
                where = next((s for s in self.program.sources if s.path == result.path), self.program.entries[0])
                self._take(where, BROKEN.at(0, why=f"line {found.line} of the new text: {found.id} {found.message}"))


def _uses_accelerate(source: Source) -> bool:
    return any(
        (isinstance(n, ast.ImportFrom) and (n.module or "").split(".")[0] == "accelerate" and n.level == 0)
        or (isinstance(n, ast.Import) and any(a.name.split(".")[0] == "accelerate" for a in n.names))
        for n in source.nodes
    )


def _never_ran(source: Source) -> Diagnostic | None:
    """What is wrong with a script that parses and yet is no program, such as one with a `return` outside of functions."""
    try:
        compile(source.tree, "<script>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return Diagnostic("S2A003", Severity.ERROR, error.lineno or 0, error.offset or 1, f"syntax error: {error.msg}", "mend it, and convert again")
    return None


def _summary(facts: Facts, options: Options, source: Source, launch: Launch | None) -> Iterator[tuple[str, str]]:
    sizes = []
    for loop in facts.train_loops:
        for loader in loop.loaders:
            call = loader.site
            if isinstance(call, ast.Call):
                node = next((k.value for k in call.keywords if k.arg == "batch_size"), call.args[1] if len(call.args) > 1 else None)
                sizes.append(facts.source.segment(node) if node is not None else "the loader's batch size")
    size = sizes[0] if sizes else "the script's batch size"
    if source.notebook and launch is None:
        yield "global batch", f"{size}: the cells train in one process"
        return
    if options.batch == "global":
        yield "global batch", f"{size} (split over the processes; it must be a multiple of their number), as many optimizer steps per epoch as before"
    else:
        shared = " that take different batches (dp_replicate x dp_shard)" if options.grouped else ""
        yield "global batch", f"{size} x number of processes{shared}; optimizer steps per epoch are divided by the number of processes"
    count = options.num_processes or (options.sizes.total if options.sizes.total > 1 else None)
    if launch is not None:
        yield "launch", f"the cell itself: `notebook_launcher` starts {launch.count} processes"
        return
    many = f"--multi_gpu --num_processes {count} " if options.parallel and options.parallelism == "in-script" and count and count > 1 else ""
    yield "launch", f"accelerate launch {many}{source.path}"
