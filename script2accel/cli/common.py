"""What the commands share: the road from paths to results, exit codes, and what happens on a bug of ours."""

from __future__ import annotations

import errno
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import click

from script2accel.diagnostics import Diagnostic, Message, Severity
from script2accel.errors import InternalError, SourceError, UsageError
from script2accel.options import Options
from script2accel.result import Outcome, Result
from script2accel.workflow import record
from script2accel.workflow.approve import verified
from script2accel.workflow.discover import STDIN, Found, discover
from script2accel.workflow.files import UNREADABLE, File, read
from script2accel.workflow.project import Project
from script2accel.workflow.settings import Settings

BUG = Message("S2A999", Severity.ERROR, "internal error: {what}", "please report this bug, with the script (--debug shows where it happened)")


@dataclass(frozen=True)
class Job:
    """A file and what came of it; `named` when the user wrote its name (not found in a directory)."""

    file: File
    result: Result
    named: bool = True
    group: int = 0  # files with one number are converted together: all are written, or none
    options: Options = field(default_factory=Options)


class ToolCommand(click.Command):
    """A command with `--debug`; a usage error of the library is one of the command, anything unexpected exits with 3 in one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(click.Option(["--debug"], is_flag=True, expose_value=False, help="Show the traceback of an internal error."))

    def make_context(self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any) -> click.Context:
        """Remember `--debug` before the arguments are consumed."""
        debug = "--debug" in args
        context = super().make_context(info_name, args, parent, **extra)
        context.meta["script2accel.debug"] = debug
        return context

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; see the class."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            raise click.UsageError(str(error), ctx) from None
        except SourceError as error:
            click.echo(str(error), err=True)
            ctx.exit(2)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has enough: click ends quietly
            click.echo(str(error), err=True)
            ctx.exit(2)
        except Exception as error:
            click.echo(f"{bug(error).message}; {BUG.todo}", err=True)
            ctx.exit(3)


def bug(error: Exception) -> Diagnostic:
    """The diagnostic for an exception that nobody expected; its traceback on stderr under `--debug`."""
    context = click.get_current_context(silent=True)
    if context is not None and context.meta.get("script2accel.debug"):
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    what = str(error) if isinstance(error, InternalError) else f"{type(error).__name__}: {error}"
    return BUG.at(0, what=" ".join(what.split()))


def road(paths: Iterable[str], flags: dict[str, object]) -> Iterator[Job]:
    """Every file behind the paths with its result; what can't be read is a result too."""
    settings = Settings(flags)
    done: set[str] = set()
    for group, found in enumerate(_entries_first(list(discover(paths)))):
        if found.problem or found.path == STDIN or os.path.realpath(found.path) not in done:
            for job in _jobs(found, settings, group):
                if job.file.target not in done or not job.file.target:
                    done.add(job.file.target)
                    yield job


def _entries_first(found: list[Found]) -> list[Found]:
    """Named files and scripts in front of modules that other files of the directory import: these come with their scripts."""
    if all(one.named for one in found):
        return found
    modules = {one: os.path.splitext(os.path.basename(one.path))[0] for one in found if not one.named and not one.problem}
    imported: set[str] = set()
    for one in modules:
        try:
            raw = read(one.path).data
        except SourceError:
            continue
        for match in _IMPORT.finditer(raw):
            imported.update(
                word.decode("ascii", "ignore") for word in re.split(rb"[\s,.()]+", match[1] or b"") + re.split(rb"[\s,.()]+", match[2] or b"") if word
            )
    return sorted(found, key=lambda one: modules.get(one, "") in imported)


_IMPORT = re.compile(rb"^[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?import[ \t]+([^#\n]+)", re.MULTILINE)


def error_result(file: File, found: Diagnostic) -> Result:
    """The result of a file that came to nothing."""
    return Result(file.path, Outcome.ERROR, file.data, file.data, diagnostics=(found.in_file(file.path),))


def exit_code(result: Result) -> int:
    """0 done or nothing to do, 1 needs a person, 2 unreadable, 3 our bug."""
    if result.outcome is Outcome.ERROR:
        return 3 if any(one.id.startswith("S2A9") for one in result.diagnostics) else 2
    return 1 if result.errors or result.outcome in (Outcome.PARTIAL, Outcome.REFUSED) else 0


def interactive() -> bool:
    """Whether there is somebody to ask."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


def _jobs(found: Found, settings: Settings, group: int) -> list[Job]:
    nothing = File(found.path, found.path, b"")
    if found.problem:
        return [Job(nothing, error_result(nothing, _unreadable(SourceError(found.problem, id=UNREADABLE))), found.named, group)]
    try:
        file = read(found.path)
    except SourceError as error:
        return [Job(nothing, error_result(nothing, _unreadable(error)), found.named, group)]
    if not found.named and not may_train(file.data):
        return [Job(file, Result(file.path, Outcome.NOT_TRAINING, file.data, file.data), found.named, group)]
    options = settings.of(file.target)
    return [Job(one, _with_record(one, result, options), found.named, group, options) for one, result in _convert(file, options)]


def _with_record(file: File, result: Result, options: Options) -> Result:
    """The result, and what was noted when the file was converted before."""
    noted = record.recall(file.target) if file.target else None
    return replace(result, facts=(*result.facts, ("converted before", noted.said(file.data, options)))) if noted is not None else result


def may_train(raw: bytes) -> bool:
    """Whether a file found in a directory is worth parsing: one that never says `torch` isn't (UTF-16 and binaries are looked at)."""
    return b"torch" in raw or b"\0" in raw


def _convert(file: File, options: Options) -> list[tuple[File, Result]]:
    try:
        if file.target:
            found = Project.around(file.target).convert(file, options)
        else:
            from script2accel.workflow.convert import convert

            found = [(file, convert(file.data, options, file.path))]
        found = [(one, verified(result)) for one, result in found]
    except Exception as error:  # the road promises values; what it raises is our bug, told with the others
        return [(file, error_result(file, bug(error)))]
    return [(one, result if result.changed else replace(result, plan=None)) for one, result in found]  # a tree of files would not fit in memory


def _unreadable(error: SourceError) -> Diagnostic:
    return Diagnostic(error.id, Severity.ERROR, error.line, error.column, error.message)
