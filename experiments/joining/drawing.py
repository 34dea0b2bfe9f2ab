"""One run of Table IV: a swarm of relays, and twenty candidates that may join it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from random import Random

from experiments.flow.instance import Instance, symmetric

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


def draw(setting: PlacingSetting, seed: int, candidates: int = CANDIDATES) -> PlacingSwarm:
    """One swarm, with so many of its candidates. Costs within a stage are not drawn: no flow uses them."""
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
    return PlacingSwarm(fixed, tuple(range(RELAYS + 1, RELAYS + 1 + candidates)), capacity)


def joined(instance: Instance, node: int, capacity: int, stage: int) -> Instance:
    """The same with one relay more."""
    stages = tuple((*nodes, node) if at == stage else nodes for at, nodes in enumerate(instance.stages))
    return replace(instance, stages=stages, capacity={**instance.capacity, node: capacity})
