"""How long a tensor has waited in its sender's uplink behind others, as far as their arrivals tell."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

ARRIVALS_MAX = 32  # tensors on their way at a time that are looked back at
GAPS_MAX = 16  # of which the shortest count: a sender notices within so many that its paths share no link
GAPS = 3  # in a row, of which the mean counts: of streams that share an uplink evenly two may end at the same time


@dataclass(slots=True)
class OwnQueue:
    """What a sender knows of the queue in its own uplink, which says nothing of a receiver.

    Between the arrivals of tensors that leave by one uplink lies the time that one of them takes there: each time where
    they are sent one after the other, in the mean of a few where their streams share the uplink evenly. On paths that
    share nothing some arrive together. So each tensor that was sent before accounts for the least mean of a few gaps in
    a row that was seen lately, and for no more.
    """

    gap_s: float = field(default=0.0, init=False)  # that least mean; 0: no gap was seen
    _arrivals: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ARRIVALS_MAX), init=False)
    _gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS_MAX), init=False)

    def waited_s(self, sent_s: float, arrived_s: float) -> float:
        """Record a tensor; return for how long others that were sent before it have delayed it."""
        if self._arrivals and sent_s < self._arrivals[-1][1]:
            self._gaps_s.append(arrived_s - self._arrivals[-1][1])
            self.gap_s = _least_mean(list(self._gaps_s))
        before_s = [other_s for other_sent_s, other_s in self._arrivals if other_sent_s <= sent_s < other_s]
        self._arrivals.append((sent_s, arrived_s))
        return min(len(before_s) * self.gap_s, max(before_s) - sent_s) if before_s else 0.0


def _least_mean(gaps_s: list[float]) -> float:
    """Return the least mean of so many gaps in a row as count, or of all where there are fewer."""
    count = min(GAPS, len(gaps_s))
    return min(sum(gaps_s[start : start + count]) for start in range(len(gaps_s) - count + 1)) / count
