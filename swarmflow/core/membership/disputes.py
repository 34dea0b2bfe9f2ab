"""Who could not get on with whom: of two that contradict each other, the one goes that does so with others too.

One of the two is broken or lies, and nothing shows which. But who is honest and well gets into disputes with those
alone that are not, and those are few: a fifth of the voters at most.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmflow.core.protocol.types import Member
from swarmflow.latest import Latest

MEMORY_S = 3600.0  # disputes that are older are forgotten
NOBODY: frozenset[str] = frozenset()


class Settled(NamedTuple):
    """A dispute that was settled."""

    loser: str
    when_s: float
    voters: frozenset[str]  # of the two


@dataclass(frozen=True, slots=True)
class Judgement:
    """Who of two goes. guilty: it has been in disputes with more members than can have lied about it."""

    loser: str
    guilty: bool


@dataclass(slots=True)
class Disputes:
    """The disputes that were settled lately, by the names of both: whoever comes back is still the same one."""

    _settled: Latest[frozenset[str], Settled] = field(init=False, default_factory=Latest)

    def settle(self, one: Member, other: Member, loser: str, now: float) -> None:
        """Record a dispute and who had to go for it. loser: a name; empty: neither had to."""
        pair = frozenset((one.process.name, other.process.name))
        self._settled[pair] = Settled(loser, now, _voters(one, other))

    def partners(self, name: str, now: float) -> set[str]:
        """Return the processes with which this one was in a dispute."""
        return {other for pair in self._recent(now) if name in pair for other in pair if other != name}

    def judge(
        self,
        one: Member,
        other: Member,
        lies_max: int,
        now: float,
        *,
        present: tuple[Set[str], Set[str]] = (NOBODY,) * 2,
    ) -> Judgement | None:
        """Return who of two has to go; None: nothing tells them apart.

        lies_max: so many voters may lie. present: with whom each of them is in a dispute that is not settled. Of the
        same two each goes in turn, unless one of them has been in disputes with more voters than can lie.
        """
        names = one.process.name, other.process.name
        found = [self.partners(name, now) | also for name, also in zip(names, present, strict=True)]
        found = [each | {mate} for each, mate in zip(found, reversed(names), strict=True)]
        recent = self._recent(now)
        voters = _voters(one, other).union(*(settled.voters for settled in recent.values()))
        sure = [len(each & voters) for each in found]
        for name, mine, its in zip(names, sure, reversed(sure), strict=True):
            if mine > max(1, lies_max) and mine > its:
                return Judgement(name, guilty=True)
        if (before := recent.get(frozenset(names))) is not None:
            return Judgement(names[before.loser == names[0]], guilty=False)
        if len(found[0]) == len(found[1]):
            return None
        return Judgement(names[len(found[1]) > len(found[0])], guilty=False)

    def _recent(self, now: float) -> dict[frozenset[str], Settled]:
        return {pair: settled for pair, settled in self._settled.items() if now - settled.when_s <= MEMORY_S}


def _voters(one: Member, other: Member) -> frozenset[str]:
    return frozenset(member.process.name for member in (one, other) if member.votes)
