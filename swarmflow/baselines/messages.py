"""What the processes of the baselines say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmflow.core.flow.gwtf_messages import Flows
from swarmflow.core.types import ProcessId
from swarmflow.simulator.causes import LINKS, REDUCE, TIMER
from swarmflow.simulator.sizes import FRAME, HEADER, MEMBER, PROCESS

NAMES = 3  # that a message of the negotiation has, on the average
Path = tuple[ProcessId, ...]  # who holds the hops of a microbatch, one stage after the other


@dataclass(frozen=True, order=True, slots=True)
class Trip:
    """Microbatch `index` of an iteration, in one try at it. line: the pipeline that it was given to, or -1."""

    iteration: int
    index: int
    turn: int = 0
    line: int = -1


@dataclass(frozen=True, slots=True)
class BaselineJoin:
    """To the leader: a process is there. wish: the stage that it asks for, -1: any. speed: 0: it is a trainer.
    capacity: microbatches at a time."""

    wish: int
    speed: float
    capacity: int = 0


@dataclass(frozen=True, slots=True)
class BaselineGranted:
    """To a peer: serve this stage, with the state that these have (nobody: from the seed)."""

    stage: int
    donors: tuple[ProcessId, ...]


@dataclass(frozen=True, slots=True)
class BaselineReady:
    """To the leader: the state of the stage is here."""

    stage: int


@dataclass(frozen=True, slots=True)
class Alive:
    """To the leader, each second, where broken connections do not tell of deaths."""


@dataclass(frozen=True, slots=True)
class BaselineOpen:
    """To everybody: an iteration begins, or goes on with others (a later revision).

    lines: fixed pipelines: the peer of each stage, None: nobody. given: the pipeline of each microbatch.
    """

    iteration: int
    revision: int
    stages: tuple[tuple[ProcessId, ...], ...]
    trainers: tuple[ProcessId, ...]
    lines: tuple[tuple[ProcessId | None, ...], ...] = ()
    given: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Present:
    """To everybody, where flows are negotiated: these are ready."""

    stages: tuple[tuple[ProcessId, ...], ...]
    trainers: tuple[ProcessId, ...]


@dataclass(frozen=True, slots=True)
class BaselineNegotiate:
    """Among neighbours: a message of core/flow/gwtf_messages.py."""

    payload: Any


@dataclass(frozen=True, slots=True)
class BaselineGone:
    """To everybody: a process is dead, or serves its stage no more."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class BaselineAsk:
    """To a peer: will you take a microbatch? Its tensors follow if so. source: its trainer.

    path: who probably holds the hops after this one. claim: only if you hold it already. repair: how often each sender
    from the trainer on has sent it again; of two tries, the one that was repaired nearer to the trainer is the later.
    """

    trip: Trip
    stage: int
    attempt: int
    source: ProcessId
    repair: tuple[int, ...] = ()
    path: Path = ()
    claim: bool = False


@dataclass(frozen=True, slots=True)
class BaselineAccepted:
    """A slot is kept. held: the microbatch was there already, and is with `path` downstream."""

    trip: Trip
    attempt: int
    held: bool = False
    path: Path = ()


@dataclass(frozen=True, slots=True)
class BaselineDenied:
    """No. reason: `full`, `unknown` to a claim, `stale`: somebody else sends it by now."""

    trip: Trip
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class BaselineRoom:
    """To those who were denied: there is a free slot."""


@dataclass(frozen=True, slots=True)
class BaselineForward:
    """An activation (tokens for stage 0) and the targets."""

    trip: Trip
    attempt: int


@dataclass(frozen=True, slots=True)
class Computed:
    """To the predecessor: the forward pass of this hop is done."""

    trip: Trip
    attempt: int


@dataclass(frozen=True, slots=True)
class BaselineRouted:
    """To the predecessor: who has the microbatch now, from the next stage on."""

    trip: Trip
    path: Path


@dataclass(frozen=True, slots=True)
class BaselineBackward:
    """A gradient. path: the peers that computed it, from the sender on; to the trainer: all of them, and no tensor."""

    trip: Trip
    path: Path


@dataclass(frozen=True, slots=True)
class Broken:
    """To the trainer: the way of a microbatch is broken and it has to be started over."""

    trip: Trip


@dataclass(frozen=True, slots=True)
class BaselineAbandon:
    """To who holds it: nobody waits for this try any more."""

    trip: Trip


@dataclass(frozen=True, slots=True)
class Learnt:
    """To the leader: a microbatch is through. seconds: from its first activation to its last gradient."""

    trip: Trip
    path: Path
    seconds: float


@dataclass(frozen=True, slots=True)
class Aggregate:
    """To every peer: the iteration is through; sum the gradients with these, by group."""

    iteration: int
    groups: tuple[tuple[str, tuple[ProcessId, ...]], ...]


@dataclass(frozen=True, slots=True)
class BaselinePart:
    """An addend of the receiver's part of a gradient."""

    iteration: int
    group: str


@dataclass(frozen=True, slots=True)
class BaselineSum:
    """The sum of the sender's part of a gradient."""

    iteration: int
    group: str


@dataclass(frozen=True, slots=True)
class Updated:
    """To the leader: the update is done."""

    iteration: int


BaselineMessage = (
    BaselineJoin
    | BaselineGranted
    | BaselineReady
    | Alive
    | BaselineOpen
    | BaselineGone
    | BaselineAsk
    | BaselineAccepted
    | BaselineDenied
    | BaselineRoom
    | BaselineForward
    | Computed
    | BaselineRouted
    | BaselineBackward
    | Broken
    | BaselineAbandon
    | Learnt
    | Aggregate
    | BaselinePart
    | BaselineSum
    | Updated
    | Present
    | BaselineNegotiate
)


def cause_of(message: BaselineMessage) -> int:
    """What waits for this word waits for, as the simulator has it (simulator/causes.py)."""
    if isinstance(message, Aggregate | BaselinePart | BaselineSum | Updated | BaselineOpen):
        return REDUCE
    return (
        TIMER
        if isinstance(
            message, BaselineJoin | BaselineGranted | BaselineReady | Alive | BaselineGone | Present | BaselineNegotiate
        )
        else LINKS
    )


def wire_bytes(message: BaselineMessage) -> int:
    """The length of a frame without its tensors, by the same estimates as swarmflow's own (simulator/sizes.py)."""
    size = FRAME + HEADER
    match message:
        case BaselineOpen() | Present():
            return size + MEMBER * (sum(len(stage) for stage in message.stages) + len(message.trainers))
        case BaselineGranted():
            return size + MEMBER * len(message.donors)
        case BaselineAsk() | BaselineAccepted() | BaselineRouted() | BaselineBackward() | Learnt():
            return size + PROCESS * len(message.path)
        case Aggregate():
            return size + PROCESS * sum(len(members) for _, members in message.groups)
        case BaselineNegotiate(Flows() as flows):
            return size + PROCESS * (4 * len(flows.shown) + len(flows.costs))
        case BaselineNegotiate():
            return size + NAMES * PROCESS
    return size
