"""The machines that are to be arranged, and the links between them: of a scenario, or of tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from swarmflow.errors import ConfigError
from swarmflow.planning.arrangement import Problem
from swarmflow.policies.oracle import fitting, problem
from swarmflow.simulator.checks import Table, TableFile, read_table, table_rows
from swarmflow.simulator.scenario import load
from swarmflow.simulator.scenario_hardware import ScenarioHardware

BYTES_PER_MBIT = 1e6 / 8


@dataclass(frozen=True, slots=True)
class Fleet:
    """Machines, and the choice of a stage for each."""

    names: tuple[str, ...]  # of the problem's devices
    problem: Problem
    seed: int  # of what a strategy draws
    spare: tuple[str, ...] = ()  # names of machines that have no memory for a stage
    notes: tuple[str, ...] = ()  # lines for the user


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the links of tables carry. microbatches: one after the other over a link of a pipeline, in an iteration."""

    stages: int
    activation_bytes: float  # of a microbatch
    gradient_bytes: float  # of a stage
    microbatches: float = 1.0


def of_scenario(path: Path, seed: int | None, microbatches: float | None) -> Fleet:
    """Return the machines that a scenario begins with.

    seed: by which their speeds are drawn; None: the scenario's. microbatches: that a link carries one after the other;
    None: an even share of an iteration. Raises ConfigError for a bad scenario, one of fewer machines than stages, or
    one with a machine that has memory for some stages only.
    """
    scenario = load(path)
    seed = scenario.run.seed if seed is None else seed
    hardware = ScenarioHardware(scenario, seed, Random(seed))
    names = [hardware.add_peer(number) for number in range(scenario.peer_count)]
    able = fitting(hardware)
    if len(able) < scenario.model.stages:
        raise ConfigError(
            f"{path}: {scenario.model.stages} stages need as many machines with memory for a stage "
            f"({scenario.model.least_memory_bytes:,} bytes with one microbatch); there are {len(able)}"
        )
    pipelines = len(able) // scenario.model.stages
    share = scenario.model.microbatches / pipelines if microbatches is None else microbatches
    spare = tuple(name for name in names if name not in set(able))
    try:
        return Fleet(tuple(able), problem(hardware, share), seed, spare)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def of_tables(latency: Path, bandwidth: Path, sizes: Sizes, seed: int = 0) -> Fleet:
    """Return the machines of two CSV files, a row a machine that sends: latencies (s), bandwidths (Mb/s, 0: no link).

    Raises ConfigError for files that are no such tables, do not fit each other, have fewer machines than
    stages, or have two without a link.
    """
    latency_s, mbps = _square(latency, "--latency"), _square(bandwidth, "--bandwidth")
    if len(latency_s) != len(mbps):
        raise ConfigError(
            f"--latency {latency} has {len(latency_s)} machines, --bandwidth {bandwidth} has {len(mbps)}: "
            "both must list the same machines"
        )
    count = len(latency_s)
    if count < sizes.stages:
        raise ConfigError(f"--stages {sizes.stages}: needs at least as many machines; {latency} has {count}")
    names = tuple(f"m{number}" for number in range(count))
    given = Problem(
        latency_s=latency_s,
        bytes_per_s=[[rate * BYTES_PER_MBIT for rate in row] for row in mbps],
        pipelines=count // sizes.stages,
        stages=sizes.stages,
        activation_bytes=sizes.microbatches * sizes.activation_bytes,
        gradient_bytes=[sizes.gradient_bytes] * sizes.stages,
    )
    return _connected(Fleet(names, given, seed))


def _square(path: Path, option: str) -> Table:
    """Return a table with as many columns as rows."""
    rows = table_rows(TableFile(path.name), path.parent, f"{option} {path}")
    return read_table(rows, path.parent, f"{option} {path}", len(rows))


def _connected(fleet: Fleet) -> Fleet:
    """Return the machines. Raises ConfigError, which names two without a link."""
    for one, row in enumerate(fleet.problem.bytes_per_s):
        for other, rate in enumerate(row):
            if one != other and rate <= 0:
                raise ConfigError(
                    f"machines {fleet.names[one]} and {fleet.names[other]} have no link (0 Mb/s from the first to the "
                    "second): leave one of them out, or give the bandwidth of the path over others"
                )
    return fleet
