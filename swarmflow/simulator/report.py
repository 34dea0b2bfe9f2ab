"""The results of a simulation, by iteration and in all, ready to be written as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from statistics import fmean, pstdev

from swarmflow.simulator.causes import NAMES, Shares

MINUTE_S = 60.0


_wasted_s, _lost_s, _twice_s, _useful_s = map(attrgetter, ("wasted_s", "lost_s", "twice_s", "useful_s"))


@dataclass(frozen=True, slots=True)
class Iteration:
    """One iteration: from the end of the update before it to the end of its own (GWTF, II)."""

    number: int
    measured: bool  # after the warm-up
    end_s: float
    seconds: float
    minutes_a_microbatch: float  # its length by the microbatches that were learnt in it (GWTF, VI)
    microbatches: int
    microbatches_a_minute: float
    communication_s: float  # mean time in transit of the boundary tensors of one microbatch, all hops together
    useful_s: float  # computing that was committed
    wasted_s: float  # computing in vain of peers that are alive
    twice_s: float  # forward passes that idle peers did twice, for want of memory for their graphs
    lost_s: float  # computing that was lost with dead peers
    unlearnt: float  # of the microbatches: gradients that died with a peer and that nobody computed again
    utilisation: float  # the share of the peers' time in which they computed
    peers: int
    deaths: int
    joins: int
    moves: int
    retries: int  # hops that were done again after a death
    restarts: int
    messages: int
    wire_bytes: int
    compute_s: float  # where the seconds went, as the next four (simulator/causes.py)
    links_s: float
    reduce_s: float
    fill_s: float
    timer_s: float
    busiest_stage: int  # of the peer that computed the most

    @property
    def learnt_seconds(self) -> float:
        """Its length by the share of its gradients that were learnt: an iteration of all of them would take that."""
        return self.seconds * self.microbatches / (self.microbatches - self.unlearnt)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One life of a peer: the stage that it served last, how long it was there while it was measured, and its use."""

    peer: str
    stage: int
    seconds: float
    busy_s: float

    @property
    def utilisation(self) -> float:
        """Share of its time in which it computed."""
        return self.busy_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Where the time of the iterations goes: shares, which together are 1, and the stage of the busiest peer."""

    shares: Mapping[str, float]
    stage: int

    @property
    def name(self) -> str:
        """What has the largest share."""
        return max(self.shares, key=self.shares.__getitem__)


@dataclass(frozen=True, slots=True)
class SimulationReport:
    """The results of a whole simulation."""

    scenario: str
    policy: str
    seed: int
    outcome: str  # `finished`, `duration over`, or why it ended before
    violations: tuple[str, ...]  # of invariants: there should be none
    virtual_s: float
    happened: int
    iterations: tuple[Iteration, ...]
    devices: tuple[DeviceUse, ...]
    messages: Mapping[str, int]
    wire_bytes: Mapping[str, int]
    peer_seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what of the scenario could not be done

    @property
    def measured(self) -> tuple[Iteration, ...]:
        """The iterations after the warm-up."""
        return tuple(row for row in self.iterations if row.measured)

    def over(self, value: Callable[[Iteration], float]) -> tuple[float, float]:
        """Return mean and standard deviation of a value over the measured iterations; 0 where there is none."""
        values = [value(row) for row in self.measured]
        return (fmean(values), pstdev(values)) if values else (0.0, 0.0)

    def waste(self) -> tuple[float, float, float]:
        """Return the shares of all computing that were done in vain, lost with dead peers, and done twice."""
        rows = self.measured
        sums = [sum(of(row) for row in rows) for of in (_wasted_s, _lost_s, _twice_s, _useful_s)]
        wasted, lost, twice, _ = (part / (sum(sums) or 1.0) for part in sums)
        return wasted, lost, twice

    @property
    def bottleneck(self) -> Bottleneck | None:
        """What the measured iterations waited for; None where there is none."""
        rows = self.measured
        sums = {part: sum(getattr(row, part) for row in rows) for part in Shares._fields}
        seconds = sum(sums.values())
        if seconds <= 0:
            return None
        stages = Counter(row.busiest_stage for row in rows)
        stage = max(sorted(stages), key=stages.__getitem__)
        return Bottleneck({NAMES[part]: part_s / seconds for part, part_s in sums.items()}, stage)

    def as_json(self) -> dict[str, object]:
        """Return everything, for a file."""
        wasted, lost, twice = self.waste()
        names = (
            "seconds",
            "minutes_a_microbatch",
            "microbatches",
            "microbatches_a_minute",
            "communication_s",
            "utilisation",
            "retries",
            "moves",
            "messages",
            "wire_bytes",
        )
        bottleneck = self.bottleneck
        spread = {name: self.over(lambda row, name=name: float(getattr(row, name))) for name in names}  # type: ignore[misc]
        return {
            "scenario": self.scenario,
            "policy": self.policy,
            "seed": self.seed,
            "outcome": self.outcome,
            "violations": list(self.violations),
            "virtual_s": self.virtual_s,
            "happened": self.happened,
            "in_all": {
                **{name: {"mean": mean, "std": std} for name, (mean, std) in spread.items()},
                "wasted_share": wasted,
                "lost_share": lost,
                "twice_share": twice,
            },
            "bottleneck": bottleneck and {"name": bottleneck.name, **asdict(bottleneck)},
            "iterations": [asdict(row) for row in self.iterations],
            "devices": [{**asdict(device), "utilisation": device.utilisation} for device in self.devices],
            "messages": dict(self.messages),
            "wire_bytes": dict(self.wire_bytes),
            "a_peer": {
                "messages_per_s": sum(self.messages.values()) / self.peer_seconds if self.peer_seconds else 0.0,
                "wire_bytes_per_s": sum(self.wire_bytes.values()) / self.peer_seconds if self.peer_seconds else 0.0,
            },
            "counts": dict(self.counts),
            "notes": list(self.notes),
        }
