"""`swarmflow demo`: the command line of the demonstration."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--out",
    default="demo-out",
    show_default=True,
    type=click.Path(file_okay=False),
    help="Where the trained model and the picture of the run go; a number is added where that is taken.",
)
@click.option("--steps", default=400, show_default=True, type=click.IntRange(min=10), help="Optimizer steps.")
@click.option("--page", "keep_page", is_flag=True, help="Keep the page of the run open at the end, until Ctrl-C.")
def demo(out: str, steps: int, keep_page: bool) -> int:
    """Train a small model with a swarm of processes on this machine, and kill one of them on the way."""
    from pathlib import Path

    from swarmflow.demo.story import tell

    return tell(Path(out), steps, keep_page=keep_page)
