"""`swarmflow health`: the command line of a health check."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--metrics-port",
    default=9400,
    show_default=True,
    type=click.IntRange(1, 65535),
    help="The --metrics-port of the process.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, help="Its address.")
@click.option("--metrics-token", metavar="FILE", help="The --metrics-token of the process.")
@click.option(
    "--stalled-max",
    default=600.0,
    show_default=True,
    type=click.FloatRange(min=1),
    help="Seconds without progress, although there is work, after which it is unhealthy.",
)
def health(metrics_port: int, metrics_host: str, metrics_token: str | None, stalled_max: float) -> int:
    """Say whether a peer or trainer of this machine makes progress, or waits for others; exit code 1: neither."""
    from pathlib import Path

    from swarmflow.runtime.operations.health import main

    return main(metrics_host, metrics_port, Path(metrics_token) if metrics_token else None, stalled_max)
