"""The messages of GWTF's negotiation (GWTF, V-C)."""

from __future__ import annotations

from dataclasses import dataclass

from swarmflow.core.protocol.types import ProcessId


@dataclass(frozen=True, order=True, slots=True)
class FlowId:
    """The name of an outflow: the node that made it, and a number."""

    node: ProcessId
    number: int


@dataclass(frozen=True, slots=True)
class CostIs:
    """To the stage before: the cost of the cheapest unpaired outflow to a data node."""

    source: ProcessId
    cost: float  # to the sink; infinite: there is none


@dataclass(frozen=True, slots=True)
class RequestFlow:
    """A request to pair an outflow of the sender with an unpaired outflow of the receiver."""

    source: ProcessId
    cost: float  # of the unpaired outflow, as announced
    flow: FlowId  # the sender's outflow


@dataclass(frozen=True, slots=True)
class FlowApproved:
    """The answer to RequestFlow: `flow` is paired with the outflow `below`.

    The two counters are sent with every change, since messages of different nodes overtake each other.
    """

    source: ProcessId
    cost: float
    flow: FlowId
    below: FlowId
    turn: int  # changes of the node that sends to `below`
    moves: int  # changes of the node that has `below`


@dataclass(frozen=True, slots=True)
class FlowRejected:
    """The answer to RequestFlow: there is no unpaired outflow at that cost (any more)."""

    source: ProcessId
    cost: float  # of the cheapest one now; infinite: there is none
    flow: FlowId


@dataclass(frozen=True, slots=True)
class Query:
    """To all relays of the same stage: a request for their flows."""


@dataclass(frozen=True, slots=True)
class Shown:
    """An outflow as other relays of the stage see it."""

    flow: FlowId
    source: ProcessId
    before: ProcessId | None  # None: it is unpaired
    after: ProcessId
    cost_before: float  # of the link to `before`; infinite where it is unpaired
    cost_after: float  # of the link to `after`


@dataclass(frozen=True, slots=True)
class Flows:
    """The answer to a query."""

    shown: tuple[Shown, ...]
    costs: tuple[tuple[ProcessId, float], ...]  # of the links to the next stage


@dataclass(frozen=True, slots=True)
class RequestChange:
    """A request to swap receivers: the sender's outflow goes to `theirs_after`, the receiver's to `mine_after`."""

    mine: FlowId  # the sender's outflow
    mine_after: ProcessId
    mine_below: FlowId
    turn: int  # counters of `mine_below`
    moves: int
    theirs: FlowId  # the receiver's outflow
    theirs_after: ProcessId
    costs: tuple[float, float]  # of the sender's link now, and of the one that it would get
    anneal: bool  # it saves nothing, and the sender's annealing takes it all the same


@dataclass(frozen=True, slots=True)
class ChangeAccepted:
    """The answer to RequestChange: the requester's outflow `mine` goes to `below` at `after` from now on."""

    mine: FlowId
    theirs: FlowId
    after: ProcessId
    below: FlowId
    turn: int  # counters of `below` before the change
    moves: int


@dataclass(frozen=True, slots=True)
class RequestRedirect:
    """A request to take over an outflow of the receiver, which keeps its name and its ends."""

    flow: FlowId
    before: ProcessId
    after: ProcessId
    cost: float  # of the two links through the sender
    anneal: bool  # it saves nothing, and the sender's annealing takes it all the same


@dataclass(frozen=True, slots=True)
class RedirectAccepted:
    """The answer to RequestRedirect: the requester has the outflow from now on."""

    flow: FlowId
    source: ProcessId
    before: ProcessId
    after: ProcessId
    above: FlowId  # its name at `before`
    below: FlowId  # its name at `after`
    cost: float  # from `after` to the sink
    turn: int  # counters of `below` before the redirect
    moves: int
    own_turn: int  # counters of the outflow before the redirect
    own_moves: int


@dataclass(frozen=True, slots=True)
class SwapRefused:
    """The answer that refuses a change or a redirect of this outflow."""

    flow: FlowId


@dataclass(frozen=True, slots=True)
class NewBefore:
    """To the next stage: the receiver's `flow` comes from `above` at `before` from now on."""

    flow: FlowId
    before: ProcessId
    above: FlowId
    turn: int
    passed: int = 0  # nodes that have forwarded this message because another node had the flow by then


@dataclass(frozen=True, slots=True)
class Deny:
    """To the stage before (GWTF, V-D): `below` at `after`, to which the receiver's `flow` goes, has ended."""

    flow: FlowId
    below: FlowId
    after: ProcessId
    passed: int = 0  # as in NewBefore


@dataclass(frozen=True, slots=True)
class Dropped:
    """To the next stage: the outflow `above` at `before`, which comes to the receiver's `flow`, has ended."""

    flow: FlowId
    before: ProcessId
    above: FlowId
    passed: int = 0  # as in NewBefore


@dataclass(frozen=True, slots=True)
class NewAfter:
    """To the stage before: `below`, to which the receiver's `flow` goes, is at `after` from now on."""

    flow: FlowId
    after: ProcessId
    below: FlowId
    moves: int
    passed: int = 0  # as in NewBefore
