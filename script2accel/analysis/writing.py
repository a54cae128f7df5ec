"""Which calls write files: by themselves, by opening one, or into something that holds one."""

from __future__ import annotations

import ast

from script2accel.analysis.checkpoints import argument
from script2accel.analysis.facts import View
from script2accel.analysis.values import NOTHING, Obj
from script2accel.knowledge import torch as names

DUMPS = ("pickle.dump", "json.dump", "yaml.dump", "yaml.safe_dump", "joblib.dump", "dill.dump", "cloudpickle.dump", "toml.dump")


def writes(facts: View, call: ast.Call) -> bool:
    """Whether a call writes a file, a plot or a tracker's line."""
    path = facts.path(call)
    if names.WRITES.match(path):
        if path in DUMPS and len(call.args) > 1:
            return not any(names.OPENS.match(o.path) for o in facts.machine.at.get(call.args[1], NOTHING).objs)
        return not (path.startswith("yaml.") and len(call.args) < 2)
    if names.WRITER_MODULE.match(path):
        return True
    if not isinstance(call.func, ast.Attribute):
        return False
    objs = facts.machine.at.get(call.func.value, NOTHING).objs
    if any(facts.roles.of(o) == "writer" for o in objs):
        return names.WRITER_METHODS.match(call.func.attr) is not None or isinstance(facts.source.parents[call], ast.Expr)
    if call.func.attr == "save" and any(names.TRACED.match(o.path) for o in objs):
        return True
    if call.func.attr in names.SAVES and isinstance(facts.source.parents[call], ast.Expr):
        return bool(call.args or call.keywords) and bool(objs) and all(_of_library(facts, o) for o in objs)
    if call.func.attr in names.WRITE_METHODS:
        if call.func.attr == "mkdir" and any(k.arg == "exist_ok" for k in call.keywords):
            return False
        return not any(o.kind in ("instance", "function") for o in objs)
    return False


def _of_library(facts: View, obj: Obj) -> bool:
    """Whether a library made an object whose `save` writes a file and does nothing else: none of torch's, none that plays a part in training."""
    root: Obj | None = obj
    while root is not None and root.kind in ("made", "attr", "item"):
        if facts.roles.of(root):
            return False
        root = root.base
    return root is not None and root.kind == "external" and "." in str(root.name) and not names.OWN_SAVES.match(str(root.name))


def opens(facts: View, call: ast.Call) -> bool:
    """Whether a call opens a file for writing (one that is `os.devnull` on other ranks already aside)."""
    at = 1 if names.OPENS.match(facts.path(call)) and call.args else 0 if opens_path(facts, call) else None
    if at is None or (call.args and "is_main_process" in facts.source.segment(call.args[0])):
        return False
    return _for_writing(call, at)


def log_file(facts: View, call: ast.Call) -> ast.expr | None:
    """The name of the file that a call opens for log lines; None where it opens none, or is `os.devnull` on other ranks already."""
    path = facts.path(call)
    if not names.LOG_FILES.match(path):
        return None
    named = next((k.value for k in call.keywords if k.arg == "filename"), None)
    if named is None and call.args and not path.endswith("basicConfig"):
        named = call.args[0]
    streams = path.startswith("loguru") and any(o.path.startswith("sys.") for o in facts.machine.at.get(named, NOTHING).objs) if named else True
    if named is None or streams or (isinstance(named, ast.Constant) and named.value is None):
        return None
    return None if "is_main_process" in facts.source.segment(named) else named


def opens_path(facts: View, call: ast.Call) -> bool:
    """Whether a call is `path.open(...)`."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "open"):
        return False
    objs = facts.machine.at.get(call.func.value, NOTHING).objs
    return bool(objs) and all(names.PATHS.match(o.path) for o in objs)


def writes_into(facts: View, call: ast.Call) -> bool:
    """Whether a call makes something that holds a file and writes it."""
    path = facts.path(call)
    return names.ALWAYS_WRITES_INTO.match(path) is not None or (names.WRITES_INTO.match(path) is not None and _for_writing(call, 1))


def _for_writing(call: ast.Call, at: int) -> bool:
    mode = argument(call, at, "mode")
    text = mode.value if isinstance(mode, ast.Constant) and isinstance(mode.value, str) else "r" if mode is None else "w"
    return any(mark in text for mark in "wax+")
