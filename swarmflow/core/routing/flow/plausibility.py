"""Plausibility of flow messages: a node acts only on messages that the sender's place in the ring allows."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarmflow.core.protocol.messages.negotiation import (
    Ack,
    ApplyExchange,
    Audit,
    Counts,
    Drop,
    ExchangeTurn,
    ExchangeTurnTaken,
    FlowMessage,
    Inquire,
    Label,
    LockDenied,
    Locked,
    LockRequest,
    OwnFlows,
    Price,
    ReleaseUnits,
    Reliable,
    ReserveUnits,
    RetraceFlows,
    SideLocked,
    SideLockRequest,
    Times,
    TraceFlow,
    UnitsReserved,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.labels import WIDE
from swarmflow.core.routing.flow.node_types import COST_MAX_S, INFINITE, View

PATHS_MAX = 4096  # that one data node reports
RELIABLE_TYPES = (TraceFlow, OwnFlows, RetraceFlows)  # the messages that may be wrapped in Reliable


def is_plausible(
    message: FlowMessage, sender: ProcessId, view: View, sources: Collection[ProcessId], former: Collection[ProcessId]
) -> bool:
    """Return whether a node may act on a message.

    sources: current and former data nodes. former: former neighbours, which late messages may still name.
    """
    match message:
        case Label() | UnitsReserved() | Drop():
            return sender in view.after and _from_after(message, view, sources)
        case ReserveUnits() | ReleaseUnits():
            return sender in view.before and _valid_units(message.count) and _may_enter(message.source, view, sources)
        case Audit():
            side = view.before if message.outward else view.after
            return sender in side and all(s in sources and _valid_units(n) for s, n in message.counts)
        case Times():
            return valid_cost(message.compute_s, -1.0) and valid_cost(message.tensor_s, -1.0)
        case Reliable():
            return isinstance(message.message, RELIABLE_TYPES) and is_plausible(
                message.message, sender, view, sources, former
            )
        case Price() | RetraceFlows() | OwnFlows():
            return view.stage < 0 and _between_sources(message, sender, view)
        case TraceFlow():
            relays = view.stage if view.stage >= 0 else view.stages
            own = view.stage >= 0 or message.source == view.me
            return sender in view.before and message.source in sources and own and len(message.path) == relays
    return _about_exchange(message, sender, view, sources, former)


def _about_exchange(
    message: FlowMessage, sender: ProcessId, view: View, sources: Collection[ProcessId], former: Collection[ProcessId]
) -> bool:
    """Return whether a node may act on a message of an exchange or an acknowledgement."""
    match message:
        case LockRequest():
            return message.exchange.solver == sender
        case Locked():
            costs = dict(message.costs)
            linked = {node for node, _, _ in (*message.inflow, *message.outflow)}
            complete = view.stage < 0 or linked <= costs.keys()
            counts = (message.inflow, message.outflow)
            return (
                complete
                and _valid_units(message.capacity)
                and all(map(valid_cost, costs.values()))
                and _valid_counts(counts, sources)
            )
        case ApplyExchange():
            if message.exchange.solver not in (sender, view.me):
                return False
            ends = all(node in view.before or node in former for node, _, _ in message.inflow)
            ends &= all(node in view.after or node in former for node, _, _ in message.outflow)
            return ends and _valid_counts((message.inflow, message.outflow), sources, -WIDE)
        case ExchangeTurn():
            return message.idle >= 0
        case SideLocked():
            return _valid_counts((message.links,), sources)
        case SideLockRequest() | LockDenied() | Inquire() | ExchangeTurnTaken() | Ack():
            return True
    return False  # of GWTF's negotiation


def _from_after(message: Label | UnitsReserved | Drop, view: View, sources: Collection[ProcessId]) -> bool:
    """Return whether the content of a message from the next stage is plausible."""
    if isinstance(message, Drop):
        return _valid_units(message.count) and message.source in sources
    label = message.label if isinstance(message, UnitsReserved) else message
    if isinstance(message, UnitsReserved) and not _valid_units(message.count):
        return False
    in_range = _valid_units(label.capacity) and _valid_units(label.width) and _valid_units(label.room)
    return in_range and all(s in sources and valid_cost(cost) and _valid_units(n) for s, cost, n in label.costs)


def _between_sources(message: Price | RetraceFlows | OwnFlows, sender: ProcessId, view: View) -> bool:
    """Return whether a message comes from another data node and its content is plausible."""
    if sender not in view.beside and sender != view.me:
        return False
    if isinstance(message, Price):
        return (message.cost == INFINITE or valid_cost(message.cost)) and _valid_units(message.flows)
    if isinstance(message, RetraceFlows):
        return True
    paths = all(len(path) == view.stages for path in message.paths) and len(message.paths) <= PATHS_MAX
    return paths and _valid_units(message.wanted) and all(valid_cost(cost) for _, cost in message.costs)


def _may_enter(source: ProcessId, view: View, sources: Collection[ProcessId]) -> bool:
    """Return whether flows of a data node may enter here: at a data node, only its own flows do."""
    return source == view.me if view.stage < 0 else source in sources


def _valid_units(count: int, least: int = 0) -> bool:
    """Return whether a number of units is in range."""
    return least <= count <= WIDE


def _valid_counts(tables: Iterable[Counts], sources: Collection[ProcessId], least: int = 0) -> bool:
    """Return whether all links are of a data node and all numbers of units in range."""
    return all(source in sources and _valid_units(n, least) for table in tables for _, source, n in table)


def valid_cost(seconds: float, least: float = 0.0) -> bool:
    """Return whether a cost or a time is in range."""
    return least <= seconds <= COST_MAX_S  # False for NaN
