"""A process' view of the current epoch: what another leader needs to go on from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.protocol.messages import Commit, Done, ElectionReport, Join, OpenStep, Prepare, RosterDelta, Tally
from swarmflow.core.protocol.types import Epoch, Member, ProcessId, Roster


@dataclass(slots=True)
class EpochView:
    """Kept from one OpenStep to the next, and reported to a candidate (ElectionReport)."""

    opened: OpenStep  # as received, without later changes: the next RosterDelta builds on it
    change: RosterDelta | None = None  # as received instead of an OpenStep
    base: str = ""  # digest of the roster that `change` applies to
    gone: dict[ProcessId, None] = field(init=False, default_factory=dict)  # members that failed
    newcomers: dict[ProcessId, Member] = field(init=False, default_factory=dict)  # members that came in later
    entered: dict[ProcessId, None] = field(init=False, default_factory=dict)  # newcomers that work before the update
    suspects: dict[ProcessId, None] = field(init=False, default_factory=dict)  # lost here, but not declared failed
    ballot: int = field(init=False, default=0)
    tally: Tally | None = field(init=False, default=None)
    results: tuple[tuple[str, float, str], ...] = field(init=False, default=())  # of this process, in the ballot
    commit: Commit | None = field(init=False, default=None)
    applied: bool = field(init=False, default=False)  # the commit is
    abandoned: bool = field(default=False, init=False)  # this process has dropped its part for another state
    void: str = field(default="", init=False)  # why this process has found that the step must start over

    @property
    def epoch(self) -> Epoch:
        """The current epoch."""
        return self.opened.epoch

    def alive(self) -> Roster:
        """Return the roster without the members that failed."""
        roster = self.opened.roster.changed((), tuple(self.newcomers[process] for process in self.entered))
        for process in self.gone:
            roster = roster.without(process)
        return roster

    def takes_part(self, process: ProcessId) -> bool:
        """Return whether a process is a member that has not failed, without building the roster."""
        return (process in self.opened.roster.id_set or process in self.entered) and process not in self.gone

    def place(self, process: ProcessId) -> int | None:
        """Return the stage that a process serves in this epoch, -1 for a trainer, None for no member."""
        if process in self.entered:
            return self.newcomers[process].stage
        return self.opened.roster.stage_by_id.get(process)

    def enter(self, member: Member) -> None:
        """Add a newcomer that works before the update."""
        self.newcomers[member.process] = member
        self.entered[member.process] = None

    def died(self, process: ProcessId) -> None:
        """Record a failed member; a ballot under way is void."""
        self.gone[process] = None
        self.suspects.pop(process, None)
        self.tally, self.results = None, ()

    def prepare(self, message: Prepare) -> None:
        """Record the beginning of a ballot."""
        self.ballot, self.tally, self.results = message.ballot, message.tally, ()
        self.newcomers |= {member.process: member for member in message.newcomers}

    def trainers(self) -> list[ProcessId]:
        """Return the trainers alive, in the order in which they stand for leader."""
        return [member.process for member in self.opened.roster.trainers if member.process not in self.gone]

    def report(
        self,
        term: int,
        join: Join,
        member: Member,
        *,
        ready: bool,
        version: int,
        draining: bool,
        done: tuple[Done, ...] = (),
        dropped: tuple[int, ...] = (),
        indices: tuple[int, ...] = (),
        ahead: bool = False,
        ahead_indices: tuple[int, ...] = (),
        reassignment: int = 0,
        known: str = "",
    ) -> ElectionReport:
        """Return this process' report to a candidate. known: digest of the roster that the candidate has."""
        opened = self.opened
        change = self.change if self.base == known != opened.digest else None
        if change is not None or opened.digest == known:
            opened = replace(opened, roster=Roster(), whole=opened.digest, named=opened.voters)
        return ElectionReport(
            term,
            join,
            member,
            ready,
            version,
            draining,
            opened,
            tuple(self.gone),
            tuple(self.newcomers.values()),
            tuple(self.entered),
            tuple(self.suspects),
            done,
            dropped,
            indices,
            reassignment,
            self.ballot,
            self.tally,
            self.results,
            self.commit,
            self.applied,
            change,
            self.abandoned,
            ahead,
            ahead_indices,
            self.void,
        )


def begun(message: OpenStep | RosterDelta, former: EpochView | None) -> EpochView | None:
    """Return the view that a message begins; None if it builds on an epoch that was missed."""
    if isinstance(message, OpenStep):
        return EpochView(message)
    if former is None or former.opened.epoch != message.base:
        return None
    return EpochView(message.unfolded(former.opened), message, former.opened.digest)
