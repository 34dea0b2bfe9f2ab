"""Sends the roster of an epoch: to a peer the stages around its own, to a trainer all, in parts where it is large."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import ElectionReport, OpenStep, RosterDelta, RosterPart
from swarmflow.core.protocol.types import Epoch, Member, ProcessId, Roster

PART_MEMBERS = 1000  # in one message: a header has at most 1 MiB (transport/frames.py), a member several addresses
NOBODY: Mapping[ProcessId, int] = MappingProxyType({})


def announce(
    open_step: OpenStep,
    members: Iterable[Member],
    tied: bool,
    change: RosterDelta | None = None,
    stages: Mapping[ProcessId, int] = NOBODY,
) -> list[Action]:
    """Return the messages that open an epoch to these members.

    A trainer, which may have to lead, gets the whole roster, a peer the stages around its own. change: the difference
    for those that have the OpenStep before; stages: the stage that each of them served then.
    """
    parts: dict[int, tuple[RosterPart | OpenStep, ...]] = {}
    actions: list[Action] = []
    for member in members:
        if change is not None and stages.get(member.process) == member.stage:
            actions.append(Send(member.process, change))
            continue
        if member.stage not in parts:
            parts[member.stage] = in_parts(open_step if member.stage < 0 else open_step.seen_from(member.stage, tied))
        actions += [Send(member.process, part) for part in parts[member.stage]]
    return actions


def answer(to: ProcessId, report: ElectionReport) -> list[Action]:
    """Return the messages that carry a report to a candidate."""
    *named, opened = in_parts(report.opened)
    assert isinstance(opened, OpenStep)
    return [*(Send(to, part) for part in named), Send(to, replace(report, opened=opened))]


def in_parts(opened: OpenStep, members_max: int = PART_MEMBERS) -> tuple[RosterPart | OpenStep, ...]:
    """Return what carries an OpenStep: itself, after all its members where there are too many for one message."""
    members = opened.roster.all_members
    if len(members) <= members_max:
        return (opened,)
    parts = (members[first : first + members_max] for first in range(0, len(members), members_max))
    bare = replace(opened, roster=Roster(((),) * len(opened.roster.stages)), before=len(members))
    return (*(RosterPart(opened.term, opened.epoch, part) for part in parts), bare)


@dataclass(slots=True)
class RosterAssembly:
    """Collects the RosterParts before an OpenStep; a part of another epoch or term voids the earlier ones."""

    _about: tuple[int, Epoch] | None = None
    _members: list[Member] = field(default_factory=list)

    def add(self, message: RosterPart) -> None:
        """Add a part."""
        if self._about != (message.term, message.epoch):
            self._about, self._members = (message.term, message.epoch), []
        self._members += message.members

    def whole(self, opened: OpenStep) -> OpenStep | None:
        """Return the OpenStep with all its members, None if a part is missing."""
        if opened.before == 0:
            return opened
        about, members = self._about, self._members
        self._about, self._members = None, []
        if about != (opened.term, opened.epoch) or len(members) != opened.before:
            return None
        return replace(opened, roster=_roster(members, len(opened.roster.stages)), before=0)


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
            return not received.partial, len(received.roster.trainers), received.size - len(received.newcomers)

        if fullness(opened) > fullness(self.fullest):
            self.fullest = opened
        if opened.partial:
            self._members |= {member.process: member for member in opened.roster.members()}
            self._newcomers |= dict.fromkeys(opened.newcomers)
            self._began = max(self._began, opened.size - len(opened.newcomers))

    def opened(self) -> OpenStep:
        """Return all that is known of it. `named` counts all members, known or not: a majority is one of those."""
        if not self.fullest.partial:
            return self.fullest
        members = (*sorted(self._members.values()), *self.fullest.roster.trainers)
        roster = _roster(members, len(self.fullest.roster.stages))
        named = self._began + len(self._newcomers)
        return replace(self.fullest, roster=roster, newcomers=tuple(sorted(self._newcomers)), named=named)


def _roster(members: Iterable[Member], stages: int) -> Roster:
    """Return a roster of these members, in this order."""
    rows: list[list[Member]] = [[] for _ in range(stages)]
    trainers: list[Member] = []
    for member in members:
        if member.stage < stages:
            (rows[member.stage] if member.stage >= 0 else trainers).append(member)
    return Roster(tuple(tuple(row) for row in rows), tuple(trainers))
