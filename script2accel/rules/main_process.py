"""Write files, plots and trackers on the main process only.

`if accelerator.is_main_process:` goes around statements that only write (plots, images, csv and json files, copies, experiment trackers); a
text file opened for writing, or for log lines, is `os.devnull` on the other ranks, so that the code around it stays. A tracker is made on the
main process only. A `with` that writes an archive or a table stands under the guard as a whole.
`os.makedirs` under a question whether the folder is there gets `exist_ok=True`: two processes can both find it missing.
Left alone: reading, `os.makedirs(..., exist_ok=True)` (safe on every rank), folders made in a `try`, what stands under a rank guard already.
Source: https://huggingface.co/docs/accelerate/concept_guides/deferring_execution
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from script2accel.analysis.context import guarded
from script2accel.analysis.facts import View
from script2accel.analysis.fetching import fetched
from script2accel.analysis.writing import log_file, opens, opens_path, writes, writes_into
from script2accel.change.edits import CannotEditError, ensure_import, merge, neighbours, replace_range, wrap_expression, wrap_statements
from script2accel.change.plan import Change
from script2accel.decisions import Decisions
from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.knowledge import torch as names
from script2accel.source import walk

CODE, NAME = "S2A603", "main-process"
TANGLED = Message(
    "S2A613",
    Severity.ERROR,
    "`{text}` writes on every process, and its result is used",
    "write under `if accelerator.is_main_process:` by hand, and convert again",
)
COLLECTIVE = Message(
    "S2A614",
    Severity.ERROR,
    "`{text}` writes what the model computes in the same statement: under a rank guard the other ranks would wait for it",
    "compute first, in a statement of its own, then write",
)
REASON = "every process would write it: only the main one does"
FOLDER = "another process can make the folder between the question and the call"


def rewrite(facts: View, decisions: Decisions) -> Iterator[Change | Diagnostic]:
    statements: dict[ast.stmt, None] = {}
    taken = decisions.tracked.taken
    for call in facts.calls:
        if call in taken:
            continue  # Accelerate's tracker makes it on the main process only
        if _makes_folder(facts, call):
            if _unless_there(facts, call):
                last = (*call.args, *(k.value for k in call.keywords))[-1]
                edits = wrap_expression(facts.source, last, "", ", exist_ok=True")
                yield Change(CODE, NAME, FOLDER, call.lineno, edits, source="R30")
            elif not any(isinstance(p, ast.Try) for p in facts.source.ancestors(call)) and isinstance(facts.source.parents[call], ast.Expr):
                statements[facts.source.statement(call)] = None
            continue
        makes, opened, held = _makes_writer(facts, call), opens(facts, call), writes_into(facts, call)
        logs = log_file(facts, call)
        if (
            not (makes or opened or held or logs or writes(facts, call))
            or guarded(facts, call)
            or facts.inside_class(call, facts.dataset_classes)
            or fetched(facts, call)
        ):
            continue
        if makes:
            yield _writer(facts, decisions, call)
        elif opened or logs:
            yield _devnull(facts, decisions, call, logs)
        elif held:
            block = _block_of_its_own(facts, call)
            if block is None:
                yield TANGLED.at(call.lineno, call.col_offset + 1, text=_short(facts, call))
            elif any(facts.inside(block, f.call) for f in facts.forwards):
                yield COLLECTIVE.at(call.lineno, call.col_offset + 1, text=_short(facts, call))
            else:
                statements[block] = None
        else:
            statement = facts.source.statement(call)
            if isinstance(statement, ast.Return) and statement.value is call and _ignored(facts, call):
                edits = wrap_expression(facts.source, call, "", f" if {decisions.accelerator(call)}.is_main_process else None")
                yield Change(CODE, NAME, REASON, call.lineno, edits, source="R30")
            elif not isinstance(statement, ast.Expr):
                yield TANGLED.at(call.lineno, call.col_offset + 1, text=_short(facts, call))
            elif any(facts.inside(statement, f.call) and _in(statement, f.call) for f in facts.forwards):
                yield COLLECTIVE.at(call.lineno, call.col_offset + 1, text=_short(facts, call))
            else:
                statements[statement] = None
    yield from _read_on_every_rank(facts, statements, taken)
    for run in neighbours(facts.source, list(statements)):
        header = f"if {decisions.accelerator(run[0])}.is_main_process:"
        try:
            yield Change(CODE, NAME, REASON, run[0].lineno, wrap_statements(facts.source, run, header), source="R30")
        except CannotEditError:
            parent = facts.source.parents[run[0]]
            if isinstance(parent, ast.If) and parent.body == run and not parent.orelse:  # `if flag: write()` on one line
                edits = wrap_expression(facts.source, parent.test, "(", f") and {header[3:-1]}")
                yield Change(CODE, NAME, REASON, run[0].lineno, edits, source="R30")
            elif all(isinstance(statement, ast.Expr) for statement in run):  # `draw(); write()` on one line
                for statement in run:
                    edits = wrap_expression(facts.source, statement.value, "", f" if {header[3:-1]} else None")  # type: ignore[attr-defined]
                    yield Change(CODE, NAME, REASON, statement.lineno, edits, source="R30")
            else:
                yield TANGLED.at(run[0].lineno, text=facts.source.segment(run[0])[:60])


def _read_on_every_rank(facts: View, statements: dict[ast.stmt, None], taken: frozenset[ast.Call]) -> Iterator[Diagnostic]:
    """Attributes of a tracker that are read outside of what will be guarded: on the other ranks there is no tracker."""
    for node in facts.source.every(ast.Attribute):
        if not isinstance(node.ctx, ast.Load) or node.value not in facts.machine.at:
            continue
        if facts.source.parents[node] in taken:
            continue
        made = [o for o in facts.machine.at[node.value].objs if o.kind == "made" and names.WRITER.match(o.path)]
        if made and facts.source.statement(node) not in statements and not guarded(facts, node):
            yield TANGLED.at(node.lineno, node.col_offset + 1, text=facts.source.segment(node))


def _ignored(facts: View, call: ast.Call) -> bool:
    """Whether no caller of the function uses what it returns (a caller that passes it on is asked in turn)."""
    function = facts.function(call)
    sites = facts.callers(function)
    return bool(sites) and all(
        isinstance(facts.source.parents[site], ast.Expr)
        or (isinstance(facts.source.parents[site], ast.Return) and facts.function(site) is not function and _ignored(facts, site))
        for site in sites
    )


def _in(statement: ast.AST, node: ast.AST) -> bool:
    return any(n is node for n in walk(statement))


def _short(facts: View, call: ast.Call) -> str:
    return facts.source.segment(call.func)


def _makes_folder(facts: View, call: ast.Call) -> bool:
    """Whether a call makes a folder and fails where another process was faster."""
    if facts.path(call) != "os.makedirs" or not call.args or len(call.args) > 2 or any(k.arg in ("exist_ok", None) for k in call.keywords):
        return False
    return not (guarded(facts, call) or facts.inside_class(call, facts.dataset_classes) or fetched(facts, call))


def _unless_there(facts: View, call: ast.Call) -> bool:
    """Whether the call stands under a question whether the folder is there."""
    tests = [p.test for p in facts.source.ancestors(call) if isinstance(p, (ast.If, ast.IfExp))]
    return any(isinstance(n, ast.Call) and facts.path(n) in ("os.path.exists", "os.path.isdir") for test in tests for n in walk(test))


def _makes_writer(facts: View, call: ast.Call) -> bool:
    return names.WRITER.match(facts.path(call)) is not None and not isinstance(facts.source.parents[call], ast.Expr)


def _writer(facts: View, decisions: Decisions, call: ast.Call) -> Change | Diagnostic:
    parent = facts.source.parents[call]
    if not isinstance(parent, (ast.Assign, ast.AnnAssign)):
        return TANGLED.at(call.lineno, call.col_offset + 1, text=_short(facts, call))
    edits = wrap_expression(facts.source, call, "", f" if {decisions.accelerator(call)}.is_main_process else None")
    return Change(CODE, NAME, "one tracker, on the main process", call.lineno, edits, source="R59")


def _block_of_its_own(facts: View, call: ast.Call) -> ast.With | None:
    """The `with` that opens nothing else, and of which nothing is read behind it: it can stand under a guard as a whole."""
    item = facts.source.parents[call]
    block = facts.source.parents[item] if isinstance(item, ast.withitem) else None
    if not isinstance(block, ast.With) or len(block.items) > 1:
        return None
    inner = set(walk(block))
    stored = {n.id for n in inner if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    outside = (n for n in walk(facts.function(block)) if isinstance(n, ast.Name) and n not in inner)
    leaves = any(isinstance(n, (ast.Return, ast.Break, ast.Continue, ast.Yield)) for n in inner)
    return None if leaves or any(n.id in stored and isinstance(n.ctx, ast.Load) for n in outside) else block


def _devnull(facts: View, decisions: Decisions, call: ast.Call, target: ast.expr | None) -> Change:
    otherwise = f" if {decisions.accelerator(call)}.is_main_process else os.devnull"
    by_path = target is None and isinstance(call.func, ast.Attribute) and opens_path(facts, call)
    target = target or (call.func.value if by_path else call.args[0])  # type: ignore[attr-defined]
    simple = isinstance(target, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.JoinedStr, ast.Subscript))
    before, after = ("", "") if simple else ("(", ")")
    if by_path:  # `path.open("w")` is `open(path, "w")`
        opening = facts.source.call_paren(call)
        edits = merge(
            [
                wrap_expression(facts.source, target, f"open({before}", ""),
                replace_range(facts.source.end(target), opening + 1, f"{after}{otherwise}, "),
            ]
        )
    else:
        edits = wrap_expression(facts.source, target, before, after + otherwise)
    return Change(
        CODE,
        NAME,
        "the other ranks write to nowhere: one file has one writer",
        call.lineno,
        merge([edits, ensure_import(facts.source, "", "os")]),
        source="R30",
    )


EXAMPLES: list[tuple[str, str | None]] = [
    (
        """\
