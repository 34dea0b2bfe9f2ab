"""Messages about an epoch, a ballot or a member that a peer has not heard of yet: kept until it has, within limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from swarmflow.core.machines.serving.peer_state import release
from swarmflow.core.protocol.actions import Action, Count
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import Message, RelayedTensor
from swarmflow.core.protocol.types import Epoch

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
        """Keep a message; where there is no room left for it, drop what is about the latest epoch.

        So nobody who sends what is never due loses by that what is due next.
        """
        self._kept.append((now, event))
        own = [kept for kept in self.events if kept.sender == event.sender]
        least = 2 * self.boundary_bytes
        dropped = self._drop_latest(own, EARLY_MAX, max(EARLY_BYTES_MAX, least))
        dropped += self._drop_latest(self.events, len(self._kept), max(EARLY_BYTES_OF_ALL_MAX, least))
        return [action for each in dropped for action in (Count("messages_ignored", "early"), *release(each.bodies))]

    def _drop_latest(self, events: list[Received], most: int, bytes_max: int) -> list[Received]:
        """Drop messages about the latest epoch, of several the last one, until the rest is within the limits."""
        dropped: list[Received] = []
        while len(events) > most or _bytes(events) > bytes_max:
            latest = max(reversed(events), key=lambda event: _epoch_of(event.message))
            dropped.append(latest)
            events = [event for event in events if event is not latest]
            self._kept = [kept for kept in self._kept if kept[1] is not latest]
        return dropped

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


def _epoch_of(message: Message) -> Epoch:
    about: Any = (message.forward or message.backward) if isinstance(message, RelayedTensor) else message
    epoch: Epoch = about.microbatch.epoch if hasattr(about, "microbatch") else about.epoch
    return epoch


def _bytes(events: list[Received]) -> int:
    return sum(ref.size_bytes for event in events for ref in event.bodies)
