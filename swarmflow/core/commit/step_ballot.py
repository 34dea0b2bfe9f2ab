"""The leader's count of a ballot: which members have reduced, with which results, and which trainers have promised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from swarmflow.core.commit.quorum import Quorum
from swarmflow.core.commit.reduce import Row, groups_of_stage, takes_part
from swarmflow.core.protocol.messages import Prepare, Tally
from swarmflow.core.protocol.types import Attempt, Epoch, Group, Member, Plan, ProcessId

BALLOTS_MAX = 1 << 16  # of one step that one leader begins: each takes seconds
TERMS_MAX = 1 << 22  # that are told apart: the number of a ballot, of which a report may tell, has 39 bits

Entries = Mapping[ProcessId, tuple[tuple[int, Attempt], ...]]
"""The manifest by process: (index, attempt) of what it has accumulated."""


@dataclass(frozen=True, slots=True)
class Reducing:
    """A group's reduction, and what it adds up."""

    group: Group
    entries: tuple[tuple[tuple[int, Attempt], ...], ...]  # of each member


@dataclass(slots=True)
class StepBallot:
    """The last ballot of a step; a higher number replaces it."""

    number: int = 0
    tally: Tally | None = None  # of the step's ledger, since the first ballot began
    inherited: bool = False  # a former leader may have committed it
    results: dict[ProcessId, dict[str, tuple[float, str]]] = field(default_factory=dict)  # member -> group -> result
    blamed: dict[ProcessId, ProcessId] = field(default_factory=dict)  # member whose sum is not finite -> who gave it
    promised: set[ProcessId] = field(default_factory=set)  # trainers that have answered
    asked: Set[ProcessId] = frozenset()  # peers that were sent what of their work counts in the last ballot
    # By name, the reductions that are under way or done, and of which entries: each outlives a ballot that a death
    # elsewhere has voided.
    reductions: dict[str, Reducing] = field(default_factory=dict)

    def keep(self, groups: Iterable[Group], entries: Entries) -> None:
        """Drop the reductions that are not of these members and entries."""
        members = {group.name: group.members for group in groups}
        self.void(
            lambda reducing: (
                reducing.group.members != members.get(reducing.group.name)
                or reducing.entries != _entries_of(reducing.group, entries)
            )
        )

    def void(self, is_void: Callable[[Reducing], bool]) -> int:
        """Drop reductions: they begin anew in the next ballot. Returns how many."""
        void = [name for name, reducing in self.reductions.items() if is_void(reducing)]
        for name in void:
            del self.reductions[name]
        return len(void)

    def reduce(self, groups: Iterable[Group], entries: Entries) -> None:
        """Begin reductions in this ballot."""
        for group in groups:
            self.reductions[group.name] = Reducing(replace(group, ballot=self.number), _entries_of(group, entries))

    def disturbed_by(self, member: Member, plan: Plan) -> bool:
        """Return whether a newcomer would have a reduction begun anew; then it comes in with the next step."""
        names = groups_of_stage(member.stage, plan.shared)
        return any(
            name in self.reductions and member.process not in self.reductions[name].group.members for name in names
        )

    def groups_of(self) -> dict[ProcessId, tuple[Group, ...]]:
        """Return the groups in which each process has a part."""
        found: dict[ProcessId, list[Group]] = {}
        for group in [reducing.group for reducing in self.reductions.values()]:
            for process in dict.fromkeys((*group.members, *group.owners)):
                found.setdefault(process, []).append(group)
        return {process: tuple(groups) for process, groups in found.items()}

    def sole_owner(self, group: str) -> ProcessId | None:
        """Return who sums all pieces of a group; None: several do."""
        reducing = self.reductions.get(group)
        owners = set(reducing.group.owners) if reducing is not None else set()
        return owners.pop() if len(owners) == 1 else None

    def begin_term(self, term: int) -> None:
        """Number the ballots of a leader that takes over above those of all leaders before it, of which all are void.

        What is sent for an all-reduce names its ballot, and a piece on a slow link may arrive after the next leader has
        begun. How far its predecessor has counted no report tells, once a death has voided that one's last ballot.
        """
        self.number = max(self.number, min(term, TERMS_MAX) * BALLOTS_MAX)

    def begin(self, tally: Tally) -> None:
        """Begin another ballot. What is reduced already its members report again."""
        self.number += 1
        self.tally = tally
        self.results.clear()
        self.blamed.clear()
        self.promised.clear()

    def message(
        self,
        term: int,
        epoch: Epoch,
        newcomers: tuple[Member, ...],
        entries: tuple[tuple[int, Attempt], ...] = (),
        groups: tuple[Group, ...] = (),
        *,
        ahead: bool = False,
    ) -> Prepare:
        """Return the message that asks a process for its part: to reduce these entries, or, without any, to promise."""
        assert self.tally is not None, "a ballot has a tally from its beginning"
        return Prepare(term, epoch, self.number, entries, groups, self.tally, newcomers, ahead)

    def resume(self, tally: Tally, results: dict[ProcessId, tuple[Row, ...]]) -> None:
        """Set what the reports to a new leader say of the ballot that its former leader may have committed."""
        self.tally = tally
        self.results = {process: by_group(rows) for process, rows in results.items()}

    def gone(self, process: ProcessId) -> bool:
        """Remove a failed member, and the reductions in which it took part. Returns whether it had reduced."""
        self.void(lambda reducing: takes_part(process, reducing.group))
        self.blamed.pop(process, None)
        return self.results.pop(process, None) is not None

    def answered(self, members: Set[ProcessId]) -> bool:
        """Return whether every member has reduced, or has reported that the sum is not finite."""
        return self.results.keys() | self.blamed.keys() >= members

    def may_commit(self, quorum: Quorum, bound: Set[ProcessId]) -> bool:
        """Return whether enough processes have promised this ballot that whoever is elected next knows of it.

        bound: processes that follow no other leader any more: this one, and those that have left for good.
        """
        return quorum.commits(self.results.keys() | self.promised | bound)


def by_group(rows: tuple[Row, ...]) -> dict[str, tuple[float, str]]:
    """Return a member's results by the name of the group."""
    return {name: (norm, digest) for name, norm, digest in rows}


def _entries_of(group: Group, entries: Entries) -> tuple[tuple[tuple[int, Attempt], ...], ...]:
    return tuple(entries.get(member, ()) for member in group.members)
