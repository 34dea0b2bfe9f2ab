"""Checks whether a member, in its role and stage, can have sent a message; evicts it where it cannot."""

from __future__ import annotations

from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.machines.leading.departures import gone, keep_out, stage_is_lost_with
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Count, Forget, Log, Send
from swarmflow.core.protocol.messages import (
    Committed,
    CopiesHeld,
    Done,
    Join,
    LinkGains,
    LoadFailed,
    Message,
    NotFinite,
    Overflow,
    Prepared,
    Ready,
    Refused,
    SnapshotTaken,
    StateRoot,
    Suspect,
    Unprepared,
)
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId

_PEERS_ONLY = frozenset(
    (Done, Unprepared, Committed, Overflow, NotFinite, Ready, LoadFailed, SnapshotTaken, StateRoot, LinkGains)
)


def implausible(leader: LeaderState, sender: MemberRecord, message: Message) -> str | None:
    """Return why this member cannot have sent a message; None: it can."""
    kind = type(message)
    if kind in _PEERS_ONLY and sender.role != "peer":
        return f"{kind.__name__} from a {sender.role}"
    match message:
        case Prepared() if sender.role != "peer" and message.results:
            return f"results of a reduction from a {sender.role}"
        case LinkGains() if len(message.gains) not in (0, leader.plan.stages):
            return f"the gains of {len(message.gains)} stages of {leader.plan.stages}"
        case Suspect() if message.process == sender.process:
            return "a Suspect of itself"
        case Ready() | LoadFailed() if message.version > leader.settings.steps:
            return f"version {message.version} of a run of {leader.settings.steps} steps"
        case CopiesHeld() if any(copy.snapshot.version > leader.settings.steps for copy in message.copies):
            return f"a copy of a version after the last one, {leader.settings.steps}"
        case Done() if leader.ahead is not None and message.microbatch.epoch == leader.ahead.epoch:
            return _misplaced(leader.ahead, sender.process, message)
    step = leader.step
    if step is None or sender.process not in step.roster.peer_ids:
        return None
    return _about_step(step, sender.process, message)


def _about_step(step: Step, sender: ProcessId, message: Message) -> str | None:
    """Return why a member of the current step cannot have sent a message about it."""
    match message:
        case Done() if message.microbatch.epoch == step.epoch:
            return _misplaced(step, sender, message)
        case Prepared() if step.phase is StepPhase.PREPARING and (message.epoch, message.ballot) == (
            step.epoch,
            step.ballot.number,
        ):
            own, reported = step.members.groups_of(sender), tuple(name for name, _, _ in message.results)
            return None if sorted(own) == sorted(reported) else f"the results of {reported} where {own} are due"
        case Committed() if message.epoch == step.epoch and message.version != step.epoch.step + 1:
            return f"a Committed of version {message.version} in step {step.epoch.step}"
    return None


def _misplaced(step: Step, sender: ProcessId, message: Done) -> str | None:
    """Return why a member cannot have done this hop: it serves another stage."""
    stage = step.roster.stage_by_id.get(sender, message.stage)
    return None if stage == message.stage else f"a Done of stage {message.stage} from stage {stage}"


def refuse(leader: LeaderState, sender: ProcessId, message: Message, what: str, now: float) -> list[Action]:
    """Refuse a message that cannot be true, and put its sender out; from the second time on for a while."""
    counted, reason = Count("messages_refused", type(message).__name__), f"sent what cannot be: {what}"
    if sender not in leader.membership.known:
        return [counted, *evict(leader, sender, message, reason, now)]
    again = sender.name in leader.faults.refused and not stage_is_lost_with(leader, sender)
    leader.faults.refused[sender.name] = None
    leader.faults.wrong_s[sender.name] = now
    return [counted, *(keep_out if again else gone)(leader, sender, reason, now)]


def evict(leader: LeaderState, sender: ProcessId, message: Message | None, reason: str, now: float) -> list[Action]:
    """Evict the sender of an impossible message, which may join again at once.

    Where it is not a member, refuse its Join, or close its connection.
    """
    if sender in leader.membership.known:
        return gone(leader, sender, reason, now)
    answers = [Send(sender, Refused(reason))] if isinstance(message, Join) else [Forget(sender)]
    return [Log("warning", f"{sender}, which takes no part, {reason}", EventKind.EXCLUDED, sender), *answers]
