"""How long a tensor has waited in its sender's uplink behind others, as far as their arrivals tell."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

ARRIVALS_MAX = 32  # tensors on their way at a time that are looked back at
GAPS_MAX = 16  # of which the shortest counts: a sender notices within so many that its paths share no link


@dataclass(slots=True)
class OwnQueue:
    """What a sender knows of the queue in its own uplink, which says nothing of a receiver.

    Tensors that leave by one uplink arrive one after the other, and no two of them closer than one of them takes. On
    paths that share nothing some arrive together. So each tensor that was sent before accounts for the shortest gap
    that was seen lately, and for no more.
    """

    _arrivals: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=ARRIVALS_MAX), init=False)
    _gaps_s: deque[float] = field(default_factory=lambda: deque(maxlen=GAPS_MAX), init=False)

    @property
    def gap_s(self) -> float:
        """The shortest gap between two arrivals that was seen lately; 0: none was."""
        return min(self._gaps_s, default=0.0)

    def waited_s(self, sent_s: float, arrived_s: float) -> float:
        """Record a tensor; return for how long others that were sent before it have delayed it."""
        if self._arrivals and sent_s < self._arrivals[-1][1]:
            self._gaps_s.append(arrived_s - self._arrivals[-1][1])
        before_s = [other_s for other_sent_s, other_s in self._arrivals if other_sent_s <= sent_s < other_s]
        self._arrivals.append((sent_s, arrived_s))
        return min(len(before_s) * self.gap_s, max(before_s) - sent_s) if before_s else 0.0
