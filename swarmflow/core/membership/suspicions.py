"""Whom others cannot reach or do not understand: one accuser is not enough to put a member out.

A link can fail while both of its ends are well, and an accuser may lie. So an accusation counts against a member when
the leader hears nothing of the accused either. While the accused answers, the two have a dispute, however many accuse
it: both go around each other. If the step does not get on for a while, one of them has to go, lest it stands still: the
one that is in disputes with more others, now and earlier (disputes.py). Whose messages more voters have refused than
may lie has sent one of them what cannot be true, and goes at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmflow.core.membership.disputes import Disputes
from swarmflow.core.membership.members import Membership
from swarmflow.core.protocol.types import ProcessId

CHECK_BEATS = 2.5  # after an accusation: a member that lives has sent two heartbeats by then
RECENT_S = 60.0  # accusations that are older and were not repeated are forgotten
ALONE_MAX = 3  # members of whom one accuser alone cannot hear: then it is more likely the one that cannot be reached


class Verdict(NamedTuple):
    """Who has to go, and why."""

    process: ProcessId
    reason: str
    guilty: bool = False  # it gets on with too few: it is kept out for a while


@dataclass(slots=True)
class Accusation:
    """A report of one member that it cannot go on with another."""

    reason: str
    since_s: float  # when it was made first
    last_s: float  # when it was made last
    due_s: float  # by when the accused has to have answered
    answered: bool = False  # since the last report, the accused has sent the leader a message
    lived: bool = False  # it has so after an earlier report
    refused: bool = False  # the accused has sent what cannot be true


@dataclass(slots=True)
class Suspicions:
    """The accusations of a leader's members, by accused and accuser."""

    settle_s: float  # how long a dispute may last
    check_s: float  # how long an accused has to answer the leader
    disputes: Disputes = field(default_factory=Disputes)
    _of: dict[ProcessId, dict[ProcessId, Accusation]] = field(default_factory=dict)

    def accuse(self, accuser: ProcessId, accused: ProcessId, reason: str, now: float, refused: bool = False) -> None:
        """Record that one member cannot go on with another. refused: it has refused a message of the other one."""
        found = self._of.setdefault(accused, {}).get(accuser)
        if found is None:
            found = self._of[accused][accuser] = Accusation(reason, now, now, now + self.check_s)
        else:
            found.reason, found.last_s, found.due_s, found.answered = reason, now, now + self.check_s, False
        found.refused |= refused

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

    def got_on(self, now: float) -> None:
        """Note that a step was committed all the same: disputes begin anew."""
        for accusers in self._of.values():
            for accusation in accusers.values():
                accusation.since_s = now

    def verdict(
        self, membership: Membership, lies_max: Callable[[], int], now: float, spared: Callable[[ProcessId], bool]
    ) -> Verdict | None:
        """Return who has to go now, and why. lies_max: so many voters may lie. spared: its stage has nobody else."""
        for accused, accusers in self._of.items():
            known = membership.known.get(accused)
            if known is None:
                continue
            if (reason := self._refused(membership, accused, lies_max)) is not None:
                return Verdict(accused, reason, guilty=not spared(accused))
            for accuser, accusation in accusers.items():
                if known.last_seen_s <= accusation.last_s and now >= accusation.due_s:
                    return Verdict(accused, f"{accuser} lost it ({accusation.reason}), and it has been silent since")
                if accusation.last_s - accusation.since_s >= self.settle_s:
                    return self._settled(membership, accuser, accused, lies_max, now, spared)
        return None

    def next_deadline(self) -> float | None:
        """Return when an accused that does not answer is given up."""
        every = (accusation for accusers in self._of.values() for accusation in accusers.values())
        return min((accusation.due_s for accusation in every if not accusation.answered), default=None)

    def _keep(self, counts: Callable[[ProcessId, Accusation], bool]) -> None:
        """Forget the accusations that do not count any more, and the accused that are left without any."""
        kept = ({by: a for by, a in accusers.items() if counts(by, a)} for accusers in self._of.values())
        self._of = {accused: accusers for accused, accusers in zip(self._of, kept, strict=True) if accusers}

    def _refused(self, membership: Membership, accused: ProcessId, lies_max: Callable[[], int]) -> str | None:
        """Return why a member has to go whose messages more voters have refused than may lie; None: it has not."""
        by = [accuser for accuser, accusation in self._of[accused].items() if accusation.refused]
        if len(by) < 2:
            return None
        voters = [each for each in by if (known := membership.known.get(each)) is not None and known.member.votes]
        if len(voters) <= max(1, lies_max()):
            return None
        return f"{len(voters)} members have refused what it sent ({self._of[accused][by[0]].reason})"

    def _alone(self, accuser: ProcessId) -> int:
        """Return how many members this one alone accuses although they have answered the leader."""
        own = (accusers for accusers in self._of.values() if accuser in accusers)
        return sum(len(accusers) == 1 and accusers[accuser].lived for accusers in own)

    def _disputed(self, process: ProcessId) -> set[str]:
        """Return the names of all that this one accuses or is accused by, although they have answered the leader."""
        found = {accuser.name for accuser, accusation in self._of.get(process, {}).items() if accusation.lived}
        return found | {accused.name for accused, by in self._of.items() if process in by and by[process].lived}

    def _settled(
        self,
        membership: Membership,
        accuser: ProcessId,
        accused: ProcessId,
        lies_max: Callable[[], int],
        now: float,
        spared: Callable[[ProcessId], bool],
    ) -> Verdict:
        dispute = f"{accuser} cannot go on with {accused} ({self._of[accused][accuser].reason})"
        by, about = membership.known.get(accuser), membership.known[accused]
        if by is None:
            return Verdict(accused, dispute)
        present = self._disputed(accuser), self._disputed(accused)
        judgement = self.disputes.judge(by.member, about.member, lies_max(), now, present=present)
        if judgement is not None:
            loser = accuser if judgement.loser == accuser.name else accused
            text = f"{dispute}, and {loser} was in disputes with others too" if judgement.guilty else dispute
        elif self._alone(accuser) >= ALONE_MAX:
            loser, text = accuser, f"{dispute} nor with others, who are well"
        elif spared(accused) and not spared(accuser):
            loser, text = accuser, f"{dispute}, whose stage has nobody else"
        else:
            loser, text = accused, dispute
        self.disputes.settle(by.member, about.member, loser.name, now)
        return Verdict(loser, text, judgement is not None and judgement.guilty)
