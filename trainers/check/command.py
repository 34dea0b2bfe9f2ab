"""`swarmflow check`: the command line of the check before a run."""

from __future__ import annotations

import click


@click.command()
@click.argument("run_toml", metavar="RUN.toml", type=click.Path(dir_okay=False))
@click.option("--state-dir", type=click.Path(file_okay=False), help="Where checkpoints will go; default: under output.")
@click.option("--operators", is_flag=True, help="Of a model.module, what each operator takes and where it can be cut.")
def check(run_toml: str, state_dir: str | None, operators: bool) -> int:
    """Check the run that RUN.toml describes, without starting it: model, data, disk, and what it asks of peers."""
    from pathlib import Path

    from trainers.check.run import main

    return main(Path(run_toml), Path(state_dir) if state_dir is not None else None, operators=operators)
