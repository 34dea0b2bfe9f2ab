"""The page of commands and options, written from click's own description of them.

`python -m tests.packaging.cli_page` writes docs/cli.md anew.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import re
import tomllib
from pathlib import Path

import click

from swarmflow import cli

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cli.md"
HEAD = """# Commands and options

Every command of `swarmflow` with all its options, as `swarmflow COMMAND --help` shows them. This page is generated from
the code (`python -m tests.packaging.cli_page`). An option without a default is off, or its meaning says what happens.
"""


def commands() -> dict[str, click.Command]:
    """Return each command that pyproject.toml declares, by its name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"][cli.COMMAND_GROUP]
    found: dict[str, click.Command] = {}
    for name in sorted(declared):
        command = importlib.metadata.EntryPoint(name, declared[name], cli.COMMAND_GROUP).load()
        assert isinstance(command, click.Command)
        found[name] = command
    return found


def page() -> str:
    """Return docs/cli.md."""
    return "\n".join([HEAD, *(_section(name, command) for name, command in commands().items())])


def _section(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"swarmflow {name}")
    help_text = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(command.help or "")).strip()
    lines = [
        f"## swarmflow {name}",
        "",
        help_text,
        "",
        "```",
        command.get_usage(context).removeprefix("Usage: "),
        "```",
    ]
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    if options:
        lines += ["", "| option | value | default | meaning |", "|---|---|---|---|"]
        lines += [_row(option, context) for option in options]
    return "\n".join(lines) + "\n"


def _row(option: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else _value(option, context)
    given = option.default if isinstance(option.default, bool | int | float | str) and option.show_default else None
    if isinstance(option.show_default, str):  # the default in words
        given = option.show_default
    elif isinstance(given, bool):
        given = next(iter(option.opts if given else option.secondary_opts), None)
    marks = [option.help or ""]
    if option.required:
        marks.append("Required.")
    if option.multiple:
        marks.append("May be given several times.")
    if option.envvar:
        marks.append(f"Also from the variable `{option.envvar}`.")
    cells = (names, value, "" if given is None else f"`{given}`", " ".join(marks))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _value(option: click.Option, context: click.Context) -> str:
    kind = option.type
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return f"`{option.make_metavar(context)}`"
    word = "integer" if isinstance(kind, click.IntRange) else "number"
    limits = [f"≥ {kind.min}" if kind.min is not None else "", f"≤ {kind.max}" if kind.max is not None else ""]
    return " ".join([word, ", ".join(filter(None, limits))]).strip()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
