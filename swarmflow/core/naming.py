"""Who is named to whom as an epoch is opened: those around it to a peer, all to a trainer; in parts if need be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from swarmflow.core.actions import Action, Send
from swarmflow.core.messages import ElectionReport, OpenStep, RosterDelta, RosterPart
from swarmflow.core.types import Epoch, Member, ProcessId, Roster

PART_MEMBERS = 1000  # of a message: a header has 1 MiB at most (runtime/frames.py), and each may have several addresses
NOBODY: Mapping[ProcessId, int] = MappingProxyType({})


def tell(
    said: OpenStep,
    members: Iterable[Member],
    tied: bool,
    change: RosterDelta | None = None,
    told: Mapping[ProcessId, int] = NOBODY,
) -> list[Action]:
    """Open an epoch to these. A trainer may have to lead it and hears of everybody, a peer of those around its stage.

    change: for those who were told of the one before; told: the stage that each served then, around which it knows all.
    """
    parts: dict[int, tuple[RosterPart | OpenStep, ...]] = {}
    actions: list[Action] = []
    for member in members:
        if change is not None and told.get(member.process) == member.stage:
            actions.append(Send(member.process, change))
            continue
        if member.stage not in parts:
            parts[member.stage] = in_parts(said if member.stage < 0 else said.seen_from(member.stage, tied))
        actions += [Send(member.process, part) for part in parts[member.stage]]
    return actions


def answer(to: ProcessId, report: ElectionReport) -> list[Action]:
    """Send a report to who has asked for it."""
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
    """The members that a process has named before its OpenStep; a part of another epoch or term voids those before."""

    _about: tuple[int, Epoch] | None = None
    _members: list[Member] = field(default_factory=list)

    def hear(self, message: RosterPart) -> None:
        """One more part."""
        if self._about != (message.term, message.epoch):
            self._about, self._members = (message.term, message.epoch), []
        self._members += message.members

    def whole(self, opened: OpenStep) -> OpenStep | None:
        """The OpenStep with its members, however they were told. None: not all of them have come."""
        if opened.before == 0:
            return opened
        about, members = self._about, self._members
        self._about, self._members = None, []
        if about != (opened.term, opened.epoch) or len(members) != opened.before:
            return None
        return replace(opened, roster=_roster(members, len(opened.roster.stages)), before=0)


@dataclass(slots=True)
class GatheredRoster:
    """The OpenStep of one epoch, put together from those that its members have heard.

    fullest: in full where anybody has heard it so, with those who lived at first: a newcomer was told who lived when it
    came.
    """

    fullest: OpenStep
    _members: dict[ProcessId, Member] = field(default_factory=dict)
    _newcomers: dict[ProcessId, None] = field(default_factory=dict)
    _began: int = 0

    def add(self, opened: OpenStep) -> None:
        """One more has heard it so."""

        def fullness(heard: OpenStep) -> tuple[bool, int, int]:
            return not heard.partial, len(heard.roster.trainers), heard.size - len(heard.newcomers)

        if fullness(opened) > fullness(self.fullest):
            self.fullest = opened
        if opened.partial:
            self._members |= {member.process: member for member in opened.roster.members()}
            self._newcomers |= dict.fromkeys(opened.newcomers)
            self._began = max(self._began, opened.size - len(opened.newcomers))

    def opened(self) -> OpenStep:
        """As far as anybody knows it. A majority is one of all whom it named, known or not."""
        if not self.fullest.partial:
            return self.fullest
        members = (*sorted(self._members.values()), *self.fullest.roster.trainers)
        roster = _roster(members, len(self.fullest.roster.stages))
        named = self._began + len(self._newcomers)
        return replace(self.fullest, roster=roster, newcomers=tuple(sorted(self._newcomers)), named=named)


def _roster(members: Iterable[Member], stages: int) -> Roster:
    """These, each in its place, in this order."""
    rows: list[list[Member]] = [[] for _ in range(stages)]
    trainers: list[Member] = []
    for member in members:
        if member.stage < stages:
            (rows[member.stage] if member.stage >= 0 else trainers).append(member)
    return Roster(tuple(tuple(row) for row in rows), tuple(trainers))
