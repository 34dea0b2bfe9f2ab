"""The same machines in a world of delays: messages overtake each other or are lost, and nodes die in the middle."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from experiments.flow.instance import SETTINGS, draw
from experiments.flow.optimum import optimum
from experiments.flow.policies import Outcome, make
from swarmflow.simulator.flow.delays import Delays, region_latency
from swarmflow.simulator.flow.paths import find_paths

# One-way latencies in milliseconds between Ireland, Virginia, Oregon, Singapore, Sydney, Sao Paulo, Tokyo and Mumbai.
# Round numbers, of the order of half of the round trips that public clouds publish.
LATENCY_MS = (
    (1, 35, 62, 90, 130, 92, 105, 62),
    (35, 1, 32, 110, 100, 57, 75, 95),
    (62, 32, 1, 82, 70, 88, 48, 108),
    (90, 110, 82, 1, 46, 165, 35, 30),
    (130, 100, 70, 46, 1, 155, 52, 75),
    (92, 57, 88, 165, 155, 1, 128, 150),
    (105, 75, 48, 35, 52, 128, 1, 62),
    (62, 95, 108, 30, 75, 150, 62, 1),
)
ROUND_S = 0.2  # what the machines take for the time of a message: more than most take
TICK_S = 0.1
LOSS = 0.05
DEATHS = 0.05
DYING_S = 15.0  # deaths fall into the first so many seconds, while flows are built and made cheaper
DURATION_S = 60.0
DURATION_OF_MANY_S = 120.0  # with several data nodes
SETTLING_S = 20.0  # flows are looked at when the ends of all links agree for the first time after that


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """over: cost over the optimum of those alive in the end. share: of the maximum flow.

    torn: units that the two ends of a link do not agree on. violations: times that a node held more than it can.
    """

    over: float
    share: float
    messages: int
    torn: int
    violations: int


def negotiate_with_delays(setting: str, seed: int) -> Asynchronous:
    """One instance of Table V, its nodes spread over the world."""
    instance = draw(SETTINGS[setting], seed)
    random = Random(f"delays {setting} {seed}")
    nodes = make(instance, "swarmflow", seed, ROUND_S)
    region = {name: int(random.random() * len(LATENCY_MS)) for name in nodes}
    latency_s = tuple(tuple(ms / 1000 for ms in line) for line in LATENCY_MS)
    world = Delays(nodes, region_latency(region, latency_s), random, TICK_S, LOSS)
    mortal = list(nodes)
    mortal.remove(random.choice([name for name in nodes if int(name.name) in instance.sources]))  # one has to stay
    for name in random.sample(mortal, round(DEATHS * len(nodes))):
        world.kill(name, random.uniform(0.0, DYING_S))
    duration_s = DURATION_OF_MANY_S if len(instance.sources) > 1 else DURATION_S
    world.run(duration_s)
    while find_paths(world.nodes, len(instance.stages)).torn and world.now_s < duration_s + SETTLING_S:
        world.run(world.now_s + TICK_S)  # an exchange is being made known
    dead = {int(name.name) for name in world.dead}
    left = replace(
        instance,
        sources=tuple(i for i in instance.sources if i not in dead),
        stages=tuple(tuple(i for i in stage if i not in dead) for stage in instance.stages),
    )
    found = find_paths(world.nodes, len(instance.stages))
    outcome = Outcome(tuple(tuple(int(n.name) for n in path) for path in found.paths), 0, world.messages)
    share = len(found.paths) / left.flow
    over = outcome.cost(instance) / optimum(left) / share if share else float("inf")
    return Asynchronous(over, share, world.messages, found.torn, len(world.violations))
