"""`script2accel check`: one line per finding, nothing written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import click

from script2accel.cli.answering import strategy, strategy_flags
from script2accel.cli.common import ToolCommand, exit_code, road
from script2accel.report import github, json, text
from script2accel.report.style import wanted
from script2accel.result import Outcome, Result
from script2accel.workflow.check import findings, ready

HELP = """Say what stands between scripts and being accelerate-ready.

PATH is a script, a directory (every *.py and *.ipynb below it), or - for stdin. One line per finding: file:line:col: ID message. Exits
with 0 when every script is accelerate-ready or no training script, with 1 when one isn't, with 2 when a file can't be read.
Files of a directory that never mention torch are not parsed; a file that you name always is.
"""


class Tally:
    """The results, passed on one by one while their worst exit code is kept."""

    def __init__(self, paths: tuple[str, ...], flags: dict[str, object]) -> None:
        self.flags = flags
        self.paths, self.code, self.files, self.unready = paths, 0, 0, 0

    def __iter__(self) -> Iterator[Result]:
        for job in road(self.paths, self.flags):
            result = job.result
            self.files += 1
            self.unready += not ready(result) and result.outcome is not Outcome.ERROR
            self.code = max(self.code, exit_code(result), int(not ready(result)))
            yield result


@click.command("check", cls=ToolCommand, help=HELP)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--output-format", type=click.Choice(["text", "json", "github"]), default="text", show_default=True, help="How to print findings.")
@strategy_flags
def command(paths: tuple[str, ...], output_format: str, **flags: Any) -> None:
    """The command's own function."""
    tally = Tally(paths, strategy(flags))
    colour = wanted(sys.stdout)
    if output_format == "json":
        click.echo(json.document(tally), nl=False)
    else:
        for result in tally:
            found = findings(result)
            click.echo(github.commands(found) if output_format == "github" else text.findings(found, colour=colour), nl=False)
    if output_format == "text":
        files = f"{tally.files} file{'s' * (tally.files != 1)}"
        click.echo(f"{files} checked, {tally.unready} not accelerate-ready", err=True)
    click.get_current_context().exit(tally.code)
