"""`script2accel undo`: put back what a write replaced."""

from __future__ import annotations

import os

import click

from script2accel.cli.common import ToolCommand
from script2accel.errors import SourceError
from script2accel.report.style import plain
from script2accel.workflow import history, record


@click.command("undo", cls=ToolCommand)
@click.argument("path", required=False)
def command(path: str | None) -> None:
    """Take back the last write of a file, or everything that the last run wrote in the project here (or at PATH, a folder).

    A file that was changed since is left alone. The previous texts lie in `.script2accel/history` at the project's root
    (the nearest folder with a .git or pyproject.toml, else the script's own); delete that folder when you don't need them.
    """
    code = 0
    for entry in history.last(path):
        try:
            record.undo(entry)
        except SourceError as error:
            click.echo(plain(str(error)), err=True)
            code = 1
        else:
            click.echo(f"{plain(os.path.relpath(entry.target))}: {'removed' if entry.before is None else 'restored'}")
    click.get_current_context().exit(code)
