"""docs/cli.md lists every command and option, and is as the code says."""

from __future__ import annotations

import click
import pytest

from tests.packaging.cli_page import PAGE, commands, page


def test_the_page_is_generated_from_the_commands() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.packaging.cli_page"


@pytest.mark.parametrize("name", sorted(commands()))
def test_every_option_is_on_the_page_and_says_what_it_does(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").split(f"## swarmflow {name}\n")[1].split("\n## ")[0]
    for option in commands()[name].params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.help, option.name
            assert all(f"`{written}`" in section for written in (*option.opts, *option.secondary_opts))
