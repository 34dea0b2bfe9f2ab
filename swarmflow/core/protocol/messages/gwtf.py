"""Messages of the flow negotiation of GWTF (Go With The Flow, section V-C).

A node is a peer or a data node (a trainer). Upstream is towards the sender of activations, downstream towards the sink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swarmflow.core.protocol.types import ProcessId


@dataclass(frozen=True, order=True, slots=True)
class FlowId:
    """The name of an outflow: the node that made it, and a number."""

    node: ProcessId
    number: int


@dataclass(frozen=True, slots=True)
class CheapestOutflow:
    """To the stage before: the cost of the sender's cheapest unpaired outflow to a data node."""

    source: ProcessId  # the data node
    cost: float  # from the sender to the sink; infinite: there is no such outflow


@dataclass(frozen=True, slots=True)
class RequestFlow:
    """A request to pair an outflow of the sender with an unpaired outflow of the receiver."""

    source: ProcessId  # the data node
    cost: float  # of the unpaired outflow, as announced
    flow: FlowId  # the sender's outflow


@dataclass(frozen=True, slots=True)
class FlowApproved:
    """The answer to RequestFlow: the receiver's outflow `flow` is paired with the sender's outflow `downstream_flow`.

    Two counters order the changes of an outflow: messages of different nodes overtake each other, and of two changes
    the older one is ignored.
    """

    source: ProcessId  # the data node
    cost: float  # of `downstream_flow`
    flow: FlowId
    downstream_flow: FlowId
    sender_changes: int  # how often the node that sends to `downstream_flow` has changed
    holder_changes: int  # how often `downstream_flow` has moved to another node


@dataclass(frozen=True, slots=True)
class FlowRejected:
    """The answer to RequestFlow: there is no unpaired outflow at that cost (any more)."""

    source: ProcessId  # the data node
    cost: float  # of the cheapest one now; infinite: there is none
    flow: FlowId  # the outflow of the request


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """To all other peers of the stage: a request for their flows."""


@dataclass(frozen=True, slots=True)
class ReportedFlow:
    """An outflow as reported to another peer of the stage."""

    flow: FlowId
    source: ProcessId  # its data node
    upstream: ProcessId | None  # the node that sends it; None: it is unpaired
    downstream: ProcessId  # the node that receives it
    upstream_cost: float  # of the link to `upstream`; infinite where it is unpaired
    downstream_cost: float  # of the link to `downstream`


@dataclass(frozen=True, slots=True)
class FlowReport:
    """The answer to FlowQuery."""

    swappable: tuple[ReportedFlow, ...]
    link_costs: tuple[tuple[ProcessId, float], ...]  # to the peers of the next stage


@dataclass(frozen=True, slots=True)
class RequestChange:
    """A request to swap receivers: the outflows of both nodes go to each other's receivers."""

    requester_flow: FlowId  # the sender's outflow
    requester_downstream: ProcessId  # its receiver
    requester_downstream_flow: FlowId  # the outflow there
    sender_changes: int  # counters of `requester_downstream_flow`
    holder_changes: int
    responder_flow: FlowId  # the outflow of the node that is asked
    responder_downstream: ProcessId  # its receiver
    costs: tuple[float, float]  # of the requester's link: now, and once the receivers are swapped
    anneal: bool  # the change saves nothing, but the sender's annealing accepts it


@dataclass(frozen=True, slots=True)
class ChangeAccepted:
    """The answer to RequestChange: the requester's outflow goes to `downstream_flow` at `downstream` from now on."""

    requester_flow: FlowId
    responder_flow: FlowId
    downstream: ProcessId
    downstream_flow: FlowId
    sender_changes: int  # counters of `downstream_flow` before the change
    holder_changes: int


@dataclass(frozen=True, slots=True)
class RequestRedirect:
    """A request to take over an outflow of the receiver. The outflow keeps its name and its ends."""

    flow: FlowId
    upstream: ProcessId  # the node that sends it
    downstream: ProcessId  # the node that receives it
    cost: float  # of the two links, if it goes through the sender of this request
    anneal: bool  # the redirect saves nothing, but the sender's annealing accepts it


@dataclass(frozen=True, slots=True)
class RedirectAccepted:
    """The answer to RequestRedirect: the requester has the outflow from now on."""

    flow: FlowId
    source: ProcessId  # its data node
    upstream: ProcessId  # the node that sends it
    downstream: ProcessId  # the node that receives it
    upstream_flow: FlowId  # the outflow at `upstream`
    downstream_flow: FlowId  # the outflow at `downstream`
    cost: float  # from `downstream` to the sink
    sender_changes: int  # counters of `downstream_flow` before the redirect
    holder_changes: int
    own_sender_changes: int  # counters of the outflow before the redirect
    own_holder_changes: int


@dataclass(frozen=True, slots=True)
class SwapRefused:
    """The answer that refuses a change or a redirect of this outflow."""

    flow: FlowId


@dataclass(frozen=True, slots=True)
class UpstreamChanged:
    """To the next stage: the upstream end of the receiver's `flow` is now `upstream_flow` at `upstream`."""

    flow: FlowId
    upstream: ProcessId
    upstream_flow: FlowId
    sender_changes: int  # counter of `flow` after the change
    forwards: int = 0  # times that this message was forwarded because the flow had moved to another node


@dataclass(frozen=True, slots=True)
class FlowDenied:
    """To the stage before (GWTF, V-D): the downstream end of the receiver's `flow` has ended.

    It was `downstream_flow` at `downstream`.
    """

    flow: FlowId
    downstream_flow: FlowId
    downstream: ProcessId
    forwards: int = 0  # as in UpstreamChanged


@dataclass(frozen=True, slots=True)
class FlowDropped:
    """To the next stage: `upstream_flow` at `upstream`, the upstream end of the receiver's `flow`, has ended."""

    flow: FlowId
    upstream: ProcessId
    upstream_flow: FlowId
    forwards: int = 0  # as in UpstreamChanged


@dataclass(frozen=True, slots=True)
class DownstreamChanged:
    """To the stage before: `downstream_flow`, the downstream end of the receiver's `flow`, is now at `downstream`."""

    flow: FlowId
    downstream: ProcessId
    downstream_flow: FlowId
    holder_changes: int  # counter of `downstream_flow` after the change
    forwards: int = 0  # as in UpstreamChanged


@dataclass(frozen=True, slots=True)
class Greeting:
    """To a neighbour that the sender has just met: it knows of no flow between them."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """Wraps a message that changes flows: it is handled once, after all earlier ones, and repeated until it arrives."""

    session: int  # of the sender with the receiver; a later one has a higher number
    number: int  # of the message in the session, from 1
    known: int  # the receiver's session as the sender knows it; 0: none
    message: Any


@dataclass(frozen=True, slots=True)
class InOrderAck:
    """Acknowledges all messages of a session up to a number; 0: none is known, although a later one has come."""

    session: int  # of the receiver of this
    number: int


OrderedGwtfMessage = (
    Greeting
    | CheapestOutflow
    | RequestFlow
    | FlowApproved
    | FlowRejected
    | RequestChange
    | ChangeAccepted
    | RequestRedirect
    | RedirectAccepted
    | SwapRefused
    | UpstreamChanged
    | DownstreamChanged
    | FlowDenied
    | FlowDropped
)
GwtfMessage = InOrder | InOrderAck | FlowQuery | FlowReport | OrderedGwtfMessage
