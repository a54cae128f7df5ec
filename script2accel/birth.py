"""The accelerator: born once, where an entry function starts, and handed to everything that needs it.

It is born in the deepest function (or class, as `self.accelerator`) through which every path to its uses goes and that runs once; where
training stands at module level, it is a global of the script. Other functions get it as a parameter, at their definition and at every call,
across files.
Left alone when nothing needs it. Refused when a call site can't be seen: a function that is handed on as a value.
Source: https://huggingface.co/docs/accelerate/basic_tutorials/migration#accelerator
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from script2accel.analysis.facts import FUNCTIONS, Facts, Function
from script2accel.analysis.origins import NotKnownError
from script2accel.analysis.values import NOTHING, Obj
from script2accel.analysis.wrappers import narrow_decorator
from script2accel.change.edits import CannotEditError, add_argument, add_before, add_parameter, merge
from script2accel.change.plan import Change, Edit, Lines
from script2accel.construction import BIRTH, birth_lines, known, late_count
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.source import Source

CODE, NAME = "S2A204", "accelerator"
UNREACHED = Message(
    "S2A227",
    Severity.ERROR,
    "`{name}` needs the accelerator and can't be given it: {why}",
    "pass it by hand, or call the function directly, and convert again",
)
DEAD = Message(
    "S2A228",
    Severity.WARNING,
    "`{name}` is called nowhere in this file; it now takes `{accelerator}` as its first argument",
    "whoever calls it must pass the accelerator",
)
OUTSIDE = Message(
    "S2A824",
    Severity.ERROR,
    "this place needs the accelerator, and is reached from a cell without going through `{name}`, the function that is launched",
    "move it into that function, or convert for one process (`--num-processes 1`)",
)
LATE = Message(
    "S2A229",
    Severity.ERROR,
    "the accelerator is born in line {born} and must know `{text}`: {why}",
    "set it before the device, the model and the optimizer, in the function that makes them, and convert again",
)
Unit = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Everywhere:
    """The answer when only a module global reaches every place that needs the accelerator."""

    tree: ast.Module


Said = tuple[Source, "Change | Diagnostic"]


def connect(facts: Facts, decisions: Decisions) -> Iterator[Said | Everywhere]:
    """The accelerator's birth in each entry, and its way to every place that rules asked for it."""
    if not decisions.needs:
        return
    needs = Needs(facts, decisions)
    decisions.handovers = [site for unit in needs.callers for site in needs.sites(unit)]
    homes: list[Unit] = []
    for entry in facts.source.entries:
        reached = needs.reached(entry.tree)
        wanted = [u for u in needs.units if u in reached]
        if not wanted:
            continue
        if entry.tree in decisions.global_modules:
            homes.append(entry.tree)
            continue
        home = needs.home(wanted, reached)
        launch = decisions.launch
        if isinstance(home, ast.Module) and launch is not None and not launch.done and entry.tree is facts.source.root(launch.calls[0]):
            outside = [n for n in decisions.needs if needs.unit(n) in wanted and not needs.gated(n, launch.function, reached)]
            yield from ((facts.source.of(n), OUTSIDE.at(getattr(n, "lineno", 1), name=launch.function.name)) for n in outside[:1])
            home = launch.function
        if isinstance(home, ast.Module):
            yield Everywhere(entry.tree)
            return
        homes.append(home)
    met = frozenset().union(*(needs.reached(e.tree) for e in facts.source.entries))
    loose = [u for u in needs.units if u not in met and not isinstance(u, ast.Module)]
    if not homes and loose:
        home = needs.home(loose, set(needs.callers))
        if isinstance(home, ast.Module):
            yield from ((facts.source.of(u), UNREACHED.at(u.lineno, name=u.name, why="nothing in this file calls it")) for u in loose[:1])
            return
        homes.append(home)
    for home in homes:
        yield _birth(facts, decisions, home)
    yield from _carried(facts, decisions, needs, set(homes))


