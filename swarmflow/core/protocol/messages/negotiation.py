"""The messages by which nodes build flows, make them cheaper, and agree on them after losses, and their envelope."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmflow.core.protocol.messages.gwtf import GwtfMessage
from swarmflow.core.protocol.types import ProcessId

Counts = tuple[tuple[ProcessId, ProcessId, int], ...]  # (node at the other end, data node, units), sorted


@dataclass(frozen=True, slots=True)
class Label:
    """To the stage before: the units that this node accepts, and their cost to each data node.

    An orphan is an outflow without an inflow: continuing it needs no room.
    """

    room: int  # free units of capacity
    costs: tuple[tuple[ProcessId, float, int], ...]  # (data node, cost from here to it, orphans)
    capacity: int  # of this node
    width: int  # the capacity of the narrowest stage after this one


@dataclass(frozen=True, slots=True)
class Times:
    """To a neighbour: measured times, from which both ends derive the same link cost. Below 0: not measured."""

    compute_s: float  # a microbatch's forward and backward here
    tensor_s: float  # the transfer of a tensor to the receiver; to a mate, at the mean rate of the own links


@dataclass(frozen=True, slots=True)
class Price:
    """Between data nodes: the cost of the sender's next flow, and the number of its flows."""

    cost: float  # infinite: it wants or finds none
    flows: int


@dataclass(frozen=True, slots=True)
class ReserveUnits:
    """To the next stage: a request to accept units of a data node."""

    source: ProcessId
    count: int
    number: int  # of the request; repeated requests have the same one


@dataclass(frozen=True, slots=True)
class UnitsReserved:
    """The answer to ReserveUnits."""

    source: ProcessId
    count: int  # units that are accepted
    number: int  # of the request
    label: Label  # the label after that
    busy: bool = False  # none is accepted because the node is locked: ask again later


@dataclass(frozen=True, slots=True)
class Drop:
    """To the stage before: units that the sender of this cannot pass on; they are loose at the receiver again."""

    source: ProcessId
    count: int


@dataclass(frozen=True, slots=True)
class ReleaseUnits:
    """To the next stage: units that the sender of this sends no more."""

    source: ProcessId
    count: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The units of a link in the sender's books, by data node. Both ends keep the smaller number."""

    counts: tuple[tuple[ProcessId, int], ...]  # (data node, units)
    outward: bool  # the units go from the sender of this message to its receiver
    answer: bool  # this answers an audit, and ends it


@dataclass(frozen=True, order=True, slots=True)
class Exchange:
    """The name of an exchange: its solver, and a number."""

    solver: ProcessId
    number: int


@dataclass(frozen=True, slots=True)
class LockRequest:
    """To a member: a request to lock both sides and to report the links."""

    exchange: Exchange
    before: bool  # have the neighbours of the stage before lock their outward side
    after: bool  # have the neighbours of the stage after lock their inward side
    patient: bool = False  # a locked node answers once it is unlocked, instead of denying


@dataclass(frozen=True, slots=True)
class SideLockRequest:
    """From a member or the solver, to a neighbour of the window: a request to lock one side."""

    exchange: Exchange
    outward: bool  # the side to lock: outflows, else inflows


@dataclass(frozen=True, slots=True)
class Locked:
    """To the solver: a member has locked both sides, and reports them."""

    exchange: Exchange
    capacity: int
    inflow: Counts
    outflow: Counts
    costs: tuple[tuple[ProcessId, float], ...]  # of the links to all nodes before and after that it knows


@dataclass(frozen=True, slots=True)
class SideLocked:
    """To the solver: a neighbour of the window has locked one side, and reports it."""

    exchange: Exchange
    outward: bool
    links: Counts


@dataclass(frozen=True, slots=True)
class LockDenied:
    """To the solver: this node cannot lock now."""

    exchange: Exchange
    outward: bool | None = None  # the side that was requested; None: both


@dataclass(frozen=True, slots=True)
class ApplyExchange:
    """From the solver: the outcome for one node, which applies it and unlocks."""

    exchange: Exchange
    inflow: Counts = ()  # changes
    outflow: Counts = ()  # changes
    stir: bool = False  # call an exchange soon: flows of other data nodes than before pass here now


@dataclass(frozen=True, slots=True)
class TraceFlow:
    """Follows one unit of a data node from hop to hop, back to it."""

    source: ProcessId
    number: int  # of the trace; there is one such message for each of its units
    path: tuple[ProcessId, ...]  # the relays so far


@dataclass(frozen=True, slots=True)
class RetraceFlows:
    """To the data nodes: some reported paths have changed, trace again."""


@dataclass(frozen=True, slots=True)
class OwnFlows:
    """From each data node to the first of them: its paths and the costs of its links."""

    wanted: int  # flows
    paths: tuple[tuple[ProcessId, ...], ...]
    costs: tuple[tuple[ProcessId, float], ...]  # of its links to nodes of the first and the last stage


@dataclass(frozen=True, slots=True)
class ExchangeTurn:
    """The turn to call the next exchange. A data node forwards it to the first stage."""

    idle: int  # 2 for each exchange since the last one that gained, 1 for those in which some nodes took no part


@dataclass(frozen=True, slots=True)
class ExchangeTurnTaken:
    """Acknowledges an ExchangeTurn."""


@dataclass(frozen=True, slots=True)
class Reliable:
    """Wraps a message that is repeated until its number is acknowledged."""

    number: int
    message: Any


@dataclass(frozen=True, slots=True)
class Ack:
    """Acknowledges a Reliable."""

    number: int


@dataclass(frozen=True, slots=True)
class Inquire:
    """To the solver: this node is still locked for the exchange; send its outcome."""

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
    | GwtfMessage
)


@dataclass(frozen=True, slots=True)
class Negotiate:
    """A message of the negotiation of flows."""

    stage: int  # that its sender serves; -1: a trainer
    flow: FlowMessage
    origin: ProcessId | None = None  # the sender, where the receiver serves two stages away: a relay passes it on
    to: ProcessId | None = None  # the receiver, in that case
