"""`swarmflow demo`: the command line of the demonstration."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--out",
    default="demo-out",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Where the trained model goes; a number is added where that is taken.",
)
@click.option("--steps", default=120, show_default=True, type=click.IntRange(min=10), help="Optimizer steps.")
def demo(out: str, steps: int) -> int:
    """Train a small model with a swarm of processes on this machine, and kill one of them on the way."""
    from pathlib import Path

    from swarmflow.demo.story import tell

    return tell(Path(out), steps)
