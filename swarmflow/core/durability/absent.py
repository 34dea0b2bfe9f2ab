"""Peers that left at once with a stage that nobody else has, in a folder of theirs: the run waits a while for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.durability.memories import holds
from swarmflow.core.protocol.messages import Held


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that may come back."""

    name: str
    held: Held  # what it has in its folder
    until_s: float  # when the run goes on without it


@dataclass(slots=True)
class Absentees:
    """The absent peers that hold the run's version, by name."""

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
