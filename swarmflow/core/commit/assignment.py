"""Which trainer forms which microbatch of a step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from swarmflow.core.protocol.messages import ElectionReport
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import ProcessId


@dataclass(slots=True)
class Assignment:
    """The trainer of each microbatch of one step."""

    owners: dict[int, ProcessId]  # by the index of the microbatch
    reassignment: int = 0  # of the attempts at microbatches that are formed again

    @classmethod
    def of(cls, trainers: tuple[ProcessId, ...], microbatches: int) -> Assignment:
        """Return the assignment with which a step begins."""
        shared = shares(trainers, microbatches).items()
        return cls({index: trainer for trainer, share in shared for index in share})

    def resume(
        self, reports: Mapping[ProcessId, ElectionReport], early: Mapping[ProcessId, ElectionReport], begun_ahead: bool
    ) -> None:
        """Set what the reports to a new leader say. early: those of the step before, in which this one was begun.

        begun_ahead: it was shared out among the trainers of the step before, not among those that are named now.
        """
        if begun_ahead:
            self.owners = {}
        for process, report in reports.items():
            self.owners |= dict.fromkeys(report.indices, process)
        for process, report in early.items():
            self.owners |= dict.fromkeys(report.ahead_indices, process)
        self.reassignment = 1 + max(report.reassignment for report in (*reports.values(), *early.values()))

    def shares(self) -> dict[ProcessId, tuple[int, ...]]:
        """Return the microbatches of each trainer that has any."""
        found: dict[ProcessId, list[int]] = {}
        for index, owner in self.owners.items():
            found.setdefault(owner, []).append(index)
        return {owner: tuple(sorted(indices)) for owner, indices in found.items()}

    def reassign(self, failed: ProcessId, trainers: tuple[ProcessId, ...]) -> dict[ProcessId, tuple[int, ...]]:
        """Give a failed trainer's microbatches to others, and return the new indices of each that has any."""
        return self._give([index for index, owner in self.owners.items() if owner == failed], trainers)

    def reassign_missing(self, microbatches: int, trainers: tuple[ProcessId, ...]) -> dict[ProcessId, tuple[int, ...]]:
        """Give the microbatches of a step that have no trainer to these; return the new indices of each."""
        return self._give([index for index in range(microbatches) if index not in self.owners], trainers)

    def _give(self, orphaned: list[int], trainers: tuple[ProcessId, ...]) -> dict[ProcessId, tuple[int, ...]]:
        if not orphaned:
            return {}
        self.reassignment += 1
        added: dict[ProcessId, tuple[int, ...]] = {}
        for trainer, share in shares(trainers, len(orphaned)).items():
            indices = tuple(orphaned[rank] for rank in share)
            self.owners |= dict.fromkeys(indices, trainer)
            if indices:
                added[trainer] = indices
        return added