import logging

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(filename="train.log", level=logging.INFO)
logger = logging.getLogger(__name__)
logger.addHandler(logging.FileHandler("other.log", mode="w"))
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    plt.pause(0.01)
logger.info("done")
""",
        """\
import os
import logging

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

accelerator = Accelerator()
logging.basicConfig(filename="train.log" if accelerator.is_main_process else os.devnull, level=logging.INFO)
logger = logging.getLogger(__name__)
logger.addHandler(logging.FileHandler("other.log" if accelerator.is_main_process else os.devnull, mode="w"))
data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    if accelerator.is_main_process:
        plt.pause(0.01)
logger.info("done")
""",
    ),
    (
        """\
import json
import os
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

os.mkdir("out")
with open("out/result.json", "w") as file:
    json.dump({"loss": 0}, file)
""",
        """\
import json
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()

if accelerator.is_main_process:
    os.mkdir("out")
with open("out/result.json" if accelerator.is_main_process else os.devnull, "w") as file:
    json.dump({"loss": 0}, file)
""",
    ),
    (
        """\
import numpy as np
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
writer = SummaryWriter()

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    writer.add_scalar("loss", loss.item())
writer.close()
np.save("weight.npy", model.weight.detach().numpy())
""",
        """\
import numpy as np
import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
writer = SummaryWriter() if accelerator.is_main_process else None

