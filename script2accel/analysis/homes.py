"""Where objects live: the names that hold them, scope by scope, and the first place that needs them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from script2accel.analysis.facts import FUNCTIONS, Facts, Function
from script2accel.analysis.listing import bindings
from script2accel.analysis.values import Obj


@dataclass(frozen=True, eq=False)
class Binding:
    """A name in a scope that holds an object: `path` as written, the statement that binds it (None for a parameter)."""

    path: str
    scope: Function
    statement: ast.stmt | None


class Homes:
    """The bindings of every object."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.table: dict[Obj, list[Binding]] = {}
        source, machine = facts.source, facts.machine
        for _, path, node in bindings(facts.roles):
            value = machine.at.get(node)
            if value is None or "(" in path:
                continue
            scope: Function
            if isinstance(node, ast.arg):
                scope, statement = source.parents[source.parents[node]], None  # type: ignore[assignment]
            else:
                scope, statement = facts.function(node), source.statement(node)
                if isinstance(source.scope(node), (ast.ClassDef, ast.Lambda)):
                    continue
            for (_, key), part in [item for o in value.objs if o.kind == "dict" for item in machine._elements(o)]:
                if isinstance(key, tuple) and isinstance(key[1], str) and isinstance(statement, ast.Assign):
                    for obj in part.objs:
                        if obj.kind in ("made", "instance", "prepared"):
                            self.table.setdefault(obj.inner, []).append(Binding(f"{path}[{key[1]!r}]", scope, statement))
            for obj in value.objs:
                if obj.kind not in ("const", "external", "function", "class"):
                    self.table.setdefault(obj.inner, []).append(Binding(path, scope, statement))
        self._inside_wrappers()

    def _inside_wrappers(self) -> None:
        """An optimizer that only a wrapper of the script's own holds is reached through the wrapper's name: `noam.optimizer`."""
        for holder, inner in self.facts.wrapped_optimizers.items():
            cls = holder.base.site if holder.base is not None else None
            for obj in inner:
                named = [b for b in self.table.get(obj, ()) if b.statement is not None and self.facts.source.scope(b.scope) is not cls]
                attributes = [name for (owner, name), value in self.facts.machine.store.items() if owner is holder and obj in value.objs]
                if named or not attributes:
                    continue
                reached = [b for b in self.table.get(holder, ()) if b.statement is not None and self.facts.source.scope(b.scope) is not cls]
                self.table[obj] = [Binding(f"{b.path}.{attributes[0]}", b.scope, b.statement) for b in reached] + self.table.get(obj, [])

    def bindings(self, obj: Obj, scope: Function | None = None) -> list[Binding]:
        """Every binding of an object, or those of one scope, in the order of the text."""
        found = self.table.get(obj, [])
        return [b for b in found if scope is None or b.scope is scope or self._shared(b, scope)]

    def _shared(self, binding: Binding, scope: Function) -> bool:
        """`self.x` bound in another method of the same class is visible; so is a global that the scope declares."""
        if binding.path.startswith("self.") and isinstance(scope, FUNCTIONS) and isinstance(binding.scope, FUNCTIONS):
            owner = self.facts.source.scope(scope)
            return isinstance(owner, ast.ClassDef) and self.facts.source.scope(binding.scope) is owner
        said = self.facts.machine.declared.get(scope, {}).get(binding.path)
        return said == "Global" and isinstance(binding.scope, ast.Module)

    def outermost(self, obj: Obj) -> list[Function]:
        """Scopes that bind the object by a statement, those that reach the others first."""
        scopes = list(dict.fromkeys(b.scope for b in self.table.get(obj, []) if b.statement is not None))
        return sorted(scopes, key=lambda s: sum(self.reaches(other, s) for other in scopes if other is not s))

    def reaches(self, outer: Function, inner: Function) -> bool:
        """Whether running one function runs another."""
        if outer is inner:
            return True
        if isinstance(outer, ast.Module):
            return True
        if isinstance(inner, ast.Module):
            return False
        return any(self.facts.inside(outer, call) for call in self.facts.callers(inner))
