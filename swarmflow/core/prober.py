"""Small probes of the ways to peers that were sent nothing yet, so that the first tensor does not take the slowest."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Send
from swarmflow.core.messages import Probe, Probed
from swarmflow.core.types import Blank, Epoch, ProcessId

SHARE = 64  # a probe has this part of a boundary tensor's bytes
PROBE_BYTES_MIN = 1 << 16  # where a smaller one would do, a slow way is found out soon enough by using it
AT_ONCE_MAX = 16  # peers of a stage probed an epoch: together a quarter of one tensor
PATIENCE_S = 5.0  # then the next one's turn comes


def large(boundary_bytes: int) -> bool:
    """Whether a tensor takes so long on a slow way that it is worth knowing the ways before one is sent."""
    return boundary_bytes // SHARE >= PROBE_BYTES_MIN


@dataclass(slots=True)
class Prober:
    """Asks one peer after the other, twice each at the same time: without bytes, and with some.

    What the second answer takes longer than the first is what the bytes take. boundary_bytes: of a tensor that is to go
    this way; 0: unknown, and nobody is probed.
    """

    boundary_bytes: int = 0
    _epoch: Epoch | None = None
    _queue: deque[ProcessId] = field(default_factory=deque)
    _asked: ProcessId | None = None
    _asked_s: float = 0.0
    _trip_s: float | None = None
    _loaded_s: float | None = None

    def open(self, epoch: Epoch, strangers: Iterable[ProcessId], mates: Iterable[ProcessId] = ()) -> None:
        """A new epoch. strangers: peers to which the way is not known. mates: those of the own stage, after them."""
        probed = large(self.boundary_bytes)
        self._queue = deque((*list(strangers)[:AT_ONCE_MAX], *mates) if probed else ())
        self._epoch, self._asked = epoch, None

    def gone(self, process: ProcessId) -> None:
        """A process died: it does not answer."""
        if self._asked == process:
            self._asked = None

    def next_deadline(self) -> float | None:
        """When a peer that does not answer is passed over."""
        if self._asked is not None:
            return self._asked_s + PATIENCE_S
        return 0.0 if self._queue else None

    def tick(self, now: float) -> list[Action]:
        """Ask the next one, if it is its turn."""
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
        """One answer. Returns how long a boundary tensor takes to this peer, once both are there."""
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
