"""The command line. Subcommands are imported when they are called, so that `--help` pays for click alone."""

from __future__ import annotations

import sys
from importlib import import_module
from io import TextIOWrapper
from typing import cast

import click

from script2accel import __version__

COMMANDS = {
    "convert": "Rewrite training scripts for Accelerate, after you approved the diff.",
    "check": "Say what stands between scripts and being accelerate-ready.",
    "roles": "Show what was understood of a script, line by line.",
    "rule": "Explain a rule or a message, or list the rules.",
    "undo": "Take back the last write.",
    "init": "Ask once about hardware and strategy, and save the answers.",
    "config": "Show or write Accelerate's and DeepSpeed's configuration for the answers.",
    "launch": "Print the commands and cluster files that start a script.",
    "mesh": "Draw which process sits where, and which groups it forms.",
    "guide": "Documented facts about training with Accelerate.",
}


class LazyGroup(click.Group):
    """A group that knows its commands' names and short helps, and imports a command on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command's own module holds it under the name `command`."""
        if cmd_name not in COMMANDS:
            return None
        return cast(click.Command, import_module(f"script2accel.cli.{cmd_name}").command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="script2accel", message="%(prog)s %(version)s")
def group() -> None:
    """Rewrite plain PyTorch training scripts for Hugging Face Accelerate.

    Nothing is written before you approved it, and a write can be undone.

    Exit codes: 0 done or nothing to do, 1 something needs a person, 2 wrong usage or unreadable input, 3 a bug of this tool.
    """


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold what the terminal can't show
    group.main(prog_name="script2accel")
