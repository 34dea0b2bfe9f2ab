"""What one process has measured of the ways to others: how long a tensor takes, with nothing before it on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.smoothing import smoothed
from swarmflow.core.types import ProcessId

AGED_S = 600.0  # what was measured before is not believed any more


@dataclass(slots=True)
class _LinkTime:
    tensor_s: float
    at_s: float
    probed: bool


@dataclass(slots=True)
class LinkTimes:
    """Measured in passing, and by probes where there is no traffic.

    Tensors to one process go one after the other: one that was sent while another was on its way takes from when that
    one was there. What a queue adds is no cost of the link.
    """

    _links: dict[ProcessId, _LinkTime] = field(default_factory=dict)
    _now_s: float = 0.0

    def arrived(self, process: ProcessId, seconds: float, now: float) -> None:
        """A tensor was there so long after it was sent."""
        former = self._fresh(process, now)
        if former is not None and not former.probed:
            alone_s = min(seconds, now - former.at_s)
            self._links[process] = _LinkTime(smoothed(former.tensor_s, alone_s), now, probed=False)
        else:
            self._links[process] = _LinkTime(seconds, now, probed=False)

    def probed(self, process: ProcessId, seconds: float, now: float) -> None:
        """It would be, by a small probe: believed until one is really sent."""
        former = self._fresh(process, now)
        if former is None or former.probed:
            self._links[process] = _LinkTime(seconds, now, probed=True)

    def rerouted(self, process: ProcessId, seconds: float) -> None:
        """It would be, on another way than before: believed until one is really sent."""
        self._links[process] = _LinkTime(seconds, self._now_s, probed=True)

    def tensor_s(self, process: ProcessId) -> float | None:
        """How long a tensor takes to it; None: that was not measured, or too long ago."""
        link = self._fresh(process, self._now_s)
        return None if link is None else link.tensor_s

    def _fresh(self, process: ProcessId, now: float) -> _LinkTime | None:
        self._now_s = max(self._now_s, now)
        link = self._links.get(process)
        if link is not None and self._now_s - link.at_s > AGED_S:
            del self._links[process]
            return None
        return link
