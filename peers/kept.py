"""What a peer keeps in memory between two incarnations: its stage, for a leader that comes after all that it knew."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.messages import Held
from swarmflow.runtime.served import Served


@dataclass(frozen=True)
class KeptStage:
    """The state of a stage that outlived its leader. run: fingerprint of the run. capacity: microbatches that fit."""

    held: Held
    served: Served
    run: str
    capacity: int

    def settle(self) -> None:
        """Free what belongs to the step at hand, but for a gradient that is reduced and may have been committed."""
        if self.held.upcoming:
            self.served.runner.forget_graphs()
        else:
            self.served.runner.clear()
            self.served.reduced.clear()


@dataclass
class Between:
    """Holds it from the end of one incarnation until a later one serves it, or needs the room."""

    kept: KeptStage | None = None

    def of(self, run: str) -> KeptStage | None:
        """What is there of a run; what is of another one is dropped."""
        if self.kept is not None and self.kept.run != run:
            self.kept = None
        return self.kept
