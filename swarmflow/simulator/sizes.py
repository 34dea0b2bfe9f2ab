"""The bytes of messages on the wire, so that a pretended network carries as many as a real one.

Estimates: the header of a frame is msgpack, with the fields' names; a process is named by its libp2p peer id.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swarmflow.core.protocol.messages import (
    Adopt,
    CopiesHeld,
    Done,
    Elect,
    ElectionReport,
    Forward,
    Granted,
    Join,
    KeepCopy,
    LinkGains,
    LinkRateReport,
    MeasureLinks,
    MemberFailed,
    Message,
    Negotiate,
    NotFinite,
    OpenStep,
    Overflow,
    Prepare,
    RelayedTensor,
    RelayTensor,
    RosterDelta,
)
from swarmflow.core.protocol.messages.gwtf import FlowReport, InOrder
from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Audit,
    FlowMessage,
    Label,
    Locked,
    OwnFlows,
    Reliable,
    TraceFlow,
    UnitsReserved,
)
from swarmflow.core.protocol.types import Holding, Roster, Snapshot

FRAME = 36  # bytes around a header (runtime/transport/frames.py), of which 8 a body
HEADER = 170  # of a header with a few numbers and at most one process or signature in it
PROCESS = 85
MEMBER = 215  # a process with its stage, its capacity and an address
NUMBER = 9  # as a float
ENTRY = 5  # (index, attempt) in a manifest
DONE = 130
SIGNATURE = 66  # 64 bytes
HANDOVER = 203  # how a hop came to its holder, from one process before it: with a digest and a signature
ROOT = 66  # of a state: 64 hexadecimal digits
HOLDING = 50  # the names and numbers around a snapshot of which some stages are on a disk
NAMES = 3  # further processes in a message of GWTF's negotiation, about


def wire_bytes(message: Message) -> int:
    """Return the length of a frame without its bodies."""
    extra = _EXTRA.get(type(message))
    return FRAME + HEADER if extra is None else FRAME + HEADER + extra(message)


def _roster(roster: Roster) -> int:
    return MEMBER * (sum(len(stage) for stage in roster.stages) + len(roster.trainers))


def _open(message: OpenStep) -> int:
    return _roster(message.roster) + PROCESS * (1 + len(message.newcomers))


def _reopen(message: RosterDelta) -> int:
    return PROCESS * (1 + len(message.gone)) + MEMBER * len(message.entered)


def _prepare(message: Prepare) -> int:
    members = sum(len(group.members) + len(group.owners) for group in message.groups)
    return ENTRY * len(message.entries) + PROCESS * members + MEMBER * len(message.newcomers)


def _hop(message: Forward | Adopt | Done | Overflow | NotFinite) -> int:
    return HANDOVER * len(message.handovers)


def _report(message: ElectionReport) -> int:
    return (
        _roster(message.opened.roster)
        + (0 if message.change is None else _reopen(message.change))
        + PROCESS * (len(message.gone) + len(message.suspects) + len(message.opened.newcomers))
        + MEMBER * (2 + len(message.newcomers))
        + sum(DONE + _hop(done) for done in message.done)
        + ENTRY * (len(message.dropped) + len(message.indices))
        + len(message.void)
    )


def _relayed(message: RelayTensor | RelayedTensor) -> int:
    """Return the bytes of its own signature, and of the message inside."""
    return SIGNATURE + (0 if message.forward is None else SIGNATURE + _hop(message.forward))


def _snapshot(snapshot: Snapshot | None) -> int:
    return 0 if snapshot is None else SIGNATURE + ROOT * len(snapshot.roots)


def _holdings(holdings: tuple[Holding, ...]) -> int:
    return sum(HOLDING + _snapshot(holding.snapshot) for holding in holdings)


def _join(message: Join) -> int:
    held = 0 if message.held is None else HEADER + _snapshot(message.held.certified)
    return MEMBER + _holdings(message.copies) + held


def _flow_message(message: FlowMessage) -> int:
    """Return the bytes of a negotiation's message beyond a few numbers and a process."""
    match message:
        case Reliable():
            return _flow_message(message.message)
        case InOrder():
            return NAMES * PROCESS + _flow_message(message.message)
        case FlowReport():
            return (4 * PROCESS + 3 * NUMBER) * len(message.swappable) + (PROCESS + NUMBER) * len(message.link_costs)
        case Label():
            return (PROCESS + NUMBER) * len(message.costs)
        case UnitsReserved():
            return _flow_message(message.label)
        case Audit():
            return (PROCESS + NUMBER) * len(message.counts)
        case Locked():
            links = len(message.inflow) + len(message.outflow)
            return 2 * PROCESS * links + (PROCESS + NUMBER) * len(message.costs)
        case ApplyExchange():
            return 2 * PROCESS * (len(message.inflow) + len(message.outflow))
        case TraceFlow():
            return PROCESS * len(message.path)
        case OwnFlows():
            return PROCESS * sum(map(len, message.paths)) + (PROCESS + NUMBER) * len(message.costs)
    return 0


_EXTRA: dict[type, Callable[[Any], int]] = {
    OpenStep: _open,
    RosterDelta: _reopen,
    Prepare: _prepare,
    ElectionReport: _report,
    LinkRateReport: lambda message: PROCESS * len(message.rates),
    MeasureLinks: lambda message: MEMBER * len(message.members) + 3 * NUMBER * len(message.links),
    LinkGains: lambda message: NUMBER * len(message.gains) + (PROCESS + 2 * NUMBER) * len(message.links),
    Granted: lambda message: MEMBER * len(message.donors) + _snapshot(message.certified),
    MemberFailed: lambda message: ENTRY * len(message.lost),
    Elect: lambda message: MEMBER,
    Negotiate: lambda message: _flow_message(message.flow),
    **dict.fromkeys((Forward, Adopt, Done, Overflow, NotFinite), _hop),
    **dict.fromkeys((RelayTensor, RelayedTensor), _relayed),
    Join: _join,
    CopiesHeld: lambda message: _holdings(message.copies),
    KeepCopy: lambda message: _snapshot(message.snapshot) + MEMBER * sum(map(len, message.holders)),
}
