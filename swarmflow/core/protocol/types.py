"""Names of processes, microbatches and tensors, shared by every machine of the core."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from itertools import chain
from typing import Literal, NamedTuple

from swarmflow.core.protocol.timeouts import Timeouts

Role = Literal["trainer", "peer"]

GRAPHS_FEW = 2  # for which there is memory: fewer cannot fill a pipeline, however fast its peers are
# At peers with memory for so few, a sender's share of it is nothing: each microbatch was asked for first, often denied,
# and a credit awaited. Over eleven scenarios of experiments/held_out with little memory an iteration takes 0.89 of the
# time with two, 0.91 with three. Where peers take a second for a microbatch they are asked all the same.
SLOTS_PER_SENDER_MIN = 2


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
class Padding:
    """So many bytes that say nothing."""

    size_bytes: int


Body = Ref | Slice | Padding


class MeasuredLink(NamedTuple):
    """A link in one direction. Its ends are named by their places in a list of peers."""

    sender: int
    receiver: int
    latency_s: float
    rate: float  # in bytes/s


class Epoch(NamedTuple):
    """One try at one optimizer step. Later epochs compare greater.

    generation: rises whenever a step is started over from nothing or the run goes back to an earlier version, and
    never falls; it compares first, so that after a roll-back the lower step is the later epoch.
    """

    generation: int
    step: int

    @property
    def following(self) -> Epoch:
        """The epoch of the next step, if nothing starts over."""
        return Epoch(self.generation, self.step + 1)

    @property
    def former(self) -> Epoch:
        """The epoch of the step before, if nothing has started over."""
        return Epoch(self.generation, self.step - 1)


NO_EPOCH = Epoch(-1, 0)
WITHOUT_GRAPH = 8  # microbatches admitted without a graph for each one with a graph, while there is nothing to compute
# The same where an all-reduce fills what they leave of the links: each takes longer from the first stage and back.
WITHOUT_GRAPH_OVERLAPPED = 12
RUN_ELEMENTS = 256  # of a boundary tensor: so many of each are kept, where the codec is adaptive
DEFAULT_EXPONENT = 36  # of a step whose gradients add up as integers, unless they are too large for it


class Microbatch(NamedTuple):
    """Microbatch `index` of a step, in one try at that step. What it holds depends on (step, index) alone.

    A named tuple, as Epoch is: hops and what is in flight are looked up by it at each event.
    """

    epoch: Epoch
    index: int  # type: ignore[assignment]  # nobody looks for a value in it, which is what a tuple's `index` does

    def __str__(self) -> str:
        return f"{self.epoch.step}/{self.index}"


REPAIRS_MAX = 1 << 40  # of a hop: more cannot be


class Attempt(NamedTuple):
    """Orders the attempts at one hop; a later one replaces all earlier ones.

    Each field begins at 0 again when a field before it rises.
    """

    reassignment: int = 0  # how often the microbatch was given to another trainer after a death
    repair: int = (
        0  # how often the hop was sent again after a loss; what it passes on is above what was passed on before
    )
    denials: int = 0  # how often peers have denied it

    def next(self) -> Attempt:
        """Return the one after this, for a peer that has passed nothing on."""
        return Attempt(self.reassignment, self.repair, self.denials + 1)

    def next_repair(self) -> Attempt:
        """Return the first one of the next repair.

        Who was passed the highest one that is believed goes on with that: a liar must not make it say what cannot be.
        """
        return Attempt(self.reassignment, min(self.repair + 1, REPAIRS_MAX))

    def passed_on(self) -> Attempt:
        """Return the first one of the next hop, when a hop of this attempt is passed on."""
        return Attempt(self.reassignment, self.repair)


FIRST_ATTEMPT = Attempt()
HOLDINGS_MAX = 8  # that are believed of one process; an honest one has three at most
ADDRESSES_MAX = 16  # addresses of one process that are announced and dialled


@dataclass(frozen=True, order=True, slots=True)
class Member:
    """A process as the leader publishes it. stage -1: a trainer. capacity: microbatches it holds at a time.

    addresses: libp2p multiaddrs where it can be dialled, ADDRESSES_MAX at most. votes: its promises count, since the
    run's owner has certified it.
    """

    process: ProcessId
    stage: int
    capacity: int = 1
    addresses: tuple[str, ...] = ()
    votes: bool = True


@dataclass(frozen=True, slots=True)
class Group:
    """A reduction group: processes that sum the same flat gradient, in rank order.

    owners: the processes that sum the pieces, in turn; a faster one may stand there several times, and peers of other
    stages where the links between the members are slow. Empty: all members alike. elements: the length of the gradient,
    which an owner of another stage does not know otherwise. ballot: in which its reduction began; those after it keep
    what is reduced, as long as nobody of it dies.
    """

    name: str
    members: tuple[ProcessId, ...]
    owners: tuple[ProcessId, ...] = ()
    elements: int = 0
    ballot: int = 0


def _slots_for_each(capacity: int, senders: int) -> int:
    share = capacity // senders
    return max(SLOTS_PER_SENDER_MIN, share) if capacity <= GRAPHS_FEW else share


@dataclass(frozen=True)
class Roster:
    """The members of an epoch: the peers of each stage and the trainers, in a fixed order.

    It has no slots, so that sets and tuples can be cached: each message asks for them. They are made from lists, not
    from generators: a peer of a large swarm opens a step with a thousand members.
    """

    stages: tuple[tuple[Member, ...], ...] = ()
    trainers: tuple[Member, ...] = ()

    @cached_property
    def peers(self) -> tuple[Member, ...]:
        """The peers of all stages, first stage first."""
        return tuple(chain.from_iterable(self.stages))

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """All peers, then all trainers."""
        return (*self.peers, *self.trainers)

    @cached_property
    def ids_by_stage(self) -> tuple[tuple[ProcessId, ...], ...]:
        """The peers of each stage; the last entry is the trainers, so that [stage - 1] is right for stage 0 too."""
        return tuple([tuple([member.process for member in row]) for row in (*self.stages, self.trainers)])

    @property
    def ids(self) -> tuple[ProcessId, ...]:
        """All peers, then all trainers."""
        return tuple(chain.from_iterable(self.ids_by_stage))

    @cached_property
    def id_set(self) -> frozenset[ProcessId]:
        """All peers and trainers, for membership tests."""
        return frozenset(self.ids)

    @cached_property
    def voters(self) -> frozenset[ProcessId]:
        """Those whose promises count."""
        return frozenset([member.process for member in self.members if member.votes])

    @cached_property
    def peer_ids(self) -> frozenset[ProcessId]:
        """All peers, for membership tests."""
        return frozenset(chain.from_iterable(self.ids_by_stage[:-1]))

    @cached_property
    def slots_per_sender(self) -> tuple[dict[ProcessId, int], ...]:
        """For each stage: peer -> microbatches that each process of the stage before may have there without a question.

        That is the peer's capacity by their number; of a small one SLOTS_PER_SENDER_MIN at least.
        """
        senders = [max(1, len(before)) for before in (self.trainers, *self.stages)]
        return tuple(
            {member.process: _slots_for_each(member.capacity, many) for member in stage}
            for many, stage in zip(senders, self.stages, strict=False)
        )

    @cached_property
    def digest(self) -> str:
        """A digest of all fields: processes whose digests agree need not exchange their rosters."""
        return blake2b(repr((self.stages, self.trainers)).encode(), digest_size=16).hexdigest()

    @cached_property
    def stage_by_id(self) -> dict[ProcessId, int]:
        """The stage of each process, -1 for a trainer."""
        return {
            process: stage
            for stage, row in zip((*range(len(self.stages)), -1), self.ids_by_stage, strict=True)
            for process in row
        }

    @property
    def size(self) -> int:
        """The number of peers and trainers."""
        return sum(len(stage) for stage in self.stages) + len(self.trainers)

    def stage_of(self, process: ProcessId) -> int:
        """Return the stage of a process; -1 for a trainer and for a process outside the roster."""
        return next((stage for stage, ids in enumerate(self.ids_by_stage[:-1]) if process in ids), -1)

    def around(self, stage: int, shared: tuple[SharedWeights, ...]) -> Roster:
        """Return the roster of those to whom a peer of this stage may send.

        They are on its own and the adjacent stages, and on those that share weights with it. The others are empty.
        """
        near = {stage - 1, stage, stage + 1}
        near.update(*(weights.stages for weights in shared if stage in weights.stages))
        stages = tuple(members if other in near else () for other, members in enumerate(self.stages))
        return self if stages == self.stages else Roster(stages, self.trainers)

    def changed(self, gone: tuple[ProcessId, ...], entered: tuple[Member, ...]) -> Roster:
        """Return this roster without those who left, and with those who entered or moved.

        The last result is cached: in the simulator all peers of a process derive the same roster.
        """
        cached: tuple[tuple[ProcessId, ...], tuple[Member, ...], Roster] | None = self.__dict__.get("_changed")
        if cached is None or cached[:2] != (gone, entered):
            cached = self.__dict__["_changed"] = (gone, entered, self._changed_anew(gone, entered))
        return cached[2]

    def _changed_anew(self, gone: tuple[ProcessId, ...], entered: tuple[Member, ...]) -> Roster:
        left = {*gone, *(member.process for member in entered)}

        def renewed(members: tuple[Member, ...], stage: int) -> tuple[Member, ...]:
            added = [member for member in entered if member.stage == stage]
            stayed = [member for member in members if member.process not in left]
            return tuple(sorted(stayed + added)) if added else tuple(stayed)

        stages = tuple(renewed(members, stage) for stage, members in enumerate(self.stages))
        return Roster(stages, renewed(self.trainers, -1))

    def without(self, gone: ProcessId) -> Roster:
        """Return this roster after a death."""
        return self._changed_anew((gone,), ())


@dataclass(frozen=True, order=True, slots=True)
class Snapshot:
    """A committed version of the run, as its stages have agreed on it. Later versions compare greater.

    roots: of the state of each stage (compute/state_root.py). They say which content the version has: a run that went
    back may have made two of the same number, and stages of both do not fit together.
    """

    version: int
    roots: tuple[str, ...]
    proof: bytes = field(default=b"", compare=False, repr=False)  # that a trainer says so (core/protocol/proofs.py)


@dataclass(frozen=True, order=True, slots=True)
class Holding:
    """What one process has on its disk of a snapshot: the files of these stages.

    whole: every stage of it was on another disk than those of the stage's peers once, as far as the process knows.
    """

    snapshot: Snapshot
    stages: tuple[int, ...]
    whole: bool = True


class SharedWeights(NamedTuple):
    """Weights that several stages have: the name of their reduction group, and those stages in ascending order."""

    group: str
    stages: tuple[int, ...]


def tied_ends(stages: int) -> tuple[SharedWeights, ...]:
    """Return the weight that the first and the last of several stages share: the embedding is the head."""
    return (SharedWeights("tied", (0, stages - 1)),) if stages > 1 else ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What the machines of the core need to know of the run's manifest.

    stages: their number. microbatches: N a step. shared: the weights that several stages have. costs:
    computation of a microbatch at each stage, for the placement of peers, in the unit of which a peer's `Join.speed` is
    so many a second (empty: all alike). router: how the next hop is chosen. boundary_bytes: of a tensor between stages,
    about; 0: unknown. delay: how many steps after its own a step's gradient is applied, 0 or 1; with 1 the next step is
    computed meanwhile. timeouts: of all processes of the run. reduced_bytes: of the sums of each stage's all-reduce,
    about (empty: unknown). compression_ratio: of the slowest boundary's tensors, where the codec is adaptive; else 0.
    """

    stages: int
    microbatches: int
    shared: tuple[SharedWeights, ...] = ()
    costs: tuple[float, ...] = ()
    router: str = "shortest"
    boundary_bytes: int = 0
    delay: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    reduced_bytes: tuple[int, ...] = ()
    compression_ratio: float = 0.0

    @property
    def without_graph(self) -> int:
        """Microbatches that a peer admits without a graph, for each one with a graph."""
        return WITHOUT_GRAPH_OVERLAPPED if self.delay else WITHOUT_GRAPH
