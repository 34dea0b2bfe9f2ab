"""Every message between processes, as data. Bodies (tensors) travel beside a message, never in it."""

from __future__ import annotations

from swarmflow.core.messages.flow import Negotiate
from swarmflow.core.messages.hop import (
    Accepted,
    Adopt,
    Backward,
    Beyond,
    Carried,
    Carry,
    Denied,
    Done,
    Forward,
    Passed,
    Probe,
    Probed,
    Recall,
    Recalled,
    Relieve,
    Reserve,
    Reserved,
    Room,
    Routed,
)
from swarmflow.core.messages.membership import (
    Beat,
    Drain,
    Evicted,
    Finished,
    Granted,
    Heartbeat,
    Held,
    Join,
    Keep,
    Kept,
    Left,
    LoadFailed,
    Needed,
    Postponed,
    Rates,
    Ready,
    Refused,
    Released,
    Surplus,
    Suspect,
    Welcome,
    state_name,
)
from swarmflow.core.messages.step import (
    Assign,
    Commit,
    Committed,
    ElectorateChange,
    Entered,
    Gone,
    Named,
    NotFinite,
    Open,
    Overflow,
    Prepare,
    Prepared,
    ReducePart,
    ReduceSum,
    Reopen,
    StepResult,
    Tally,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.messages.succession import Deposed, Lead, Report

__all__ = [
    "TO_LEADER",
    "Accepted",
    "Adopt",
    "Assign",
    "Backward",
    "Beat",
    "Beyond",
    "Carried",
    "Carry",
    "Commit",
    "Committed",
    "Denied",
    "Deposed",
    "Done",
    "Drain",
    "ElectorateChange",
    "Entered",
    "Evicted",
    "Finished",
    "Forward",
    "Gone",
    "Granted",
    "Heartbeat",
    "Held",
    "Join",
    "Keep",
    "Kept",
    "Lead",
    "Left",
    "LoadFailed",
    "Message",
    "Named",
    "Needed",
    "Negotiate",
    "NotFinite",
    "Open",
    "Overflow",
    "Passed",
    "Postponed",
    "Prepare",
    "Prepared",
    "Probe",
    "Probed",
    "Rates",
    "Ready",
    "Recall",
    "Recalled",
    "ReducePart",
    "ReduceSum",
    "Refused",
    "Released",
    "Relieve",
    "Reopen",
    "Report",
    "Reserve",
    "Reserved",
    "Room",
    "Routed",
    "StepResult",
    "Surplus",
    "Suspect",
    "Tally",
    "Unprepared",
    "Unrepairable",
    "Welcome",
    "state_name",
]

Message = (
    Forward
    | Reserve
    | Reserved
    | Adopt
    | Accepted
    | Denied
    | Room
    | Relieve
    | Routed
    | Backward
    | Recall
    | Recalled
    | Carry
    | Carried
    | Passed
    | Probe
    | Probed
    | Beyond
    | Done
    | Named
    | Open
    | Reopen
    | Entered
    | Gone
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
    | Keep
    | Kept
    | Surplus
    | Drain
    | Released
    | Left
    | Needed
    | Postponed
    | Heartbeat
    | Rates
    | Beat
    | Suspect
    | Evicted
    | Finished
    | Lead
    | Report
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
        Rates,
        Suspect,
        Done,
        Prepared,
        Unprepared,
        Unrepairable,
        Overflow,
        NotFinite,
        Committed,
        Kept,
        Left,
    )
)
