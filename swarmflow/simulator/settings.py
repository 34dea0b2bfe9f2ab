"""The rules of a simulated run, and what its processes run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from swarmflow.core.machines.serving.peer_state import PeerSettings
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import PlanStages
from swarmflow.core.protocol.events import StagesPlanned
from swarmflow.core.protocol.messages import Join
from swarmflow.core.protocol.types import Plan
from swarmflow.simulator.hardware import Hardware, RandomHardware
from swarmflow.simulator.network import Jittery, Network

Planner = Callable[[PlanStages], StagesPlanned]


@dataclass(frozen=True, slots=True)
class Settings:
    """The rules of a run, and the bounds of its random environment where the world is not given another."""

    plan: Plan
    steps: int
    capacity: int = 4  # random environment: microbatches that a peer holds
    latency_s: tuple[float, float] = (0.001, 0.05)  # random environment, as the next three: (least, most)
    compute_s: tuple[float, float] = (0.05, 0.2)  # any computation
    broken_s: tuple[float, float] = (0.005, 0.1)  # until a process notices that its connection to a dead one broke
    load_s: tuple[float, float] = (0.1, 2.0)  # to load a stage
    checkpoint_every: int = 0
    validate_every: int = 0
    rebalance_s: float = 0.0  # of every peer, as the next two
    journal_bytes_max: int = 1 << 30
    recompute: bool = True
    relays: bool = True
    small: float = 0.0  # random environment: the share of the computers that have no memory for some stages
    unusable: float = 0.0  # the share of computations whose input does not decode
    poisoned: int = -1  # the microbatch of each step whose values are not finite on any computer, -1: none
    keeps: bool = True  # of every peer: it keeps copies on its disk
    uncertified: float = 0.0  # share of the peers that have no certificate, and so no vote
    peers_first: int = 0  # peers that have to be ready before the first step is opened
    timeout_s: float = 0.0  # of the baseline swarm-restart
    planner: Planner | None = None  # peers are placed by its plans; None: by what they can do alone

    @property
    def without_graph(self) -> int:
        """Microbatches that a peer admits without a graph, for each one with a graph."""
        return self.plan.without_graph if self.recompute else 0

    def timed(self, **seconds: float) -> Settings:
        """Return these settings with other timeouts."""
        return replace(self, plan=replace(self.plan, timeouts=replace(self.plan.timeouts, **seconds)))

    def of_leader(self, new_lineage: Callable[[], str]) -> LeaderSettings:
        """Return the settings that a trainer leads by."""
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
            self.planner is not None,
        )

    def of_peer(self, join: Join) -> PeerSettings:
        """Return the settings of a peer that joins with this message."""
        how = self.recompute, self.relays, self.keeps
        return PeerSettings(join, None, False, self.journal_bytes_max, *how)


@dataclass(frozen=True, slots=True)
class Environment:
    """The network and the computers of a world's processes."""

    network: Network
    hardware: Hardware


def noticed_s(hardware: Hardware, settings: Settings) -> float:
    """Return the seconds until a process notices that another one that it asked is dead.

    Its connection breaks, or the leader reports its silence.
    """
    return hardware.broken_s() or settings.plan.timeouts.silence_s


def random_environment(settings: Settings, random: Random) -> Environment:
    """Return the environment of the hunt for faults: every time and delay is random between two bounds."""
    times = settings.compute_s, settings.load_s, settings.broken_s
    hardware = RandomHardware(random, *times, settings.capacity, settings.small, settings.plan.stages)
    return Environment(Jittery(random, settings.latency_s), hardware)
