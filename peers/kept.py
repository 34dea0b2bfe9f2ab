"""The state that a peer keeps in memory between two incarnations, for a leader that is elected or started later."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.protocol.messages import Held
from swarmflow.runtime.execution.served import Served


@dataclass(frozen=True)
class KeptStage:
    """The state of a stage that outlived its leader."""

    held: Held
    served: Served
    run: str  # its fingerprint
    capacity: int  # microbatches that fit

    def settle(self) -> None:
        """Free the memory of the current step, but for a gradient that is reduced and may have been committed."""
        if self.held.upcoming:
            for runner in self.served.runners:
                runner.forget_graphs()
        else:
            for runner in self.served.runners:
                runner.clear()
            self.served.reduced.clear()


@dataclass
class BetweenLives:
    """Holds a stage's state from the end of one incarnation until a later one serves it, or needs the memory."""

    kept: KeptStage | None = None

    def of(self, run: str) -> KeptStage | None:
        """Return the state of a run; the state of another one is dropped."""
        if self.kept is not None and self.kept.run != run:
            self.kept = None
        return self.kept
