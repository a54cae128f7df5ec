"""`script2accel mesh`: the device mesh of the answers, drawn."""

from __future__ import annotations

import os
from typing import Any

import click

from script2accel.cli.answering import answer_flags, given
from script2accel.cli.common import ToolCommand
from script2accel.mesh import Mesh
from script2accel.parallelism import notes
from script2accel.report import mesh as picture
from script2accel.report.style import plain
from script2accel.workflow import files, history, saved


@click.command("mesh", cls=ToolCommand)
@click.option("--svg", is_flag=True, help="Draw it as SVG.")
@click.option("-o", "--output", metavar="FILE", help="Write it there instead of stdout.")
@answer_flags
def command(svg: bool, output: str | None, **flags: Any) -> None:
    """Draw which process sits on which machine and device, and the groups that it forms along each dimension.

    The sizes are those of `init`, or given here; what can't be carried out is refused, and the nearest valid choice named.
    """
    answers = saved.load(given(flags))
    mesh = Mesh.of(answers.request)
    text = picture.svg(mesh) if svg else picture.text(mesh)
    for note in notes(answers.request):
        click.echo(f"note: {note}", err=True)
    if output is None:
        click.echo(text, nl=False)
        return
    before = files.read(output).data if os.path.lexists(output) else None
    history.write(os.path.realpath(output), before, text.encode(), history.new_run())
    click.echo(f"{plain(output)}: written", err=True)