for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
    if accelerator.is_main_process:
        writer.add_scalar("loss", loss.item())
if accelerator.is_main_process:
    writer.close()
    np.save("weight.npy", accelerator.unwrap_model(model).weight.detach().cpu().numpy())
""",
    ),
    (
        """\
import subprocess
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

code = subprocess.run(["nvidia-smi"])
print(code)
""",
        "S2A613",
    ),
    (
        """\
from torchvision.utils import save_image
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

save_image(model(torch.ones(1, 8)), "out.png")
""",
        "S2A614",
    ),
    (
        """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

if not os.path.exists("out"):
    os.makedirs("out")
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""",
        """\
import os
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

data = TensorDataset(torch.ones(64, 8), torch.zeros(64).long())
loader = DataLoader(data, batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

if not os.path.exists("out"):
    os.makedirs("out", exist_ok=True)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
""",
    ),
    (
        """\
import os
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

os.makedirs("out", exist_ok=True)
with open("notes.txt") as file:
    print(file.read())
""",
        None,
    ),
    (
        """\
import torch
from PIL import Image
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    Image.fromarray(model.weight.detach().numpy()).save(f"{epoch}.png")
    with Path("log.txt").open("a") as log:
        log.write("done")
""",
        """\
import os
import torch
from PIL import Image
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    if accelerator.is_main_process:
        Image.fromarray(accelerator.unwrap_model(model).weight.detach().cpu().numpy()).save(f"{epoch}.png")
    with open(Path("log.txt") if accelerator.is_main_process else os.devnull, "a") as log:
        log.write("done")
""",
    ),
    (
        """\
import torch
import zipfile
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    with zipfile.ZipFile("all.zip", "w") as whole:
        whole.write("train.py")
""",
        """\
import torch
import zipfile
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
    if accelerator.is_main_process:
        with zipfile.ZipFile("all.zip", "w") as whole:
            whole.write("train.py")
""",
    ),
    (
        """\
import torch
import h5py
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    table = h5py.File("weights.h5", "w")
    table["weight"] = model.weight.detach().numpy()
""",
        "S2A613",
    ),
    (
        """\
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
plt.draw(); plt.savefig("end.png")
""",
        """\
import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from accelerate import Accelerator

loader = DataLoader(TensorDataset(torch.ones(64, 8), torch.zeros(64).long()), batch_size=16, shuffle=True)
model = nn.Linear(8, 2)
accelerator = Accelerator()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    accelerator.backward(loss)
    optimizer.step()
plt.draw(); plt.savefig("end.png") if accelerator.is_main_process else None
""",
    ),
]