def selfless(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """`classmethod` or `staticmethod` where a method is one, else ''."""
    return next((word for d in function.decorator_list if (word := ast.unparse(d)) in ("classmethod", "staticmethod")), "")


class Needs:
    """Which functions and classes need the accelerator, and who calls them."""

    def __init__(self, facts: Facts, decisions: Decisions) -> None:
        self.facts, self.decisions = facts, decisions
        self.units = list(dict.fromkeys(self.unit(node) for node in decisions.needs))
        self.units = list(dict.fromkeys(u for unit in self.units for u in (unit, *self._below(unit))))
        self.callers: dict[Unit, list[Unit]] = {}
        waiting = list(self.units)
        while waiting:
            unit = waiting.pop()
            if unit not in self.callers:
                self.callers[unit] = list(dict.fromkeys(self.unit(site) for site in self.sites(unit)))
                waiting += self.callers[unit]
                mates = [mate for mate in self._mates(unit) if mate not in self.units]
                self.units += mates
                waiting += mates

    def _mates(self, unit: Unit) -> list[Unit]:
        """The functions that a call of a function may call in its stead, as one out of a table is called: they take what it takes."""
        if not isinstance(unit, FUNCTIONS) or not isinstance(self.facts.source.scope(unit), ast.Module):
            return []
        called = [o.site for site in self.sites(unit) for o in self.facts.machine.at[site.func].objs if o.kind == "function" and o.site is not unit]
        return [node for node in dict.fromkeys(called) if isinstance(node, FUNCTIONS) and isinstance(self.facts.source.scope(node), ast.Module)]

    def stranger(self, unit: Unit, site: ast.Call) -> str:
        """What a call may call instead of a function or class, and what doesn't take the accelerator, or ''."""
        kin = {unit, *(self.inheriting(unit) if isinstance(unit, ast.ClassDef) else ())}
        objs = self.facts.machine.at.get(site.func, NOTHING).objs
        if not any(o.site in kin for o in objs):  # a launcher, which is given the function
            return ""
        for obj in sorted(objs, key=lambda o: o.number):
            node = self._constructed(obj.site) if isinstance(obj.site, ast.ClassDef) else obj.site
            if obj.kind == "external" or (obj.kind in ("function", "class") and node not in kin and obj.site not in kin and node not in self.units):
                return str(obj.name)
        return ""

    def unit(self, node: ast.AST) -> Unit:
        """The outermost function, or the class (that whose constructor runs), that a place belongs to."""
        found: Unit = self.facts.source.root(node)
        for parent in (node, *self.facts.source.ancestors(node)):
            if isinstance(parent, ast.ClassDef) or (
                isinstance(parent, FUNCTIONS) and not (parent is node and isinstance(self.facts.source.parents[parent], ast.ClassDef))
            ):
                found = parent
            if isinstance(parent, FUNCTIONS) and parent is not node and selfless(parent):
                return parent  # a class method has no instance yet: it takes the accelerator itself
        return self._constructed(found) if isinstance(found, ast.ClassDef) else found

    @cached_property
    def _classes(self) -> dict[ast.AST | None, list[Obj]]:
        """Definition -> the classes that it makes."""
        table: dict[ast.AST | None, list[Obj]] = defaultdict(list)
        for cls in self.facts.machine.bases:
            table[cls.site].append(cls)
        return table

    @cached_property
    def _made(self) -> dict[ast.AST | None, list[Obj]]:
        """Definition -> the instances of the class."""
        table: dict[ast.AST | None, list[Obj]] = defaultdict(list)
        for cls, instances in self.facts.machine.instances.items():
            table[cls.site] += instances
        return table

    @cached_property
    def _descendants(self) -> dict[ast.AST | None, list[ast.ClassDef]]:
        """Definition -> the classes of which there are instances and that have it as an ancestor."""
        machine = self.facts.machine
        table: dict[ast.AST | None, list[ast.ClassDef]] = defaultdict(list)
        for cls in machine.instances:
            own = cls.site
            if isinstance(own, ast.ClassDef):
                for site in {o.site for o in machine.ancestors(cls)} - {own}:
                    table[site].append(own)
        return table

    @cached_property
    def _inheriting(self) -> dict[ast.ClassDef, list[ast.ClassDef]]:
        """Class -> the other classes that inherit its constructor."""
        table: dict[ast.ClassDef, list[ast.ClassDef]] = defaultdict(list)
        for cls in self.facts.machine.bases:
            if isinstance(cls.site, ast.ClassDef) and (owner := self._constructed(cls.site)) is not cls.site:
                table[owner].append(cls.site)
        return table

    def _constructed(self, cls: ast.ClassDef) -> ast.ClassDef:
        """The class itself, or the nearest one below it in the project whose `__init__` it inherits."""
        machine = self.facts.machine
        objects = self._classes.get(cls, []) if constructor(cls) is None else []
        found = [f.site for o in objects for f in (machine.lookup(o, "__init__") or NOTHING).objs if f.kind == "function"]
        owner = self.facts.source.scope(found[0]) if found and found[0] is not None else None
        return owner if isinstance(owner, ast.ClassDef) else cls

    def inheriting(self, unit: Unit) -> list[ast.ClassDef]:
        """The classes whose instances a class's constructor makes, since they have none of their own."""
        return self._inheriting.get(unit, []) if isinstance(unit, ast.ClassDef) else []

    def _below(self, unit: Unit) -> list[Unit]:
        """The classes with an `__init__` of their own whose instances run a class's methods: each of them must hold the accelerator."""
        return [self._constructed(cls) for cls in self._descendants.get(unit, ())] if isinstance(unit, ast.ClassDef) else []

    def sites(self, unit: Unit) -> list[ast.Call]:
        """The calls that run a function, or make an instance of a class."""
        if isinstance(unit, ast.Module):
            return []
        if isinstance(unit, ast.ClassDef):
            made = [o.site for o in self._made.get(unit, ())]
            function = constructor(unit)
            run = self.facts.callers(function) if function is not None else []  # `super().__init__(...)`, and those that inherit it
            return list(dict.fromkeys(site for site in (*made, *run) if isinstance(site, ast.Call)))
        return self.facts.callers(unit)

    def reached(self, tree: ast.Module) -> set[Unit]:
        """The units on a path from a script's module body to a need."""
        found: set[Unit] = set()
        waiting: list[Unit] = [tree]
        while waiting:
            unit = waiting.pop()
            if unit not in found:
                found.add(unit)
                waiting += self._called_by.get(unit, ())
        return found

    @cached_property
    def _called_by(self) -> dict[Unit, list[Unit]]:
        """Unit -> the units on a path to a need that it calls."""
        table: dict[Unit, list[Unit]] = defaultdict(list)
        for unit, above in self.callers.items():
            for caller in above:
                table[caller].append(unit)
        return table

    def home(self, wanted: Sequence[Unit], reached: set[Unit]) -> Unit:
        """The deepest function or class through which every path to a need goes, and which runs once."""
        candidates = [u for u in self.callers if not isinstance(u, ast.Module) and u in reached and self._once(u) and self._gates(wanted, u, reached)]
        for candidate in candidates:
            if self._gates([candidate], candidate, reached) and all(self._through(candidate, other, reached, frozenset()) for other in candidates):
                return candidate
        return next((u for u in reached if isinstance(u, ast.Module)), self.facts.source.tree)

    def gated(self, node: ast.AST, gate: Unit, reached: set[Unit]) -> bool:
        """Whether every path to a place goes through a function."""
        return self._gates([self.unit(node)], gate, reached)

    def _gates(self, wanted: Sequence[Unit], gate: Unit, reached: set[Unit]) -> bool:
        return all(self._through(unit, gate, reached, frozenset()) for unit in wanted)

    def _through(self, unit: Unit, gate: Unit, reached: set[Unit], seen: frozenset[Unit]) -> bool:
        if unit is gate:
            return True
        if isinstance(unit, ast.Module):
            return False
        if unit in seen:
            return True
        above = [u for u in self.callers[unit] if u in reached]
        return bool(above) and all(self._through(other, gate, reached, seen | {unit}) for other in above)

    def _once(self, unit: Unit) -> bool:
        sites = self.sites(unit)
        return len(sites) <= 1 and not any(self.facts.all_loops(site) for site in sites)


# birth ---------------------------------------------------------------------------------------------------


def _birth(facts: Facts, decisions: Decisions, home: Unit) -> Said:
    source = facts.source.of(home)
    scope = constructor(home) if isinstance(home, ast.ClassDef) else home
    if scope is None:
        return source, UNREACHED.at(home.lineno, name=home.name, why="its class has no `__init__`")  # type: ignore[union-attr]
    anchor = _birthplace(facts, decisions, home, scope)
    owner = f"{scope.args.args[0].arg}." if isinstance(home, ast.ClassDef) and not isinstance(scope, ast.Module) else ""
    try:
        late = late_count(facts, decisions, scope, anchor)
        code, imports = birth_lines(facts, decisions, source, f"{owner}{decisions.name}")
        imports = [_above(anchor, edit) for edit in imports] if isinstance(home, ast.Module) else imports
        code, hoisted = known(facts, decisions, source, scope, anchor, code)
        edits = merge([*hoisted, add_before(source, anchor, code, rank=BIRTH), *imports, *late])
    except NotKnownError as error:
        where = facts.source.of(error.node)
        return where, LATE.at(getattr(error.node, "lineno", 1), born=anchor.lineno, text=where.segment(error.node), why=error.why)
    except CannotEditError as error:
        return source, UNREACHED.at(getattr(error.node, "lineno", 1), name=getattr(home, "name", "the module"), why=error.why)
    return source, Change(
        CODE, NAME, "one accelerator, born before what it prepares", anchor.lineno, edits, gives=frozenset({"accelerator"}), source="R01"
    )


def _birthplace(facts: Facts, decisions: Decisions, home: Unit, scope: Function) -> ast.stmt:
    """The statement in front of which the accelerator is born."""
    if isinstance(home, ast.Module):
        return _module_anchor(facts, decisions, home)
    return _first(scope.body) if isinstance(home, ast.ClassDef) else _earliest(facts, decisions, scope.body)


def _first(body: list[ast.stmt]) -> ast.stmt:
    """The first statement behind the docstring."""
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)
    return body[1] if documented and len(body) > 1 else body[0]


