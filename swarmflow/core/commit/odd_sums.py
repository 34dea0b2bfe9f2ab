"""Sums that differ: of whose sum that was, and who sums nothing for a while, so that both may stay.

Any of several owners may have sent a member another sum than the rest. So there is one owner at a time, each in turn,
and then it is that owner or that member. Nothing shows which: neither of them sums for their group any more. That takes
from a liar what it can do, and costs an honest one nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.commit.piece_owners import Owning
from swarmflow.core.membership.disputes import MEMORY_S
from swarmflow.latest import Latest

# With one owner after sums have differed: who lies only while there are several costs one try in so many at most.
VERSIONS = 8


@dataclass(slots=True)
class OddSums:
    """The tries at a step in which most members of a group had one sum, and some another one."""

    _tries: tuple[int, int] = (-1, 0)  # (version, tries at its step)
    _until: int = 0  # the version from which several sum again
    _apart: Latest[frozenset[str], float] = field(default_factory=Latest)  # names of an owner and a member, since when

    def differed(self, version: int, traced: bool) -> None:
        """Record a try that failed so. traced: one owner had summed."""
        before, tries = self._tries
        self._tries = version, (tries if before == version else 0) + 1
        self._until = max(self._until, version + (1 if traced else VERSIONS))

    def apart(self, owner: str, member: str, now: float) -> None:
        """Record two, one of whom is at fault."""
        self._apart[frozenset((owner, member))] = now

    def owning(self, version: int, now: float) -> Owning:
        """Return who may sum at this version's step."""
        before, tries = self._tries
        turn = tries - 1 if before == version else version
        recent = frozenset(pair for pair, since_s in self._apart.items() if now - since_s <= MEMORY_S)
        return Owning(turn if version < self._until else None, recent)
