"""The flags that stand for answers, shared by the commands that read or ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from script2accel.errors import UsageError
from script2accel.workflow.questions import QUESTIONS, Question

ZERO = ("zero1", "zero2", "zero3")


def answer_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every question's flag, and two short ways to name a strategy."""
    shortcuts = [
        click.option("--deepspeed", type=click.Choice(ZERO), help="The same as --strategy with this value."),
        click.option("--fsdp", is_flag=True, help="The same as --strategy fsdp2."),
    ]
    for option in [*shortcuts, *(_option(question) for question in reversed(QUESTIONS))]:
        function = option(function)
    return function


def _option(question: Question) -> Callable[..., Any]:
    kinds = {"int": int, "float": float}
    kind = click.Choice(question.choices) if question.choices else kinds.get(question.kind, str)
    name = "--" + question.field.replace("_", "-")
    return click.option(name, question.field, type=kind, help=question.explanation)


def given(flags: dict[str, Any]) -> dict[str, object]:
    """The answers among a command's flags, by field. Raises UsageError when two of them name a strategy."""
    found: dict[str, object] = {}
    for question in QUESTIONS:
        value = flags.get(question.field)
        if value is not None:
            found[question.field] = question.read(value) if question.kind == "tuple[str, ...]" else value
    named = [strategy for strategy in (flags.get("deepspeed"), "fsdp2" if flags.get("fsdp") else None, found.get("strategy")) if strategy]
    if len(set(named)) > 1:
        raise UsageError(f"one strategy, not {' and '.join(map(str, dict.fromkeys(named)))}")
    return {**found, "strategy": named[0]} if named else found
