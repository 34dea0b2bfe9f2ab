"""The roster of an epoch, put together from the parts of it that its members have received."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from swarmflow.core.protocol.messages import OpenStep
from swarmflow.core.protocol.types import Member, ProcessId, Roster


@dataclass(slots=True)
class GatheredRoster:
    """The OpenStep of an epoch, put together from those that its members have received."""

    fullest: OpenStep  # whole if any member has it so; the first members' rather than a newcomer's, who got a later one
    _members: dict[ProcessId, Member] = field(default_factory=dict)
    _newcomers: dict[ProcessId, None] = field(default_factory=dict)
    _began: int = 0

    def add(self, opened: OpenStep) -> None:
        """Add the OpenStep of one member."""

        def fullness(received: OpenStep) -> tuple[bool, int, int]:
            return not received.partial, len(received.roster.trainers), received.voters

        if fullness(opened) > fullness(self.fullest):
            self.fullest = opened
        if opened.partial:
            self._members |= {member.process: member for member in opened.roster.peers}
            self._newcomers |= dict.fromkeys(opened.newcomers)
            self._began = max(self._began, opened.voters)

    def opened(self) -> OpenStep:
        """Return all that is known of it. `named` counts all voters, known or not: a majority is one of those."""
        if not self.fullest.partial:
            return self.fullest
        members = (*sorted(self._members.values()), *self.fullest.roster.trainers)
        roster = _roster(members, len(self.fullest.roster.stages))
        return replace(self.fullest, roster=roster, newcomers=tuple(sorted(self._newcomers)), named=self._began)


def _roster(members: Iterable[Member], stages: int) -> Roster:
    """Return a roster of these members, in this order."""
    rows: list[list[Member]] = [[] for _ in range(stages)]
    trainers: list[Member] = []
    for member in members:
        if member.stage < stages:
            (rows[member.stage] if member.stage >= 0 else trainers).append(member)
    return Roster(tuple(tuple(row) for row in rows), tuple(trainers))
