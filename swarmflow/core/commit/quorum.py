"""Majorities: which promises a commit and an election need, so that one lineage never has two leaders that commit.

The members of an OpenStep are its electorate, fixed when it was opened: deaths and departures do not shrink it. A
commit needs a quorum of the electorate of its own OpenStep, and of the one before: that of the last committed step, or,
while nothing is committed in the lineage, of its first OpenStep. A lineage that begins as the run goes back, or after a
doubtful takeover, has that of the former lineage before it until its first commit. So does an election. Any two of
these quorums share a process, and who shares it tells the next leader of the last ballot that it has promised
(docs/decisions/majorities.md).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from swarmflow.core.protocol.messages import ElectorateChange, OpenStep
from swarmflow.core.protocol.types import ProcessId, Roster


def lies_max(voters: int) -> int:
    """Return how many of these voters may lie: what more of them report is true of one of them at least."""
    return voters // 5


def quorum_size(voters: int) -> int:
    """Return how many of these voters are a majority: more than (n + f)/2, where f = n/5 of them may lie.

    Any two such sets share more than f voters, and so one that does not lie (Malkhi and Reiter, Byzantine quorum
    systems, STOC 1997).
    """
    return (voters + lies_max(voters)) // 2 + 1


@dataclass(frozen=True, slots=True)
class Electorate:
    """The members of one OpenStep that vote: those certified by the owner, without newcomers for its update alone."""

    processes: frozenset[ProcessId]
    trainers: frozenset[ProcessId]
    size: int  # of the whole electorate; a peer's part of a large roster lists fewer processes

    def commits(self, promised: Set[ProcessId]) -> bool:
        """Return whether these may commit: a majority, or every trainer, since nobody else can be elected."""
        return self.trainers <= promised or self._are_most(promised)

    def elects(self, promised: Set[ProcessId]) -> bool:
        """Return whether these may elect a leader: a majority with a trainer in it."""
        return self._are_most(promised) and not self.trainers.isdisjoint(promised)

    def _are_most(self, promised: Set[ProcessId]) -> bool:
        return len(self.processes & promised) >= quorum_size(self.size)


def electorate_of(opened: OpenStep) -> Electorate:
    """Return the electorate of an OpenStep."""
    processes = opened.roster.voters.difference(opened.newcomers)
    trainers = frozenset(member.process for member in opened.roster.trainers)
    return Electorate(processes, trainers, opened.voters)


def electorate_before(opened: OpenStep) -> Electorate | None:
    """Return the electorate before that of an OpenStep; None: it is a lineage's first, and follows no other."""
    change = opened.change
    if change is None:
        return None
    present = electorate_of(opened)
    return Electorate(
        present.processes.difference(change.joined).union(change.left),
        present.trainers.difference(change.joined).union(change.left_trainers),
        present.size - len(change.joined) + len(change.left),
    )


@dataclass(frozen=True, slots=True)
class Quorum:
    """The electorates that have to agree to whatever is decided under one OpenStep."""

    electorates: tuple[Electorate, ...]

    @classmethod
    def of(cls, opened: OpenStep) -> Quorum:
        """Return that of an OpenStep."""
        before = electorate_before(opened)
        return cls((electorate_of(opened),) if before is None else (electorate_of(opened), before))

    def commits(self, promised: Set[ProcessId]) -> bool:
        """Return whether these may commit."""
        return all(voters.commits(promised) for voters in self.electorates)

    def elects(self, promised: Set[ProcessId]) -> bool:
        """Return whether these may elect a leader."""
        return all(voters.elects(promised) for voters in self.electorates)


def change_since(before: Electorate | None, roster: Roster) -> ElectorateChange | None:
    """Return how a roster differs from the electorate of the last committed step."""
    if before is None:
        return None
    now = roster.voters
    joined, left = now - before.processes, before.processes - now
    return ElectorateChange(tuple(sorted(joined)), tuple(sorted(left)), tuple(sorted(left & before.trainers)))
