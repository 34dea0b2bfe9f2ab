"""Names of processes, microbatches and tensors, shared by every machine of the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import NamedTuple

from swarmflow.core.protocol.timeouts import Timeouts


class ProcessId(NamedTuple):
    """One life of one process: a process restarted under its old name is another incarnation.

    A named tuple, since it is what everything is looked up by.

    name: the libp2p peer id (base58), proven by the connection. incarnation: random, so that what was sent to an
    earlier life is never taken for this one, whatever becomes of clocks and disks. It has no order: which of two lives
    is the later one is known from proofs of life alone (runtime/transport/incarnations.py). That ids sort breaks ties,
    no more.
    """

    name: str
    incarnation: int

    def __str__(self) -> str:
        return f"{self.name[-6:]}.{self.incarnation % 10_000:04d}"


@dataclass(frozen=True, order=True, slots=True)
class Ref:
    """Names bytes that the runtime holds; tensors never enter the core."""

    key: int
    size_bytes: int = 0


@dataclass(frozen=True, order=True, slots=True)
class Slice:
    """Names a part of a flat gradient: elements [start, stop) of `group`, as accumulated or as reduced."""

    group: str
    start: int
    stop: int
    reduced: bool = False


@dataclass(frozen=True, order=True, slots=True)
class Blank:
    """So many bytes that say nothing."""

    size_bytes: int


Body = Ref | Slice | Blank


@dataclass(frozen=True, order=True, slots=True)
class Epoch:
    """One try at one optimizer step. Later epochs compare greater.

    generation: rises whenever a step is started over from nothing or the run goes back to an earlier version, and
    never falls; it compares first, so that after a roll-back the lower step is the later epoch.
    """

    generation: int
    step: int


BEFORE_ALL = Epoch(-1, 0)
EXPONENT = 36  # of a step whose gradients add up as integers, unless they are too large for it


@dataclass(frozen=True, order=True, slots=True)
class Microbatch:
    """Microbatch `index` of a step, in one try at that step. What it holds depends on (step, index) alone."""

    epoch: Epoch
    index: int

    def __str__(self) -> str:
        return f"{self.epoch.step}/{self.index}"


class Attempt(NamedTuple):
    """Orders the attempts at one hop: a later one replaces all earlier ones. Each part counts from 0 in the one before.

    takeover: how often trainers had died when this one was given the microbatch. repair: how often the hop was sent
    again after a loss, so that all it passes on is above what was passed on before. number: how often it was denied.
    """

    takeover: int = 0
    repair: int = 0
    number: int = 0

    def next(self) -> Attempt:
        """Return the one after this, for a peer that has passed nothing on."""
        return Attempt(self.takeover, self.repair, self.number + 1)

    def next_repair(self) -> Attempt:
        """Return the first one of the next repair."""
        return Attempt(self.takeover, self.repair + 1)

    def passed_on(self) -> Attempt:
        """Return the first one of the next hop, when a hop of this attempt is passed on."""
        return Attempt(self.takeover, self.repair)


FIRST = Attempt()
ADDRESSES_MAX = 16  # of a process that others are told, and try


@dataclass(frozen=True, order=True, slots=True)
class Member:
    """A process as the leader publishes it. stage -1: a trainer. capacity: microbatches it holds at a time.

    addresses: libp2p multiaddrs where it can be dialled, ADDRESSES_MAX at most.
    """

    process: ProcessId
    stage: int
    capacity: int = 1
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """A reduction group: processes that sum the same flat gradient, in rank order.

    owners: who sums the pieces, in turn, some more often than others; also peers of other stages, where the ways
    between the members are slow; empty: the members, each as often. elements: of the gradient, for those others.
    """

    name: str
    members: tuple[ProcessId, ...]
    owners: tuple[ProcessId, ...] = ()
    elements: int = 0


@dataclass(frozen=True)
class Roster:
    """Who takes part in an epoch: the members of each stage, and the trainers, in a fixed order.

    Without slots, since the sets and lists are made once: whether somebody is in it is asked at every message. They are
    made of lists rather than generators: a peer of a large swarm opens a step with a thousand members.
    """

    stages: tuple[tuple[Member, ...], ...] = ()
    trainers: tuple[Member, ...] = ()

    def members(self) -> tuple[Member, ...]:
        """The peers of all stages, first stage first."""
        return self._members

    @cached_property
    def _members(self) -> tuple[Member, ...]:
        return tuple(chain.from_iterable(self.stages))

    @cached_property
    def all_members(self) -> tuple[Member, ...]:
        """Peers, then trainers."""
        return (*self._members, *self.trainers)

    @cached_property
    def ids(self) -> tuple[tuple[ProcessId, ...], ...]:
        """The peers of each stage; after the last one, and so before the first one, the trainers."""
        return tuple([tuple([member.process for member in row]) for row in (*self.stages, self.trainers)])

    def processes(self) -> tuple[ProcessId, ...]:
        """Everybody: peers, then trainers."""
        return tuple(chain.from_iterable(self.ids))

    @cached_property
    def all_processes(self) -> frozenset[ProcessId]:
        """The same, to be asked whether somebody is among them."""
        return frozenset(self.processes())

    @cached_property
    def serving(self) -> frozenset[ProcessId]:
        """The peers of all stages, to be asked whether somebody is among them."""
        return frozenset(chain.from_iterable(self.ids[:-1]))

    @cached_property
    def shares(self) -> tuple[dict[ProcessId, int], ...]:
        """Of each stage: what of its peers' capacities falls to each of those before it."""
        senders = [max(1, len(before)) for before in (self.trainers, *self.stages)]
        return tuple(
            {member.process: member.capacity // many for member in stage}
            for many, stage in zip(senders, self.stages, strict=False)
        )

    @cached_property
    def digest(self) -> str:
        """Of all that it says: two processes that have the same one need not tell each other."""
        return blake2b(repr((self.stages, self.trainers)).encode(), digest_size=16).hexdigest()

    @cached_property
    def places(self) -> dict[ProcessId, int]:
        """The stage that each process serves, -1 for a trainer."""
        return {
            process: stage
            for stage, row in zip((*range(len(self.stages)), -1), self.ids, strict=True)
            for process in row
        }

    @property
    def size(self) -> int:
        """How many there are."""
        return sum(len(stage) for stage in self.stages) + len(self.trainers)

    def stage_of(self, process: ProcessId) -> int:
        """Which stage a process serves; -1: it is a trainer, or none of these."""
        return next((stage for stage, ids in enumerate(self.ids[:-1]) if process in ids), -1)

    def around(self, stage: int, tied: bool) -> Roster:
        """Those to whom a peer of this stage may have to send; the stages of the others are empty.

        tied: a weight is shared by the first and the last stage.
        """
        near = {stage - 1, stage, stage + 1}
        if tied and stage in (0, len(self.stages) - 1):
            near |= {0, len(self.stages) - 1}
        stages = tuple(members if other in near else () for other, members in enumerate(self.stages))
        return self if stages == self.stages else Roster(stages, self.trainers)

    def changed(self, gone: tuple[ProcessId, ...], entered: tuple[Member, ...]) -> Roster:
        """The roster that differs from this one by who left, and by who entered or is in another place now.

        The last answer is kept: where one process pretends to be many, all of them ask the same.
        """
        known: tuple[tuple[ProcessId, ...], tuple[Member, ...], Roster] | None = self.__dict__.get("_changed")
        if known is None or known[:2] != (gone, entered):
            known = self.__dict__["_changed"] = (gone, entered, self._changed_anew(gone, entered))
        return known[2]

    def _changed_anew(self, gone: tuple[ProcessId, ...], entered: tuple[Member, ...]) -> Roster:
        left = {*gone, *(member.process for member in entered)}

        def renewed(members: tuple[Member, ...], stage: int) -> tuple[Member, ...]:
            added = [member for member in entered if member.stage == stage]
            stayed = [member for member in members if member.process not in left]
            return tuple(sorted(stayed + added)) if added else tuple(stayed)

        stages = tuple(renewed(members, stage) for stage, members in enumerate(self.stages))
        return Roster(stages, renewed(self.trainers, -1))

    def without(self, gone: ProcessId) -> Roster:
        """The same roster after a death."""
        return self._changed_anew((gone,), ())


@dataclass(frozen=True, order=True, slots=True)
class Snapshot:
    """A committed version of the run as it lies on disk. Later versions compare greater.

    digests: of the file of each stage. They say which content the version has: a run that went back may have made two
    of the same number, and stages of both do not fit together.
    """

    version: int
    digests: tuple[str, ...]


@dataclass(frozen=True, order=True, slots=True)
class Holding:
    """What one process has on its disk of a snapshot: the files of these stages."""

    snapshot: Snapshot
    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """What the machines of the core need to know of the run's manifest.

    stages: their number. microbatches: N a step. tied: whether the first and the last stage share a weight. costs:
    relative computation of each stage, for the placement of peers (empty: all alike). router: how the next hop is
    chosen. boundary_bytes: of a tensor between stages, about; 0: unknown. timeouts: of all processes of the run.
    """

    stages: int
    microbatches: int
    tied: bool = False
    costs: tuple[float, ...] = ()
    router: str = "shortest"
    boundary_bytes: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
