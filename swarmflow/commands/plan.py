"""`swarmflow plan`: the command line of the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from swarmflow.config import RunConfig
    from swarmflow.plans.fleet import Fleet
    from swarmflow.preparation.graph_check import FirstBatch

HERE = "here"


@click.command()
@click.argument("scenario", required=False, type=click.Path(dir_okay=False))
@click.option("--join", "invite", help="Instead: of the run of this invite; `here`: of the one of this machine.")
@click.option("--latency", type=click.Path(dir_okay=False), help="CSV of latencies in s, a row a machine that sends.")
@click.option("--bandwidth", type=click.Path(dir_okay=False), help="CSV of bandwidths in Mb/s, of the same machines.")
@click.option("--stages", type=click.IntRange(min=1), help="Of the model, for machines of tables.")
@click.option("--activation-mb", type=click.FloatRange(min=0), help="Of a microbatch, on the wire; for tables.")
@click.option("--gradient-mb", type=click.FloatRange(min=0), help="Of a stage, as it is exchanged; for tables.")
@click.option(
    "--microbatches",
    type=click.FloatRange(min=0, min_open=True),
    help="That a link carries one after the other. Default: of a scenario an even share of an iteration; for tables 1.",
)
@click.option(
    "--strategy",
    type=click.Choice(["places", "dtfm", "op-fence", "megatron", "random"]),
    help="places: swarmflow's. dtfm: the genetic search of DT-FM. op-fence: the clusters of FusionLLM. "
    "megatron: in the order of the machines.  [default: places]",
)
@click.option("--compare", is_flag=True, help="Plan by every strategy.")
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**63 - 1), help="Of what is drawn; default: the scenario's, or 0."
)
@click.option("--cut", is_flag=True, help="Instead: cut the model of the RUN.toml that is given for --machines.")
@click.option(
    "--machines",
    multiple=True,
    metavar="COUNTxMEMORY[@SPEED]",
    help="For --cut, once for each kind of machine: 2x24GB@3 are two of 24 GB, three times as fast as one without @.",
)
@click.option("--at-least", type=click.IntRange(min=1), help="For --cut: machines a stage.  [default: 1]")
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
    strategy: str | None,
    compare: bool,
    seed: int | None,
    cut: bool,
    machines: tuple[str, ...],
    at_least: int | None,
    json_file: str | None,
    plot_file: str | None,
) -> None:
    """Plan which machine serves which stage: of SCENARIO (a TOML file), of a run, or of two tables of their links.

    With --cut: plan the stages themselves, of the model of a RUN.toml, for machines of unlike memory and speed.
    """
    from pathlib import Path

    if cut or machines or at_least is not None:
        others = {"--join": invite, "--latency": latency, "--bandwidth": bandwidth, "--microbatches": microbatches}
        others |= {"--activation-mb": activation_mb, "--gradient-mb": gradient_mb, "--seed": seed, "--plot": plot_file}
        others |= {"--strategy": strategy, "--compare": compare or None}
        _check_cut(scenario if cut else None, machines, others)
        _cut(str(scenario), machines, stages, at_least or 1, json_file)
        return

    from swarmflow.plans.fleet import Sizes, of_scenario, of_tables
    from swarmflow.plans.run import PlanFiles, check, main

    files = PlanFiles(*(None if name is None else Path(name) for name in (json_file, plot_file)))
    check(files)
    tables: dict[str, Any] = {"--latency": latency, "--bandwidth": bandwidth, "--stages": stages}
    tables |= {"--activation-mb": activation_mb, "--gradient-mb": gradient_mb}
    _check_given(scenario, invite, tables)
    if scenario is not None:
        fleet = of_scenario(Path(scenario), seed, microbatches)
    elif invite is not None:
        fleet = _running(invite, microbatches, seed)
    else:
        rows, columns, count, activation, gradient = tables.values()
        measures = Sizes(count, 1e6 * activation, 1e6 * gradient, microbatches or 1.0)
        fleet = of_tables(Path(rows), Path(columns), measures, seed or 0)
    main(fleet, strategy or "places", compare, files)


def _check_given(scenario: str | None, invite: str | None, tables: dict[str, Any]) -> None:
    """Fail with a usage error where machines are described in no way, or in several. tables: the options of tables."""
    given = next((name for name, value in tables.items() if value is not None), None)
    missing = [name for name, value in tables.items() if value in (None, "")]
    if scenario is not None and invite is not None:
        raise click.UsageError("Give a SCENARIO or --join, not both.")
    described = "the run" if invite is not None else scenario
    if described is not None and given is not None:
        raise click.UsageError(f"{given} is for machines of tables; {described} describes its own.")
    if described is None and missing:
        raise click.UsageError(
            f"Give a SCENARIO, --join, or two tables of links; of these options {', '.join(missing)} lack."
        )


def _running(invite: str, microbatches: float | None, seed: int | None) -> Fleet:
    """Return the peers of a run. invite: `here` is that of the one run of this machine."""
    import asyncio

    from swarmflow.plans.running import of_run
    from swarmflow.runtime.operations.asking import ask_status
    from swarmflow.runtime.transport.invite import read_invite
    from swarmflow.view.watching import Question

    answer = asyncio.run(ask_status(read_invite(None if invite == HERE else invite), Question(links=1)))
    return of_run(answer, microbatches, seed or 0)


def _check_cut(run_toml: str | None, machines: tuple[str, ...], others: dict[str, Any]) -> None:
    """Fail with a usage error where something lacks that a cut needs, or is given that it does not."""
    if run_toml is None or not machines:
        raise click.UsageError("To cut a model, give its RUN.toml, --cut, and --machines for each kind of machine.")
    if (given := next((name for name, value in others.items() if value is not None), None)) is not None:
        raise click.UsageError(f"{given} has no meaning for a cut; it takes --stages, --at-least and --json.")


def _cut(run_toml: str, machines: tuple[str, ...], stages: int | None, at_least: int, json_file: str | None) -> None:
    """Print the cut of a model for given machines."""
    from pathlib import Path

    from swarmflow.config import load
    from swarmflow.plans.cutting import find_cut, parse_machines
    from swarmflow.plans.run import check_cut_file, show_cut

    file = Path(json_file) if json_file is not None else None
    check_cut_file(file)
    kinds = [parse_machines(text) for text in machines]
    show_cut(find_cut(load(Path(run_toml)), kinds, stages, at_least, _first_batch), file)


def _first_batch(config: RunConfig) -> FirstBatch:
    """Have a role read the first microbatch of a run of a module; the library imports none.

    Raises SwarmflowError.
    """
    from importlib.metadata import entry_points

    from swarmflow.errors import ConfigError
    from swarmflow.preparation.graph_check import FirstBatch

    reader = next(iter(entry_points(group="swarmflow.data", name="first_batch")), None)
    if reader is None:
        raise ConfigError("nothing is installed that reads the data of a module: install swarmflow-train again")
    found = reader.load()(config)
    assert isinstance(found, FirstBatch), f"{reader.value} reads a batch"
    return found
