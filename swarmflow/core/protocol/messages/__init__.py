"""Every message between processes, as data. Bodies (tensors) travel beside a message, never in it."""

from __future__ import annotations

from swarmflow.core.protocol.messages.election import Deposed, Elect, ElectionReport
from swarmflow.core.protocol.messages.hop import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    CreditAvailable,
    CreditReturned,
    Denied,
    Done,
    DownstreamCost,
    Forward,
    HopHandover,
    Probe,
    Probed,
    Recall,
    Recalled,
    RelayedTensor,
    RelayTensor,
    ReserveSlot,
    Routed,
    SlotReserved,
)
from swarmflow.core.protocol.messages.membership import (
    CopiesHeld,
    Drain,
    Evicted,
    Finished,
    Granted,
    Heartbeat,
    Held,
    Join,
    KeepCopy,
    LeaderHeartbeat,
    Left,
    LinkGains,
    LinkRateReport,
    LoadFailed,
    MeasureLinks,
    Needed,
    PeerSummary,
    Postponed,
    Ready,
    Refused,
    Released,
    ReportRoot,
    SnapshotTaken,
    StateRoot,
    Surplus,
    Suspect,
    TakeSnapshot,
    VersionCertified,
    Welcome,
    state_name,
)
from swarmflow.core.protocol.messages.negotiation import Negotiate
from swarmflow.core.protocol.messages.step import (
    Assign,
    Commit,
    Committed,
    ElectorateChange,
    MemberEntered,
    MemberFailed,
    NotFinite,
    OpenStep,
    Overflow,
    Prepare,
    Prepared,
    ReducePart,
    ReduceSum,
    RosterDelta,
    StepResult,
    Tally,
    Unprepared,
    Unrepairable,
)

__all__ = [
    "FROM_TRAINERS",
    "TO_LEADER",
    "YIELDING",
    "Accepted",
    "Adopt",
    "Assign",
    "Backward",
    "Cancel",
    "Commit",
    "Committed",
    "CopiesHeld",
    "CreditAvailable",
    "CreditReturned",
    "Denied",
    "Deposed",
    "Done",
    "DownstreamCost",
    "Drain",
    "Elect",
    "ElectionReport",
    "ElectorateChange",
    "Evicted",
    "Finished",
    "Forward",
    "Granted",
    "Heartbeat",
    "Held",
    "HopHandover",
    "Join",
    "KeepCopy",
    "LeaderHeartbeat",
    "Left",
    "LinkGains",
    "LinkRateReport",
    "LoadFailed",
    "MeasureLinks",
    "MemberEntered",
    "MemberFailed",
    "Message",
    "Needed",
    "Negotiate",
    "NotFinite",
    "OpenStep",
    "Overflow",
    "PeerSummary",
    "Postponed",
    "Prepare",
    "Prepared",
    "Probe",
    "Probed",
    "Ready",
    "Recall",
    "Recalled",
    "ReducePart",
    "ReduceSum",
    "Refused",
    "RelayTensor",
    "RelayedTensor",
    "Released",
    "ReportRoot",
    "ReserveSlot",
    "RosterDelta",
    "Routed",
    "SlotReserved",
    "SnapshotTaken",
    "StateRoot",
    "StepResult",
    "Surplus",
    "Suspect",
    "TakeSnapshot",
    "Tally",
    "Unprepared",
    "Unrepairable",
    "VersionCertified",
    "Welcome",
    "state_name",
]

Message = (
    Forward
    | ReserveSlot
    | SlotReserved
    | Adopt
    | Accepted
    | Denied
    | CreditAvailable
    | Cancel
    | Routed
    | Backward
    | Recall
    | Recalled
    | RelayTensor
    | RelayedTensor
    | CreditReturned
    | Probe
    | Probed
    | DownstreamCost
    | Done
    | OpenStep
    | RosterDelta
    | MemberEntered
    | MemberFailed
    | Assign
    | Overflow
    | NotFinite
    | Prepare
    | Prepared
    | Unprepared
    | Unrepairable
    | Commit
    | Committed
    | StepResult
    | ReducePart
    | ReduceSum
    | Join
    | Refused
    | Welcome
    | Granted
    | LoadFailed
    | Ready
    | TakeSnapshot
    | SnapshotTaken
    | StateRoot
    | VersionCertified
    | KeepCopy
    | CopiesHeld
    | Surplus
    | Drain
    | Released
    | ReportRoot
    | Left
    | Needed
    | Postponed
    | Heartbeat
    | PeerSummary
    | LinkRateReport
    | MeasureLinks
    | LinkGains
    | LeaderHeartbeat
    | Suspect
    | Evicted
    | Finished
    | Elect
    | ElectionReport
    | Deposed
    | Negotiate
)

TO_LEADER = frozenset(
    (
        Join,
        Ready,
        LoadFailed,
        Drain,
        Heartbeat,
        PeerSummary,
        LinkRateReport,
        LinkGains,
        Suspect,
        Done,
        Prepared,
        Unprepared,
        Unrepairable,
        Overflow,
        NotFinite,
        Committed,
        SnapshotTaken,
        CopiesHeld,
        StateRoot,
        Left,
    )
)

FROM_TRAINERS = frozenset(
    (
        OpenStep,
        RosterDelta,
        MemberEntered,
        MemberFailed,
        Assign,
        Prepare,
        Commit,
        StepResult,
        Refused,
        Welcome,
        Granted,
        MeasureLinks,
        TakeSnapshot,
        VersionCertified,
        KeepCopy,
        Surplus,
        Released,
        ReportRoot,
        Needed,
        Postponed,
        Evicted,
        Finished,
        LeaderHeartbeat,
        Elect,
    )
)  # need the certificate of a trainer: the orders of a leader, and a candidate's Elect

YIELDING = frozenset((ReducePart, ReduceSum))  # their bodies wait in an uplink for those of all others
