"""Which trainer forms which microbatch of a step."""

from __future__ import annotations

from collections.abc import Collection
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

    def resume(self, reports: Collection[ElectionReport]) -> None:
        """Set what the reports to a new leader say."""
        for report in reports:
            self.owners |= dict.fromkeys(report.indices, report.member.process)
        self.reassignment = 1 + max(report.reassignment for report in reports)

    def reassign(self, failed: ProcessId, trainers: tuple[ProcessId, ...]) -> dict[ProcessId, tuple[int, ...]]:
        """Give a failed trainer's microbatches to others, and return the new indices of each that has any."""
        orphaned = [index for index, owner in self.owners.items() if owner == failed]
        self.reassignment += 1
        added: dict[ProcessId, tuple[int, ...]] = {}
        for trainer, share in shares(trainers, len(orphaned)).items():
            indices = tuple(orphaned[rank] for rank in share)
            self.owners |= dict.fromkeys(indices, trainer)
            if indices:
                added[trainer] = indices
        return added
