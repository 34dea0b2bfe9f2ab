"""Transfers that get what all other traffic leaves free of a link, on a pretended network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from swarmflow.core.routing.background_share import BackgroundShare

EVEN_SHARE = 1 / 2  # of a downlink, for what arrives in the background beside other tensors
_EXACT_S = 1e-9  # what floats lose


class Background(Protocol):
    """A message in flight that gives way to all others."""

    def next_s(self, now_s: float) -> float | None:
        """Return when to ask again, None: the receiver has all of it."""
        ...


@dataclass(frozen=True, slots=True)
class Undelayed:
    """One on a network whose links are never busy."""

    due_s: float

    def next_s(self, now_s: float) -> float | None:
        """Return when it arrives."""
        return self.due_s if now_s < self.due_s else None


@dataclass(slots=True)
class LinkIdleness:
    """How long one direction of a machine's link has been idle, which is the time that background transfers get.

    Messages take the link one after the other, so what was queued and is not done yet is known at any time. Background
    transfers take the idle seconds in the order in which they begin.
    """

    queued_s: float = 0.0  # of all messages so far
    promised_s: float = 0.0  # idle seconds that earlier background transfers need
    share: BackgroundShare = field(default_factory=BackgroundShare)  # in seconds of the link
    _used_s: float = 0.0  # idle seconds that are in `share`

    def idle_s(self, now_s: float, busy_until_s: float) -> float:
        """Return for how many seconds it was idle so far."""
        return now_s - self.queued_s + max(0.0, busy_until_s - now_s)

    def promise(self, needs_s: float, now_s: float, busy_until_s: float, share: float | None = None) -> float:
        """Return after how many idle seconds a background transfer that begins now is through.

        share: of the link, that a load gets at least; None: it is no load.
        """
        idle_s = self.idle_s(now_s, busy_until_s)
        if idle_s >= self.promised_s:  # whatever was promised before is through
            self.share.sent(max(self.promised_s - self._used_s, 0.0), now_s)
            self.promised_s = self._used_s = idle_s
            if share is None:
                self.share.pause(now_s)
        if share is not None:
            self.share.load(share, now_s)
        self.promised_s += needs_s
        return self.promised_s

    def made_room_s(self, needs_s: float, now_s: float, busy_until_s: float) -> float:
        """Return for how long a message of so many seconds leaves the link to background transfers before it."""
        if self._used_s >= self.promised_s:
            return 0.0
        idle_s = min(self.idle_s(now_s, busy_until_s), self.promised_s)
        self.share.sent(idle_s - self._used_s, now_s)
        self._used_s = idle_s
        if idle_s >= self.promised_s:
            return 0.0
        self.share.yielded(needs_s, now_s)
        # Small messages are not held up by a large one: the runtime writes both in small parts, one beside the other.
        share = self.share.share(now_s)
        beside_s = needs_s * share / (1.0 - share)
        return min(max(self.share.due(now_s), 0.0), beside_s, self.promised_s - idle_s)

    def through_s(self, promised_s: float, now_s: float, busy_until_s: float) -> float:
        """Return when so many idle seconds are over, if no other message is sent meanwhile."""
        lacks_s = promised_s - self.idle_s(now_s, busy_until_s)
        return now_s if lacks_s <= _EXACT_S else max(now_s, busy_until_s) + lacks_s
