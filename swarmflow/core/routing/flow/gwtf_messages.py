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
    """The answer to RequestFlow: the receiver's outflow `flow` is paired with the sender's outflow `below`.

    Every change carries the two counters, since messages of different nodes overtake each other.
    """

    source: ProcessId  # the data node
    cost: float  # of `below`
    flow: FlowId
    below: FlowId
    sender_changes: int  # how often the node that sends to `below` has changed
    holder_changes: int  # how often `below` has moved to another node


@dataclass(frozen=True, slots=True)
class FlowRejected:
    """The answer to RequestFlow: there is no unpaired outflow at that cost (any more)."""

    source: ProcessId  # the data node
    cost: float  # of the cheapest one now; infinite: there is none
    flow: FlowId  # the outflow of the request


@dataclass(frozen=True, slots=True)
class FlowQuery:
    """To all relays of the same stage: a request for their flows."""


@dataclass(frozen=True, slots=True)
class ReportedFlow:
    """An outflow as reported to another relay of the stage."""

    flow: FlowId
    source: ProcessId  # its data node
    before: ProcessId | None  # the node that sends it; None: it is unpaired
    after: ProcessId  # the node that receives it
    cost_before: float  # of the link to `before`; infinite where it is unpaired
    cost_after: float  # of the link to `after`


@dataclass(frozen=True, slots=True)
class FlowReport:
    """The answer to FlowQuery."""

    shown: tuple[ReportedFlow, ...]  # the outflows that can be swapped
    costs: tuple[tuple[ProcessId, float], ...]  # of the links to the next stage


@dataclass(frozen=True, slots=True)
class RequestChange:
    """A request to swap receivers: the sender's outflow goes to `theirs_after`, the receiver's to `mine_after`."""

    mine: FlowId  # the sender's outflow
    mine_after: ProcessId  # its receiver
    mine_below: FlowId  # the outflow there
    sender_changes: int  # counters of `mine_below`
    holder_changes: int
    theirs: FlowId  # the receiver's outflow
    theirs_after: ProcessId  # its receiver
    costs: tuple[float, float]  # of the sender's link, before and after the change
    anneal: bool  # the change saves nothing, but the sender's annealing accepts it


@dataclass(frozen=True, slots=True)
class ChangeAccepted:
    """The answer to RequestChange: the requester's outflow `mine` goes to `below` at `after` from now on."""

    mine: FlowId  # the requester's outflow
    theirs: FlowId  # the sender's outflow
    after: ProcessId
    below: FlowId
    sender_changes: int  # counters of `below` before the change
    holder_changes: int


@dataclass(frozen=True, slots=True)
class RequestRedirect:
    """A request to take over an outflow of the receiver. The outflow keeps its name and its ends."""

    flow: FlowId
    before: ProcessId  # the node that sends it
    after: ProcessId  # the node that receives it
    cost: float  # of the two links, if it goes through the sender of this request
    anneal: bool  # the redirect saves nothing, but the sender's annealing accepts it


@dataclass(frozen=True, slots=True)
class RedirectAccepted:
    """The answer to RequestRedirect: the requester has the outflow from now on."""

    flow: FlowId
    source: ProcessId  # its data node
    before: ProcessId  # the node that sends it
    after: ProcessId  # the node that receives it
    above: FlowId  # the outflow at `before`
    below: FlowId  # the outflow at `after`
    cost: float  # from `after` to the sink
    sender_changes: int  # counters of `below` before the redirect
    holder_changes: int
    own_sender_changes: int  # counters of the outflow before the redirect
    own_holder_changes: int


@dataclass(frozen=True, slots=True)
class SwapRefused:
    """The answer that refuses a change or a redirect of this outflow."""

    flow: FlowId


@dataclass(frozen=True, slots=True)
class UpstreamChanged:
    """To the next stage: the upstream end of the receiver's `flow` is now `above` at `before`."""

    flow: FlowId
    before: ProcessId
    above: FlowId
    sender_changes: int  # counter of `flow` after the change
    passed: int = 0  # times that this message was forwarded because the flow had moved to another node


@dataclass(frozen=True, slots=True)
class FlowDenied:
    """To the stage before (GWTF, V-D): `below` at `after`, the downstream end of the receiver's `flow`, has ended."""

    flow: FlowId
    below: FlowId
    after: ProcessId
    passed: int = 0  # as in UpstreamChanged


@dataclass(frozen=True, slots=True)
class FlowDropped:
    """To the next stage: `above` at `before`, the upstream end of the receiver's `flow`, has ended."""

    flow: FlowId
    before: ProcessId
    above: FlowId
    passed: int = 0  # as in UpstreamChanged


@dataclass(frozen=True, slots=True)
class DownstreamChanged:
    """To the stage before: `below`, the downstream end of the receiver's `flow`, is now at `after`."""

    flow: FlowId
    after: ProcessId
    below: FlowId
    holder_changes: int  # counter of `below` after the change
    passed: int = 0  # as in UpstreamChanged
