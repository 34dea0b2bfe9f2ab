"""From which version a leader goes on, and which processes still hold one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.core.durability.absent import Absentees
from swarmflow.core.durability.memories import Former, Memories
from swarmflow.core.durability.restoring import Restoring
from swarmflow.core.transitions import Transitions


class RecoveryState(StrEnum):
    """Which version the run goes on from: an open question after a start and after a stage was lost."""

    SETTLED = "settled"  # a step has been committed since, or a former leader's step was taken over
    OPEN = "open"  # it is not decided yet, and no peer is granted anything
    DECIDED = "decided"  # it is, but a later version that comes to light still counts


RECOVERY = Transitions(
    "recovery",
    RecoveryState.SETTLED,
    {
        RecoveryState.SETTLED: {RecoveryState.OPEN: "the run starts, or a stage is lost"},
        RecoveryState.OPEN: {RecoveryState.DECIDED: "a version is whole somewhere"},
        RecoveryState.DECIDED: {
            RecoveryState.SETTLED: "a step is committed",
            RecoveryState.OPEN: "a later version comes to light, or a stage is lost",
        },
    },
)


@dataclass(slots=True)
class Recovery:
    """What a leader knows of versions that it may go on from."""

    former: Former  # what this trainer knew of the run before it led
    memories: Memories  # what peers that joined still hold
    absent: Absentees = field(init=False, default_factory=Absentees)  # peers that may come back with the version
    state: RecoveryState = field(init=False, default=RECOVERY.initial)
    restoring: Restoring | None = field(init=False, default=None)  # the search, while the version is open

    def open(self, restoring: Restoring) -> None:
        """Begin to look for the version to go on from."""
        self.state = RECOVERY.move(self.state, RecoveryState.OPEN)
        self.restoring = restoring

    def decide(self) -> None:
        """The version is found."""
        self.state = RECOVERY.move(self.state, RecoveryState.DECIDED)
        self.restoring = None

    def settle(self) -> None:
        """A step was committed: what others held before it is of no use any more."""
        assert self.restoring is None, "a step was committed while its version was open"
        if self.state is not RecoveryState.SETTLED:
            self.state = RECOVERY.move(self.state, RecoveryState.SETTLED)
