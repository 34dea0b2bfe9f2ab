"""`swarmflow dashboard`: the command line of the page, for a run, a recording or the log of a finished run."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option("--join", "invite", envvar="SWARMFLOW_JOIN", help="The invite that a trainer printed.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False, path_type=Path), help="The log of a finished run.")
@click.option(
    "--recording", type=click.Path(dir_okay=False, path_type=Path), help="What `simulate --view-file` has written."
)
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="Serve the page here; by default any free port.")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to serve the page on.")
@click.option("--allow-host", multiple=True, help="A name by which browsers may ask for it, behind a proxy.")
def dashboard(
    invite: str | None,
    json_file: Path | None,
    recording: Path | None,
    port: int,
    host: str,
    allow_host: tuple[str, ...],
) -> int:
    """Show a run on a page: its pipeline, curves, peers and events, as they change."""
    from swarmflow.runtime.operations.dashboard import main

    if json_file is not None and recording is not None:
        raise click.UsageError("give --json or --recording, not both")
    return main(invite, json_file, recording, host, port, allow_host)
