"""The messages of the baselines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmflow.core.protocol.messages.gwtf import FlowReport
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.causes import LINKS, REDUCE, TIMER
from swarmflow.simulator.sizes import FRAME, HEADER, MEMBER, PROCESS

NAMES = 3  # process names in a message of the negotiation, on average
Path = tuple[ProcessId, ...]  # the holders of a microbatch, one stage after the other


@dataclass(frozen=True, order=True, slots=True)
class Trip:
    """One try at a microbatch of an iteration."""

    iteration: int
    index: int
    turn: int = 0  # the number of the try
    pipeline: int = -1  # the pipeline that it belongs to; -1: none


@dataclass(frozen=True, slots=True)
class BaselineJoin:
    """To the leader: a process joins."""

    wish: int  # the stage that it asks for; -1: any
    speed: float  # 0: it is a trainer
    capacity: int = 0  # microbatches that it holds at a time


@dataclass(frozen=True, slots=True)
class BaselineGranted:
    """To a peer: serve this stage."""

    stage: int
    donors: tuple[ProcessId, ...]  # that have its state; none: the state is made from the seed


@dataclass(frozen=True, slots=True)
class BaselineReady:
    """To the leader: the sender has the state of its stage."""

    stage: int


@dataclass(frozen=True, slots=True)
class Alive:
    """To the leader: a heartbeat each second, where broken connections do not show deaths."""


@dataclass(frozen=True, slots=True)
class BaselineOpen:
    """To all members: an iteration begins, or goes on with other peers (a later revision)."""

    iteration: int
    revision: int
    stages: tuple[tuple[ProcessId, ...], ...]
    trainers: tuple[ProcessId, ...]
    pipelines: tuple[tuple[ProcessId | None, ...], ...] = ()  # fixed pipelines: the peer of each stage; None: a hole
    given: tuple[int, ...] = ()  # the pipeline of each microbatch


@dataclass(frozen=True, slots=True)
class Present:
    """To all members, where flows are negotiated: the processes that are ready."""

    stages: tuple[tuple[ProcessId, ...], ...]
    trainers: tuple[ProcessId, ...]


@dataclass(frozen=True, slots=True)
class BaselineNegotiate:
    """Among neighbours: a message of the negotiation of flows."""

    payload: Any  # of core/protocol/messages/gwtf.py


@dataclass(frozen=True, slots=True)
class BaselineGone:
    """To all members: a process is dead, or leaves its stage."""

    process: ProcessId


@dataclass(frozen=True, slots=True)
class BaselineAsk:
    """To a peer: asks for a slot for a microbatch, whose tensors follow once it is accepted."""

    trip: Trip
    stage: int
    attempt: int
    source: ProcessId  # its trainer
    # How often each sender from the trainer on has sent it again; of two tries, the one that was repaired nearer to the
    # trainer is the later.
    repair: tuple[int, ...] = ()
    path: Path = ()  # the probable holders of the hops after this one
    claim: bool = False  # accept it only if you hold it already


@dataclass(frozen=True, slots=True)
class BaselineAccepted:
    """To a sender: a slot is kept, or the microbatch is held already."""

    trip: Trip
    attempt: int
    held: bool = False  # the microbatch was held already
    path: Path = ()  # its holders downstream


@dataclass(frozen=True, slots=True)
class BaselineDenied:
    """To a sender: the microbatch is not accepted."""

    trip: Trip
    attempt: int
    reason: str  # `full`, `unknown` (to a claim), or `stale`: another process is its sender by now


@dataclass(frozen=True, slots=True)
class BaselineRoom:
    """To a denied sender: there is a free slot."""


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
    """To the predecessor: the holders of the microbatch, from the next stage on."""

    trip: Trip
    path: Path


@dataclass(frozen=True, slots=True)
class BaselineBackward:
    """To the predecessor: a gradient; to the trainer: without a tensor."""

    trip: Trip
    path: Path  # the peers that computed it, from the sender on


@dataclass(frozen=True, slots=True)
class Broken:
    """To the trainer: the path of a microbatch is broken, and it has to be started over."""

    trip: Trip


@dataclass(frozen=True, slots=True)
class BaselineAbandon:
    """To a holder: this try is given up."""

    trip: Trip


@dataclass(frozen=True, slots=True)
class Learnt:
    """To the leader: a microbatch is finished."""

    trip: Trip
    path: Path
    seconds: float  # from its first activation to its last gradient


@dataclass(frozen=True, slots=True)
class Aggregate:
    """To every peer: all microbatches are finished; sum the gradients with these members, by group."""

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
    """To the leader: the sums are here, and the update is begun."""

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
    """Return the cause of the time that passes until this message arrives (simulator/causes.py)."""
    if isinstance(message, Aggregate | BaselinePart | BaselineSum | Updated | BaselineOpen):
        return REDUCE
    if isinstance(
        message, BaselineJoin | BaselineGranted | BaselineReady | Alive | BaselineGone | Present | BaselineNegotiate
    ):
        return TIMER
    return LINKS


def wire_bytes(message: BaselineMessage) -> int:
    """Return the length of a frame without tensors, by the estimates of swarmflow's own (simulator/sizes.py)."""
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
        case BaselineNegotiate(FlowReport() as flows):
            return size + PROCESS * (4 * len(flows.swappable) + len(flows.link_costs))
        case BaselineNegotiate():
            return size + NAMES * PROCESS
    return size
