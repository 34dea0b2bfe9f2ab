"""What a simulated swarm spends: messages, bytes, seconds on the way and seconds of computing, useful or in vain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Meter:
    """Totals of a world. useful_s: computing of what was committed. wasted_s: of living peers, repeated or unused.

    lost_s: computing that died with a peer before it was committed. transit_s: boundary tensors on the way, from being
    sent to being had by the receiver. messages, wire_bytes: by the name of the message. decision_s: of the
    computer that simulates, in the machines of the core, for so many decisions.
    """

    messages: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)
    useful_s: float = 0.0
    wasted_s: float = 0.0
    lost_s: float = 0.0
    transit_s: float = 0.0
    decision_s: float = 0.0
    decisions: int = 0


@dataclass(slots=True)
class Spent:
    """What one device has computed since its last commit, by microbatch. busy_s: of all its life, whatever it was."""

    busy_s: float = 0.0
    hops_s: float = 0.0
    _latest: dict[tuple[int, str], float] = field(default_factory=dict)

    def add(self, work: str, index: int, seconds: float) -> None:
        """A hop, or a part of one, was computed (index -1: something else). work `again`: what was there before."""
        self.busy_s += seconds
        if index >= 0:
            self.hops_s += seconds
        if index >= 0 and work != "again":
            self._latest[index, "forward" if work == "forward" else "backward"] = seconds

    def commit(self, indices: list[int], meter: Meter) -> None:
        """Of all this the hops of these microbatches were useful, each as it was computed last."""
        useful_s = sum(self._latest.get((index, way), 0.0) for index in indices for way in ("forward", "backward"))
        meter.useful_s += useful_s
        meter.wasted_s += self.hops_s - useful_s
        self._clear()

    def die(self, part_s: float, meter: Meter) -> None:
        """The peer dies, part_s into what it is computing."""
        self.busy_s += part_s
        meter.lost_s += self.hops_s + part_s
        self._clear()

    def _clear(self) -> None:
        self.hops_s = 0.0
        self._latest.clear()