def constructor(cls: ast.ClassDef) -> ast.FunctionDef | None:
    """A class's own `__init__`."""
    return next((s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)


def _earliest(facts: Facts, decisions: Decisions, body: list[ast.stmt]) -> ast.stmt:
    """The first statement of a block that needs the accelerator, itself or in what it calls."""
    found = [index for node in (*decisions.needs, *decisions.handovers) for index in facts.places(body, node)]
    return body[min(found)] if found else _first(body)


def _module_anchor(facts: Facts, decisions: Decisions, tree: ast.Module) -> ast.stmt:
    anchor = _earliest(facts, decisions, tree.body)
    if isinstance(anchor, ast.If) and facts.machine.truth(anchor.test):
        anchor = _earliest(facts, decisions, anchor.body)
    return anchor


def _above(anchor: ast.stmt, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """An import must stand in front of the birth, also where the script imports further below."""
    return tuple(Lines(anchor.lineno, e.text, False, BIRTH - 1) if isinstance(e, Lines) and e.line >= anchor.lineno else e for e in edits)


# the way to the needs ---------------------------------------------------------------------------------------


def _carried(facts: Facts, decisions: Decisions, needs: Needs, homes: set[Unit]) -> Iterator[Said]:
    """Parameters and arguments for every function and class on the way from a home to the needs."""
    done: set[Unit] = set(homes)
    waiting = [u for u in needs.units if u not in done]
    while waiting:
        unit = waiting.pop(0)
        if unit in done:
            continue
        done.add(unit)
        if isinstance(unit, ast.Module):
            if unit not in decisions.global_modules:
                node = next(n for n in decisions.needs if needs.unit(n) is unit)
                yield (
                    facts.source.of(unit),
                    UNREACHED.at(getattr(node, "lineno", 1), name="the module", why="it runs when it is imported, before an accelerator exists"),
                )
            continue
        if decisions.is_global(unit):
            continue
        sites = needs.sites(unit)
        if not sites and not isinstance(unit, ast.ClassDef):
            yield facts.source.of(unit), DEAD.at(unit.lineno, name=unit.name, accelerator=decisions.name)
        waiting += [needs.unit(site) for site in sites]
        yield from _give(facts, decisions, needs, unit, sites)


def _pickled(facts: Facts, cls: ast.ClassDef) -> ast.Call | None:
    """A call that saves an instance of a class, on its own or in a dictionary or list."""
    for call in facts.calls:
        if facts.path(call) not in ("torch.save", "pickle.dump", "pickle.dumps", "joblib.dump", "copy.deepcopy"):
            continue
        objs = {o for arg in call.args for o in facts.machine.at[arg].objs}
        objs |= {inner for o in list(objs) if o.kind in ("dict", "list", "tuple") for inner in facts.machine.anything_in(o).objs}
        if any(o.kind == "instance" and o.base is not None and o.base.site is cls for o in objs):
            return call
    return None


def _give(
    facts: Facts, decisions: Decisions, needs: Needs, unit: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, sites: list[ast.Call]
) -> Iterator[Said]:
    source, name = facts.source.of(unit), decisions.name
    function = constructor(unit) if isinstance(unit, ast.ClassDef) else unit
    decisions.unreached.append(unit)
    if function is None:
        yield source, UNREACHED.at(unit.lineno, name=unit.name, why="its class has no `__init__`")
        return
    pickled = _pickled(facts, unit) if isinstance(unit, ast.ClassDef) else None
    if pickled is not None:
        yield (
            facts.source.of(pickled),
            UNREACHED.at(pickled.lineno, name=unit.name, why="its instances are saved here, and an accelerator can't be pickled"),
        )
        return
    escapes = facts.machine.escapes.get(unit, [])
    if escapes and not isinstance(unit, ast.ClassDef):
        yield (
            facts.source.of(escapes[0]),
            UNREACHED.at(getattr(escapes[0], "lineno", 1), name=unit.name, why="it is handed on as a value, so not all its calls can be seen"),
        )
        return
    if narrow := narrow_decorator(facts, unit) if not isinstance(unit, ast.ClassDef) else "":
        yield source, UNREACHED.at(unit.lineno, name=unit.name, why=f"what its decorator `{narrow}` puts in its stead takes no more arguments")
        return
    edits: dict[Source, list[tuple[Edit, ...]]] = {source: []}
    try:
        if isinstance(unit, ast.ClassDef):
            owner = function.args.args[0].arg
            edits[source] += [
                add_parameter(source, function, name, method=True),
                add_before(source, _first(function.body), f"{owner}.{name} = {name}", rank=BIRTH),
            ]
        else:
            edits[source].append(add_parameter(source, function, name, method=selfless(function) == "classmethod"))
    except CannotEditError as error:
        yield source, UNREACHED.at(unit.lineno, name=unit.name, why=error.why)
        return
    for site in sites:
        if not isinstance(site.func, (ast.Name, ast.Attribute)) or _names_class(site):
            yield facts.source.of(site), UNREACHED.at(site.lineno, name=unit.name, why="this call can't be followed")
            return
        if other := needs.stranger(unit, site):
            yield facts.source.of(site), UNREACHED.at(site.lineno, name=unit.name, why=f"this call may also call `{other}`, which doesn't take it")
            return
        edits.setdefault(facts.source.of(site), []).append(add_argument(facts.source.of(site), site, decisions.spoken(site), first=True))
    decisions.unreached.remove(unit)
    decisions.changed += [unit, *needs.inheriting(unit)]
    for where, found in edits.items():
        line = function.lineno if where is source else min(site.lineno for site in sites if facts.source.of(site) is where)
        given = frozenset({"accelerator"}) if len(facts.source.sources) == 1 else frozenset()
        yield (
            where,
            Change(
                CODE, NAME, f"`{unit.name}` uses the accelerator: it is handed to it at every call", line, merge(found), needs=given, source="R01"
            ),
        )


def _names_class(site: ast.Call) -> bool:
    """Whether a call is `Base.__init__(self, ...)`, whose first argument is the instance."""
    func = site.func
    return isinstance(func, ast.Attribute) and func.attr == "__init__" and not isinstance(func.value, ast.Call)
