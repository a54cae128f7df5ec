"""`script2accel guide`: documented facts, each with its page."""

from __future__ import annotations

import textwrap

import click

from script2accel.cli.common import ToolCommand, road
from script2accel.errors import UsageError
from script2accel.knowledge.guide import TOPICS, Topic, fp8

NAMES = {"model": "model", "optimizer": "optimizer", "loader": "loader"}


@click.command("guide", cls=ToolCommand)
@click.argument("topic", required=False, type=click.Choice(tuple(TOPICS)))
@click.option("--gpu", metavar="NAME", help="Say what is documented of fp8 on this GPU, such as H100.")
@click.option("--script", metavar="FILE", help="Name the snippet's objects as this script does.")
def command(topic: str | None, gpu: str | None, script: str | None) -> None:
    """Print documented facts about training with Accelerate, each with its page, and what is wrong in common recipes.

    Without a topic, the topics. Pages are those of Accelerate's documentation unless a source file is named.
    """
    if gpu is not None:
        if topic not in (None, "mixed-precision"):
            raise UsageError("--gpu goes with mixed-precision")
        topic = "mixed-precision"
    if topic is None:
        for name, one in TOPICS.items():
            click.echo(f"{name:<16} {one.title}: {len(one.facts)} facts, {len(one.wrong)} wrong recipes")
        return
    click.echo(page(TOPICS[topic], names(script) if script is not None else NAMES), nl=False)
    if gpu is not None:
        click.echo(f"\n{fp8(gpu)}")


def page(topic: Topic, found: dict[str, str]) -> str:
    """The topic as text."""
    lines = [topic.title, ""]
    for fact in topic.facts:
        lines += [*textwrap.wrap(fact.text, 110, initial_indent="- ", subsequent_indent="  "), f"    {fact.page}"]
    if topic.snippet:
        lines += ["", *textwrap.indent(topic.snippet.format_map(found), "    ").rstrip("\n").split("\n")]
    if topic.wrong:
        lines += ["", "Known to be wrong:"]
    for wrong in topic.wrong:
        lines += [*textwrap.wrap(f"{wrong.recipe}: {wrong.truth}", 110, initial_indent="- ", subsequent_indent="  "), f"    {wrong.source}"]
    return "\n".join(lines) + "\n"


def names(script: str) -> dict[str, str]:
    """The names that a script gives to the snippet's objects; a usual one where it has none."""
    found = dict(NAMES)
    for job in road([script], {}):
        for line in reversed(job.result.roles):
            for name, role in zip(line.name.split(", "), line.role.split(", "), strict=False):
                found |= {role: name} if role in NAMES else {}
    return found
