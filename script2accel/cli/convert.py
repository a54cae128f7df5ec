"""`script2accel convert`: show the diff, ask, write."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import click

from script2accel import __version__
from script2accel.cli.answering import strategy, strategy_flags
from script2accel.cli.common import Job, ToolCommand, exit_code, interactive, road
from script2accel.cli.terminal import Terminal
from script2accel.errors import SourceError, UsageError
from script2accel.options import BATCH, CHECKPOINTING, MIXED_PRECISION
from script2accel.report import text
from script2accel.report.diff import above_here, patch
from script2accel.report.style import plain, wanted
from script2accel.result import Outcome, Result
from script2accel.workflow import files, history, record
from script2accel.workflow.discover import STDIN

HELP = """Rewrite training scripts for Hugging Face Accelerate.

PATH is a script, a directory (every *.py and *.ipynb below it), or - for stdin. On a terminal you see the diff and are asked: whole file,
or hunk by hunk. Without a terminal nothing is written unless you say --write or --output.

\b
  script2accel convert train.py
  script2accel convert train.py --show-diff | git apply
"""


@dataclass
class Run:
    """One call: how to print, and the worst exit code so far."""

    explain: bool
    run: str = field(default_factory=history.new_run)
    code: int = 0
    wrote: bool = False

    def worst(self, code: int) -> None:
        """Remember the highest code."""
        self.code = max(self.code, code)

    def summary(self, job: Job, result: Result, *, err: bool, written: bool = False) -> None:
        """Print what became of a file; files of a directory that are no training scripts are only counted at the end."""
        if result.outcome is Outcome.NOT_TRAINING and not job.named:
            return
        err = err or result.outcome is Outcome.ERROR
        colour = wanted(sys.stderr if err else sys.stdout)
        click.echo(text.summary(result, written=written, explain=self.explain, colour=colour), nl=False, err=err)

    def write(self, job: Job, result: Result, target: str, before: bytes | None, name: str) -> bool:
        """Write a result; one clear line when it must not be."""
        try:
            history.write(target, before, result.after, self.run)
            record.remember(target, result.after, job.options, __version__)
        except SourceError as error:
            click.echo(f"{plain(name)}: {error.id} {error.message}", err=True)
            self.worst(1)
            return False
        self.wrote = True
        return True


def show(run: Run, job: Job) -> None:
    """The diff to stdout, everything else to stderr."""
    if job.result.changed:
        _patch(job)
    run.summary(job, job.result, err=True)
    if job.result.changed and above_here(job.file.target):
        click.echo("  this file lies above the current folder: `git apply` takes its diff only where it was made in the file's own folder", err=True)


def tell(run: Run, job: Job) -> None:
    """Nobody to ask and no leave to write: the diff, and a failure when there is one."""
    show(run, job)
    if job.result.changed:
        click.echo("Nothing was written: pass --write to apply this diff, or pipe it into `git apply`.", err=True)
        run.worst(1)


def check(run: Run, job: Job) -> None:
    """What would be done; a failure when there is something."""
    run.summary(job, job.result, err=False)
    run.worst(int(job.result.changed))


def check_diff(run: Run, job: Job) -> None:
    """The diff, and a failure when there is one."""
    show(run, job)
    run.worst(int(job.result.changed))


def write(run: Run, job: Job) -> None:
    """Write without asking."""
    written = job.result.changed and run.write(job, job.result, job.file.target, job.file.data, job.file.path)
    run.summary(job, job.result, err=False, written=written)


def pipe(run: Run, job: Job) -> None:
    """The script to stdout, converted where it could be; nothing when it couldn't be read."""
    if job.result.outcome is not Outcome.ERROR:
        click.echo(job.result.after, nl=False)
    run.summary(job, job.result, err=True, written=True)


def to_file(output: str) -> Callable[[Run, Job], None]:
    """Write the result to another file."""

    def write_there(run: Run, job: Job) -> None:
        written = False
        if job.result.changed:
            target = os.path.realpath(output)
            before = files.read(output).data if os.path.lexists(target) else None
            written = run.write(job, job.result, target, before, output)
        run.summary(job, job.result, err=False, written=written)
        if not job.result.changed:
            click.echo(f"{plain(output)} was not written: there is nothing to write", err=True)

    return write_there


def write_together(run: Run, jobs: list[Job]) -> None:
    """Write the files of one conversion: all, or none."""
    written = _all_or_none(run, [(job, job.result) for job in jobs if job.result.changed])
    for job in jobs:
        run.summary(job, job.result, err=False, written=written and job.result.changed)


def _all_or_none(run: Run, approved: list[tuple[Job, Result]]) -> bool:
    """Write results; when one can't be written, take back those that were."""
    done: list[str] = []
    for job, result in approved:
        if not run.write(job, result, job.file.target, job.file.data, job.file.path):
            for target in done:
                for entry in history.last(target):
                    record.undo(entry)
            if done:
                click.echo("the other files of this conversion were put back", err=True)
            return False
        done.append(job.file.target)
    return bool(approved)


