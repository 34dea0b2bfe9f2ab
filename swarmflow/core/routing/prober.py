"""Probes the links to peers without measurements, so that the first tensor does not take the slowest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Probe, Probed
from swarmflow.core.protocol.types import Blank, Epoch, ProcessId

SHARE = 64  # a boundary tensor has so many times the bytes of a probe
PROBE_BYTES_MIN = 1 << 16  # tensors whose probe would be smaller find a slow link soon enough by using it
AT_ONCE_MAX = 16  # peers of a stage probed an epoch: together a quarter of one tensor
PATIENCE_S = 5.0  # without an answer: then the next peer is probed


def large(boundary_bytes: int) -> bool:
    """Return whether a tensor takes so long on a slow link that links are worth probing."""
    return boundary_bytes // SHARE >= PROBE_BYTES_MIN


@dataclass(slots=True)
class Prober:
    """Probes one peer after the other, each with two probes at once: without bytes, and with some.

    The difference of the two answers is the time of the bytes. boundary_bytes: of a boundary tensor; 0: unknown, and no
    peer is probed.
    """

    boundary_bytes: int = 0
    _epoch: Epoch | None = None
    _queue: deque[ProcessId] = field(default_factory=deque)
    _asked: ProcessId | None = None
    _asked_s: float = 0.0
    _trip_s: float | None = None
    _loaded_s: float | None = None

    def open(self, epoch: Epoch, strangers: Iterable[ProcessId], mates: Iterable[ProcessId] = ()) -> None:
        """Begin an epoch. strangers: unmeasured peers of the next stage; mates: of the own stage, probed after them."""
        probed = large(self.boundary_bytes)
        self._queue = deque((*list(strangers)[:AT_ONCE_MAX], *mates) if probed else ())
        self._epoch, self._asked = epoch, None

    def gone(self, process: ProcessId) -> None:
        """Stop waiting for a dead process."""
        if self._asked == process:
            self._asked = None

    def next_deadline(self) -> float | None:
        """Return when a peer that does not answer is skipped."""
        if self._asked is not None:
            return self._asked_s + PATIENCE_S
        return 0.0 if self._queue else None

    def tick(self, now: float) -> list[Action]:
        """Probe the next peer, if it is its turn."""
        if self._asked is not None and now < self._asked_s + PATIENCE_S:
            return []
        if not self._queue or self._epoch is None:
            self._asked = None
            return []
        self._asked, self._asked_s = self._queue.popleft(), now
        self._trip_s = self._loaded_s = None
        some = (Blank(self.boundary_bytes // SHARE),)
        return [
            Send(self._asked, Probe(self._epoch, loaded=False)),
            Send(self._asked, Probe(self._epoch, loaded=True), some),
        ]

    def answered(self, sender: ProcessId, message: Probed, now: float) -> float | None:
        """Record an answer; return the estimated transfer time of a boundary tensor once both have arrived."""
        if sender != self._asked or message.epoch != self._epoch:
            return None
        if message.loaded:
            self._loaded_s = now - self._asked_s
        else:
            self._trip_s = now - self._asked_s
        if self._loaded_s is None or self._trip_s is None:
            return None
        self._asked = None
        bytes_s = max(0.0, self._loaded_s - self._trip_s)
        return self._trip_s / 2 + bytes_s * self.boundary_bytes / (self.boundary_bytes // SHARE)
