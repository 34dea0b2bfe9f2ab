"""The rules of a simulated run, and what its processes run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from swarmflow.core.messages import Join
from swarmflow.core.serving.peer_state import PeerSettings
from swarmflow.core.settings import LeaderSettings
from swarmflow.core.types import Plan
from swarmflow.simulator.hardware import Hardware, RandomHardware
from swarmflow.simulator.network import Jittery, Network


@dataclass(frozen=True, slots=True)
class Settings:
    """The rules of a run, and what its surroundings are like where the world is not given others.

    rebalance_s, journal_bytes_max, recompute, keeps: of every peer. unusable: share of the computations
    that fail because of what the network brought. poisoned: the microbatch of each step that no machine gives a
    finite value for, -1: none. timeout_s: of the baseline swarm-restart. peers_first: how many have to be ready
    before the first step is opened. The others are those of random
    surroundings, in seconds, drawn between two bounds each: broken_s: after which a process notices that its
    connection to a dead one broke; load_s: to load a stage; compute_s: whatever is computed.
    """

    plan: Plan
    steps: int
    capacity: int = 4
    latency_s: tuple[float, float] = (0.001, 0.05)
    compute_s: tuple[float, float] = (0.05, 0.2)
    broken_s: tuple[float, float] = (0.005, 0.1)
    load_s: tuple[float, float] = (0.1, 2.0)
    checkpoint_every: int = 0
    validate_every: int = 0
    rebalance_s: float = 0.0
    journal_bytes_max: int = 1 << 30
    recompute: bool = True
    unusable: float = 0.0
    poisoned: int = -1
    keeps: bool = True
    peers_first: int = 0
    timeout_s: float = 0.0

    def timed(self, **seconds: float) -> Settings:
        """These, with other timeouts."""
        return replace(self, plan=replace(self.plan, timeouts=replace(self.plan.timeouts, **seconds)))

    def of_leader(self, new_lineage: Callable[[], str]) -> LeaderSettings:
        """What a trainer would lead by."""
        return LeaderSettings(
            self.steps,
            lambda step: 0.1,
            1.0,
            "sim",
            "run",
            True,
            new_lineage,
            self.checkpoint_every,
            self.validate_every,
            self.peers_first,
        )

    def of_peer(self, join: Join) -> PeerSettings:
        """What a peer goes by, that joins like this."""
        return PeerSettings(join, journal_bytes_max=self.journal_bytes_max, recompute=self.recompute, stores=self.keeps)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a world's processes run on."""

    network: Network
    hardware: Hardware


def random_surroundings(settings: Settings, random: Random) -> Surroundings:
    """Those of the hunt for faults: every time and delay is drawn between two bounds."""
    hardware = RandomHardware(random, settings.compute_s, settings.load_s, settings.broken_s, settings.capacity)
    return Surroundings(Jittery(random, settings.latency_s), hardware)
