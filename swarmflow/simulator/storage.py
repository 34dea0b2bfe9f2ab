"""The states of a pretended process: fetched from others, written to its disk, and copied for safety."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.protocol.actions import DropCopies, KeepCopies, WriteCheckpoint, WriteStage
from swarmflow.core.protocol.events import (
    CheckpointWritten,
    CopiesChanged,
    DiskChanged,
    Progressed,
    StageWritten,
    StateDamaged,
    StateStored,
)
from swarmflow.core.protocol.types import Member, ProcessId
from swarmflow.simulator.arithmetic import Weights
from swarmflow.simulator.kept import KeptState
from swarmflow.simulator.transfer import StageTransfer, Transfer, never

if TYPE_CHECKING:
    from swarmflow.simulator.world import World

ANSWER_S = 60.0  # how long the runtime waits for a part of a state
ASK_AGAIN_S = 0.25


@dataclass(slots=True)
class Storage:
    """Fetches, writes and keeps the states of stages for one process, beside its computing."""

    world: World
    process: ProcessId
    forgotten: set[ProcessId] = field(init=False, default_factory=set)  # donors that it does not wait for any more
    abandoned: int = field(init=False, default=0)  # checkpoints that were abandoned so far

    def fetch(
        self,
        states: list[tuple[list[Member], int]],
        then: Callable[[], None],
        each: Progressed | None = None,
        together: bool = False,
        hold: Callable[[], bool] = never,
    ) -> None:
        """Take the time that it takes to copy states (donors, stage), beside all other traffic; then call `then`.

        hold: whether nothing may be asked for at the moment.

        each: the event of this process for each part that arrives. together: all donors of a state give a part of it.
        """
        seconds = self.world.hardware.load_s()
        if seconds is not None:
            self.world.clock.after(seconds, then)
            return
        size_of = self.world.hardware.state_bytes
        wanted = [([donor.process for donor in donors], size_of(stage)) for donors, stage in states]
        part = partial(self.world.deliver, self.process, each) if each is not None else None
        Transfer(self.world, self.process, wanted, then, part, together, hold).begin()

    def load(
        self, stage: int, donors: Callable[[], tuple[Member, ...]], then: Callable[[], None], follows: bool = False
    ) -> None:
        """Take the time that it takes to load a stage from peers that serve it; then call `then`.

        donors: as they are named at the moment. follows: it lacks the last update alone.
        """
        world, hardware = self.world, self.world.hardware
        seconds = hardware.load_s()
        if seconds is not None:
            world.clock.after(seconds, then)
            return

        def named() -> list[ProcessId]:
            return [donor.process for donor in donors()]

        part, given = partial(world.deliver, self.process, Progressed("load")), partial(self._share, follows)
        sums_bytes = hardware.piece().usual_bytes(hardware.elements(f"stage-{stage}"))
        size_bytes = sums_bytes if follows else hardware.state_bytes(stage)
        StageTransfer(world, self.process, named, given, size_bytes, then, part).begin()

    def _holds_copies(self) -> bool:
        machine = self.world.hosts[self.process].machine
        return isinstance(machine, PeerMachine) and machine.holds_copies(self.world.clock.now_s)

    def _share(self, updates: bool, donor: ProcessId) -> float:
        """Return what a donor gives of its link, however busy that is."""
        machine = self.world.hosts[donor].machine
        return machine.loaders_share(updates) if isinstance(machine, PeerMachine) else 0.0

    def held(self, donor: Member, stage: int, version: int) -> str | None:
        """Return the digest of a stage's version at a donor; None where it does not answer, or does not have it."""
        host = self.world.hosts[donor.process]
        frozen = host.frozen_until_s > self.world.clock.now_s or not host.device.stalls.gives
        if not host.alive or frozen or not self._reaches(donor.process):
            return None
        if (donor.process.name, version, stage) in self.world.disks.damaged:
            host.device.storage.find_damage()
        if self.world.disks.holds(donor.process.name, version, stage):
            return self.world.disks.durable[version][stage]
        weights = host.device.weights
        if weights is None or (weights.stage, weights.version) != (stage, version):
            return None
        if weights.damaged:  # it compares what it gives
            host.device.answer(StateDamaged())
            return None
        return weights.parameters

    def newest(self, donor: Member, stage: int, version: int) -> tuple[int, str] | None:
        """Return the version of a stage, not before this one, that a donor can give, and its digest; None: none."""
        weights = self.world.hosts[donor.process].device.weights
        if donor.stage == stage and weights is not None and weights.stage == stage:
            version = max(version, weights.version)
        digest = self.held(donor, stage, version)
        return None if digest is None else (version, digest)

    def _reaches(self, donor: ProcessId) -> bool:
        return self.world.transport.reaches(self.process.name, donor.name)

    def waits_for(self, donors: tuple[Member, ...], stage: int, version: int, began_s: float) -> bool:
        """Return whether the next donor does not answer and is still waited for: it is frozen, or cut off silently."""
        now_s = self.world.clock.now_s
        for donor in donors:
            host = self.world.hosts[donor.process]
            if self.newest(donor, stage, version) is not None:
                return False
            awaited = host.alive and donor.process not in self.forgotten and now_s - began_s < ANSWER_S
            silent = self.world.transport.partitions.silent(self.process.name, donor.process.name)
            if awaited and (host.frozen_until_s > now_s or silent or not host.device.stalls.gives):
                return True
        return False

    def fetch_checkpoint(self, action: WriteCheckpoint) -> None:
        """Fetch every stage of a version from its peers, then write the version."""
        states = [(list(members), stage) for stage, members in enumerate(action.roster.stages)]
        then = partial(self._write, action, self.abandoned, self.world.clock.now_s)
        self.fetch(states, then, Progressed("save"), together=bool(action.roots))

    def write_stage(self, action: WriteStage, weights: Weights) -> None:
        """Write the own stage at a version. A file of a wrong state is of no version, and is never read."""
        root = weights.parameters
        wrong = weights.damaged or weights.flipped
        ok = wrong or self.world.disks.write(self.process.name, action.version, action.stage, root)
        written = StageWritten(action.stage, action.version, root if ok else "", "" if ok else "the disk is full")
        self.world.clock.after(0.0, partial(self.world.deliver, self.process, written))

    def fetch_copies(self, action: KeepCopies) -> None:
        """Fetch copies of stages from their holders, then write them."""
        wanted = dict(zip(action.stages, action.holders, strict=True))
        own = self.world.disks.written.get(self.process.name, {}).get(action.snapshot.version, -1)
        states = [(list(holders), stage) for stage, holders in wanted.items() if stage != own]
        then = partial(self._keep, action)
        if states:
            self.fetch(states, then, together=True, hold=self._holds_copies)
        else:
            self.world.clock.after(0.0, then)

    def _write(self, action: WriteCheckpoint, abandoned: int, began_s: float) -> None:
        """Write a version whose stages have been fetched. abandoned: the count when the fetch began."""
        if abandoned != self.abandoned:
            return
        if any(self.waits_for(m, stage, action.version, began_s) for stage, m in enumerate(action.roster.stages)):
            self.world.clock.after(ASK_AGAIN_S, partial(self._write, action, abandoned, began_s))
            return
        copies: dict[int, str] = {}
        for stage, members in enumerate(action.roster.stages):
            if self.world.disks.holds(self.process.name, action.version, stage) and not members:
                copies[stage] = self.world.disks.durable[action.version][stage]  # it is here already
            for member in members:
                parameters = self.held(member, stage, action.version)
                if parameters is not None and (not action.roots or parameters == action.roots[stage]):
                    copies[stage] = parameters
        whole = self.world.hosts[self.process].alive and len(copies) == len(action.roster.stages)
        ok = whole and self.world.disks.put(self.process.name, action.version, copies)
        failed = "" if ok else "the disk is full" if whole else "a stage was lost"
        roots = self.world.disks.roots(action.version) if ok else ()
        self.world.deliver(self.process, CheckpointWritten(action.version, ok, failed, roots, number=action.number))

    def _keep(self, action: KeepCopies) -> None:
        """Write copies of stages that have been fetched; what was written here is a copy like them from now on."""
        if not self.world.hosts[self.process].alive:
            return
        disks, version, name = self.world.disks, action.snapshot.version, self.process.name
        wanted = dict(zip(action.stages, action.holders, strict=True))
        own = disks.written.get(name, {}).get(version, -1)
        here = all(stage == own or self._holder(holders, version, stage) for stage, holders in wanted.items())
        copied = here and disks.copy(name, action.snapshot, action.stages, action.whole)
        if copied and own in action.stages:
            del disks.written[name][version]
        failed = "" if copied else "the disk is full" if here else "no holder is left"
        self.world.deliver(self.process, self._holdings(failed))

    def _holder(self, holders: tuple[Member, ...], version: int, stage: int) -> bool:
        """Return whether one of these still has a stage of a version on its disk."""
        there = (m.process for m in holders if self.world.hosts[m.process].alive and self._reaches(m.process))
        return any(self.world.disks.holds(process.name, version, stage) for process in there)

    def drop(self, action: DropCopies) -> None:
        """Delete copies, once those that were to be kept before are."""
        self.world.clock.after(0.0, partial(self._drop, action))

    def _drop(self, action: DropCopies) -> None:
        if not self.world.hosts[self.process].alive:
            return
        disks, name = self.world.disks, self.process.name
        disks.partial.discard((name, action.whole))
        for held in (disks.copies.get(name, {}), disks.written.get(name, {})):
            for version in [v for v in held if not action.oldest <= v <= action.newest]:
                del held[version]
        self.world.deliver(self.process, self._holdings())

    def store(self, kept: KeptState | None) -> None:
        """Write what this life leaves to the next one; it takes as long as to load a stage."""
        self.world.clock.after(self.world.hardware.load_s() or 0.0, partial(self._stored, kept))

    def _stored(self, kept: KeptState | None) -> None:
        if not self.world.hosts[self.process].alive:
            return
        ok = kept is not None and self.world.disks.leave(self.process.name, kept)
        self.world.deliver(self.process, StateStored("" if ok else "the disk is full"))

    def let_go(self) -> None:
        """Delete what an earlier life has left in its folder: this life serves a stage."""
        self.world.disks.left.pop(self.process.name, None)

    def find_damage(self) -> None:
        """Set the damaged files of the disk aside, and report to the machine what is left."""
        disks, name = self.world.disks, self.process.name
        disks.set_aside(name)
        if name not in disks.trainers:
            self.world.deliver(self.process, self._holdings())
            return
        newest = max(disks.trainers[name])
        parts = disks.holdings(name)
        self.world.deliver(self.process, DiskChanged(newest, "a file is damaged", disks.roots(newest), parts))

    def _holdings(self, failed: str = "") -> CopiesChanged:
        return CopiesChanged(self.world.disks.holdings(self.process.name), failed)
