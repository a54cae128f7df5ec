"""`script2accel config`: the configuration files for the answers, shown, and written when approved."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from script2accel.cli.answering import answer_flags, given
from script2accel.cli.common import ToolCommand, interactive
from script2accel.errors import UsageError
from script2accel.knowledge.gates import gates
from script2accel.launch import accelerate, axolotl, deepspeed, snippets
from script2accel.parallelism import features, notes
from script2accel.report.style import plain
from script2accel.workflow import files, history, saved
from script2accel.workflow.answers import Answers

HELP = """Show or write the configuration for the answers of `init`.

Accelerate's file (with its FSDP, ParallelismConfig and fp8 sections) and, for DeepSpeed, the JSON that it names. On a terminal you are
asked before anything is written; without one, nothing is written unless you say --write.
"""


@click.command("config", cls=ToolCommand, help=HELP)
@click.option("-o", "--output", metavar="FILE", default=accelerate.FILE, show_default=True, help="Name of Accelerate's file; others lie beside it.")
@click.option("--write", "write_", is_flag=True, help="Write without asking.")
@click.option("--axolotl", "axolotl_", is_flag=True, help="Axolotl's fields for the same parallelism instead.")
@click.option("--code", is_flag=True, help="The same as Python, for a script of one's own, instead.")
@answer_flags
def command(output: str, write_: bool, axolotl_: bool, code: bool, **flags: Any) -> None:
    """The command's own function."""
    answers = saved.load(given(flags))
    if axolotl_ and code:
        raise UsageError("--axolotl and --code don't go together")
    if code:
        if write_:
            raise UsageError("--code is shown alone; there is no file to write")
        click.echo(snippets.construction(answers), nl=False)
        return
    _tell(answers)
    found = _documents(answers, output, axolotl_)
    for path, text in found.items():
        click.echo(f"# --- {plain(path)}" + ("" if path.endswith(".json") else "\n" + text.rstrip("\n")))
        if path.endswith(".json"):
            click.echo(text, nl=False)
    _write(found, write_)


def _documents(answers: Answers, output: str, axolotl_: bool) -> dict[str, str]:
    """Each file's path and text."""
    folder = os.path.dirname(output)
    beside = {os.path.join(folder, deepspeed.FILE): deepspeed.document(answers)} if answers.engine == "deepspeed" else {}
    if axolotl_:
        return {os.path.join(folder, axolotl.FILE): axolotl.document(answers), **beside}
    if output.endswith(".json"):
        raise UsageError("Accelerate's file is YAML here; give --output a name that ends in .yaml")
    return {output: accelerate.document(answers), **beside}


def _tell(answers: Answers) -> None:
    needs = ", ".join(str(gate) for gate in gates(features(answers.request)))
    if needs:
        click.echo(f"needs {needs}", err=True)
    for note in notes(answers.request):
        click.echo(f"note: {note}", err=True)


def _write(found: dict[str, str], write_: bool) -> None:
    before = {path: files.read(path).data if os.path.lexists(path) else None for path in found}
    changed = [path for path, text in found.items() if before[path] != text.encode()]
    if not changed:
        click.echo(f"{', '.join(map(plain, found))}: unchanged", err=True)
        return
    if not write_ and not _approved(changed):
        return
    run = history.new_run()
    for path in changed:
        history.write(os.path.realpath(path), before[path], found[path].encode(), run)
        click.echo(f"{plain(path)}: written", err=True)
    click.echo("`script2accel undo` takes this back.", err=True)


def _approved(paths: list[str]) -> bool:
    names = ", ".join(map(plain, paths))
    if not interactive():
        click.echo(f"Nothing was written: pass --write for {names}.", err=True)
        return False
    click.echo(f"Write {names} [y,n]? ", nl=False)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    click.echo("Nothing was written.", err=True)
    click.get_current_context().exit(1)
