"""What a peer keeps in memory between two incarnations: its stage, for a leader that comes after all that it knew."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.messages import Held
from swarmflow.runtime.served import Served


@dataclass(frozen=True)
class Kept:
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
    """Holds it from the end of one incarnation until the next one takes it: nobody else may keep it in memory."""

    kept: Kept | None = None

    def take(self, run: str) -> Kept | None:
        """Hand it over. None: there is nothing, or it is of another run."""
        kept, self.kept = self.kept, None
        return kept if kept is not None and kept.run == run else None