@dataclass
class Asker:
    """Show the summaries and diffs of one conversion on the terminal, and ask."""

    terminal: Terminal

    def __call__(self, run: Run, job: Job) -> None:
        """Ask about a file on its own."""
        self.together(run, [job])

    def together(self, run: Run, jobs: list[Job]) -> None:
        """Ask about the files of one conversion; a file that is refused takes the others with it."""
        approved: list[tuple[Job, Result]] = []
        for job in jobs:
            run.summary(job, job.result, err=False)
        for job in [job for job in jobs if job.result.changed]:
            _patch(job)
            answer = self.terminal.approve(job)
            lost = answer is None or not answer.changed or (len(jobs) > 1 and _lost_essential(job.result, answer))
            if answer is None or lost:
                files_ = ", ".join(plain(other.file.path) for other in jobs if other.result.changed)
                click.echo(f"{files_}: left as {'they were' if ',' in files_ else 'it was'}")
                run.worst(1)
                return
            approved.append((job, answer))
        if _all_or_none(run, approved):
            for job, answer in approved:
                click.echo(f"{plain(job.file.path)}: written")
                run.worst(exit_code(answer))


def _lost_essential(whole: Result, part: Result) -> bool:
    return sum(change.essential for change in part.changes) < sum(change.essential for change in whole.changes)


@click.command("convert", cls=ToolCommand, help=HELP)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--show-diff", is_flag=True, help="Print the diff on stdout and write nothing.")
@click.option("--write", "write_", is_flag=True, help="Write without asking.")
@click.option("-o", "--output", metavar="FILE", help="Write the result there instead (- for stdout).")
@click.option("--check", "check_", is_flag=True, help="Write nothing; exit with 1 when a diff would be applied.")
@click.option("--batch", type=click.Choice(BATCH), help="What the script's batch size means: per device, or the global batch, split.")
@click.option("--mixed-precision", type=click.Choice(MIXED_PRECISION), help="Set mixed precision in the script.")
@click.option("--gradient-accumulation-steps", type=click.IntRange(min=1), metavar="N", help="Step once for N batches.")
@click.option("--checkpointing", type=click.Choice(CHECKPOINTING), help="Keep checkpoints as files, or as states of the accelerator.")
@click.option("--find-unused-parameters", is_flag=True, default=None, help="Let DDP look for parameters that a step doesn't use.")
@click.option("--scale-lr", is_flag=True, default=None, help="Multiply the learning rate by the number of processes.")
@click.option("--reduce-train-metrics", is_flag=True, default=None, help="Show training numbers of all processes, not of the main one alone.")
@click.option("--trackers", is_flag=True, default=None, help="Log through Accelerate's trackers instead of the script's own.")
@click.option("--seed", type=int, help="Seed a script that doesn't.")
@click.option("--partial", is_flag=True, default=None, help="Also write what could be converted where some places need a person.")
@strategy_flags
@click.option("--explain", is_flag=True, help="Show the evidence behind every decision.")
def command(paths: tuple[str, ...], show_diff: bool, write_: bool, output: str | None, check_: bool, explain: bool, **flags: Any) -> None:
    """The command's own function: choose what happens to each file, then let it happen."""
    act = _act(paths, show_diff, write_, output, check_)
    run = Run(explain)
    jobs = list(road(paths, strategy(flags)))
    if output is not None and len([job for job in jobs if job.result.changed or job.result.outcome is Outcome.ERROR]) > 1:
        raise UsageError("--output takes one script: this one changes together with other files (use --write)")
    for job in jobs:
        run.worst(exit_code(job.result))
    stopped = run.code == 3 and act is not check  # a bug in one file: no file is written
    groups: dict[int, list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.group, []).append(job)
    for group in groups.values():
        together = [job for job in group if not stopped or job.result.outcome is Outcome.ERROR]
        if act is write:
            write_together(run, together)
        elif isinstance(act, Asker):
            act.together(run, together)
        else:
            for job in together:
                act(run, job)
    if stopped:
        click.echo("Nothing was written.", err=True)
    _close(run, jobs)
    click.get_current_context().exit(run.code)


def _act(paths: tuple[str, ...], show_diff: bool, write_: bool, output: str | None, check_: bool) -> Callable[[Run, Job], None]:
    """What happens to each file, from the flags. Raises UsageError on a combination that makes no sense."""
    chosen = [name for name, on in (("--show-diff", show_diff), ("--check", check_), ("--write", write_), ("--output", output is not None)) if on]
    if len(chosen) > 1 and chosen != ["--show-diff", "--check"]:
        raise UsageError(f"{chosen[0]} and {chosen[1]} don't go together")
    if STDIN in paths and (len(paths) > 1 or write_):
        raise UsageError("- (stdin) stands alone: no other PATH" if len(paths) > 1 else "stdin can't be written to; leave out --write")
    if show_diff or check_:
        return check_diff if show_diff and check_ else show if show_diff else check
    if write_:
        return write
    if output is not None or STDIN in paths:
        return pipe if output in (None, STDIN) else to_file(str(output))
    return Asker(Terminal()) if interactive() else tell


def _patch(job: Job) -> None:
    colour = wanted(sys.stdout)
    click.echo(patch(job.result, job.file.target, colour=colour), nl=False)


def _close(run: Run, jobs: list[Job]) -> None:
    others = sum(job.result.outcome is Outcome.NOT_TRAINING and not job.named for job in jobs)
    if others:
        click.echo(f"{others} file{'s' * (others != 1)} of the directory {'are' if others != 1 else 'is'} no training script", err=True)
    if run.wrote:
        click.echo("`script2accel undo` takes this back.", err=True)
