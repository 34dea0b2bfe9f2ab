"""Pretended disks: which versions of the run lie where, and what is lost with one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swarmflow.core.types import Holding, Snapshot
from swarmflow.simulator.arithmetic import digest
from swarmflow.simulator.kept import KeptState


@dataclass(slots=True)
class Disks:
    """What was ever written. stages: of the run.

    durable: the digests of every version that was ever on a disk, by stage. trainers: the versions on each trainer's.
    copies: the stages of each version on each peer's disk. remembered: a trainer that starts with nothing knows all the
    same how far the run had come. full: processes whose disks take nothing at the moment. damaged: (name, version,
    stage) of files whose digests do not fit any more, which nobody can read. left: by whom, what peers that left at
    once have in their folders.
    """

    stages: int
    remembered: bool = True
    durable: dict[int, dict[int, str]] = field(default_factory=dict)
    trainers: dict[str, set[int]] = field(default_factory=dict)
    copies: dict[str, dict[int, set[int]]] = field(default_factory=dict)
    full: set[str] = field(default_factory=set)
    damaged: set[tuple[str, int, int]] = field(default_factory=set)
    left: dict[str, KeptState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.durable[0] = {stage: digest("initial", stage) for stage in range(self.stages)}

    def newest(self, seen: Callable[[str], bool] = lambda name: True) -> int:
        """Of the versions on all trainers' disks together, or on those that are seen."""
        return max(version for name, disk in self.trainers.items() for version in disk if seen(name))

    def known(self) -> int:
        """The newest version that a trainer that starts knows of."""
        return max(self.durable) if self.remembered else self.newest()

    def put(self, name: str, version: int, copies: dict[int, str]) -> bool:
        """A trainer writes a version. False: its disk is full."""
        if name in self.full:
            return False
        self.durable[version] = copies
        self.trainers[name].add(version)
        self.copies.get(name, {}).pop(version, None)
        self.damaged -= {(name, version, stage) for stage in copies}
        return True

    def copy(self, name: str, version: int, stages: Iterable[int]) -> bool:
        """A peer writes copies of stages of a version. False: its disk is full."""
        if name in self.full:
            return False
        held = self.copies.setdefault(name, {}).setdefault(version, set())
        held.update(stages)
        self.damaged -= {(name, version, stage) for stage in held}
        return True

    def leave(self, name: str, kept: KeptState) -> bool:
        """A peer that leaves writes what it serves. False: its disk is full."""
        if name in self.full:
            return False
        self.left[name] = kept
        return True

    def set_aside(self, name: str) -> None:
        """A process has looked through its disk: what is damaged does not count, the version's other files do."""
        for owner, version, stage in [each for each in self.damaged if each[0] == name]:
            held = self.copies.setdefault(owner, {}).setdefault(version, set())
            if version in self.trainers.get(owner, ()):
                self.trainers[owner].discard(version)
                held.update(range(self.stages))
            held.discard(stage)
            self.damaged.discard((owner, version, stage))

    def roll_back(self, name: str, versions: int) -> None:
        """The disk of a process that is dead is as it was before it got the newest versions, so many of them."""
        if name in self.trainers:
            self.trainers[name] -= set(sorted(self.trainers[name] - {0})[-versions:])
        for version in sorted(self.copies.get(name, {}))[-versions:]:
            del self.copies[name][version]
        self.left.pop(name, None)

    def lose(self, *names: str) -> None:
        """What trainers and peers of these names had is gone; the processes themselves are dead by now."""
        for name in names:
            self.copies.pop(name, None)
            self.left.pop(name, None)
            if name in self.trainers:
                self.trainers[name] = {0}

    def whole(self, name: str, version: int) -> bool:
        """Whether a trainer has every stage of a version, undamaged."""
        intact = all((name, version, stage) not in self.damaged for stage in range(self.stages))
        return intact and version in self.trainers.get(name, ())

    def digests(self, version: int) -> tuple[str, ...]:
        """Of the stages' files of a version that was written; of version 0 there are none."""
        return tuple(self.durable[version][stage] for stage in range(self.stages)) if version else ()

    def holds(self, name: str, version: int, stage: int) -> bool:
        """Whether a process of this name has the state of a stage, and can read it."""
        if (name, version, stage) in self.damaged:
            return False
        return version in self.trainers.get(name, ()) or stage in self.copies.get(name, {}).get(version, ())

    def holdings(self, name: str) -> tuple[Holding, ...]:
        """What lies on a peer's disk."""
        held = sorted(self.copies.get(name, {}).items())
        return tuple(Holding(Snapshot(version, self.digests(version)), tuple(sorted(s))) for version, s in held if s)
