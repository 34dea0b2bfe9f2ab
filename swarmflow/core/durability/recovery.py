"""From which version a leader goes on, and which processes still hold one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from swarmflow.core.durability.memories import Former, Memories, holds
from swarmflow.core.durability.restoring import Restoring
from swarmflow.core.protocol.messages import Held
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


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that may come back."""

    name: str
    held: Held  # what it has in its folder
    until_s: float  # when the run goes on without it


@dataclass(slots=True)
class Absentees:
    """The peers that left with a stage that nobody else has, in a folder of theirs, by name: the run waits for them."""

    _by_name: dict[str, Absent] = field(default_factory=dict)

    def left(self, name: str, held: Held, until_s: float) -> None:
        """Record that a peer has left, with this in its folder."""
        self._by_name[name] = Absent(name, held, until_s)

    def back(self, name: str) -> None:
        """Forget a peer that is back, or whose folder has not taken its state."""
        self._by_name.pop(name, None)

    def keep(self, version: int, name: str) -> None:
        """Keep only the peers that hold this version, of this name: the run's."""
        self._by_name = {who: one for who, one in self._by_name.items() if holds(one.held, version, name)}

    def awaited(self, stages: list[int], version: int, name: str, now: float) -> list[Absent]:
        """Return one peer for each of these stages that can still bring it back; empty: not all can come."""
        able = [one for one in self._by_name.values() if one.until_s > now and holds(one.held, version, name)]
        latest = {one.held.stage: one for one in sorted(able, key=lambda one: (one.until_s, one.name))}
        return [latest[stage] for stage in stages] if latest.keys() >= set(stages) else []

    def __bool__(self) -> bool:
        """Return whether there is a peer to wait for."""
        return bool(self._by_name)


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
