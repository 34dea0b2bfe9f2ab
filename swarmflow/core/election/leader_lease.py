"""A process' view of its leader: whether it is alive, suspected or given up, and since which term it is followed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.protocol.messages import MemberFailed
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.transitions import Transitions

FIRST_TERM = 1  # of a leader that starts from disk: it begins a lineage, and terms of two lineages never meet


class LeaseState(StrEnum):
    """A process' lease of its leader, from the first Join to its end."""

    HELD = "held"  # the leader is followed; after some silence another candidate may be
    LOST = "lost"  # the leader is silent for too long or its connection broke: a candidate is followed at once


LEASE = Transitions(
    "lease",
    LeaseState.HELD,
    {
        LeaseState.HELD: {
            LeaseState.HELD: "the leader sends a message, or another one is followed",
            LeaseState.LOST: "the leader is silent for too long, or its connection broke",
        },
        LeaseState.LOST: {LeaseState.HELD: "the leader sends a message, or another one is followed"},
    },
)


@dataclass(slots=True)
class LeaderLease:
    """The leader that a process follows, and how long it may go on without a message from it."""

    leader: ProcessId
    term: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    state: LeaseState = field(init=False, default=LEASE.initial)
    lost_s: float | None = field(init=False, default=None)  # since when the leader is lost
    _renewed_s: float | None = field(init=False, default=None)  # by the last message, or the first tick
    _awake_s: float | None = field(init=False, default=None)  # the last tick

    @property
    def lost(self) -> bool:
        """Whether the leader is lost."""
        return self.state is LeaseState.LOST

    def renew(self, now: float) -> None:
        """Renew the lease: the leader sent a message."""
        self.state = LEASE.move(self.state, LeaseState.HELD)
        self._renewed_s, self.lost_s = now, None

    def lose(self, now: float) -> None:
        """Record that the leader is lost."""
        if self.state is LeaseState.HELD:
            assert self.lost_s is None, f"held, and lost at {self.lost_s} s"
            self.state = LEASE.move(self.state, LeaseState.LOST)
            self.lost_s = now

    def follow(self, leader: ProcessId, term: int, now: float) -> None:
        """Follow another leader; messages of earlier terms are void from now on."""
        self.leader, self.term = leader, term
        self.renew(now)

    def doubted(self, now: float) -> bool:
        """Return whether the leader is in doubt, so that a candidate may be followed."""
        doubt_s = self.timeouts.leader_doubt_s
        return self.lost or (self._renewed_s is not None and now - self._renewed_s > doubt_s)

    def tick(self, now: float) -> None:
        """Check for silence; called about each second. Silence while this process itself slept does not count."""
        slept = self._awake_s is not None and now - self._awake_s > self.timeouts.leader_silence_s / 2
        self._awake_s = now
        if self._renewed_s is None or (slept and not self.lost):
            self._renewed_s = now
        elif now - self._renewed_s > self.timeouts.leader_silence_s:
            self.lose(now)

    def passed_over(
        self, me: ProcessId, sender: ProcessId, message: MemberFailed, epoch_view: EpochView | None
    ) -> bool:
        """Return whether a later leader, whose Elect did not arrive here, goes on without this process."""
        named = epoch_view is not None and sender in epoch_view.trainers()
        return named and message.process == me and message.term > self.term

    def expired(self, now: float) -> bool:
        """Return whether no leader is expected any more."""
        return self.lost_s is not None and now - self.lost_s > self.timeouts.leaderless_s
