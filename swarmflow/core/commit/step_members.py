"""The members of a step: who was named when it was opened, who has failed since, and who has come in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from swarmflow.core.commit.announcing import NOBODY, announce
from swarmflow.core.commit.quorum import Quorum
from swarmflow.core.commit.reduce import reduction_groups
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import MemberEntered, OpenStep, RosterDelta
from swarmflow.core.protocol.types import Group, Member, ProcessId, Roster, SharedWeights

SEEN_STAGES = 3  # that a peer is sent of the roster: its own and those beside it


@dataclass(slots=True)
class StepMembers:
    """The members of one epoch as its leader knows them."""

    open_step: OpenStep  # as it was sent first; its roster is who was named then
    shared: tuple[SharedWeights, ...]  # the weights that several stages have
    roster: Roster = field(init=False)  # the members alive: they take part in the all-reduce and the update
    opened: Roster = field(init=False)  # of these, those that take work
    newcomers: dict[ProcessId, Member] = field(init=False, default_factory=dict)  # alive, and not named by `open_step`
    quorum: Quorum = field(init=False)
    followed: bool = field(init=False, default=False)  # the next step was begun ahead, with these members
    _served: set[tuple[ProcessId, int]] = field(init=False)  # (process, stage), whether it is alive or not
    _resumed: bool = field(init=False, default=False)  # by a new leader, who may not know all that have come and gone

    def __post_init__(self) -> None:
        self.quorum = Quorum.of(self.open_step)
        self.roster = self.opened = self.open_step.roster
        self._served = set(self.roster.stage_by_id.items())

    def has_served(self, process: ProcessId, stage: int) -> bool:
        """Return whether a process has served a stage in this epoch, or may have. stage: -1 for a trainer."""
        if (process, stage) in self._served:
            return True
        return self._resumed and process not in self.open_step.roster.id_set

    @property
    def trainers(self) -> tuple[ProcessId, ...]:
        """The trainers alive that were named or have come in."""
        return tuple(member.process for member in self.opened.trainers)

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups that reduce together."""
        return reduction_groups(self.roster, self.shared)

    def groups_of(self, process: ProcessId) -> tuple[str, ...]:
        """Return the names of the groups in which a member reduces."""
        return tuple(group.name for group in self.groups if process in group.members)

    def has_majority(self, bound: Set[ProcessId]) -> bool:
        """Return whether the members alive are enough for a commit.

        bound: processes that follow no other leader any more.
        """
        return self.quorum.commits(self.roster.id_set | bound)

    def open(self, base: OpenStep | None = None, stages: Mapping[ProcessId, int] = NOBODY) -> list[Action]:
        """Return the messages that open the step: to the recipients of `base` only what has changed since.

        stages: the stage that each recipient of `base` served then.
        """
        change = RosterDelta.after(base, self.open_step) if base is not None else None
        if change is not None:
            named = len(change.gone) + len(change.entered)
            if named * len(self.roster.stages) > SEEN_STAGES * self.roster.size:
                change = None  # what a peer is sent of the roster itself is shorter
        return announce(self.open_step, self.roster.members, self.shared, change, stages)

    def remove(self, process: ProcessId) -> None:
        """Remove a failed member."""
        self.roster = self.roster.without(process)
        self.opened = self.opened.without(process)
        self.newcomers.pop(process, None)

    def follow(self, former: StepMembers) -> None:
        """Take the members of the step before: this one was begun ahead, and is not open yet."""
        self.roster, self.opened = former.roster, former.opened
        self.remember(former)

    def remember(self, former: StepMembers) -> None:
        """Remember who served when this step was begun ahead, with the members of `former`."""
        self._served |= former._served
        self._resumed |= former._resumed

    def resume(self, newcomers: dict[ProcessId, Member], entered: Set[ProcessId]) -> None:
        """Set what the reports to a new leader say of newcomers. entered: those of them that take work already."""
        self.newcomers, self._resumed = newcomers, True
        for process in newcomers.keys() - entered:
            self.opened = self.opened.without(process)

    def enter(self, ready: Iterable[Member], ballot: bool) -> list[Action]:
        """Let members come in amid the step. A ballot under way has to be void after this: it began without them.

        ballot: one is under way.
        """
        strangers = [member for member in ready if member.process not in self.roster.id_set]
        fresh = tuple(member for member in ready if member.process not in self.opened.id_set)
        self.newcomers |= {member.process: member for member in strangers}
        self._served |= {(member.process, member.stage) for member in fresh}
        self.roster, self.opened = self.roster.changed((), tuple(strangers)), self.opened.changed((), fresh)
        actions = self._introduce(strangers)
        for member in fresh:
            message = self._entered(member)
            actions += [Send(other, message) for other in self.concerned(member.stage, ballot)]
        return actions + ([Count("entered", amount=len(fresh))] if fresh else [])

    def entered(self, ballot: bool) -> list[Action]:
        """Announce once more who came in amid the step: the former leader may have died while it did so."""
        members = [member for process, member in self.newcomers.items() if process in self.opened.id_set]
        messages = [self._entered(member) for member in members]
        return [Send(to, message) for message in messages for to in self.concerned(message.member.stage, ballot)]

    def join_update(self, newcomers: tuple[Member, ...]) -> list[Action]:
        """Let peers that hold this version take part in the all-reduce and the update, but in no microbatch."""
        added = tuple(member for member in newcomers if member.process not in self.roster.peer_ids)
        self.roster = self.roster.changed((), added)
        self.newcomers |= {member.process: member for member in added}
        return self._introduce(added)

    def concerned(self, stage: int, ballot: bool) -> tuple[ProcessId, ...]:
        """Return who is sent a failure or an entry on a stage: the trainers, who may have to lead, and those around it.

        Amid a ballot all members, since it is void. If it were always all members, the messages that a peer receives
        would grow with the number of all others.
        """
        return self.roster.ids if stage < 0 or ballot else self.roster.around(stage, self.shared).ids

    def _entered(self, member: Member) -> MemberEntered:
        return MemberEntered(self.open_step.term, self.open_step.epoch, member, self.followed)

    def _introduce(self, members: Iterable[Member]) -> list[Action]:
        """Send new members the OpenStep as it would be now."""
        revised = replace(self.open_step, roster=self.roster, newcomers=tuple(self.newcomers))
        return announce(revised, members, self.shared)
