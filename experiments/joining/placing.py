"""One run of Table IV: twenty candidates are put into stages, one after the other, by each rule."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from experiments.flow.instance import Instance, symmetric
from experiments.flow.optimum import Hop, optimal_flows
from swarmflow.core.protocol.messages.negotiation import Exchange, Locked
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.joining import best_stage, gain, most_utilised

POLICIES = ("random", "gwtf", "swarmflow", "greedy optimum")
RELAYS = 96  # GWTF, VI: 97 nodes, one of them the data node
CANDIDATES = 20


@dataclass(frozen=True, slots=True)
class PlacingSetting:
    """A row of Table IV. Bounds are of floor(U(low, high)). uneven: relays choose their stage at random."""

    stages: int
    capacity: tuple[int, int]
    cost: tuple[int, int]
    uneven: bool = False


SETTINGS = {
    "1": PlacingSetting(8, (1, 20), (1, 100)),
    "2": PlacingSetting(8, (1, 20), (20, 100)),
    "3": PlacingSetting(8, (1, 5), (1, 100)),
    "4": PlacingSetting(12, (1, 20), (1, 100)),
    "5*": PlacingSetting(8, (1, 20), (1, 100), True),
}


@dataclass(frozen=True, slots=True)
class PlacingSwarm:
    """An instance whose data node wants what the narrowest stage held in the beginning, and who else may join."""

    instance: Instance
    candidates: tuple[int, ...]
    capacity: dict[int, int]


def draw(setting: PlacingSetting, seed: int) -> PlacingSwarm:
    """One swarm. Costs within a stage are not drawn: no flow uses them."""
    random = Random(f"table-iv {setting} {seed}")
    count = 1 + RELAYS + CANDIDATES
    stages: list[list[int]] = [[] for _ in range(setting.stages)]
    for i in range(1, RELAYS + 1):
        even = (i - 1) % setting.stages
        # The first of each stage stays, so that no stage is empty.
        at = int(random.random() * setting.stages) if setting.uneven and i > setting.stages else even
        stages[at].append(i)
    capacity = {i: math.floor(random.uniform(*setting.capacity)) for i in range(1, count)}
    cost = symmetric(count, lambda: math.floor(random.uniform(*setting.cost)))
    instance = Instance((0,), tuple(map(tuple, stages)), {i: capacity[i] for i in range(1, RELAYS + 1)}, cost)
    fixed = replace(instance, capacity={**instance.capacity, 0: instance.narrowest})
    return PlacingSwarm(fixed, tuple(range(RELAYS + 1, count)), capacity)


def joined(instance: Instance, node: int, capacity: int, stage: int) -> Instance:
    """The same with one relay more."""
    stages = tuple((*nodes, node) if at == stage else nodes for at, nodes in enumerate(instance.stages))
    return replace(instance, stages=stages, capacity={**instance.capacity, node: capacity})


def improvement(swarm: PlacingSwarm, policy: str, seed: int) -> float:
    """(cost before - cost after) / cost before of all candidates, at the demand of the beginning, flows optimal."""
    random = Random(f"{policy} {seed}")
    instance = swarm.instance
    before, units = optimal_flows(instance)
    cost = before
    candidates = list(swarm.candidates)
    if policy == "gwtf":
        candidates.sort(key=lambda node: (-swarm.capacity[node], node))
    for node in candidates:
        stage = choose(instance, units, node, swarm.capacity[node], policy, random)
        instance = joined(instance, node, swarm.capacity[node], stage)
        cost, units = optimal_flows(instance)
    return (before - cost) / before


def choose(instance: Instance, units: dict[Hop, int], node: int, capacity: int, policy: str, random: Random) -> int:
    """The stage that a candidate joins."""
    count = len(instance.stages)
    if policy == "random":
        return int(random.random() * count)
    if policy == "greedy optimum":
        costs = [optimal_flows(joined(instance, node, capacity, stage))[0] for stage in range(count)]
        return costs.index(min(costs))
    flows = [instance.flow] * count
    held = [sum(instance.capacity[i] for i in stage) for stage in instance.stages]
    if policy == "gwtf":
        return most_utilised(flows, held).stage
    gains = [gain_of(instance, units, node, capacity, stage, random) for stage in range(count)]
    return best_stage(gains, flows, held, instance.flow).stage


def gain_of(instance: Instance, units: dict[Hop, int], node: int, capacity: int, stage: int, random: Random) -> float:
    """What the machines' own assignment of one stage saves with the candidate."""
    exchange = Exchange(_name(0), 0)
    layers = [instance.sources, *instance.stages, instance.sources]
    beside = (*layers[stage], *layers[stage + 2])

    def offer(i: int, holds: int) -> Locked:
        inflow = tuple((_name(a), _name(s), n) for (s, at, a, b), n in units.items() if at == stage and b == i)
        outflow = tuple((_name(b), _name(s), n) for (s, at, a, b), n in units.items() if at == stage + 1 and a == i)
        costs = tuple((_name(j), instance.cost[i][j]) for j in beside)
        return Locked(exchange, holds, inflow, outflow, costs)

    offers = {_name(i): offer(i, instance.capacity[i]) for i in instance.stages[stage]}
    return gain(offers, offer(node, capacity), _name(node), random)


def _name(i: int) -> ProcessId:
    return ProcessId(f"{i:06d}", 0)
