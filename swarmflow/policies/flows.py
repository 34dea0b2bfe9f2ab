"""The policy `gwtf`: flows, negotiated at the costs of the true links, of which each process knows its own."""

from __future__ import annotations

from random import Random

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.negotiation import TRAINER, GwtfNegotiation, Place
from swarmflow.baselines.next_hop import FlowRoute, NextHop
from swarmflow.baselines.world import BaselineWorld
from swarmflow.core.routing.flow.node_types import link_cost_s
from swarmflow.errors import ConfigError
from swarmflow.simulator.scenario_hardware import ScenarioHardware


def along_flows(flows: GwtfNegotiation | None) -> NextHop:
    """Return the routing of a process that negotiates flows."""
    assert flows is not None
    return FlowRoute(flows)


def negotiation(world: BaselineWorld, runtime: BaselineRuntime) -> GwtfNegotiation:
    """Return a process' part in the negotiation. Raises ConfigError where the scenario describes no network."""
    hardware, plan = world.hardware, world.settings.plan
    if not isinstance(hardware, ScenarioHardware):
        raise ConfigError("policy 'gwtf' needs the network and the computers of a scenario")

    def cost_s(one: Place, other: Place) -> float:
        return link_s(hardware, one, other)

    return GwtfNegotiation(runtime, plan.stages, plan.microbatches, cost_s, Random(f"{world.seed} {runtime.me}"))


def link_s(hardware: ScenarioHardware, one: Place, other: Place) -> float:
    """Return the cost of a link by GWTF's equation 1.

    Tokens go from a trainer to the first stage, and nothing from the last one to a trainer.
    """
    stages = one[1], other[1]
    compute_s = tuple(0.0 if stage == TRAINER else hardware.pass_s(name, stage) for name, stage in (one, other))
    if TRAINER in stages and max(stages) > 0:
        return sum(compute_s) / 2
    size = hardware.boundary_bytes(0, "tokens") + hardware.boundary_bytes(0, "targets")
    if TRAINER not in stages:
        size = hardware.boundary_bytes(min(stages), "activation")
    there, back = hardware.link(one[0], other[0]), hardware.link(other[0], one[0])
    return link_cost_s((compute_s[0], compute_s[1]), (there[0], back[0]), (there[1], back[1]), size)
