"""The accelerator: born once, where the entry function starts, and handed to everything that needs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, Facts
from script2accel.change.edits import CannotEditError, add_argument, add_before, add_parameter, ensure_import, merge
from script2accel.change.plan import Change, Edit
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity

CODE, NAME = "S2A204", "accelerator"
UNREACHED = Message(
    "S2A227",
    Severity.ERROR,
    "`{name}` needs the accelerator and can't be given it: {why}",
    "pass it by hand, or call the function directly, and convert again",
)
DEAD = Message("S2A228", Severity.WARNING, "`{name}` is called nowhere in this file; it now takes `{accelerator}` as its first argument", "whoever calls it must pass the accelerator")
BIRTH = -10  # in front of whatever else is put before the same statement
Unit = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class Everywhere:
    """The answer when only a module global reaches every place that needs the accelerator."""


def connect(facts: Facts, decisions: Decisions) -> Iterator[Change | Diagnostic | Everywhere]:
    """The accelerator's birth and its way to every place that rules asked for it."""
    if not decisions.needs:
        return
    needs = _Needs(facts, decisions)
    if decisions.everywhere:
        yield from _born_at_module(facts, decisions, needs)
        return
    home = needs.home()
    if isinstance(home, ast.Module):
        yield Everywhere()
        return
    try:
        yield _born(facts, decisions, needs, home)
    except CannotEditError as error:
        yield UNREACHED.at(getattr(error.node, "lineno", 1), name=home.name, why=error.why)
        return
    yield from _carried(facts, decisions, needs, home)


class _Needs:
    """Which functions and classes need the accelerator, and who calls them."""

    def __init__(self, facts: Facts, decisions: Decisions) -> None:
        self.facts, self.decisions = facts, decisions
        self.units = list(dict.fromkeys(self.unit(node) for node in decisions.needs))

    def unit(self, node: ast.AST) -> Unit:
        """The outermost function, or the class, that a place belongs to."""
        found: Unit = self.facts.source.tree
        for parent in (node, *self.facts.source.ancestors(node)):
            if isinstance(parent, (*FUNCTIONS, ast.ClassDef)):
                if isinstance(parent, FUNCTIONS) and parent is node and isinstance(self.facts.source.parents[parent], ast.ClassDef):
                    continue
                found = parent
        if isinstance(found, ast.Module):
            return found
        return found

    def sites(self, unit: Unit) -> list[ast.Call]:
        """The calls that run a function, or make an instance of a class."""
        if isinstance(unit, ast.Module):
            return []
        if isinstance(unit, ast.ClassDef):
            made = [o.site for cls, objs in self.facts.machine.instances.items() if cls.site is unit for o in objs]
            return [site for site in made if isinstance(site, ast.Call)]
        return self.facts.callers(unit)

    def home(self) -> Unit:
        """The deepest function or class through which every path to a need goes, and which runs once."""
        table: dict[Unit, list[Unit]] = {}
        waiting = list(self.units)
        while waiting:
            unit = waiting.pop()
            if unit not in table:
                table[unit] = list(dict.fromkeys(self.unit(site) for site in self.sites(unit)))
                waiting += table[unit]
        alive = [u for u in self.units if isinstance(u, ast.Module) or table[u] or not self._has_entry()]
        candidates = [u for u in table if not isinstance(u, ast.Module) and self._once(u) and all(self._through(n, u, table, frozenset()) for n in alive)]
        for candidate in candidates:
            if all(self._through(candidate, other, table, frozenset()) for other in candidates):
                return candidate
        return self.facts.source.tree

    def _has_entry(self) -> bool:
        return any(isinstance(s, (ast.Expr, ast.If, ast.For, ast.Assign)) and any(isinstance(n, ast.Call) for n in ast.walk(s)) for s in self.facts.source.tree.body)

    def _through(self, unit: Unit, gate: Unit, table: dict[Unit, list[Unit]], seen: frozenset[Unit]) -> bool:
        if unit is gate:
            return True
        if isinstance(unit, ast.Module) or unit in seen:
            return unit in seen
        above = table[unit]
        return bool(above) and all(self._through(other, gate, table, seen | {unit}) for other in above)

    def _once(self, unit: Unit) -> bool:
        sites = self.sites(unit)
        return len(sites) <= 1 and not any(self.facts.all_loops(site) for site in sites)


