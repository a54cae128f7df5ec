"""`script2accel launch`: commands and files that start a script. They are printed and never run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import click

from script2accel.cli.answering import answer_flags, given
from script2accel.cli.common import ToolCommand
from script2accel.errors import UsageError
from script2accel.launch import accelerate, cluster, deepspeed, snippets
from script2accel.launch import command as commands
from script2accel.launch.endpoint import rank_fault
from script2accel.report.style import plain
from script2accel.workflow import saved
from script2accel.workflow.answers import Answers

HELP = """Print what starts a script with the answers of `init`: never run.

`accelerate launch` for each machine, the same with torchrun; for SLURM and Kubernetes the file to submit. What stands after -- goes to
the script.

\b
  script2accel launch train.py -- --epochs 3
"""
FORMS = ("all", "accelerate", "torchrun", "slurm", "kubernetes", "notebook")


@click.command("launch", cls=ToolCommand, help=HELP)
@click.argument("script", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, metavar="[-- ARGS...]")
@click.option("--form", type=click.Choice(FORMS), default="all", show_default=True, help="Print one form alone, without comments.")
@click.option("--config-file", metavar="FILE", help=f"Accelerate's file.  [default: {accelerate.FILE} where flags would not do]")
@click.option("--flags", "flags_", is_flag=True, help="Flags instead of Accelerate's file.")
@click.option("--machine-rank", type=int, help="One machine alone.")
@click.option("--image", default="IMAGE", show_default=True, help="The container image of the Kubernetes job.")
@answer_flags
def command(script: str, arguments: tuple[str, ...], form: str, machine_rank: int | None, image: str, **flags: Any) -> None:
    """The command's own function."""
    answers = saved.load(given(flags))
    file = _file(answers, flags["config_file"], flags["flags_"])
    what = commands.Script(script, arguments)
    wrong = rank_fault(machine_rank, answers.num_machines) if machine_rank is not None else ""
    if wrong:
        raise UsageError(wrong)
    ranks = range(answers.num_machines) if machine_rank is None else [machine_rank]
    if form != "all":
        click.echo(_one(form, answers, what, file, ranks, image), nl=False)
        return
    for title, text in _all(answers, what, file, ranks, image):
        click.echo(f"# {title}\n{text}")
    _hints(answers, file)


def _file(answers: Answers, named: str | None, flags_: bool) -> str | None:
    """The configuration file that the command names; None when flags say it all."""
    if flags_ and named is not None:
        raise UsageError("--flags and --config-file don't go together")
    if flags_ and not commands.has_flags(answers):
        raise UsageError(f"these sizes have no flags without FSDP (accelerate/commands/launch.py); nearest valid: --config-file {accelerate.FILE}")
    return named or (accelerate.FILE if commands.prefers_file(answers) and not flags_ else None)


def _one(form: str, answers: Answers, what: commands.Script, file: str | None, ranks: range | list[int], image: str) -> str:
    if form in ("slurm", "kubernetes") and answers.hardware != "multi-node":
        raise UsageError(f"{form} files are written for multi-node")
    if form == "torchrun" and answers.hardware == "tpu":
        raise UsageError("torchrun doesn't start TPUs; nearest valid: --form accelerate")
    if form == "slurm":
        return cluster.slurm(answers, what, file)
    if form == "kubernetes":
        return cluster.kubernetes(answers, what, file, image)
    if form == "notebook":
        return "\n".join(snippets.notebook(answers, rank) for rank in ranks)
    places = [commands.place(answers, rank) for rank in ranks]
    if form == "torchrun":
        return "".join(commands.torchrun(answers, what, place) + "\n" for place in places)
    return "".join(commands.accelerate_launch(answers, what, place, file=file) + "\n" for place in places)


def _all(answers: Answers, what: commands.Script, file: str | None, ranks: range | list[int], image: str) -> Iterator[tuple[str, str]]:
    """Every form that fits the answers, each under a title."""
    if answers.cluster != "none":
        name = cluster.SLURM if answers.cluster == "slurm" else cluster.KUBERNETES
        submit = "sbatch" if answers.cluster == "slurm" else "kubectl create -f"
        yield f"{name}: submit it with `{submit} {name}`", _one(answers.cluster, answers, what, file, ranks, image)
        return
    for rank in ranks:
        on = f" on machine {rank}" if answers.num_machines > 1 else ""
        yield f"accelerate{on}", _one("accelerate", answers, what, file, [rank], image)
        if answers.hardware != "tpu":
            yield f"the same with torchrun{on}", _one("torchrun", answers, what, file, [rank], image)


def _hints(answers: Answers, file: str | None) -> None:
    """What has to be there for the commands to work."""
    needed = [name for name in (file, deepspeed.FILE if answers.engine == "deepspeed" else None) if name and not os.path.lexists(name)]
    if needed:
        click.echo(f"`script2accel config --write` makes {', '.join(map(plain, needed))}", err=True)
    if answers.hardware == "multi-node" and answers.cluster == "none" and not answers.main_process_ip:
        click.echo(f"set {commands.HOST} to the first machine's address, or give it: --main-process-ip", err=True)
    if file is None:
        click.echo("without --config_file Accelerate also reads the default configuration in its cache folder, if there is one", err=True)
