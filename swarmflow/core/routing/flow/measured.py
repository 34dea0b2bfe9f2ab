"""Transfer times of the links from one process: how long a tensor takes when no other one is queued before it."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.smoothing import smoothed

AGED_S = 600.0  # older measurements are discarded


@dataclass(slots=True)
class _LinkTime:
    tensor_s: float  # transfer time of a boundary tensor
    at_s: float  # when it was measured
    probed: bool  # an estimate, until a tensor has arrived


@dataclass(slots=True)
class LinkTimes:
    """Transfer times by receiver, measured on the traffic, and by probes where there is none.

    Tensors to one process go one after the other: the time of one that was sent during another transfer counts from
    the end of that transfer. Queueing is not a cost of the link.
    """

    _links: dict[ProcessId, _LinkTime] = field(init=False, default_factory=dict)  # by receiver
    _now_s: float = field(init=False, default=0.0)  # the latest time of any event

    def record_transfer(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record that a tensor arrived so many seconds after it was sent."""
        former = self._fresh(process, now)
        if former is not None and not former.probed:
            alone_s = min(seconds, now - former.at_s)
            self._links[process] = _LinkTime(smoothed(former.tensor_s, alone_s), now, probed=False)
        else:
            self._links[process] = _LinkTime(seconds, now, probed=False)

    def record_probe(self, process: ProcessId, seconds: float, now: float) -> None:
        """Record a probe's estimate of the transfer time, which holds until a tensor is measured."""
        former = self._fresh(process, now)
        if former is None or former.probed:
            self._links[process] = _LinkTime(seconds, now, probed=True)

    def record_path(self, process: ProcessId, seconds: float) -> None:
        """Record the estimate for a new path to a process, which holds until a tensor is measured."""
        self._links[process] = _LinkTime(seconds, self._now_s, probed=True)

    def tensor_s(self, process: ProcessId) -> float | None:
        """Return the transfer time to a process; None: not measured, or too long ago."""
        link = self._fresh(process, self._now_s)
        return None if link is None else link.tensor_s

    def _fresh(self, process: ProcessId, now: float) -> _LinkTime | None:
        """Return the measurement of a link, unless it is too old."""
        self._now_s = max(self._now_s, now)
        link = self._links.get(process)
        if link is not None and self._now_s - link.at_s > AGED_S:
            del self._links[process]
            return None
        return link
