"""One run of Table IV: twenty candidates are put into stages, one after the other, by each rule."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from experiments.flow.instance import Instance
from experiments.flow.optimum import optimal_flows
from experiments.joining.drawing import PlacingSwarm, joined
from experiments.joining.swarm import JoiningSwarm

POLICIES = ("random", "gwtf", "swarmflow", "greedy optimum")


def improvement(swarm: PlacingSwarm, policy: str, seed: int) -> float:
    """(cost before - cost after) / cost before of all candidates, at the demand of the beginning, flows optimal."""
    before, _ = optimal_flows(swarm.instance)
    instance = in_a_swarm(swarm, seed) if policy == "swarmflow" else by_rule(swarm, policy, seed)
    return (before - optimal_flows(instance)[0]) / before


def in_a_swarm(swarm: PlacingSwarm, seed: int) -> Instance:
    """The swarm with the candidates where the leader of a simulated one has put them."""
    instance, simulated = swarm.instance, JoiningSwarm(swarm, seed)
    for number, node in enumerate(swarm.candidates):
        if (stage := simulated.place(number)) >= 0:
            instance = joined(instance, node, swarm.capacity[node], stage)
    return instance


def by_rule(swarm: PlacingSwarm, policy: str, seed: int) -> Instance:
    """The swarm with the candidates where a rule puts them that knows everything."""
    random, instance = Random(f"{policy} {seed}"), swarm.instance
    candidates = list(swarm.candidates)
    if policy == "gwtf":
        candidates.sort(key=lambda node: (-swarm.capacity[node], node))
    for node in candidates:
        stage = choose(instance, node, swarm.capacity[node], policy, random)
        instance = joined(instance, node, swarm.capacity[node], stage)
    return instance


def choose(instance: Instance, node: int, capacity: int, policy: str, random: Random) -> int:
    """The stage that a candidate joins."""
    count = len(instance.stages)
    if policy == "random":
        return int(random.random() * count)
    if policy == "greedy optimum":
        costs = [optimal_flows(joined(instance, node, capacity, stage))[0] for stage in range(count)]
        return costs.index(min(costs))
    held = [sum(instance.capacity[i] for i in stage) for stage in instance.stages]
    return most_utilised([instance.flow] * count, held)


def most_utilised(flows: Sequence[int], capacity: Sequence[int]) -> int:
    """The stage with the highest ratio of flows to capacity (GWTF's rule); the first one of equal stages.

    Of several candidates, GWTF places the one with the highest capacity first.
    """
    utilisation = [f / c if c else float("inf") for f, c in zip(flows, capacity, strict=True)]
    return utilisation.index(max(utilisation))
