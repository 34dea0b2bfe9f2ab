"""The command line that all experiments have: `python -m experiments.NAME [--quick] [--seed N] [--json FILE]`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click
from rich.console import Console
from rich.progress import track

from swarmflow.errors import SwarmflowError

Item = TypeVar("Item")
SEED_MAX = 2**31


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a click command quick (bool), seed (int) and json_file (Path or None)."""
    file = click.Path(dir_okay=False, path_type=Path)
    for add in (
        click.option("--json", "json_file", type=file, help="Write the rows here."),
        click.option(
            "--seed", type=click.IntRange(0, SEED_MAX), default=0, show_default=True, help="Of the first one."
        ),
        click.option("--quick", is_flag=True, help="A reduced version, to see that it works."),
    ):
        command = add(command)
    return command


def run(command: click.Command) -> NoReturn:
    """Run an experiment's command and end the process: 0, or 2 and one line where the user can help it."""
    try:
        command.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        sys.exit(130)
    except SwarmflowError as error:
        click.echo(f"{command.name}: {error}", err=True)
        sys.exit(error.exit_code)
    sys.exit(0)


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """The items, with a progress bar on a terminal, and silently elsewhere."""
    console = Console(stderr=True)
    shown = track(items, what, total, console=console, transient=True, disable=not console.is_terminal)
    yield from shown


def plot_file(package: str, quick: bool) -> Path:
    """Where the plot of the experiment whose __file__ is given goes: beside it. A quick one replaces no real one."""
    return Path(package).parent / ("quick.png" if quick else "plot.png")
