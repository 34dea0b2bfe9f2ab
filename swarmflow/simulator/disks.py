"""Pretended disks: which versions of the run lie where, and what is lost with one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from swarmflow.core.types import Holding, Snapshot
from swarmflow.simulator.arithmetic import digest


@dataclass(slots=True)
class Disks:
    """What was ever written. stages: of the run.

    durable: the digests of every version that was ever on a disk, by stage. trainers: the versions on each trainer's.
    copies: the stages of each version on each peer's disk. remembered: a trainer that starts with nothing knows all
    the same how far the run had come.
    """

    stages: int
    remembered: bool = True
    durable: dict[int, dict[int, str]] = field(default_factory=dict)
    trainers: dict[str, set[int]] = field(default_factory=dict)
    copies: dict[str, dict[int, set[int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.durable[0] = {stage: digest("initial", stage) for stage in range(self.stages)}

    def newest(self, seen: Callable[[str], bool] = lambda name: True) -> int:
        """Of the versions on all trainers' disks together, or on those that are seen."""
        return max(version for name, disk in self.trainers.items() for version in disk if seen(name))

    def known(self) -> int:
        """The newest version that a trainer that starts knows of."""
        return max(self.durable) if self.remembered else self.newest()

    def lose(self, *names: str) -> None:
        """What trainers and peers of these names had is gone; the processes themselves are dead by now."""
        for name in names:
            self.copies.pop(name, None)
            if name in self.trainers:
                self.trainers[name] = {0}

    def digests(self, version: int) -> tuple[str, ...]:
        """Of the stages' files of a version that was written; of version 0 there are none."""
        return tuple(self.durable[version][stage] for stage in range(self.stages)) if version else ()

    def holds(self, name: str, version: int, stage: int) -> bool:
        """Whether a process of this name has the state of a stage."""
        return version in self.trainers.get(name, ()) or stage in self.copies.get(name, {}).get(version, ())

    def holdings(self, name: str) -> tuple[Holding, ...]:
        """What lies on a peer's disk."""
        held = sorted(self.copies.get(name, {}).items())
        return tuple(Holding(Snapshot(version, self.digests(version)), tuple(sorted(s))) for version, s in held if s)
