"""What a simulated swarm spends: messages, bytes, seconds on the way and seconds of computing, useful or in vain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Meter:
    """Totals of a world. useful_s: computing of what was committed. wasted_s: of living peers, repeated or unused.

    twice_s: first forward passes of microbatches for whose graphs there was no memory, by peers that would have been
    idle. lost_s: computing that died with a peer before it was committed. transit_s: boundary tensors on the way, from
    being sent to being had by the receiver. messages, wire_bytes: by the name of the message. decision_s: of the
    computer that simulates, in the machines of the core, for so many decisions.
    """

    messages: Counter[str] = field(default_factory=Counter)
    wire_bytes: Counter[str] = field(default_factory=Counter)
    useful_s: float = 0.0
    wasted_s: float = 0.0
    twice_s: float = 0.0
    lost_s: float = 0.0
    transit_s: float = 0.0
    decision_s: float = 0.0
    decisions: int = 0


@dataclass(slots=True)
class Spent:
    """What one device has computed since its last commit, by microbatch. busy_s: of all its life, whatever it was."""

    busy_s: float = 0.0
    _latest: dict[tuple[int, bool], float] = field(default_factory=dict)
    _in_vain_s: float = 0.0
    _twice_s: float = 0.0

    def add(self, work: str, index: int, seconds: float) -> None:
        """A hop, or a part of one, was computed (index -1: something else).

        work `again`: what was there before; `replay`: the backward of a hop whose graph was not kept, with its forward.
        """
        self.busy_s += seconds
        if index < 0:
            return
        if work == "again":
            self._in_vain_s += seconds
            return
        if work == "replay":
            self._twice_s += self._latest.pop((index, True), 0.0)
        part = (index, work == "forward")
        self._in_vain_s += self._latest.get(part, 0.0)
        self._latest[part] = seconds

    def commit(self, indices: set[int], meter: Meter) -> None:
        """Of all this the hops of these microbatches were useful, each as it was computed last."""
        for (index, _), seconds in self._latest.items():
            if index in indices:
                meter.useful_s += seconds
            else:
                meter.wasted_s += seconds
        meter.wasted_s += self._in_vain_s
        meter.twice_s += self._twice_s
        self._clear()

    def die(self, part_s: float, meter: Meter) -> None:
        """The peer dies, part_s into what it is computing."""
        self.busy_s += part_s
        meter.lost_s += sum(self._latest.values()) + self._in_vain_s + self._twice_s + part_s
        self._clear()

    def _clear(self) -> None:
        self._in_vain_s = self._twice_s = 0.0
        self._latest.clear()
