"""Plausibility of GWTF's messages: a node acts only on what the sender's place in the ring allows."""

from __future__ import annotations

from dataclasses import fields

from swarmflow.core.protocol.messages.checks import COUNT_MAX, LIFETIME_MAX
from swarmflow.core.protocol.messages.gwtf import (
    ChangeAccepted,
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowId,
    FlowQuery,
    FlowRejected,
    FlowReport,
    Greeting,
    GwtfMessage,
    InOrder,
    InOrderAck,
    RedirectAccepted,
    RequestChange,
    RequestFlow,
    RequestRedirect,
    SwapRefused,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import COST_MAX_S, INFINITE, View
from swarmflow.core.routing.flow.plausibility import PATHS_MAX, valid_cost

# The cost of a flow is a sum from which links are subtracted that may cost more by then: it may be below 0.
FLOW_COST_MIN_S = -COST_MAX_S


def is_plausible(message: GwtfMessage, sender: ProcessId, view: View) -> bool:
    """Return whether a node may act on a message. Which processes it names is checked by `ends`."""
    if not all(0 <= flow.number <= LIFETIME_MAX for flow in _flows(message)):
        return False
    match message:
        case CheapestOutflow() | FlowRejected():
            return sender in view.after and _open_cost(message.cost)
        case FlowApproved():
            counters = message.sender_changes, message.holder_changes
            return sender in view.after and valid_cost(message.cost, FLOW_COST_MIN_S) and _counted(*counters)
        case RequestFlow():
            own = view.stage >= 0 or message.source == view.me
            return own and sender in view.before and valid_cost(message.cost, FLOW_COST_MIN_S)
        case UpstreamChanged():
            forwarded = sender in view.before or sender in view.beside
            return forwarded and _counted(message.sender_changes, message.forwards)
        case FlowDropped():
            return (sender in view.before or sender in view.beside) and _counted(message.forwards)
        case DownstreamChanged():
            forwarded = sender in view.after or sender in view.beside
            return forwarded and _counted(message.holder_changes, message.forwards)
        case FlowDenied():
            return (sender in view.after or sender in view.beside) and _counted(message.forwards)
        case Greeting():
            return sender in view.before or sender in view.beside or sender in view.after
        case InOrder():
            return _counted(message.number - 1) and all(
                0 <= n <= LIFETIME_MAX for n in (message.session, message.known)
            )
        case InOrderAck():
            return _counted(message.number)
    return view.stage >= 0 and sender in view.beside and _between_relays(message)


def _between_relays(message: GwtfMessage) -> bool:
    """Return whether the content of a message of two relays of a stage is plausible."""
    match message:
        case FlowReport():
            if len(message.swappable) > PATHS_MAX or len(message.link_costs) > PATHS_MAX:
                return False
            costs = all(valid_cost(cost) for _, cost in message.link_costs)
            return costs and all(
                valid_cost(flow.downstream_cost) and (flow.upstream is None or valid_cost(flow.upstream_cost))
                for flow in message.swappable
            )
        case RequestChange():
            return all(map(valid_cost, message.costs)) and _counted(message.sender_changes, message.holder_changes)
        case ChangeAccepted():
            return _counted(message.sender_changes, message.holder_changes)
        case RequestRedirect():
            return valid_cost(message.cost)
        case RedirectAccepted():
            counters = message.sender_changes, message.holder_changes
            own = message.own_sender_changes, message.own_holder_changes
            return valid_cost(message.cost, FLOW_COST_MIN_S) and _counted(*counters, *own)
        case FlowQuery() | SwapRefused():
            return True
    return False


def ends(message: GwtfMessage) -> tuple[tuple[ProcessId, ...], tuple[ProcessId, ...], tuple[ProcessId, ...]]:
    """Return the processes that a message would have a node send to, receive from, and take for data nodes."""
    match message:
        case CheapestOutflow() | FlowRejected() | FlowApproved() | RequestFlow():
            return (), (), (message.source,)
        case RequestChange():
            return (message.requester_downstream,), (), ()
        case ChangeAccepted() | DownstreamChanged():
            return (message.downstream,), (), ()
        case UpstreamChanged():
            return (), (message.upstream,), ()
        case RedirectAccepted():
            return (message.downstream,), (message.upstream,), (message.source,)
    return (), (), ()


def _flows(message: GwtfMessage) -> list[FlowId]:
    """Return the flows that a message names."""
    if isinstance(message, FlowReport):
        return [reported.flow for reported in message.swappable]
    values = (getattr(message, each.name) for each in fields(message))
    return [value for value in values if isinstance(value, FlowId)]


def _open_cost(cost: float) -> bool:
    """Return whether a cost is in range, or infinite: there is no such outflow."""
    return cost == INFINITE or valid_cost(cost, FLOW_COST_MIN_S)


def _counted(*numbers: int) -> bool:
    return all(0 <= number <= COUNT_MAX for number in numbers)
