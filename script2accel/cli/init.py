"""`script2accel init`: the interview, and what it saves."""

from __future__ import annotations

import difflib
import os
import sys
from typing import Any

import click

from script2accel.cli.answering import answer_flags, given
from script2accel.cli.common import ToolCommand, interactive
from script2accel.errors import UsageError
from script2accel.report.style import paint, plain, wanted
from script2accel.workflow import history, saved
from script2accel.workflow.answers import Answers, from_table, problems
from script2accel.workflow.questions import QUESTIONS, Question, shown, written

HELP = """Ask once about hardware and strategy, and save the answers.

They lie in [tool.script2accel] of the nearest pyproject.toml, or in a script2accel.toml, made here when there is neither. Run it again to
see and change them. Every question has a flag; a flag's question is not asked, and without a terminal nothing is.

\b
  script2accel init --no-input --hardware multi-gpu --num-processes 8 --fsdp
"""


@click.command("init", cls=ToolCommand, help=HELP)
@click.option("--no-input", is_flag=True, help="Ask nothing: what no flag says is as saved, or a valid default.")
@answer_flags
def command(no_input: bool, **flags: Any) -> None:
    """The command's own function."""
    where, said = saved.place(), given(flags)
    before = from_table(where.table())
    answers = saved.combine(before, said)
    if not no_input and interactive():
        answers = _interview(before, said)
    wrong = problems(answers)
    if wrong:
        raise UsageError("; ".join(wrong))
    _summary(answers)
    _save(where, answers, ask=not no_input and interactive())


def _summary(answers: Answers) -> None:
    rows = list(shown(answers))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"  {name.ljust(width)}  {plain(value)}")


def _save(where: saved.Place, answers: Answers, *, ask: bool) -> None:
    text = saved.after(where, answers)
    name = plain(os.path.relpath(where.target))
    if text == where.text:
        click.echo(f"{name}: unchanged")
        return
    if ask:
        lines = difflib.unified_diff((where.text or "").splitlines(), text.splitlines(), name, name, lineterm="", n=2)
        click.echo("\n".join(map(plain, lines)))
        if _line(f"Save to {name} [y,n]? ").strip().lower() not in ("y", "yes"):
            click.echo(f"{name}: left as it was")
            click.get_current_context().exit(1)
    saved.write(where, text, history.new_run())
    click.echo(f"{name}: saved")
    click.echo("`script2accel undo` takes this back.", err=True)


def _interview(before: dict[str, object], said: dict[str, object]) -> Answers:
    """Ask every question that applies, each with the default that goes with the answers so far; once more where they don't go together."""
    said = dict(said)
    while True:
        answers = saved.combine(before, said)
        typed: dict[str, object] = {}
        for question in QUESTIONS:
            if question.field not in said and question.applies(answers):
                typed[question.field] = _ask(question, getattr(answers, question.field))
                answers = saved.combine(before, {**said, **typed})
        wrong = problems(answers)
        if not wrong:
            return answers
        for one in wrong:
            click.echo(paint(f"That can't be carried out: {one}", "yellow", wanted(sys.stdout)))
        before, said = {**before, **typed}, {key: value for key, value in said.items() if key not in typed}


def _ask(question: Question, default: object) -> object:
    click.echo(f"\n{question.explanation} ({question.source})")
    choices = f" ({', '.join(question.choices)})" if question.choices else ""
    while True:
        line = _line(f"{question.text}{choices} [{written(default)}] ").strip()
        if not line:
            return default
        try:
            return question.read(line)
        except UsageError as error:
            click.echo(f"  {error}, please")


def _line(prompt: str) -> str:
    """A line from the terminal; its end means that nobody answers any more, and nothing is saved."""
    click.echo(paint(prompt, "bold", wanted(sys.stdout)), nl=False)
    line = sys.stdin.readline()
    if not line:
        click.echo("\nNothing was saved.")
        raise click.exceptions.Exit(1)
    return line
