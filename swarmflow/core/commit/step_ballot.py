"""The leader's count of a ballot: which members have reduced, with which results, and which trainers have promised."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from swarmflow.core.commit.quorum import Quorum
from swarmflow.core.protocol.messages import Prepare, Tally
from swarmflow.core.protocol.types import Attempt, Epoch, Group, Member, ProcessId

Row = tuple[str, float, str]  # group, squared norm and digest of its reduced gradient


@dataclass(slots=True)
class StepBallot:
    """The last ballot of a step; a higher number replaces it."""

    number: int = 0
    tally: Tally | None = None  # of the step's ledger, since the first ballot began
    inherited: bool = False  # a former leader may have committed it
    results: dict[ProcessId, dict[str, tuple[float, str]]] = field(default_factory=dict)  # member -> group -> result
    blamed: dict[ProcessId, ProcessId] = field(default_factory=dict)  # member whose sum is not finite -> who gave it
    promised: set[ProcessId] = field(default_factory=set)  # trainers that have answered

    def begin(self, tally: Tally) -> None:
        """Begin another ballot."""
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
        """Remove a failed member. Returns whether it had reduced."""
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
