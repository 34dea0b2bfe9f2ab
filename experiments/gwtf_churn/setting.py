"""The settings of GWTF's Tables II and III as scenarios."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from swarmflow.simulator.distributions import Integers
from swarmflow.simulator.scenario import Scenario, load

LATENCY_S = (0.005, 0.125)  # one way, between any two places
MBPS = (50.0, 500.0)
CAPACITIES = Integers(1, 3)
BLOCK = 12 * 1024**2  # parameters: attention 4 d^2, and 8 d^2 of either kind of feed-forward layer
FIRST_STAGE = {"LLaMA-like": 32_000 * 1024 + BLOCK, "GPT-like": (50_257 + 1024) * 1024 + BLOCK}  # with the embedding
CHANCES = (0.0, 0.1, 0.2)
TIMEOUT_S = {False: 119.0, True: 127.0}  # by kind: no gradient was out longer in 25 runs without churn


@dataclass(frozen=True, slots=True)
class ChurnSetting:
    """A pair of columns of Table II (`LLaMA-like`) or III (`GPT-like`). chance: to leave, and to come back."""

    model: str
    heterogeneous: bool
    chance: float

    @property
    def column(self) -> str:
        """As the tables name it."""
        return f"{'Heterogeneous' if self.heterogeneous else 'Homogeneous'} {self.chance:.0%}"

    @property
    def name(self) -> str:
        """Table and column."""
        return f"{self.model}, {self.column}"


def settings() -> list[ChurnSetting]:
    """All of both tables."""
    return [ChurnSetting(m, h, chance) for m in FIRST_STAGE for h in (False, True) for chance in CHANCES]


def scenario(setting: ChurnSetting, seed: int, router: str = "shortest") -> Scenario:
    """One repetition: the links between the nodes are drawn from the seed. router: of policy swarmflow."""
    base = load(Path(__file__).with_name("scenario.toml"))
    data, relays = base.peers
    if setting.heterogeneous:
        relays = replace(relays, capacity=CAPACITIES)
    relayed = (3 * BLOCK,) * (base.model.stages - 1)
    model = replace(base.model, parameters=(FIRST_STAGE[setting.model], *relayed))
    churn = replace(base.churn, leave_chance=setting.chance, join_chance=setting.chance)
    latency_s, mbps = links(base.trainers.count, base.peer_count, Random(seed))
    run = replace(base.run, timeout_s=TIMEOUT_S[setting.heterogeneous], router=router)
    return replace(base, run=run, peers=(data, relays), model=model, churn=churn, latency=latency_s, bandwidth=mbps)


Table = tuple[tuple[float, ...], ...]


def links(trainers: int, peers: int, random: Random) -> tuple[Table, Table]:
    """Latencies (s) and bandwidths (Mb/s, 0: no limit) between all machines. Trainer i is on the machine of peer i."""
    places = [*range(trainers), *range(peers)]
    pairs = {
        (one, other): (random.uniform(*LATENCY_S), random.uniform(*MBPS))
        for one in range(peers)
        for other in range(one + 1, peers)
    }
    rows = [[pairs.get((min(one, other), max(one, other)), (0.0, 0.0)) for other in places] for one in places]
    latency_s = tuple(tuple(latency for latency, _ in row) for row in rows)
    return latency_s, tuple(tuple(mbps for _, mbps in row) for row in rows)
