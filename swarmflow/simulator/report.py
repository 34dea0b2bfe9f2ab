"""What came of a simulation, an iteration at a time and in all, ready to be written as JSON."""

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
    """One iteration: from the end of the update before it to the end of its own (GWTF, II).

    minutes_a_microbatch: its length by the microbatches that were learnt in it (GWTF, VI). communication_s: mean time
    that the boundary tensors of one microbatch were on the way, all hops together. useful_s, wasted_s, lost_s:
    computing that was committed, that living peers did in vain, and that died with peers. twice_s: forward passes that
    idle peers did twice, as there was no memory for their graphs. utilisation: of all the time
    that peers were there, the share in which they computed. retries: hops that were done again after a death.
    measured: not one of the warm-up. compute_s, links_s, reduce_s, fill_s, timer_s: where the seconds went
    (simulator/causes.py). busiest_stage: of the peer that computed the most.
    """

    number: int
    measured: bool
    end_s: float
    seconds: float
    minutes_a_microbatch: float
    microbatches: int
    microbatches_a_minute: float
    communication_s: float
    useful_s: float
    wasted_s: float
    twice_s: float
    lost_s: float
    utilisation: float
    peers: int
    deaths: int
    joins: int
    moves: int
    retries: int
    restarts: int
    messages: int
    wire_bytes: int
    compute_s: float
    links_s: float
    reduce_s: float
    fill_s: float
    timer_s: float
    busiest_stage: int


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
    """A whole simulation. outcome: `finished`, `duration over`, or why it ended before. violations: nothing, ever.

    notes: what could not be done of what the scenario asks for.
    """

    scenario: str
    policy: str
    seed: int
    outcome: str
    violations: tuple[str, ...]
    virtual_s: float
    happened: int
    iterations: tuple[Iteration, ...]
    devices: tuple[DeviceUse, ...]
    messages: Mapping[str, int]
    wire_bytes: Mapping[str, int]
    peer_seconds: float
    counts: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[Iteration, ...]:
        """The iterations after the warm-up."""
        return tuple(row for row in self.iterations if row.measured)

    def over(self, value: Callable[[Iteration], float]) -> tuple[float, float]:
        """Mean and standard deviation of something over the measured iterations; 0 where there is none."""
        values = [value(row) for row in self.measured]
        return (fmean(values), pstdev(values)) if values else (0.0, 0.0)

    def waste(self) -> tuple[float, float, float]:
        """What living peers did in vain, what died with peers, what was done twice: as shares of all computing."""
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
        """Everything, for a file."""
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
