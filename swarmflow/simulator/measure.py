"""What a simulated swarm spends: messages, bytes, seconds in transit and seconds of computing, useful or in vain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import Epoch
from swarmflow.latest import Latest


@dataclass(slots=True)
class Meter:
    """Totals of a world."""

    messages: Counter[str] = field(default_factory=Counter)  # by the name of the message
    wire_bytes: Counter[str] = field(default_factory=Counter)  # by the name of the message
    useful_s: float = 0.0  # computing that was committed, and that the run did not go back from
    wasted_s: float = 0.0  # computing of peers that are alive, repeated or unused; of any, committed and undone
    twice_s: float = 0.0  # first forward passes, by idle peers, of microbatches whose graphs did not fit in memory
    lost_s: float = 0.0  # computing that was not committed before its peer died
    unlearnt: float = 0.0  # microbatches of a commit without their gradients, which died with a peer; the stages' mean
    transit_s: float = 0.0  # of boundary tensors, from their sending until the receiver has them whole
    decision_s: float = 0.0  # CPU time of the computer that simulates, in the machines of the core
    decisions: int = 0  # that took decision_s


@dataclass(slots=True)
class Spent:
    """What one device has computed since its last commit, by microbatch."""

    busy_s: float = field(init=False, default=0.0)  # of its whole life, whatever for
    hops: int = field(init=False, default=0)  # first passes of hops, in its whole life
    used_s: float = field(init=False, default=0.0)  # of busy_s, what was committed
    wasted_s: float = field(init=False, default=0.0)  # of busy_s, what was repeated or unused
    # (step and index of the microbatch, part of its hop): seconds of the latest time
    _latest: dict[tuple[int, int, str], float] = field(init=False, default_factory=dict)
    _committed_s: Latest[Epoch, float] = field(init=False, default_factory=Latest)  # of used_s, the latest epoch last
    _in_vain_s: float = field(init=False, default=0.0)
    _twice_s: float = field(init=False, default=0.0)

    def add(self, work: str, step: int, index: int, seconds: float) -> None:
        """Count a hop, or a part of one, that was computed (index -1: something else).

        work: "again" is what existed already; "replay" is the backward pass, after another forward pass, of a hop whose
        graph was not kept.
        """
        self.busy_s += seconds
        if index < 0:
            return
        if work == "again":
            self._in_vain_s += seconds
            return
        if work == "replay":
            self._twice_s += self._latest.pop((step, index, "forward"), 0.0)
        self.hops += work in ("forward", "loss")
        part = (step, index, work if work in ("forward", "weights") else "backward")
        self._in_vain_s += self._latest.get(part, 0.0)
        self._latest[part] = seconds

    def commit(self, epoch: Epoch, indices: set[int], meter: Meter) -> None:
        """Count the latest computing of these microbatches of a step as useful, and all else until then as wasted."""
        later = {part: seconds for part, seconds in self._latest.items() if part[0] > epoch.step}
        used_s = self._committed_s.get(epoch, 0.0)
        for (at, index, _), seconds in self._latest.items():
            if at > epoch.step:
                continue
            if at == epoch.step and index in indices:
                meter.useful_s += seconds
                self.used_s += seconds
                used_s += seconds
            else:
                meter.wasted_s += seconds
                self.wasted_s += seconds
        meter.wasted_s += self._in_vain_s
        self.wasted_s += self._in_vain_s
        meter.twice_s += self._twice_s
        self._committed_s[epoch] = used_s
        self._clear()
        self._latest = later

    def undo(self, epoch: Epoch, meter: Meter) -> None:
        """Count as wasted what was committed of this step and later ones, if the run has gone back to make it again."""
        while self._committed_s and (last := next(reversed(self._committed_s))) != epoch and last.step >= epoch.step:
            seconds = self._committed_s.pop(last)
            meter.useful_s -= seconds
            self.used_s -= seconds
            meter.wasted_s += seconds
            self.wasted_s += seconds

    def die(self, part_s: float, meter: Meter) -> None:
        """Count all as lost: the peer dies, part_s into what it is computing."""
        self.busy_s += part_s
        meter.lost_s += sum(self._latest.values()) + self._in_vain_s + self._twice_s + part_s
        self._clear()

    def _clear(self) -> None:
        self._in_vain_s = self._twice_s = 0.0
        self._latest.clear()
