"""`swarmflow plan`: the command line of the planner."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from swarmflow.plans.fleet import Fleet

HERE = "here"


class FiniteRange(click.FloatRange):
    """click's FloatRange, which takes nan and inf, without these."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        """Return the number. Fails with a usage error for one that is not finite."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


@click.command()
@click.argument("scenario", required=False, type=click.Path(dir_okay=False))
@click.option("--join", "invite", help="Instead: of the run of this invite; `here`: of the one of this machine.")
@click.option("--latency", type=click.Path(dir_okay=False), help="CSV of latencies in s, a row a machine that sends.")
@click.option("--bandwidth", type=click.Path(dir_okay=False), help="CSV of bandwidths in Mb/s, of the same machines.")
@click.option("--stages", type=click.IntRange(min=1), help="Of the model, for machines of tables.")
@click.option("--activation-mb", type=FiniteRange(min=0), help="Of a microbatch, on the wire; for tables.")
@click.option("--gradient-mb", type=FiniteRange(min=0), help="Of a stage, as it is exchanged; for tables.")
@click.option(
    "--microbatches",
    type=FiniteRange(min=0, min_open=True),
    help="That a link carries one after the other. Default: of a scenario an even share of an iteration; for tables 1.",
)
@click.option(
    "--strategy",
    type=click.Choice(["places", "dtfm", "op-fence", "megatron", "random"]),
    default="places",
    show_default=True,
    help="places: swarmflow's. dtfm: the genetic search of DT-FM. op-fence: the clusters of FusionLLM. "
    "megatron: in the order of the machines.",
)
@click.option("--compare", is_flag=True, help="Plan by every strategy.")
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**63 - 1), help="Of what is drawn; default: the scenario's, or 0."
)
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write all figures and pipelines here.")
@click.option("--plot", "plot_file", type=click.Path(dir_okay=False), help="Draw the plans into this image.")
def plan(
    scenario: str | None,
    invite: str | None,
    latency: str | None,
    bandwidth: str | None,
    stages: int | None,
    activation_mb: float | None,
    gradient_mb: float | None,
    microbatches: float | None,
    strategy: str,
    compare: bool,
    seed: int | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Plan which machine serves which stage: of SCENARIO (a TOML file), of a run, or of two tables of their links."""
    from pathlib import Path

    from swarmflow.plans.fleet import Sizes, of_scenario, of_tables
    from swarmflow.plans.run import PlanFiles, check, main

    files = PlanFiles(*(None if name is None else Path(name) for name in (json_file, plot_file)))
    check(files)
    tables = {"--latency": latency, "--bandwidth": bandwidth, "--stages": stages}
    sizes = {"--activation-mb": activation_mb, "--gradient-mb": gradient_mb}
    given = next((name for name, value in (tables | sizes).items() if value is not None), None)
    if scenario is not None and invite is not None:
        raise click.UsageError("Give a SCENARIO or --join, not both.")
    described = "the run" if invite is not None else scenario
    if described is not None and given is not None:
        raise click.UsageError(f"{given} is for machines of tables; {described} describes its own.")
    if scenario is not None:
        fleet = of_scenario(Path(scenario), seed, microbatches)
    elif invite is not None:
        fleet = _running(invite, microbatches, seed)
    elif latency and bandwidth and stages and activation_mb is not None and gradient_mb is not None:
        measures = Sizes(stages, 1e6 * activation_mb, 1e6 * gradient_mb, microbatches or 1.0)
        fleet = of_tables(Path(latency), Path(bandwidth), measures, seed or 0)
    else:
        missing = [name for name, value in (tables | sizes).items() if value is None]
        raise click.UsageError(
            f"Give a SCENARIO, --join, or two tables of links; of these options {', '.join(missing)} lack."
        )
    main(fleet, strategy, compare, files)


def _running(invite: str, microbatches: float | None, seed: int | None) -> Fleet:
    """Return the peers of a run. invite: `here` is that of the one run of this machine."""
    import asyncio

    from swarmflow.plans.running import of_run
    from swarmflow.runtime.operations.asking import ask_status
    from swarmflow.runtime.transport.invite import read_invite
    from swarmflow.view.watching import Question

    answer = asyncio.run(ask_status(read_invite(None if invite == HERE else invite), Question(links=1)))
    return of_run(answer, microbatches, seed or 0)
