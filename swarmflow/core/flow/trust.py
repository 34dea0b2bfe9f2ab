"""Whether a word of the negotiation can be meant so: a node believes no word that its part in it could not bring."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from swarmflow.core.flow.labels import WIDE
from swarmflow.core.flow.messages import (
    ApplyExchange,
    Audit,
    Counts,
    Drop,
    ExchangeTurn,
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
from swarmflow.core.flow.node_types import INFINITE, View
from swarmflow.core.types import ProcessId

COST_MAX_S = 1e6
PATHS_MAX = 4096  # of one trainer
INSISTED = (TraceFlow, OwnFlows, RetraceFlows)  # what may be said with Reliable


def believable(
    message: FlowMessage, sender: ProcessId, view: View, sources: Collection[ProcessId], dead: Collection[ProcessId]
) -> bool:
    """Whether a node may act on it. sender: who says it; sources: the trainers that there are or were.

    dead: those of the neighbours, about whom there may be word all the same.
    """
    match message:
        case Label() | UnitsReserved() | Drop():
            return sender in view.after and _from_after(message, view, sources)
        case ReserveUnits() | ReleaseUnits():
            return sender in view.before and _units(message.count) and _mine(message.source, view, sources)
        case Audit():
            side = view.before if message.outward else view.after
            return sender in side and all(s in sources and _units(n) for s, n in message.counts)
        case Times():
            return _cost(message.compute_s, -1.0) and _cost(message.tensor_s, -1.0)
        case Reliable():
            return isinstance(message.message, INSISTED) and believable(message.message, sender, view, sources, dead)
        case Price() | RetraceFlows() | OwnFlows():
            return view.stage < 0 and _between_sources(message, sender, view)
        case TraceFlow():
            before = view.stage if view.stage >= 0 else view.stages
            mine = view.stage >= 0 or message.source == view.me
            return sender in view.before and message.source in sources and mine and len(message.path) == before
    return _about_exchange(message, sender, view, sources, dead)


def _about_exchange(
    message: FlowMessage, sender: ProcessId, view: View, sources: Collection[ProcessId], dead: Collection[ProcessId]
) -> bool:
    match message:
        case LockRequest():
            return message.exchange.solver == sender
        case Locked():
            costs = dict(message.costs)
            named = {node for node, _, _ in (*message.inflow, *message.outflow)}
            whole = view.stage < 0 or named <= costs.keys()
            counts = (message.inflow, message.outflow)
            return (
                whole and _units(message.capacity) and all(map(_cost, costs.values())) and _all_units(counts, sources)
            )
        case ApplyExchange():
            if message.exchange.solver not in (sender, view.me):
                return False
            ends = all(node in view.before or node in dead for node, _, _ in message.inflow)
            ends &= all(node in view.after or node in dead for node, _, _ in message.outflow)
            return ends and _all_units((message.inflow, message.outflow), sources, -WIDE)
        case ExchangeTurn():
            return message.idle >= 0
        case SideLocked():
            return _all_units((message.links,), sources)
        case SideLockRequest() | LockDenied() | Inquire():
            return True
    return True  # ExchangeTurnTaken, Ack: nothing is said with them


def _from_after(message: Label | UnitsReserved | Drop, view: View, sources: Collection[ProcessId]) -> bool:
    if isinstance(message, Drop):
        return _units(message.count) and message.source in sources
    label = message.label if isinstance(message, UnitsReserved) else message
    if isinstance(message, UnitsReserved) and not _units(message.count):
        return False
    wide = _units(label.capacity) and _units(label.width) and _units(label.room)
    return wide and all(s in sources and _cost(cost) and _units(n) for s, cost, n in label.costs)


def _between_sources(message: Price | RetraceFlows | OwnFlows, sender: ProcessId, view: View) -> bool:
    if sender not in view.beside and sender != view.me:
        return False
    if isinstance(message, Price):
        return (message.cost == INFINITE or _cost(message.cost)) and _units(message.flows)
    if isinstance(message, RetraceFlows):
        return True
    whole = all(len(path) == view.stages for path in message.paths) and len(message.paths) <= PATHS_MAX
    return whole and _units(message.wanted) and all(_cost(cost) for _, cost in message.costs)


def _mine(source: ProcessId, view: View, sources: Collection[ProcessId]) -> bool:
    return source == view.me if view.stage < 0 else source in sources


def _units(count: int, least: int = 0) -> bool:
    return least <= count <= WIDE


def _all_units(tables: Iterable[Counts], sources: Collection[ProcessId], least: int = 0) -> bool:
    return all(source in sources and _units(n, least) for table in tables for _, source, n in table)


def _cost(seconds: float, least: float = 0.0) -> bool:
    return least <= seconds <= COST_MAX_S  # what is no number is in no range
