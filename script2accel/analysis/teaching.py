"""What the user teaches while a script is run in the abstract: marks at line ends, and the table of dotted names."""

from __future__ import annotations

import ast
import builtins
import re
import sys
from typing import NamedTuple, Protocol

from script2accel.analysis.constructors import constructed
from script2accel.analysis.marks import Mark, Marks, read
from script2accel.analysis.program import Program
from script2accel.analysis.values import NOTHING, Obj, Value, World, join_all
from script2accel.knowledge import torch as names
from script2accel.knowledge.teaching import BASES, ONLY_OF_TORCH, TABLE
from script2accel.source import Source

HOLDING = frozenset({"instance", "made", "param", "attr", "item", "expr"})


class Run(Protocol):
    """What is asked of the abstract run."""

    source: Program
    world: World
    store: dict[tuple[object, object], Value]
    phase: str
    order: dict[ast.stmt, int]
    imported: dict[ast.Module, Source]
    bases: dict[Obj, list[Obj]]

    def lookup(self, cls: Obj, name: str) -> Value | None:
        """A name in a class of the project, or in one below it."""

    def ancestors(self, cls: Obj) -> list[Obj]:
        """The project's classes that a class is made of."""

    def reaches(self, cls: Obj, pattern: re.Pattern[str]) -> bool:
        """Whether one of a class's bases, at any distance, is named so."""


class Said(NamedTuple):
    """What the user says of an object: the role, who says so, and the place that it is said of."""

    role: str
    why: str
    what: str
    node: ast.AST


