"""Whom others cannot reach or do not understand: one accuser is not enough to put a member out.

A link can fail while both of its ends are well, and an accuser may lie. So an accusation counts against a member when
the leader hears nothing of the accused either. While the accused answers, the two have a dispute, however many accuse
it: both go around each other. If the step does not get on for a while, one of them has to go, lest it stands still: the
one that is in disputes with more others, now and earlier (disputes.py). Whose messages more voters have refused than
may lie has sent one of them what cannot be true, and goes at once.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmflow.core.membership.disputes import Disputes
from swarmflow.core.membership.members import Membership
from swarmflow.core.protocol.types import ProcessId

CHECK_BEATS = 2.5  # after an accusation: a member that lives has sent two heartbeats by then
RECENT_S = 60.0  # accusations that are older and were not repeated are forgotten
ALONE_MAX = 3  # members of whom one accuser alone cannot hear: then it is more likely the one that cannot be reached

Pair = tuple[ProcessId, ProcessId]
"""(accuser, accused)."""


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
    lived: bool = False  # the accused has sent the leader a message after one of the reports


@dataclass(slots=True)
class Suspicions:
    """The accusations of a leader's members.

    A partition of a large swarm makes tens of thousands of them, and they are weighed at each event. So an event finds
    the ones that it concerns, and goes through no others.
    """

    settle_s: float  # how long a dispute may last
    check_s: float  # how long an accused has to answer the leader
    disputes: Disputes = field(default_factory=Disputes)
    # By accused and accuser. The last one made is the last one of its accused, so those not answered come after others.
    _of: dict[ProcessId, dict[ProcessId, Accusation]] = field(init=False, default_factory=dict)
    _recent: OrderedDict[Pair, Accusation] = field(init=False, default_factory=OrderedDict)  # all, in the order made
    _unanswered: OrderedDict[Pair, Accusation] = field(init=False, default_factory=OrderedDict)  # in the same order
    _arrived_s: dict[ProcessId, float] = field(init=False, default_factory=dict)  # by accused, since `answered` looked
    _got_on_s: float = field(init=False, default=-math.inf)  # when the last step was committed
    _lasting: dict[Pair, None] = field(init=False, default_factory=dict)  # disputes that have lasted too long
    _refusers: dict[ProcessId, dict[ProcessId, None]] = field(init=False, default_factory=dict)  # voters, by accused
    _to_weigh: dict[ProcessId, None] = field(init=False, default_factory=dict)  # accused that may have enough of them

    def accuse(self, accuser: ProcessId, accused: ProcessId, reason: str, now: float, refused: bool = False) -> None:
        """Record that one member cannot go on with another. refused: a voter has refused a message of the other one."""
        pair, of = (accuser, accused), self._of.setdefault(accused, {})
        made = of.pop(accuser, None) or Accusation(reason, now, now, now)
        made.reason, made.last_s, made.due_s = reason, now, now + self.check_s
        self._recent[pair] = self._unanswered[pair] = of[accuser] = made
        self._recent.move_to_end(pair)
        self._unanswered.move_to_end(pair)
        if now - max(made.since_s, self._got_on_s) >= self.settle_s:
            self._lasting[pair] = None
        if refused and accuser not in self._refusers.setdefault(accused, {}):
            self._refusers[accused][accuser] = self._to_weigh[accused] = None

    def forget(self, process: ProcessId) -> None:
        """Forget a process that is gone, and its accusations."""
        about = [(accuser, process) for accuser in self._of.get(process, ())]
        by = [(process, accused) for accused, accusers in self._of.items() if process in accusers]
        for pair in (*about, *by):
            self._drop(pair)
        self._refusers.pop(process, None)
        self._to_weigh |= dict.fromkeys(self._refusers)  # with a voter less, fewer may lie

    def hear(self, process: ProcessId, now: float) -> None:
        """Note that a message of a process has arrived."""
        if process in self._of:
            self._arrived_s[process] = now

    def answered(self, now: float) -> list[Pair]:
        """Return the (accuser, accused) of accusations whose accused has spoken since; each once for each time."""
        while self._recent and now - next(iter(self._recent.values())).last_s > RECENT_S:
            self._drop(next(iter(self._recent)))
        found: list[Pair] = []
        for accused, arrived_s in self._arrived_s.items():
            for accuser, accusation in reversed(self._of.get(accused, {}).items()):
                if (accuser, accused) not in self._unanswered:
                    break
                if arrived_s > accusation.last_s:
                    del self._unanswered[accuser, accused]
                    accusation.lived = True
                    found.append((accuser, accused))
        self._arrived_s.clear()
        return found

    def got_on(self, now: float) -> None:
        """Note that a step was committed all the same: disputes begin anew."""
        self._got_on_s = now
        self._lasting.clear()

    def verdict(
        self, membership: Membership, lies_max: Callable[[], int], now: float, spared: Callable[[ProcessId], bool]
    ) -> Verdict | None:
        """Return who has to go now, and why. lies_max: so many voters may lie. spared: its stage has nobody else."""
        found = self._refused(lies_max, spared) or self._silent(now)
        if found is None and self._lasting:
            accuser, accused = next(iter(self._lasting))
            found = self._settled(membership, accuser, accused, lies_max, now, spared)
        return found

    def next_deadline(self) -> float | None:
        """Return when an accused that does not answer is given up."""
        return next((accusation.due_s for accusation in self._unanswered.values()), None)

    def _drop(self, pair: Pair) -> None:
        accuser, accused = pair
        del self._of[accused][accuser], self._recent[pair]
        if not self._of[accused]:
            del self._of[accused]
        self._refusers.get(accused, {}).pop(accuser, None)
        self._unanswered.pop(pair, None)
        self._lasting.pop(pair, None)

    def _refused(self, lies_max: Callable[[], int], spared: Callable[[ProcessId], bool]) -> Verdict | None:
        """Return a member whose messages more voters have refused than may lie."""
        liars = max(1, lies_max()) if self._to_weigh else 0
        while self._to_weigh:
            accused, _ = self._to_weigh.popitem()
            by = self._refusers.get(accused, {})
            if len(by) > liars:
                first = self._of[accused][next(iter(by))]
                reason = f"{len(by)} members have refused what it sent ({first.reason})"
                return Verdict(accused, reason, guilty=not spared(accused))
        return None

    def _silent(self, now: float) -> Verdict | None:
        """Return a member that had to answer an accusation by now."""
        for (accuser, accused), accusation in self._unanswered.items():
            if now < accusation.due_s:
                break
            if self._arrived_s.get(accused, -math.inf) <= accusation.last_s:
                return Verdict(accused, f"{accuser} lost it ({accusation.reason}), and it has been silent since")
        return None

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