def _construction(facts: Facts, decisions: Decisions) -> tuple[str, list[tuple[Edit, ...]]]:
    """`Accelerator(...)` with what the script and the options decided, and the imports that it takes."""
    options, arguments, imports = decisions.options, [], [ensure_import(facts.source, "accelerate", "Accelerator")]
    if options.mixed_precision is not None:
        arguments.append(f'mixed_precision="{options.mixed_precision}"')
    loader = [f"{name}=True" for name in ("split_batches", "non_blocking") if (name == "split_batches" and options.batch == "global") or name in decisions.arguments]
    if loader:
        arguments.append(f"dataloader_config=DataLoaderConfiguration({', '.join(loader)})")
        imports.append(ensure_import(facts.source, "accelerate.utils", "DataLoaderConfiguration"))
    return f"Accelerator({', '.join(arguments)})", imports


def _birth_lines(facts: Facts, decisions: Decisions, target: str) -> tuple[str, list[tuple[Edit, ...]]]:
    text, imports = _construction(facts, decisions)
    lines = [f"{target} = {text}"]
    from script2accel.analysis.randomness import seedings

    if decisions.options.seed is not None and not seedings(facts):
        lines.append(f"set_seed({decisions.options.seed})")
        imports.append(ensure_import(facts.source, "accelerate.utils", "set_seed"))
    return "\n".join(lines), imports


def _born(facts: Facts, decisions: Decisions, needs: _Needs, home: Unit) -> Change:
    if isinstance(home, ast.ClassDef):
        function = _constructor(home)
        if function is None:
            raise CannotEditError(home, "its class has no `__init__`")
        owner = function.args.args[0].arg
        anchor = _first(function.body)
        code, imports = _birth_lines(facts, decisions, f"{owner}.{decisions.name}")
    else:
        assert isinstance(home, FUNCTIONS)
        anchor = _earliest(facts, decisions, home.body)
        code, imports = _birth_lines(facts, decisions, decisions.name)
    edits = merge([add_before(facts.source, anchor, code, rank=BIRTH), *imports])
    return Change(CODE, NAME, "one accelerator, born before what it prepares", anchor.lineno, edits, gives=frozenset({"accelerator"}), source="R01")


def _first(body: list[ast.stmt]) -> ast.stmt:
    """The first statement behind the docstring."""
    documented = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str)
    return body[1] if documented and len(body) > 1 else body[0]