class Teaching:
    """The roles that the user gives to objects of one abstract run."""

    def __init__(self, machine: Run) -> None:
        self.machine, self.program = machine, machine.source
        self.table = dict(machine.source.taught)
        self.said: dict[Obj, dict[Said, None]] = {}
        self.unfit: dict[tuple[Said, Obj], None] = {}  # what is said of things that no role can be of
        self.marks: dict[Source, Marks] = {}
        self.relative: dict[str, set[str]] = {}  # a library's name that is imported with leading dots -> what it is from the top
        self._targets: dict[ast.AST, Mark] = {}
        self._classes: dict[Obj, set[str]] = {}
        self._sites: dict[ast.AST, str] = {}
        self._paths: dict[str, str] = {}
        self._seen = -1

    def role(self, obj: Obj) -> str:
        """The role that the user gives an object, or ''."""
        said = self.said.get(obj.inner)
        return next(iter(said)).role if said else ""

    # files and imports -----------------------------------------------------------------------------------

    def open(self, source: Source) -> None:
        """Read the marks of a file that is run."""
        found = self.marks[source] = read(source)
        self._targets |= found.of

    def imported(self, importer: Source, module: str, level: int, name: str) -> None:
        """A name of a library is imported with leading dots."""
        if self.table and level:
            up = level - importer.path.endswith("__init__.py")  # a package's own name is that of its folder
            folders = [parts[: len(parts) - up] for parts in (dotted.split(".") for dotted in self.program.dotted(importer)) if len(parts) >= up]
            tops = {".".join([*folder, *(module.split(".") if module else []), name]) for folder in folders}
            self.relative.setdefault(f"{'.' * level}{module}.{name}", set()).update(tops)

    # marks -----------------------------------------------------------------------------------------------

    def bound(self, target: ast.AST, value: Value) -> Value:
        """What a target holds that is bound to a value; where it is marked, the value has that role."""
        mark = self._targets.get(target) if self._targets else None
        if mark is None:
            return value
        return self._tell(value, Said(mark.role, f"marked by the user on line {mark.line}", f"`{mark.name}`", target), target)

    def _tell(self, value: Value, said: Said, site: ast.AST) -> Value:
        """Give a role to the objects of a value that can have one; an unknown thing of a library gets an object of its own."""
        world = self.machine.world
        objs = frozenset(self._twin(o, site) if self._ready_made(o) else o for o in value.objs)
        if not value.objs:
            objs = frozenset((world.obj("made", "", None, site, self.machine.phase),))
        holding = [o for o in objs if o.inner.kind in HOLDING and not names.PROGRESS.match(o.inner.path)]
        if len(holding) > 1:  # of what a name can stand for, the user says what it is
            fits = {o: self._made_as(o.inner, said.role) for o in holding}
            fitting = [o for o in holding if fits[o] is not False and (fits[o] or True not in fits.values())]
            objs -= {o for o in holding if o not in fitting} if fitting else set()
            holding = fitting or holding
        for obj in holding:
            self.said.setdefault(obj.inner, {})[said] = None
            if obj.inner.kind == "instance" and obj.inner.base is not None and self.open_to_more(obj.inner.base):
                self._classes.setdefault(obj.inner.base, set()).add(said.role)
        parts = said.role in ("batch", "output") and any(o.kind in ("tuple", "list", "dict") for o in objs)
        known = said.role == "criterion" and any(names.LOSS_FUNCTION.match(o.path) for o in objs)
        if not holding and not parts and not known:
            self.unfit.update(dict.fromkeys((said, o) for o in objs if o.kind != "const" or o.name is not None))  # None: it is made later
        return Value(objs, value.marks)

    def _made_as(self, obj: Obj, role: str) -> bool | None:
        """Whether the name or the class of what made an object says that it is of a role, or of another; None where both are open."""
        made = constructed(obj.path)
        if made is not None:
            return True if made[0] == role else None if made[0] == "model" and role in BASES[names.MODULE_BASE] else False
        if obj.kind != "instance" or obj.base is None:
            return None
        known = [roles for pattern, roles in BASES.items() if self.machine.reaches(obj.base, pattern)]
        if not known:
            return None
        return (role == "model" or len(known[0]) == 1 or None) if any(role in roles for roles in known) else False

    def _ready_made(self, obj: Obj) -> bool:
        """Whether an object is a name of a library of which nothing is known: it may be an object, ready to be used."""
        return obj.kind == "external" and "." in str(obj.name) and not _of_python(str(obj.name)) and not names.LIBRARY.match(str(obj.name))

    def _twin(self, obj: Obj, site: ast.AST) -> Obj:
        return self.machine.world.obj("made", "", obj, site, self.machine.phase)

    # the table -------------------------------------------------------------------------------------------

    def called(self, callee: Obj, node: ast.AST, value: Value) -> Value:
        """What a call gives; where the table names what is called, it has that role."""
        key = self._key(callee)
        if not key or (callee.kind == "external" and not value.objs):
            return value
        said = Said(self.table[key], f"{TABLE} says so of `{key}`", f"what `{key}` gives", node)
        if callee.kind == "class":
            self._classes.setdefault(callee, set()).add(said.role)
        return self._tell(value, said, node)

    def _key(self, callee: Obj) -> str:
        """The name under which the table knows what is called, or ''."""
        if not self.table:
            return ""
        if callee.kind == "external":
            path = str(callee.name)
            known = (path, *self.relative.get(path, ()))
            return next((name for name in known if name in self.table), "") or self._exported(path)
        if callee.kind in ("function", "class", "method") and callee.site is not None:
            self._look()
            return self._sites.get(callee.site, "")
        return ""

    def _exported(self, path: str) -> str:
        self._look()
        return self._paths.get(path, "")

    def _look(self) -> None:
        """Find what the names of the table stand for in the modules that have been run."""
        if self._seen == len(self.machine.order):
            return
        self._seen = len(self.machine.order)
        modules = {dotted: source.tree for source in list(self.machine.imported.values()) for dotted in self.program.dotted(source)}
        for key in self.table:
            parts = key.split(".")
            for count in range(len(parts) - 1, 0, -1):
                tree = modules.get(".".join(parts[:count]))
                for obj in self._member(tree, parts[count:]).objs if tree is not None else ():
                    if obj.kind in ("function", "class", "method") and obj.site is not None:
                        self._sites[obj.site] = key
                    elif obj.kind == "external":
                        self._paths[str(obj.name)] = key

    def _member(self, tree: ast.Module, parts: list[str]) -> Value:
        found = self.machine.store.get((tree, parts[0]), NOTHING)
        for name in parts[1:]:
            held = [self.machine.lookup(o, name) if o.kind == "class" else None for o in found.objs]
            found = join_all([value for value in held if value is not None])
        return found

    # classes ---------------------------------------------------------------------------------------------

    def stands_for(self, base: Obj, pattern: re.Pattern[str]) -> bool:
        """Whether the user says that a class is one of those that a pattern of torch's classes names."""
        if not self.table and not self._classes:
            return False
        roles = BASES.get(pattern, frozenset())
        key = self._key(base)
        return bool(roles) and (self.table.get(key) in roles or bool(roles & self._classes.get(base, set())))

    def open_to_more(self, cls: Obj) -> bool:
        """Whether a class of the project has a base that isn't known, so that it may be anything."""
        bases = [b for c in (cls, *self.machine.ancestors(cls)) for b in self.machine.bases.get(c, ())]
        return any(b.kind != "class" and not (b.kind == "external" and (_of_python(str(b.name)) or _of_torch(str(b.name)))) for b in bases)

    def foreign(self, obj: Obj, role: str) -> bool:
        """Whether an instance of a class of the project can't be what the user says: prepare would pass it over."""
        inner = obj.inner
        return role in ONLY_OF_TORCH and inner.kind == "instance" and inner.base is not None and not self._derived(inner.base, role)

    def _derived(self, cls: Obj, role: str) -> bool:
        return self.open_to_more(cls) or any(self.machine.reaches(cls, pattern) for pattern, roles in BASES.items() if role in roles)


def _of_python(path: str) -> bool:
    root = path.partition(".")[0]
    return root in sys.stdlib_module_names or (root == path and hasattr(builtins, path))


def _of_torch(path: str) -> bool:
    return path.startswith("torch.") or any(pattern.match(path) for pattern in BASES)
