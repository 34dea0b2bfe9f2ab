"""Which version of the run is safe on disk, and which one is on its way there."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.actions import Action, Log, WriteCheckpoint
from swarmflow.core.events import CheckpointWritten
from swarmflow.core.types import Roster


@dataclass(slots=True)
class Safekeeping:
    """durable: the newest version that is complete on disk. saving: the one being written.

    retry_s: after which the last version is written once more when it failed although nobody is known to have died.
    """

    durable: int
    retry_s: float
    saving: int | None = None
    again_s: float | None = None
    _disturbed: bool = False

    def write(self, version: int, stages: Roster, last: bool) -> list[Action]:
        """Begin to write a version, held by these peers, unless one is being written already. last: the model too."""
        if self.saving is not None:
            return []
        self.saving, self._disturbed = version, False
        return [WriteCheckpoint(version, stages, last)]

    def disturbed(self) -> None:
        """A process went: what is being written may miss its part."""
        self._disturbed = True

    def written(self, event: CheckpointWritten) -> Log:
        """It is written, or could not be."""
        if event.version == self.saving:  # else it was begun for a former leader
            self.saving = None
        if event.ok:
            self.durable = max(self.durable, event.version)
            return Log("info", f"version {event.version} is on disk")
        return Log("warning", f"version {event.version} could not be written: {event.reason}")

    def try_last_again(self, now: float) -> bool:
        """The last version failed: was it a peer's death, perhaps not known yet, or the disk? False: the disk."""
        if self._disturbed:
            self.again_s = now
        elif self.again_s is None:
            self.again_s = now + self.retry_s
        else:
            return False
        return True

    def due_again(self, now: float) -> bool:
        """Whether the last version is to be written once more now."""
        return self.saving is None and self.again_s is not None and now >= self.again_s
