"""What a process has heard of the epoch at hand: what another leader has to know in order to go on from it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.messages import Commit, Done, ElectionReport, Join, OpenStep, Prepare, RosterDelta, Tally
from swarmflow.core.naming import RosterAssembly
from swarmflow.core.types import Epoch, Member, ProcessId, Roster


@dataclass(slots=True)
class EpochView:
    """Kept from one OpenStep to the next, and told in an ElectionReport.

    change: the RosterDelta that was heard, if it was one; base: the digest of the roster that it changed. entered: of
    the newcomers, those who took part before the update. opened has neither: the next RosterDelta builds on it as it
    was said.
    """

    opened: OpenStep
    change: RosterDelta | None = None
    base: str = ""
    gone: dict[ProcessId, None] = field(default_factory=dict)
    newcomers: dict[ProcessId, Member] = field(default_factory=dict)
    entered: dict[ProcessId, None] = field(default_factory=dict)
    suspects: dict[ProcessId, None] = field(default_factory=dict)
    ballot: int = 0
    tally: Tally | None = None
    results: tuple[tuple[str, float, str], ...] = ()
    commit: Commit | None = None
    digest: str = ""

    @property
    def epoch(self) -> Epoch:
        """The epoch at hand."""
        return self.opened.epoch

    def alive(self) -> Roster:
        """Who takes part and is not known to be dead."""
        roster = self.opened.roster.changed((), tuple(self.newcomers[process] for process in self.entered))
        for process in self.gone:
            roster = roster.without(process)
        return roster

    def takes_part(self, process: ProcessId) -> bool:
        """Whether it is among those, who need not be listed for it."""
        return (process in self.opened.roster.all_processes or process in self.entered) and process not in self.gone

    def place(self, process: ProcessId) -> int | None:
        """The stage that a process serves in this epoch, -1 for a trainer; None: it takes no part."""
        if process in self.entered:
            return self.newcomers[process].stage
        return self.opened.roster.places.get(process)

    def enter(self, member: Member) -> None:
        """A newcomer takes part before the update."""
        self.newcomers[member.process] = member
        self.entered[member.process] = None

    def died(self, process: ProcessId) -> None:
        """The leader has declared a process dead: a ballot under way is void."""
        self.gone[process] = None
        self.suspects.pop(process, None)
        self.tally, self.results = None, ()

    def prepare(self, message: Prepare) -> None:
        """A ballot begins."""
        self.ballot, self.tally, self.results = message.ballot, message.tally, ()
        self.newcomers |= {member.process: member for member in message.newcomers}

    def trainers(self) -> list[ProcessId]:
        """Who may lead, in the order in which they should try."""
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
        attempt: int = 0,
        known: str = "",
    ) -> ElectionReport:
        """All that another leader has to know of this process. known: digest of the roster that it has already."""
        opened = self.opened
        change = self.change if self.base == known != opened.digest else None
        if change is not None or opened.digest == known:
            opened = replace(opened, roster=Roster(), whole=opened.digest, named=opened.size)
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
            attempt,
            self.ballot,
            self.tally,
            self.results,
            self.commit,
            self.digest,
            change,
        )


def begun(message: OpenStep | RosterDelta, assembly: RosterAssembly, former: EpochView | None) -> EpochView | None:
    """What begins with a message. assembly: the members told before it. None: this process has missed a part of it."""
    if isinstance(message, OpenStep):
        whole = assembly.whole(message)
        return None if whole is None else EpochView(whole)
    if former is None or former.opened.epoch != message.base:
        return None
    return EpochView(message.unfolded(former.opened), message, former.opened.digest)
