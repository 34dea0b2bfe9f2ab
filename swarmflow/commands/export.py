"""`swarmflow export`: a run's model as a Hugging Face checkpoint."""

from __future__ import annotations

import click


@click.command()
@click.option("--join", "invite", help="The invite of a run that is alive.")
@click.option("--state-dir", type=click.Path(file_okay=False), help="A trainer's state folder, of any run.")
@click.option("--out", required=True, type=click.Path(file_okay=False), help="The folder to write.")
def export(invite: str | None, state_dir: str | None, out: str) -> int:
    """Write a run's newest version for plain transformers."""
    from swarmflow.runtime.export_command import main

    return main(invite, state_dir, out)
