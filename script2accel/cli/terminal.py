"""Approval on a terminal, in the manner of `git add -p`."""

from __future__ import annotations

import sys

import click

from script2accel.change.plan import Change
from script2accel.cli.common import Job
from script2accel.report.diff import coloured
from script2accel.report.style import paint, plain, wanted
from script2accel.result import Result
from script2accel.workflow.approve import Question, approve

_FILE_HELP = """\
y - write this file
n - leave this file as it is
h - decide hunk by hunk
a - write this file and all later ones
q - quit: neither this file nor any later one
? - this help
"""
_HUNK_HELP = """\
y - apply this hunk
n - don't apply this hunk (what needs it falls too)
a - apply this hunk and all later ones of this file
d - don't apply this hunk nor any later one of this file
q - quit: neither this hunk nor any later one, and no later file
? - this help
"""


class Terminal:
    """Asks about files, then about hunks; remembers "all" and "quit"."""

    def __init__(self) -> None:
        self.always = False
        self.quit = False
        self.colour = wanted(sys.stdout)

    def approve(self, job: Job) -> Result | None:
        """The part of a file's result that may be written; None for nothing."""
        if self.quit:
            return None
        answer = "y" if self.always else self._ask(f"Apply this diff to {plain(job.file.path)} [y,n,h,a,q,?]? ", "ynhaq", _FILE_HELP)
        self.always = self.always or answer == "a"
        self.quit = answer == "q"
        if answer == "h":
            approved = approve(job.result, self._hunk, self._fallen)
            self.quit = approved.quit
            return approved.result
        return job.result if answer in "ya" else None

    def _hunk(self, question: Question) -> str:
        click.echo(coloured(question.hunk.text, self.colour).encode("latin-1"), nl=False)
        for change in question.reasons:
            click.echo(f"  {paint(change.rule, 'cyan', self.colour)} {change.name}, line {change.line}: {change.message}")
        return self._ask(f"({question.number}/{question.total}) Apply this hunk [y,n,a,d,q,?]? ", "ynadq", _HUNK_HELP)

    def _fallen(self, changes: tuple[Change, ...]) -> None:
        click.echo("This falls with it:")
        for change in changes:
            click.echo(f"  {paint(change.rule, 'yellow', self.colour)} {change.name}, line {change.line}: {change.message}")

    def _ask(self, prompt: str, answers: str, explanation: str) -> str:
        while True:
            click.echo(paint(prompt, "bold", self.colour), nl=False)
            line = sys.stdin.readline()
            if not line:  # end of input
                click.echo()
                return "q"
            answer = line.strip().lower()[:1]
            if answer and answer in answers:
                return answer
            click.echo(explanation, nl=False)
