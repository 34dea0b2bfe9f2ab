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
    word: FlowMessage, sender: ProcessId, view: View, sources: Collection[ProcessId], dead: Collection[ProcessId]
) -> bool:
    """Whether a node may act on it. sender: who says it; sources: the trainers that there are or were.

    dead: those of the neighbours, about whom there may be word all the same.
    """
    match word:
        case Label() | UnitsReserved() | Drop():
            return sender in view.after and _from_after(word, view, sources)
        case ReserveUnits() | ReleaseUnits():
            return sender in view.before and _units(word.count) and _mine(word.source, view, sources)
        case Audit():
            side = view.before if word.outward else view.after
            return sender in side and all(s in sources and _units(n) for s, n in word.counts)
        case Times():
            return _cost(word.compute_s, -1.0) and _cost(word.tensor_s, -1.0)
        case Reliable():
            return isinstance(word.message, INSISTED) and believable(word.message, sender, view, sources, dead)
        case Price() | RetraceFlows() | OwnFlows():
            return view.stage < 0 and _between_sources(word, sender, view)
        case TraceFlow():
            before = view.stage if view.stage >= 0 else view.stages
            mine = view.stage >= 0 or word.source == view.me
            return sender in view.before and word.source in sources and mine and len(word.path) == before
    return _about_exchange(word, sender, view, sources, dead)


def _about_exchange(
    word: FlowMessage, sender: ProcessId, view: View, sources: Collection[ProcessId], dead: Collection[ProcessId]
) -> bool:
    match word:
        case LockRequest():
            return word.exchange.solver == sender
        case Locked():
            costs = dict(word.costs)
            named = {node for node, _, _ in (*word.inflow, *word.outflow)}
            whole = view.stage < 0 or named <= costs.keys()
            counts = (word.inflow, word.outflow)
            return whole and _units(word.capacity) and all(map(_cost, costs.values())) and _all_units(counts, sources)
        case ApplyExchange():
            if word.exchange.solver not in (sender, view.me):
                return False
            ends = all(node in view.before or node in dead for node, _, _ in word.inflow)
            ends &= all(node in view.after or node in dead for node, _, _ in word.outflow)
            return ends and _all_units((word.inflow, word.outflow), sources, -WIDE)
        case ExchangeTurn():
            return word.idle >= 0
        case SideLocked():
            return _all_units((word.links,), sources)
        case SideLockRequest() | LockDenied() | Inquire():
            return True
    return True  # ExchangeTurnTaken, Ack: nothing is said with them


def _from_after(word: Label | UnitsReserved | Drop, view: View, sources: Collection[ProcessId]) -> bool:
    if isinstance(word, Drop):
        return _units(word.count) and word.source in sources
    label = word.label if isinstance(word, UnitsReserved) else word
    if isinstance(word, UnitsReserved) and not _units(word.count):
        return False
    wide = _units(label.capacity) and _units(label.width) and _units(label.room)
    return wide and all(s in sources and _cost(cost) and _units(n) for s, cost, n in label.costs)


def _between_sources(word: Price | RetraceFlows | OwnFlows, sender: ProcessId, view: View) -> bool:
    if sender not in view.beside and sender != view.me:
        return False
    if isinstance(word, Price):
        return (word.cost == INFINITE or _cost(word.cost)) and _units(word.flows)
    if isinstance(word, RetraceFlows):
        return True
    whole = all(len(path) == view.stages for path in word.paths) and len(word.paths) <= PATHS_MAX
    return whole and _units(word.wanted) and all(_cost(cost) for _, cost in word.costs)


def _mine(source: ProcessId, view: View, sources: Collection[ProcessId]) -> bool:
    return source == view.me if view.stage < 0 else source in sources


def _units(count: int, least: int = 0) -> bool:
    return least <= count <= WIDE


def _all_units(tables: Iterable[Counts], sources: Collection[ProcessId], least: int = 0) -> bool:
    return all(source in sources and _units(n, least) for table in tables for _, source, n in table)


def _cost(seconds: float, least: float = 0.0) -> bool:
    return least <= seconds <= COST_MAX_S  # what is no number is in no range
