"""A problem: who may send to whom at what cost. Drawn as in GWTF's Table V, or read from a file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from swarmflow.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Instance:
    """sources: data nodes. cost[i][j]: of the link from i to j. capacity: of relays; of a data node, if it has one.

    A data node without a capacity wants as many flows as the narrowest stage can hold.
    """

    sources: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]
    capacity: Mapping[int, int]
    cost: tuple[tuple[float, ...], ...]

    @property
    def narrowest(self) -> int:
        """Microbatches at a time of the stage that can hold the fewest."""
        return min(sum(self.capacity[node] for node in stage) for stage in self.stages)

    def wanted(self, source: int) -> int:
        """Flows that a data node asks for."""
        return min(self.capacity.get(source, self.narrowest), self.narrowest)

    @property
    def flow(self) -> int:
        """The maximum flow: every relay reaches every relay of the next stage."""
        return min(self.narrowest, sum(self.wanted(source) for source in self.sources))


@dataclass(frozen=True, slots=True)
class InstanceSetting:
    """capacity: floor(U(low, high)), so (1, 3) gives 1 and 2, never 3. cost: the same, or a name in COSTS.

    uneven: stages of very different sizes, in proportion to U(1, 5); else all alike.
    """

    sources: int
    relays: int
    stages: int
    capacity: tuple[int, int]
    cost: tuple[int, int] | str
    uneven: bool = field(default=False, repr=False)


COSTS: dict[str, Callable[[Random], float]] = {
    "lognormal": lambda random: 10 * math.exp(random.gauss(0, 1)),
    "pareto": lambda random: 5 * random.paretovariate(1.5),
}
TABLE_V = {  # GWTF
    "1": InstanceSetting(1, 40, 8, (1, 3), (1, 20)),
    "2": InstanceSetting(1, 40, 10, (1, 3), (1, 20)),
    "3": InstanceSetting(1, 40, 8, (5, 15), (1, 20)),
    "4": InstanceSetting(1, 40, 8, (1, 3), (5, 100)),
    "5": InstanceSetting(2, 40, 8, (1, 3), (1, 20)),
    "6": InstanceSetting(4, 80, 8, (1, 3), (1, 20)),
}
OURS = {
    "small": InstanceSetting(2, 20, 4, (1, 3), (1, 20)),
    "large": InstanceSetting(1, 500, 10, (1, 51), "lognormal", uneven=True),
    "pareto": InstanceSetting(2, 120, 8, (1, 51), "pareto", uneven=True),
    "scarce": InstanceSetting(4, 240, 8, (1, 11), "lognormal", uneven=True),
    "thousand": InstanceSetting(1, 1000, 10, (1, 3), (1, 20)),
    "many": InstanceSetting(8, 500, 10, (1, 51), "lognormal", uneven=True),
}
SETTINGS = {**TABLE_V, **OURS}
RELAXED = ("many",)  # too large for a proof: compared with a bound below the optimum


def draw(setting: InstanceSetting, seed: int) -> Instance:
    """One instance: symmetric costs (equation 1 is), data nodes that never limit."""
    random = Random(f"table-v {setting} {seed}")
    count = setting.sources + setting.relays
    stages: list[tuple[int, ...]] = []
    at = setting.sources
    for size in sizes(setting, random):
        stages.append(tuple(range(at, at + size)))
        at += size
    capacity = {i: math.floor(random.uniform(*setting.capacity)) for i in range(setting.sources, count)}
    cost = symmetric(count, lambda: _cost(setting, random))
    return Instance(tuple(range(setting.sources)), tuple(stages), capacity, cost)


def sizes(setting: InstanceSetting, random: Random) -> list[int]:
    """Relays of each stage."""
    if not setting.uneven:
        return [setting.relays // setting.stages] * setting.stages
    weights = [random.uniform(1, 5) for _ in range(setting.stages)]
    found = [int(setting.relays * weight / sum(weights)) for weight in weights]
    found[-1] += setting.relays - sum(found)
    return found


def _cost(setting: InstanceSetting, random: Random) -> float:
    if isinstance(setting.cost, str):
        return COSTS[setting.cost](random)
    return math.floor(random.uniform(*setting.cost))


def symmetric(count: int, random_cost: Callable[[], float]) -> tuple[tuple[float, ...], ...]:
    """A matrix with the same number, drawn once, both ways."""
    rows = [[0.0] * count for _ in range(count)]
    for i in range(count):
        for j in range(i):
            rows[i][j] = rows[j][i] = float(random_cost())
    return tuple(tuple(row) for row in rows)


def read(path: Path) -> Instance:
    """An instance from a JSON file: sources, stages, capacity, cost. Raises ConfigError where it is not one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict) or {"sources", "stages", "capacity", "cost"} - found.keys():
        raise ConfigError(f"{path} needs the keys sources, stages, capacity and cost")
    return _checked(path, found)


def _checked(path: Path, found: dict[str, Any]) -> Instance:
    sources, stages, capacity, cost = (found[key] for key in ("sources", "stages", "capacity", "cost"))
    if not isinstance(sources, list) or not sources:
        raise ConfigError(f"{path}: sources has to be a list of at least one id")
    if not isinstance(stages, list) or not stages or not all(isinstance(stage, list) and stage for stage in stages):
        raise ConfigError(f"{path}: stages has to be a list of lists of at least one id each")
    ids = [*sources, *(node for stage in stages for node in stage)]
    if not all(isinstance(node, int) and not isinstance(node, bool) and node >= 0 for node in ids):
        raise ConfigError(f"{path}: ids have to be whole numbers from 0")
    if len(set(ids)) < len(ids):
        raise ConfigError(f"{path}: {next(node for node in ids if ids.count(node) > 1)} is named twice")
    rows = _matrix(path, cost)
    if max(ids) >= len(rows):
        raise ConfigError(f"{path}: cost has {len(rows)} rows, and none for id {max(ids)}")
    known = _capacities(path, capacity)
    missing = [node for stage in stages for node in stage if node not in known]
    if missing:
        raise ConfigError(f"{path}: capacity has nothing for id {missing[0]}")
    for number, stage in enumerate(stages):
        if sum(known[node] for node in stage) == 0:
            raise ConfigError(f"{path}: stage {number} has no capacity: no flow can pass")
    instance = Instance(tuple(sources), tuple(tuple(stage) for stage in stages), known, rows)
    if instance.flow == 0:
        raise ConfigError(f"{path}: the data nodes have no capacity: there is nothing to send")
    return instance


def _capacities(path: Path, capacity: object) -> dict[int, int]:
    if not isinstance(capacity, dict):
        raise ConfigError(f"{path}: capacity has to be an object of id: microbatches")
    known = {}
    for key, count in capacity.items():
        if not str(key).isdecimal() or not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"{path}: capacity of {key} has to be a whole number from 0, not {count!r}")
        known[int(key)] = count
    return known


def _matrix(path: Path, cost: object) -> tuple[tuple[float, ...], ...]:
    if not isinstance(cost, list) or not all(isinstance(row, list) and len(row) == len(cost) for row in cost):
        raise ConfigError(f"{path}: cost has to be a square matrix")
    for i, row in enumerate(cost):
        for j, number in enumerate(row):
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < math.inf:
                raise ConfigError(f"{path}: cost from {i} to {j} has to be a number from 0, not {number!r}")
    return tuple(tuple((float(row[j]) + float(cost[j][i])) / 2 for j in range(len(cost))) for i, row in enumerate(cost))
