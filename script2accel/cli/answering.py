"""The flags that stand for answers, shared by the commands that read or ask them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from script2accel.errors import UsageError
from script2accel.options import PARALLELISM, STRATEGIC
from script2accel.workflow.questions import QUESTIONS, Question

ZERO = ("zero1", "zero2", "zero3")


def answer_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """Every question's flag, and two short ways to name a strategy."""
    for option in [*_shortcuts(), *(_option(question) for question in reversed(QUESTIONS))]:
        function = option(function)
    return function


def strategy_flags(function: Callable[..., Any]) -> Callable[..., Any]:
    """The flags that name a strategy, for commands that put it into a script."""
    where = click.option(
        "--parallelism", type=click.Choice(PARALLELISM), help="Whether sizes and plugins stand in the script or come from its config."
    )
    asked = [_option(question) for question in reversed(QUESTIONS) if question.field in STRATEGIC]
    for option in [where, *_shortcuts(), *asked]:
        function = option(function)
    return function


def strategy(flags: dict[str, Any]) -> dict[str, object]:
    """The flags with their short forms of a strategy written out."""
    rest = {name: value for name, value in flags.items() if name not in ("deepspeed", "fsdp")}
    return rest | {name: value for name, value in given(flags).items() if name in STRATEGIC}


def _shortcuts() -> list[Callable[..., Any]]:
    return [
        click.option("--deepspeed", type=click.Choice(ZERO), help="The same as --strategy with this value."),
        click.option("--fsdp", is_flag=True, help="The same as --strategy fsdp2."),
    ]


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
