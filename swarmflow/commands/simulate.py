"""`swarmflow simulate`: the command line of the simulator."""

from __future__ import annotations

import click


@click.command()
@click.argument("scenario", type=click.Path(dir_okay=False))
@click.option("--seed", type=click.IntRange(min=0, max=2**63 - 1), help="Instead of the scenario's.")
@click.option("--policy", help="Instead of the scenario's.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write all figures here.")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(dir_okay=False),
    help="Write all that happens here: the same bytes for the same scenario and seed.",
)
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Draw the iterations into this image.")
@click.option(
    "--view",
    "page_port",
    metavar="[PORT]",
    is_flag=False,
    flag_value=0,
    type=click.IntRange(0, 65535),
    help="Afterwards show the run on a page of this machine, by default at any free port, until Ctrl-C.",
)
@click.option(
    "--view-file", type=click.Path(dir_okay=False), help="Write what the page shows here: `dashboard --recording`."
)
def simulate(
    scenario: str,
    seed: int | None,
    policy: str | None,
    json_file: str | None,
    trace_file: str | None,
    plot_file: str | None,
    page_port: int | None,
    view_file: str | None,
) -> int:
    """Pretend the swarm that SCENARIO (a TOML file) describes: what would these machines give?"""
    from pathlib import Path

    from swarmflow.forecast.run import Outputs, main

    json, trace, plot, view = (None if n is None else Path(n) for n in (json_file, trace_file, plot_file, view_file))
    return main(Path(scenario), seed, policy, Outputs(json, trace, plot, view, page_port))
