"""The command `swarmflow`: finds its commands, and turns every error into one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import os
import resource
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import click

from swarmflow import __version__
from swarmflow.clean_text import clean
from swarmflow.errors import SwarmflowError
from swarmflow.suggestions import did_you_mean

COMMAND_GROUP = "swarmflow.commands"
DEBUG_VARIABLE = "SWARMFLOW_DEBUG"
EXIT_UNEXPECTED = 70
OPEN_FILES_MACOS = 10_240  # its OPEN_MAX: it refuses more even where the hard limit is "unlimited"
EXIT_INTERRUPTED = 128 + signal.SIGINT


class SuggestingChoice(click.Choice[Any]):
    """click's Choice; its error names the value that was probably meant."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:  # noqa: ANN401 as in click
        """The message about a value that is not allowed."""
        message = super().get_invalid_choice_message(value, ctx)
        return f"{message.removesuffix('.')}{did_you_mean(value, map(str, self.choices))}."


class FiniteRange(click.FloatRange):
    """click's FloatRange, which takes nan and inf, without these."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the number. Fails with a usage error for one that is not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class EntryPointGroup(click.Group):
    """A group whose commands are the entry points of one group, so that the library need not import the roles.

    Errors about a misspelt command, or a misspelt value of an option with fixed values, name the nearest one; those
    about options do so in click.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all installed commands, sorted."""
        return sorted({*super().list_commands(ctx), *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, or None where no installed package has it."""
        entry_point = _entry_points().get(cmd_name)
        if entry_point is None:
            return super().get_command(ctx, cmd_name)
        try:
            command = entry_point.load()
        except ModuleNotFoundError as error:
            if error.name != entry_point.module:
                raise
            return None
        if not isinstance(command, click.Command):
            raise TypeError(f"entry point {entry_point.value} is not a click command")
        _narrow_types(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that `args` begin with; an error about a misspelt one names the nearest."""
        name, names = args[0], self.list_commands(ctx)
        if not name.startswith("-") and name not in names and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}{did_you_mean(name, names)}.")
        return super().resolve_command(ctx, args)


@click.group(cls=EntryPointGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="swarmflow")
def cli() -> None:
    """Train a language model with a swarm of peers that may come and go."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `swarmflow` with `arguments` (default: the process's own) and return the exit code.

    An integer that the command returns is its exit code; other values mean 0. Wrong usage gives 2, a SwarmflowError its
    own `exit_code` and one line on stderr, an interrupt 130, a mistake in swarmflow 70: its traceback goes to a file,
    or to stderr where SWARMFLOW_DEBUG is set.
    """
    try:
        result = cli.main(args=arguments, prog_name="swarmflow", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except SwarmflowError as error:
        _print_error(clean(" ".join(str(error).split())))
        return error.exit_code
    except Exception as error:
        _print_error(f"{type(error).__name__}: {clean(' '.join(str(error).split()))} ({_keep_traceback()})")
        return EXIT_UNEXPECTED
    return result if isinstance(result, int) else 0


def run() -> NoReturn:
    """The command `swarmflow`: main, and the end of the process.

    Nothing is taken apart at the end: a peer that had finished its run was once aborted by a C++ thread of a library
    that was still there when Python had unloaded it (exit code -6), and it takes seconds.
    """
    raise_file_limit()
    open_output()
    exit_code = main()
    with contextlib.suppress(OSError):  # whoever read the output has gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(exit_code)


def raise_file_limit() -> None:
    """Let this process, and those that it starts, open as many files as the system allows them.

    The usual soft limit, 1024, is for programs of the time of select(); a process of a large swarm has a link to each
    other one, and what cannot be opened then is not only links but checkpoints.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    for soft in (hard, OPEN_FILES_MACOS):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            return


def open_output() -> None:
    """Have stdout and stderr take any text: what an encoding lacks is written as codes, and a closed one drops it."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", errors="backslashreplace"))
        else:
            stream.reconfigure(errors="backslashreplace")


def _narrow_types(command: click.Command) -> None:
    """Have the options of a command suggest values, and take finite numbers alone.

    Its module may import nothing but click, so it is done here.
    """
    for parameter in command.params:
        kind = parameter.type
        if type(kind) is click.Choice:
            parameter.type = SuggestingChoice(kind.choices, kind.case_sensitive)
        elif type(kind) is click.FloatRange:
            parameter.type = FiniteRange(kind.min, kind.max, kind.min_open, kind.max_open, kind.clamp)


def _entry_points() -> Mapping[str, importlib.metadata.EntryPoint]:
    return {entry_point.name: entry_point for entry_point in importlib.metadata.entry_points(group=COMMAND_GROUP)}


def _print_error(line: str) -> None:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    click.echo(f"swarmflow: {line}", err=True)


def _keep_traceback() -> str:
    """Write the traceback at hand to a file, and say in a few words where it is."""
    if os.environ.get(DEBUG_VARIABLE):
        return "a mistake in swarmflow; traceback above"
    hint = f"a mistake in swarmflow; set {DEBUG_VARIABLE}=1 for the traceback"
    try:
        with tempfile.NamedTemporaryFile("w", prefix="swarmflow-", suffix=".log", delete=False) as log:
            traceback.print_exc(file=log)
    except OSError:
        return hint
    return f"{hint}, or read {log.name}"
