"""`swarmflow chaos`: the command line of the runs under faults."""

from __future__ import annotations

import click


@click.command()
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1), help="How many schedules of faults.")
@click.option("--first-seed", default=0, show_default=True, type=click.IntRange(min=0), help="The first of them.")
@click.option(
    "--rates", default="0,0.1,0.2", show_default=True, help="Shares of the processes that are hit at a step's opening."
)
@click.option("--steps", default=100, show_default=True, type=click.IntRange(min=2), help="Optimizer steps of a run.")
@click.option("--stages", default=3, show_default=True, type=click.IntRange(min=1), help="Stages of the model.")
@click.option("--peers", default=6, show_default=True, type=click.IntRange(min=1), help="Peers, over all stages.")
@click.option("--trainers", default=2, show_default=True, type=click.IntRange(min=1), help="Trainers; one leads.")
@click.option(
    "--accumulate",
    default="exact",
    show_default=True,
    type=click.Choice(["exact", "fp32"]),
    help="exact: compared bit for bit with the undisturbed run; fp32: with a plain loop.",
)
@click.option(
    "--codec",
    default="none",
    show_default=True,
    type=click.Choice(["none", "blockwise8"]),
    help="Compression between the stages.",
)
@click.option("--lose-stage", is_flag=True, help="Hit the last peer of a stage too.")
@click.option("--no-trainers", is_flag=True, help="Hit peers only.")
@click.option(
    "--attack",
    multiple=True,
    metavar="KIND",
    help="Cause no faults, but run an attacker of this kind beside the swarm; several times, or all.",
)
@click.option("--folder", type=click.Path(file_okay=False), help="Keep logs and models here, whatever happens.")
@click.option("--json", "json_file", type=click.Path(dir_okay=False), help="Write all figures here.")
def chaos(**options: object) -> int:
    """Kill, freeze and drain processes of a local swarm, or attack it, and compare what it learns with a calm run."""
    from swarmflow.chaos.setup import Setup

    setup = Setup.parse(options)  # before the imports that take seconds

    if setup.attacks:
        from swarmflow.chaos.attacks.campaign import run_attacks

        return run_attacks(setup)

    from swarmflow.chaos.campaign import run_all

    return run_all(setup)
