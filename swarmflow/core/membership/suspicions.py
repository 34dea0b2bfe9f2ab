"""Whom others cannot reach or do not understand: one accuser is not enough to put a member out.

A link can fail while both of its ends are well. So an accusation counts against a member when a second accuser joins
in, or when the leader hears nothing of the accused either. While neither is so, the two have a dispute: both go around
each other. If it is still the same after a while, one of them has to go, lest the step stands still.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.core.membership.members import Membership
from swarmflow.core.protocol.types import ProcessId

CHECK_BEATS = 2.5  # after an accusation: a member that lives has sent two heartbeats by then
RECENT_S = 60.0  # accusations that are older and were not repeated are forgotten
ALONE_MAX = 3  # members of whom one accuser alone cannot hear: then it is more likely the one that cannot be reached


@dataclass(slots=True)
class Accusation:
    """A report of one member that it cannot go on with another."""

    reason: str
    since_s: float  # when it was made first
    last_s: float  # when it was made last
    due_s: float  # by when the accused has to have answered
    answered: bool = False  # since the last report, the accused has sent the leader a message
    lived: bool = False  # it has so after an earlier report


@dataclass(slots=True)
class Suspicions:
    """The accusations of a leader's members, by accused and accuser."""

    settle_s: float  # how long a dispute may last
    check_s: float  # how long an accused has to answer the leader
    _of: dict[ProcessId, dict[ProcessId, Accusation]] = field(default_factory=dict)

    def accuse(self, accuser: ProcessId, accused: ProcessId, reason: str, now: float) -> None:
        """Record that one member cannot go on with another."""
        found = self._of.setdefault(accused, {}).get(accuser)
        if found is None:
            self._of[accused][accuser] = Accusation(reason, now, now, now + self.check_s)
        else:
            found.reason, found.last_s, found.due_s, found.answered = reason, now, now + self.check_s, False

    def forget(self, process: ProcessId) -> None:
        """Forget a process that is gone, and its accusations."""
        self._of.pop(process, None)
        self._keep(lambda accuser, accusation: accuser != process)

    def answered(self, membership: Membership, now: float) -> list[tuple[ProcessId, ProcessId]]:
        """Return the (accuser, accused) of accusations whose accused has spoken since; each once for each time."""
        self._keep(lambda accuser, accusation: now - accusation.last_s <= RECENT_S)
        found: list[tuple[ProcessId, ProcessId]] = []
        for accused, accusers in self._of.items():
            known = membership.known.get(accused)
            for accuser, accusation in accusers.items():
                if not accusation.answered and known is not None and known.last_seen_s > accusation.last_s:
                    accusation.answered = accusation.lived = True
                    found.append((accuser, accused))
        return found

    def verdict(
        self, membership: Membership, now: float, spared: Callable[[ProcessId], bool]
    ) -> tuple[ProcessId, str] | None:
        """Return who has to go now, and why. spared: whose stage nobody else could serve."""
        for accused, accusers in self._of.items():
            known = membership.known.get(accused)
            if known is None:
                continue
            credible = [by for by in accusers if self._alone(by) < ALONE_MAX]
            if len(credible) > 1:
                accusation = accusers[credible[0]]
                return accused, f"{credible[0]} and {credible[1]} lost it ({accusation.reason})"
            for accuser, accusation in accusers.items():
                if known.last_seen_s <= accusation.last_s and now >= accusation.due_s:
                    return accused, f"{accuser} lost it ({accusation.reason}), and it has been silent since"
                if accusation.last_s - accusation.since_s >= self.settle_s:
                    return self._settled(accuser, accused, accusation, spared)
        return None

    def next_deadline(self) -> float | None:
        """Return when an accused that does not answer is given up."""
        every = (accusation for accusers in self._of.values() for accusation in accusers.values())
        return min((accusation.due_s for accusation in every if not accusation.answered), default=None)

    def _keep(self, counts: Callable[[ProcessId, Accusation], bool]) -> None:
        """Forget the accusations that do not count any more, and the accused that are left without any."""
        kept = ({by: a for by, a in accusers.items() if counts(by, a)} for accusers in self._of.values())
        self._of = {accused: accusers for accused, accusers in zip(self._of, kept, strict=True) if accusers}

    def _alone(self, accuser: ProcessId) -> int:
        """Return how many members this one alone accuses although they have answered the leader."""
        own = (accusers for accusers in self._of.values() if accuser in accusers)
        return sum(len(accusers) == 1 and accusers[accuser].lived for accusers in own)

    def _settled(
        self, accuser: ProcessId, accused: ProcessId, accusation: Accusation, spared: Callable[[ProcessId], bool]
    ) -> tuple[ProcessId, str]:
        dispute = f"{accuser} cannot go on with {accused} ({accusation.reason})"
        if self._alone(accuser) >= ALONE_MAX:
            return accuser, f"{dispute} nor with others, who are well"
        if spared(accused) and not spared(accuser):
            return accuser, f"{dispute}, whose stage has nobody else"
        return accused, dispute
