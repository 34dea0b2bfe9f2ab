"""`swarmflow status`: the command line of a run's status."""

from __future__ import annotations

import click


@click.command()
@click.option("--join", "invite", envvar="SWARMFLOW_JOIN", help="The invite that a trainer printed.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.option("--watch", is_flag=True, help="Show it again and again, until Ctrl-C; in a pipe, what has changed.")
def status(invite: str | None, as_json: bool, watch: bool) -> int:
    """Show a run's stages, peers, load, step and loss."""
    if watch:
        if as_json:
            raise click.UsageError("give --watch or --json, not both")
        from swarmflow.runtime.operations.status_watch import main as watch_run

        return watch_run(invite)

    from swarmflow.runtime.operations.status import main

    return main(invite, as_json)