def _constructor(cls: ast.ClassDef) -> ast.FunctionDef | None:
    return next((s for s in cls.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)


def _earliest(facts: Facts, decisions: Decisions, body: list[ast.stmt]) -> ast.stmt:
    """The first statement of a block that needs the accelerator, itself or in what it calls."""
    for statement in body:
        if isinstance(statement, (*FUNCTIONS, ast.ClassDef)):
            continue
        if any(facts.inside(statement, node) for node in decisions.needs):
            return statement
    return _first(body)


def _born_at_module(facts: Facts, decisions: Decisions, needs: _Needs) -> Iterator[Change | Diagnostic]:
    body = facts.source.tree.body
    anchor = _earliest(facts, decisions, body)
    while isinstance(anchor, ast.If) and facts.machine.truth(anchor.test) and not any(_lexically(facts, n, anchor.test) for n in decisions.needs):
        anchor = _earliest(facts, decisions, anchor.body)
        break
    last_import = max((s.lineno for s in body if isinstance(s, (ast.Import, ast.ImportFrom))), default=0)
    if anchor.lineno < last_import and anchor in body:
        later = [s for s in body if s.lineno > anchor.lineno]
        blocking = [s for s in later if isinstance(s, (ast.Import, ast.ImportFrom))]
        del blocking  # imports behind the anchor don't matter: Accelerator's own import goes to the head
    code, imports = _birth_lines(facts, decisions, decisions.name)
    imports = [_above(facts, anchor, edit) for edit in imports]
    try:
        edits = merge([add_before(facts.source, anchor, code, rank=BIRTH), *imports])
    except CannotEditError as error:
        yield UNREACHED.at(anchor.lineno, name="the module", why=error.why)
        return
    yield Change(CODE, NAME, "one accelerator, born before what it prepares", anchor.lineno, edits, gives=frozenset({"accelerator"}), source="R01")


def _lexically(facts: Facts, node: ast.AST, outer: ast.AST) -> bool:
    return node is outer or any(p is outer for p in facts.source.ancestors(node))


def _above(facts: Facts, anchor: ast.stmt, edits: tuple[Edit, ...]) -> tuple[Edit, ...]:
    """An import must stand in front of the birth, also where the script imports further below."""
    from script2accel.change.plan import Lines

    moved = []
    for edit in edits:
        if isinstance(edit, Lines) and edit.line >= anchor.lineno:
            edit = Lines(anchor.lineno, edit.text, False, BIRTH - 1)
        moved.append(edit)
    return tuple(moved)


def _carried(facts: Facts, decisions: Decisions, needs: _Needs, home: Unit) -> Iterator[Change | Diagnostic]:
    """Parameters and arguments for every function and class on the way from home to the needs."""
    done: set[Unit] = {home}
    waiting = [u for u in needs.units if u not in done]
    while waiting:
        unit = waiting.pop(0)
        if unit in done:
            continue
        done.add(unit)
        if isinstance(unit, ast.Module):
            continue
        sites = needs.sites(unit)
        if not sites:
            if not isinstance(unit, ast.ClassDef):
                yield DEAD.at(unit.lineno, name=unit.name, accelerator=decisions.name)
        waiting += [needs.unit(site) for site in sites]
        yield from _give(facts, decisions, unit, sites, needs)


def _give(facts: Facts, decisions: Decisions, unit: Unit, sites: list[ast.Call], needs: _Needs) -> Iterator[Change | Diagnostic]:
    source, name = facts.source, decisions.name
    assert not isinstance(unit, ast.Module)
    function = _constructor(unit) if isinstance(unit, ast.ClassDef) else unit
    if function is None:
        yield UNREACHED.at(unit.lineno, name=unit.name, why="its class has no `__init__`")
        return
    escapes = facts.machine.escapes.get(unit, [])
    if escapes and not isinstance(unit, ast.ClassDef):
        line = getattr(escapes[0], "lineno", unit.lineno)
        yield UNREACHED.at(line, name=unit.name, why="it is handed on as a value, so not all its calls can be seen")
        return
    edits: list[tuple[Edit, ...]] = []
    if isinstance(unit, ast.ClassDef):
        owner = function.args.args[0].arg
        edits.append(add_parameter(source, function, name, method=True))
        try:
            edits.append(add_before(source, _first(function.body), f"{owner}.{name} = {name}", rank=BIRTH))
        except CannotEditError as error:
            yield UNREACHED.at(unit.lineno, name=unit.name, why=error.why)
            return
    else:
        edits.append(add_parameter(source, function, name, method=False))
    for site in sites:
        if not isinstance(site.func, (ast.Name, ast.Attribute)):
            yield UNREACHED.at(site.lineno, name=unit.name, why="this call can't be followed")
            return
        owner = decisions.method_of(site)
        edits.append(add_argument(source, site, f"{owner}.{name}" if owner else name, first=True))
    yield Change(CODE, NAME, f"`{unit.name}` uses the accelerator: it is handed to it at every call", function.lineno, merge(edits), needs=frozenset({"accelerator"}), source="R01")
