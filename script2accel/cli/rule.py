"""`script2accel rule`: a rule's page, or the list of rules."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import click

from script2accel.cli.common import BUG, ToolCommand
from script2accel.diagnostics import Message
from script2accel.errors import UsageError

OTHERS = {
    "S2A001": "The file can't be opened: it is missing, no regular file (a fifo, a device, a loop of links), unreadable, or too large.",
    "S2A002": "The file isn't text that Python reads: UTF-16, a null byte, or bytes that aren't in its encoding.",
    "S2A003": "A syntax error, at the line and column given.",
    "S2A004": "An expression is nested too deeply, or is too long, to be read.",
    "S2A005": "The file is Python 2.",
    "S2A006": "The file uses syntax newer than the Python that runs this tool.",
    "S2A007": "The file was not written: it has hard links, is read-only, changed since it was read, or its folder can't be written to.",
    "S2A021": "The notebook can't be read: broken JSON, another format than nbformat 3 and 4, another language than Python, or no code in it.",
    BUG.id: f"A bug of this tool: {BUG.todo}.",
}


@click.command("rule", cls=ToolCommand)
@click.argument("code", required=False, metavar="[ID]")
def command(code: str | None) -> None:
    """Explain a rule or a message by its id (S2A201) or name; without one, list the rules."""
    rules = documented()
    if code is None:
        for rule in rules:
            click.echo(f"{rule.CODE}  {rule.NAME:<28}  {_first_line(rule)}")
        return
    meant = next((rule for rule in rules if code.upper() in _ids(rule) or code.lower() == rule.NAME), None)
    if meant is not None:
        click.echo(page(meant), nl=False)
    elif code.upper() in OTHERS:
        click.echo(f"{code.upper()}\n\n{OTHERS[code.upper()]}")
    elif (message := next((one for one in _every_message() if one.id == code.upper()), None)) is not None:
        click.echo("\n".join(_told(message)))
    else:
        raise UsageError(f"no rule or message {code!r}; `script2accel rule` lists the rules")


def documented() -> list[ModuleType]:
    """The rules, and what works as one without being asked rule by rule: the accelerator's birth."""
    from script2accel import birth
    from script2accel.rules import load

    return sorted([*load(), birth], key=lambda rule: str(rule.CODE))


def _every_message() -> Iterator[Message]:
    """The messages of all modules of the package: those of decisions, of the road and of the plan belong to no rule."""
    import script2accel

    for info in pkgutil.walk_packages(script2accel.__path__, "script2accel."):
        if not info.name.endswith("__main__"):
            yield from _messages(importlib.import_module(info.name))


def page(rule: ModuleType) -> str:
    """The rule's docstring under its code and name, then the messages that it may give."""
    lines = [f"{rule.CODE} {rule.NAME}", "", inspect.cleandoc(rule.__doc__ or "")]
    messages = sorted(_messages(rule), key=lambda message: message.id)
    if messages:
        lines += ["", "Messages:"]
    for message in messages:
        lines += [f"  {line}" for line in _told(message)]
    return "\n".join(lines) + "\n"


def _told(message: Message) -> list[str]:
    return [f"{message.id} ({message.severity.value}): {message.text}", *([f"    to do: {message.todo}"] if message.todo else [])]


def _messages(rule: ModuleType) -> list[Message]:
    return [value for value in vars(rule).values() if isinstance(value, Message)]


def _ids(rule: ModuleType) -> set[str]:
    return {rule.CODE, *(message.id for message in _messages(rule))}


def _first_line(rule: ModuleType) -> str:
    return (rule.__doc__ or "").strip().split("\n")[0]
