"""What nodes say to each other to build flows, to make them cheaper, and to agree on them after losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmflow.core.types import ProcessId

Counts = tuple[tuple[ProcessId, ProcessId, int], ...]  # (node at the other end, data node, units), in order


@dataclass(frozen=True, slots=True)
class Label:
    """To the stage before: room for so many more units, and per data node (cost to it from here, orphans).

    Orphans are outflows that nobody sends to any more: taking one up needs no room. capacity: of this node; width: of
    the narrowest stage after it.
    """

    room: int
    costs: tuple[tuple[ProcessId, float, int], ...]
    capacity: int
    width: int


@dataclass(frozen=True, slots=True)
class Times:
    """To a neighbour, what was measured here: a microbatch's computing, forth and back, and a tensor's way to you.

    Below 0: it is not known. Both ends work out the same cost of the link between them.
    """

    compute_s: float
    tensor_s: float


@dataclass(frozen=True, slots=True)
class Price:
    """Between data nodes: what my next flow would cost, and how many I have."""

    cost: float
    flows: int


@dataclass(frozen=True, slots=True)
class ReserveUnits:
    """Take so many units of this data node from me."""

    source: ProcessId
    count: int
    number: int


@dataclass(frozen=True, slots=True)
class UnitsReserved:
    """So many of them are taken; label: how things are now. busy: none, but perhaps in a moment."""

    source: ProcessId
    count: int
    number: int
    label: Label
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Drop:
    """To the stage before: I cannot pass on so many units that you send to me; they are yours again."""

    source: ProcessId
    count: int


@dataclass(frozen=True, slots=True)
class ReleaseUnits:
    """To the next stage: I send so many units fewer to you."""

    source: ProcessId
    count: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What I have in my books of the link between us, per data node; both ends keep the smaller number.

    outward: the sender of this is the one who sends the units. answer: to an audit, which ends it.
    """

    counts: tuple[tuple[ProcessId, int], ...]
    outward: bool
    answer: bool


@dataclass(frozen=True, order=True, slots=True)
class Exchange:
    """The name of one exchange: who solves it, and a number."""

    solver: ProcessId
    number: int


@dataclass(frozen=True, slots=True)
class LockRequest:
    """Stand still and show me your links. before, after: have those beyond them stand still as well.

    patient: the answer may come when the node stands still for nobody else any more.
    """

    exchange: Exchange
    before: bool
    after: bool
    patient: bool = False


@dataclass(frozen=True, slots=True)
class SideLockRequest:
    """Passed on by a member: leave your outflows (outward), or inflows, as they are until the solver says."""

    exchange: Exchange
    outward: bool


@dataclass(frozen=True, slots=True)
class Locked:
    """A member stands still, and this is what it has. costs: of its links to those that it knows before and after."""

    exchange: Exchange
    capacity: int
    inflow: Counts
    outflow: Counts
    costs: tuple[tuple[ProcessId, float], ...]


@dataclass(frozen=True, slots=True)
class SideLocked:
    """A neighbour of the window stands still on that side, and this is what it has there."""

    exchange: Exchange
    outward: bool
    links: Counts


@dataclass(frozen=True, slots=True)
class LockDenied:
    """Not now. outward: which side was asked for; None: the whole node."""

    exchange: Exchange
    outward: bool | None = None


@dataclass(frozen=True, slots=True)
class ApplyExchange:
    """Change your links by so much (nothing: all stays as it is), and go on.

    stir: look at it again soon; the flows of other data nodes than before pass there now.
    """

    exchange: Exchange
    inflow: Counts = ()
    outflow: Counts = ()
    stir: bool = False


@dataclass(frozen=True, slots=True)
class TraceFlow:
    """Follows one unit of a data node from hop to hop, back to it; path: the relays so far."""

    source: ProcessId
    number: int
    path: tuple[ProcessId, ...]


@dataclass(frozen=True, slots=True)
class RetraceFlows:
    """To the data nodes: some of the paths that you told are no more."""


@dataclass(frozen=True, slots=True)
class OwnFlows:
    """From a data node to the first of them: its paths, what it wants, and its costs to both ends of any path."""

    wanted: int
    paths: tuple[tuple[ProcessId, ...], ...]
    costs: tuple[tuple[ProcessId, float], ...]


@dataclass(frozen=True, slots=True)
class ExchangeTurn:
    """Call the next exchange; a data node sends it on to the first stage.

    idle: 2 for each exchange since the last one that saved something, 1 where not everybody could take part.
    """

    idle: int


@dataclass(frozen=True, slots=True)
class ExchangeTurnTaken:
    """The turn has come."""


@dataclass(frozen=True, slots=True)
class Reliable:
    """A message that is sent again until its number is acknowledged."""

    number: int
    message: Any


@dataclass(frozen=True, slots=True)
class Ack:
    """It has come."""

    number: int


@dataclass(frozen=True, slots=True)
class Inquire:
    """I still stand still for this exchange: what has come of it?"""

    exchange: Exchange


FlowMessage = (
    Label
    | Times
    | Price
    | ReserveUnits
    | UnitsReserved
    | Drop
    | ReleaseUnits
    | Audit
    | LockRequest
    | SideLockRequest
    | Locked
    | SideLocked
    | LockDenied
    | ApplyExchange
    | TraceFlow
    | RetraceFlows
    | OwnFlows
    | ExchangeTurn
    | ExchangeTurnTaken
    | Reliable
    | Ack
    | Inquire
)
