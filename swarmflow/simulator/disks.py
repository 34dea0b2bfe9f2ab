"""Pretended disks: which versions of the run each holds, and what is lost with one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import Holding, Snapshot
from swarmflow.simulator.arithmetic import digest
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.kept import KeptState


@dataclass(slots=True)
class Disks:
    """The disks of all processes, by name; a disk outlives its process."""

    stages: int  # of the run
    remembered: bool = True  # a trainer that starts with an empty disk knows all the same how far the run had come
    newest_seen: Counter[str] = field(init=False, default_factory=Counter)  # that was ever on each trainer's disk
    # version -> stage -> digest, of every version that was ever on a disk
    durable: dict[int, dict[int, str]] = field(init=False, default_factory=dict)
    trainers: dict[str, set[int]] = field(init=False, default_factory=dict)  # the versions on each trainer's disk
    # name -> version -> stages that are copied on this disk
    copies: dict[str, dict[int, set[int]]] = field(init=False, default_factory=dict)
    # name -> version -> the stage that this peer has written itself, and that is no copy of a known snapshot yet
    written: dict[str, dict[int, int]] = field(init=False, default_factory=dict)
    # (name, version) of copies of a version that was whole nowhere else, as far as is known there
    partial: set[tuple[str, int]] = field(init=False, default_factory=set)
    # (name, version) -> the proof of a copy's snapshot
    proofs: dict[tuple[str, int], bytes] = field(init=False, default_factory=dict)
    full: set[str] = field(init=False, default_factory=set)  # processes whose disks are full at the moment
    # (name, version, stage) of files that do not match their roots any more, and cannot be read
    damaged: set[tuple[str, int, int]] = field(init=False, default_factory=set)
    left: dict[str, KeptState] = field(init=False, default_factory=dict)  # the folders of peers that left at once

    def __post_init__(self) -> None:
        self.durable[0] = {stage: digest("initial", stage) for stage in range(self.stages)}

    def newest(self) -> int:
        """Return the newest version on the disks of trainers."""
        return max(version for disk in self.trainers.values() for version in disk)

    def known(self, name: str) -> int:
        """Return the newest version that a starting trainer knows of."""
        return self.newest_seen[name] if self.remembered else max(self.trainers[name])

    def put(self, name: str, version: int, copies: dict[int, str]) -> bool:
        """Write a version to a trainer's disk. Returns False where the disk is full."""
        if name in self.full:
            return False
        self._record(name, version, copies)
        self.newest_seen[name] = max(self.newest_seen[name], version)
        self.trainers[name].add(version)
        self.copies.get(name, {}).pop(version, None)
        self.damaged -= {(name, version, stage) for stage in copies}
        return True

    def copy(self, name: str, snapshot: Snapshot, stages: Iterable[int], whole: bool) -> bool:
        """Write copies of stages of a version to a peer's disk. Returns False where the disk is full."""
        version = snapshot.version
        if name in self.full:
            return False
        self.proofs[name, version] = snapshot.proof
        if whole:
            self.partial.discard((name, version))
        elif version not in self.copies.get(name, {}):
            self.partial.add((name, version))
        held = self.copies.setdefault(name, {}).setdefault(version, set())
        held.update(stages)
        self.damaged -= {(name, version, stage) for stage in held}
        return True

    def write(self, name: str, version: int, stage: int, parameters: str) -> bool:
        """Write a peer's own stage of a version to its disk. Returns False where the disk is full."""
        if name in self.full:
            return False
        self._record(name, version, {stage: parameters})
        self.written.setdefault(name, {})[version] = stage
        return True

    def _record(self, name: str, version: int, copies: dict[int, str]) -> None:
        """Record the digests of stages of a version. Raises InvariantViolated where the same was written otherwise."""
        written = self.durable.setdefault(version, {})
        for stage, parameters in copies.items():
            if written.setdefault(stage, parameters) != parameters:
                raise InvariantViolated(f"{name} writes another version {version} of stage {stage} than there was")

    def leave(self, name: str, kept: KeptState) -> bool:
        """Write what a leaving peer serves to its disk. Returns False where the disk is full."""
        if name in self.full:
            return False
        self.left[name] = kept
        return True

    def set_aside(self, name: str) -> None:
        """Set the damaged files of a disk aside; the other files of their versions stay, as copies."""
        for owner, version, stage in [each for each in self.damaged if each[0] == name]:
            held = self.copies.setdefault(owner, {}).setdefault(version, set())
            if version in self.trainers.get(owner, ()):
                self.trainers[owner].discard(version)
                held.update(range(self.stages))
            held.discard(stage)
            self.damaged.discard((owner, version, stage))

    def roll_back(self, name: str, versions: int) -> None:
        """Remove the newest versions, so many of them, from the disk of a process that is dead."""
        if name in self.trainers:
            self.trainers[name] -= set(sorted(self.trainers[name] - {0})[-versions:])
        for version in sorted(self.copies.get(name, {}))[-versions:]:
            del self.copies[name][version]
        self.written.pop(name, None)
        self.left.pop(name, None)

    def lose(self, *names: str) -> None:
        """Empty the disks of these processes, which are dead."""
        for name in names:
            self.copies.pop(name, None)
            self.written.pop(name, None)
            self.left.pop(name, None)
            if name in self.trainers:
                self.trainers[name] = {0}

    def whole(self, name: str, version: int) -> bool:
        """Return whether a trainer has every stage of a version, undamaged."""
        intact = all((name, version, stage) not in self.damaged for stage in range(self.stages))
        return intact and version in self.trainers.get(name, ())

    def keepers(self, version: int) -> list[str]:
        """Return the names of peers with a part of a version, or of a later one, on their disks."""
        return sorted(name for name in {*self.copies, *self.written} if max(self._kept(name), default=-1) >= version)

    def _kept(self, name: str) -> set[int]:
        copied = {version for version, stages in self.copies.get(name, {}).items() if stages}
        return copied | self.written.get(name, {}).keys()

    def roots(self, version: int) -> tuple[str, ...]:
        """Return the roots of the stages' files of a version that was written; version 0 has none."""
        return tuple(self.durable[version][stage] for stage in range(self.stages)) if version else ()

    def holds(self, name: str, version: int, stage: int) -> bool:
        """Return whether a process has the state of a stage, and can read it."""
        if (name, version, stage) in self.damaged:
            return False
        own = self.written.get(name, {}).get(version) == stage
        return own or version in self.trainers.get(name, ()) or stage in self.copies.get(name, {}).get(version, ())

    def holdings(self, name: str) -> tuple[Holding, ...]:
        """Return the copies on a process' disk."""
        held = {version: stages for version, stages in sorted(self.copies.get(name, {}).items()) if stages}
        whole = {version: (name, version) not in self.partial for version in held}
        snapshots = {v: Snapshot(v, self.roots(v), self.proofs.get((name, v), b"")) for v in held}
        return tuple(Holding(snapshots[v], tuple(sorted(held[v])), whole[v]) for v in held)
