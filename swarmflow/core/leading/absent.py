"""Peers that left at once with a stage that nobody else has, in a folder of theirs: the run waits a while for them."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.leading.memories import holds
from swarmflow.core.messages import Held


@dataclass(frozen=True, slots=True)
class Absent:
    """A peer that may come back. held: what it has. until_s: when the run goes on without it."""

    name: str
    held: Held
    until_s: float


@dataclass(slots=True)
class Absentees:
    """Those that hold the run's version, by name."""

    _by_name: dict[str, Absent] = field(default_factory=dict)

    def left(self, name: str, held: Held, until_s: float) -> None:
        """A peer has left, with this in its folder."""
        self._by_name[name] = Absent(name, held, until_s)

    def back(self, name: str) -> None:
        """It is there again, or its folder has not taken it."""
        self._by_name.pop(name, None)

    def keep(self, version: int, name: str) -> None:
        """The run's version is this one, of this name: what others hold is of no use any more."""
        self._by_name = {who: one for who, one in self._by_name.items() if holds(one.held, version, name)}

    def awaited(self, stages: list[int], version: int, name: str, now: float) -> list[Absent]:
        """Who can still bring these stages back, one for each; empty: not all of them can come."""
        able = [one for one in self._by_name.values() if one.until_s > now and holds(one.held, version, name)]
        latest = {one.held.stage: one for one in sorted(able, key=lambda one: (one.until_s, one.name))}
        return [latest[stage] for stage in stages] if latest.keys() >= set(stages) else []

    def __bool__(self) -> bool:
        """Whether there is anybody to wait for."""
        return bool(self._by_name)
