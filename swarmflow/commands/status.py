"""`swarmflow status`: the command line of a run's status."""

from __future__ import annotations

import click


@click.command()
@click.option("--join", "invite", envvar="SWARMFLOW_JOIN", help="The invite that a trainer printed.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--watch", is_flag=True, help="Go on showing it as it changes, until Ctrl-C.")
def status(invite: str | None, as_json: bool, watch: bool) -> int:
    """Show a run's stages, peers, load, step and loss."""
    if watch and as_json:
        raise click.UsageError("give --watch or --json, not both")
    if watch:
        from swarmflow.runtime.operations.watch_text import main as watch_run
        from swarmflow.runtime.transport.invite import read_invite

        return watch_run(read_invite(invite))

    from swarmflow.runtime.operations.status import main

    return main(invite, as_json)
