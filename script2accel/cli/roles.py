"""`script2accel roles`: what was understood, line by line, with the reasons."""

from __future__ import annotations

import click

from script2accel.cli.common import ToolCommand, exit_code, road
from script2accel.report import text
from script2accel.result import Outcome


@click.command("roles", cls=ToolCommand)
@click.argument("file", metavar="FILE")
def command(file: str) -> None:
    """Show what was understood of a script: each line's names, their roles, and the reasons."""
    code = 0
    for job in road([file], {}):
        if job.result.outcome is Outcome.ERROR:
            click.echo(text.headline(job.result), err=True)
            code = max(code, exit_code(job.result))
        elif job.result.roles:
            click.echo(text.roles(job.result), nl=False)
        elif job.named:
            click.echo(f"{text.headline(job.result)} (no role was found)", err=True)
    click.get_current_context().exit(code)
