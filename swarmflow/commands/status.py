"""`swarmflow status`: the command line of a run's status."""

from __future__ import annotations

import click


@click.command()
@click.option("--join", "invite", envvar="SWARMFLOW_JOIN", help="The invite that a trainer printed.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def status(invite: str | None, as_json: bool) -> int:
    """Show a run's stages, peers, load, step and loss."""
    from swarmflow.runtime.operations.status import main

    return main(invite, as_json)
