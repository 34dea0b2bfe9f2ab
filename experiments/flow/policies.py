"""The policies that are compared, each in rounds: greedy (SWARM), GWTF with both objectives, and swarmflow."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from experiments.flow.instance import Instance
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_source import GwtfSource
from swarmflow.core.routing.flow.node_types import FlowNode, View
from swarmflow.core.routing.flow.relay import FlowRelay
from swarmflow.core.routing.flow.source import FlowSource
from swarmflow.simulator.flow.paths import find_paths, over_capacity
from swarmflow.simulator.flow.rounds import Rounds

POLICIES = ("greedy", "gwtf", "gwtf-sum", "swarmflow")
GWTF_ROUNDS = 240  # GWTF, VI, Ablation studies: at most 120 iterations, here each a request and its reply
ROUNDS = 60
ROUNDS_OF_MANY = 120  # with several data nodes
ROUNDS_A_STAGE = 12  # of a pipeline that is so long that the others are too few


@dataclass(frozen=True, slots=True)
class Outcome:
    """paths: data node, a relay of each stage; ids of the instance. rounds: that it was given."""

    paths: tuple[tuple[int, ...], ...]
    rounds: int
    messages: int

    def cost(self, instance: Instance) -> float:
        """The sum of the link costs, back to the data node."""
        hops = [hop for path in self.paths for hop in zip(path, (*path[1:], path[0]), strict=True)]
        return sum(instance.cost[i][j] for i, j in hops)


def rounds_for(instance: Instance) -> int:
    """What swarmflow's negotiation is given."""
    least = ROUNDS_OF_MANY if len(instance.sources) > 1 else ROUNDS
    return max(least, 0 if len(instance.stages) <= 10 else ROUNDS_A_STAGE * len(instance.stages))


def negotiate(instance: Instance, policy: str, seed: int, rounds: int | None = None) -> Outcome:
    """Run a policy. Raises AssertionError if a node ever ended up over its capacity."""
    if policy == "greedy":
        return greedy(instance)
    own = rounds_for(instance) if policy == "swarmflow" else GWTF_ROUNDS
    given = own if rounds is None else rounds
    swarm = Rounds(make(instance, policy, seed))
    swarm.run(given)
    messages = swarm.messages
    swarm.settle()  # what is in flight arrives
    assert not over_capacity(swarm.nodes)
    found = find_paths(swarm.nodes, len(instance.stages))
    return Outcome(tuple(tuple(int(node.name) for node in path) for path in found.paths), given, messages)


def make(instance: Instance, policy: str, seed: int, round_s: float = 1.0) -> dict[ProcessId, FlowNode]:
    """The machines of a policy, one for each node."""
    nodes: dict[ProcessId, FlowNode] = {}
    for view in views(instance):
        random = Random(f"{seed} {view.me.name}")
        if policy == "swarmflow":
            nodes[view.me] = FlowSource(view, round_s) if view.stage < 0 else FlowRelay(view, random, round_s)
        elif view.stage < 0:
            nodes[view.me] = GwtfSource(view)
        else:
            nodes[view.me] = GwtfRelay(view, random, "sum" if policy == "gwtf-sum" else "minmax", round_s)
    return nodes


def views(instance: Instance) -> list[View]:
    """What each node knows: its own stage and those beside it."""
    names = {i: ProcessId(f"{i:06d}", 0) for layer in (instance.sources, *instance.stages) for i in layer}
    ring = [instance.sources, *instance.stages]
    found = []
    for number, layer in enumerate(ring):
        before, after = ring[number - 1], ring[(number + 1) % len(ring)]
        for i in layer:
            found.append(
                View(
                    names[i],
                    number - 1,
                    len(instance.stages),
                    instance.capacity[i] if number else instance.wanted(i),
                    tuple(names[j] for j in before),
                    tuple(names[j] for j in layer if j != i),
                    tuple(names[j] for j in after),
                    {names[j]: instance.cost[i][j] for j in (*before, *after)},
                )
            )
    return found


def greedy(instance: Instance) -> Outcome:
    """Every microbatch goes to the closest node of the next stage that has room (SWARM, as in GWTF's Figure 7).

    All go a hop further at a time, in the order of their ids. Asking a node takes a message and an answer.
    """
    paths = [[source] for source in instance.sources for _ in range(instance.wanted(source))]
    messages = rounds = 0
    for stage in instance.stages:
        left = {node: instance.capacity[node] for node in stage}
        waiting = {number: _closest(instance, path[-1], stage) for number, path in enumerate(paths)}
        onward: dict[int, int] = {}
        while waiting:
            rounds += 2
            for number in list(waiting):
                messages += 2
                node = waiting[number].pop(0)
                if left[node]:
                    left[node] -= 1
                    onward[number] = node
                if number in onward or not waiting[number]:
                    del waiting[number]
        paths = [[*paths[number], node] for number, node in sorted(onward.items())]
    return Outcome(tuple(tuple(path) for path in paths), rounds + 2, messages + 2 * len(paths))


def _closest(instance: Instance, node: int, stage: tuple[int, ...]) -> list[int]:
    """The nodes of a stage, the closest first."""
    return sorted(stage, key=lambda other: (instance.cost[node][other], other))
