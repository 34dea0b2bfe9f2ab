"""Probes links without measurements, so that the first tensor does not take the slowest one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Probe, Probed
from swarmflow.core.protocol.types import Epoch, Padding, ProcessId

SHARE = 64  # the size of a boundary tensor, as a multiple of a probe's
PROBE_BYTES_MIN = 1 << 16  # no probe is smaller: tensors so small reveal a slow link soon enough themselves
AT_ONCE_MAX = 16  # peers of the next stage that are probed in an epoch, with a quarter of one tensor in total
PATIENCE_S = 5.0  # time without an answer after which the next peer is probed


def large(boundary_bytes: int) -> bool:
    """Return whether a tensor takes so long on a slow link that links are worth probing."""
    return boundary_bytes // SHARE >= PROBE_BYTES_MIN


@dataclass(frozen=True, slots=True)
class ProbedLink:
    """What a probe has found: a tensor of so many bytes takes the latency, and as many times the seconds of a byte."""

    latency_s: float
    byte_s: float

    def tensor_s(self, size_bytes: int) -> float:
        """Return the transfer time of a tensor."""
        return self.latency_s + self.byte_s * size_bytes


@dataclass(slots=True)
class Prober:
    """Probes one peer after the other, each with two messages at once: one without a body, and one with a body.

    The difference between the two round-trip times is the transfer time of the body. Each sender probes others: if all
    began with the same peers, the probes would wait for each other, and these links would seem slow (of 133 peers one
    got 5 microbatches of a step, the others 30).
    """

    boundary_bytes: int = 0  # size of a boundary tensor; 0: unknown, and no peer is probed
    sender: str = ""
    least_bytes: int = 0  # of a probe's body; 0: peers are probed only where tensors are large
    _draw: Random = field(init=False)
    _epoch: Epoch | None = None
    _queue: deque[ProcessId] = field(default_factory=deque)  # peers to probe
    _target: ProcessId | None = None  # the peer that is being probed
    _sent_s: float = 0.0  # when its probes were sent
    _trip_s: float | None = None  # round-trip time of the probe without a body; None: no answer yet
    _loaded_s: float | None = None  # round-trip time of the probe with a body; None: no answer yet

    def __post_init__(self) -> None:
        self._draw = Random(self.sender)

    def open(self, epoch: Epoch, strangers: Iterable[ProcessId], mates: Iterable[ProcessId] = ()) -> None:
        """Begin an epoch. strangers: unmeasured peers of the next stage; mates: of the own stage, probed after them."""
        self._queue = deque()
        if self.least_bytes or large(self.boundary_bytes):
            unknown = list(strangers)
            self._queue += (*self._draw.sample(unknown, min(AT_ONCE_MAX, len(unknown))), *mates)
        self._epoch, self._target = epoch, None

    def gone(self, process: ProcessId) -> None:
        """Stop waiting for a dead process."""
        if self._target == process:
            self._target = None

    def next_deadline(self) -> float | None:
        """Return when `tick` is due: at once, or when a peer that does not answer is skipped; None: nothing is left."""
        if self._target is not None:
            return self._sent_s + PATIENCE_S
        return 0.0 if self._queue else None

    def tick(self, now: float) -> list[Action]:
        """Probe the next peer, once the one before it has answered or is skipped."""
        if self._target is not None and now < self._sent_s + PATIENCE_S:
            return []
        if not self._queue or self._epoch is None:
            self._target = None
            return []
        self._target, self._sent_s = self._queue.popleft(), now
        self._trip_s = self._loaded_s = None
        body = (Padding(self.body_bytes),)
        return [
            Send(self._target, Probe(self._epoch, loaded=False)),
            Send(self._target, Probe(self._epoch, loaded=True), body),
        ]

    def answered(self, sender: ProcessId, message: Probed, now: float) -> ProbedLink | None:
        """Record an answer; return what is known of the link once both have arrived."""
        if sender != self._target or message.epoch != self._epoch:
            return None
        if message.loaded:
            self._loaded_s = now - self._sent_s
        else:
            self._trip_s = now - self._sent_s
        if self._loaded_s is None or self._trip_s is None:
            return None
        self._target = None
        return ProbedLink(self._trip_s / 2, max(0.0, self._loaded_s - self._trip_s) / self.body_bytes)

    @property
    def body_bytes(self) -> int:
        """Of a probe with a body."""
        return max(self.least_bytes, self.boundary_bytes // SHARE)
