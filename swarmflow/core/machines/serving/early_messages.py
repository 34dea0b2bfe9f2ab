"""Messages about an epoch or a ballot that a peer has not heard of yet: kept until it has, within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.core.machines.serving.peer_state import release
from swarmflow.core.protocol.actions import Action, Count
from swarmflow.core.protocol.events import Received

EARLY_MAX = 256  # of one sender; more is not honest traffic
EARLY_S = 30.0  # after which they are given up: they may be of a leader whom nobody follows any more
# With their bodies, of one sender and of all: on a link of 10 Gb/s those of a tenth of a second.
EARLY_BYTES_MAX = 128 << 20
EARLY_BYTES_OF_ALL_MAX = 4 * EARLY_BYTES_MAX


@dataclass(slots=True)
class EarlyMessages:
    """What has come too early, with the time at which it came, in order."""

    boundary_bytes: int = 0  # of a tensor between stages: two of them fit, however large they are
    _kept: list[tuple[float, Received]] = field(init=False, default_factory=list)

    def __bool__(self) -> bool:
        return bool(self._kept)

    @property
    def events(self) -> list[Received]:
        """What is kept."""
        return [event for _, event in self._kept]

    def keep(self, event: Received, now: float) -> list[Action]:
        """Keep a message; drop it where its sender, or all together, have no room left."""
        own = [kept for _, kept in self._kept if kept.sender == event.sender]
        least = 2 * self.boundary_bytes
        fits = len(own) < EARLY_MAX
        fits &= _bytes([*own, event]) <= max(EARLY_BYTES_MAX, least)
        fits &= _bytes([*self.events, event]) <= max(EARLY_BYTES_OF_ALL_MAX, least)
        if not fits:
            return [Count("messages_ignored", "early"), *release(event.bodies)]
        self._kept.append((now, event))
        return []

    def due(self, is_early: Callable[[Received], bool]) -> list[Received]:
        """Remove and return those that are not too early any more."""
        kept, self._kept = self._kept, []
        due: list[Received] = []
        for since_s, event in kept:
            if is_early(event):
                self._kept.append((since_s, event))
            else:
                due.append(event)
        return due

    def give_up(self, now: float) -> list[Action]:
        """Drop what has waited for too long."""
        if not self._kept or now - self._kept[0][0] < EARLY_S:
            return []
        old = [event for since_s, event in self._kept if now - since_s >= EARLY_S]
        self._kept = [(since_s, event) for since_s, event in self._kept if now - since_s < EARLY_S]
        ignored: list[Action] = [Count("messages_ignored", "early")] * len(old)
        return ignored + [action for event in old for action in release(event.bodies)]


def _bytes(events: list[Received]) -> int:
    return sum(ref.size_bytes for event in events for ref in event.bodies)
