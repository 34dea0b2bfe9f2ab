"""Transfers that get what all other traffic leaves free of a link, on a pretended network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

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
    through_last_s: float = 0.0  # when a background transfer was through for the last time

    def idle_s(self, now_s: float, busy_until_s: float) -> float:
        """Return for how many seconds it was idle so far."""
        return now_s - self.queued_s + max(0.0, busy_until_s - now_s)

    def promise(self, needs_s: float, now_s: float, busy_until_s: float) -> float:
        """Return after how many idle seconds a background transfer that begins now is through."""
        self.promised_s = max(self.promised_s, self.idle_s(now_s, busy_until_s)) + needs_s
        return self.promised_s

    def through_s(self, promised_s: float, now_s: float, busy_until_s: float) -> float:
        """Return when so many idle seconds are over, if no other message is sent meanwhile."""
        lacks_s = promised_s - self.idle_s(now_s, busy_until_s)
        return now_s if lacks_s <= _EXACT_S else max(now_s, busy_until_s) + lacks_s
