"""The policy `dtfm`, and the arrangement of a scenario's computers by its true network, which no process knows."""

from __future__ import annotations

from random import Random

from swarmflow.baselines.pipelines import Pipelines
from swarmflow.baselines.world import BaselineWorld
from swarmflow.errors import ConfigError
from swarmflow.planning.arrangement import Problem
from swarmflow.planning.dtfm import arrange
from swarmflow.simulator.scenario_hardware import ScenarioHardware

ALIKE = "a plan knows no stages that do not fit; give one model.stage_memory_bytes, or peers.stage of those that do"


def arranged(world: BaselineWorld) -> Pipelines:
    """Return DT-FM's pipelines of the peers that a scenario begins with.

    Raises ConfigError where the scenario describes no network, or has too few peers.
    """
    hardware, plan = world.hardware, world.settings.plan
    if not isinstance(hardware, ScenarioHardware):
        raise ConfigError("policy 'dtfm' needs the network and the computers of a scenario")
    names = fitting(hardware)
    microbatches = plan.microbatches / max(1, len(names) // plan.stages)
    found = arrange(problem(hardware, microbatches), Random(world.seed)).pipelines
    return Pipelines({names[d]: (k, stage) for k, pipeline in enumerate(found) for stage, d in enumerate(pipeline)})


def fitting(hardware: ScenarioHardware) -> list[str]:
    """Return the peers that have memory for a stage, which are the devices of the problem, in this order."""
    return [name for name in hardware.profiles if hardware.fits(name)]


def problem(hardware: ScenarioHardware, microbatches: float) -> Problem:
    """Return the choice of stages for these computers. microbatches: that a link carries one after the other.

    Raises ConfigError where there are fewer computers than stages, or one has no memory for a stage that it may get.
    """
    names, stages = fitting(hardware), hardware.scenario.model.stages
    pinned = {d: hardware.profiles[name].stage for d, name in enumerate(names) if hardware.profiles[name].stage >= 0}
    for device, name in enumerate(names):
        for stage in [pinned[device]] if device in pinned else range(stages):
            if not hardware.capacity(name, stage):
                raise ConfigError(f"{name} has no memory for stage {stage}, which it could get: {ALIKE}")
    links = [[hardware.link(one, other) if one != other else (0.0, float("inf")) for other in names] for one in names]
    return Problem(
        latency_s=[[latency_s for latency_s, _ in row] for row in links],
        bytes_per_s=[[rate for _, rate in row] for row in links],
        pipelines=len(names) // stages,
        stages=stages,
        activation_bytes=microbatches * hardware.boundary_bytes(0, "activation"),
        gradient_bytes=[hardware.piece().usual_bytes(hardware.elements(f"stage-{stage}")) for stage in range(stages)],
        pinned=pinned,
    )
