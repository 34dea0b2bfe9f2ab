"""Messages that a leader refuses: their sender, in its role and place, cannot mean them."""

from __future__ import annotations

from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.machines.leading.departures import gone
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Forget, Log, Send
from swarmflow.core.protocol.messages import (
    Committed,
    CopiesHeld,
    Done,
    Join,
    LoadFailed,
    Message,
    NotFinite,
    Overflow,
    Prepared,
    Ready,
    Refused,
    Suspect,
    Unprepared,
)
from swarmflow.core.protocol.types import ProcessId

_OF_PEERS = frozenset((Done, Unprepared, Committed, Overflow, NotFinite, Ready, LoadFailed))


def doubtful(leader: LeaderState, known: MemberRecord, message: Message) -> str | None:
    """Return why the sender of a message cannot mean it; None: it can."""
    kind = type(message)
    if kind in _OF_PEERS and known.role != "peer":
        return f"{kind.__name__} from a {known.role}"
    match message:
        case Prepared() if known.role != "peer" and message.results:
            return f"results of a reduction from a {known.role}"
        case Suspect() if message.process == known.process:
            return "a Suspect of itself"
        case Ready() | LoadFailed() if message.version > leader.settings.steps:
            return f"version {message.version} of a run of {leader.settings.steps} steps"
        case CopiesHeld() if any(copy.snapshot.version > leader.settings.steps for copy in message.copies):
            return f"a copy of a version after the last one, {leader.settings.steps}"
    step = leader.step
    if step is None or known.process not in step.roster.serving:
        return None
    return _about_step(step, known.process, message)


def _about_step(step: Step, sender: ProcessId, message: Message) -> str | None:
    match message:
        case Done() if message.microbatch.epoch == step.epoch and message.stage != step.roster.places[sender]:
            return f"a Done of stage {message.stage} from stage {step.roster.places[sender]}"
        case Prepared() if (message.epoch, message.ballot, step.phase) == (
            step.epoch,
            step.ballot.number,
            StepPhase.PREPARING,
        ):
            own, named = step.members.groups_of(sender), tuple(name for name, _, _ in message.results)
            return None if sorted(own) == sorted(named) else f"the results of {named} where {own} are due"
        case Committed() if message.epoch == step.epoch and message.version != step.epoch.step + 1:
            return f"a Committed of version {message.version} in step {step.epoch.step}"
    return None


def put_out(leader: LeaderState, sender: ProcessId, message: Message | None, reason: str, now: float) -> list[Action]:
    """Put out the sender of an impossible message; of a stranger only the connection is closed."""
    if sender in leader.membership.known:
        return gone(leader, sender, reason, now)
    answers = [Send(sender, Refused(reason))] if isinstance(message, Join) else [Forget(sender)]
    return [Log("warning", f"{sender}, which takes no part, {reason}"), *answers]
