"""Follows a leader: notices that it is gone, and decides whether another one may be followed."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.messages import MemberFailed
from swarmflow.core.standing import EpochView
from swarmflow.core.types import ProcessId

FIRST_TERM = 1  # of a leader that starts from disk: it begins a lineage, and terms of two lineages never meet


@dataclass(slots=True)
class LeaderLease:
    """Whom a process follows, since which term, and how sure it is that it still leads.

    A leader that is silent for silence_s is lost. One that is silent for doubt_s, or to whom the connection broke, is
    not defended any more when another trainer wants to lead. After patience_s without any leader there is none to come.
    """

    leader: ProcessId
    term: int = 0
    silence_s: float = 10.0
    doubt_s: float = 3.0
    patience_s: float = 25.0
    lost_s: float | None = None
    _heard_s: float | None = None
    _awake_s: float | None = None

    def heard(self, now: float) -> None:
        """The leader spoke."""
        self._heard_s, self.lost_s = now, None

    def lose(self, now: float) -> None:
        """The leader cannot be reached."""
        if self.lost_s is None:
            self.lost_s = now

    def follow(self, leader: ProcessId, term: int, now: float) -> None:
        """Promise another one: from now on nothing that was said in an earlier term counts."""
        self.leader, self.term = leader, term
        self.heard(now)

    def suspects(self, now: float) -> bool:
        """Whether another trainer may be right that the leader is gone."""
        return self.lost_s is not None or (self._heard_s is not None and now - self._heard_s > self.doubt_s)

    def tick(self, now: float) -> None:
        """To be called each second or so. A process that has slept itself could not hear anybody."""
        slept = self._awake_s is not None and now - self._awake_s > self.silence_s / 2
        self._awake_s = now
        if self._heard_s is None or (slept and self.lost_s is None):
            self._heard_s = now
        elif now - self._heard_s > self.silence_s:
            self.lose(now)

    def passed_over(
        self, me: ProcessId, sender: ProcessId, message: MemberFailed, epoch_view: EpochView | None
    ) -> bool:
        """Whether a later leader, whose call this process did not hear, goes on without it."""
        named = epoch_view is not None and sender in epoch_view.trainers()
        return named and message.process == me and message.term > self.term

    def expired(self, now: float) -> bool:
        """Whether no leader is to be expected any more."""
        return self.lost_s is not None and now - self.lost_s > self.patience_s
