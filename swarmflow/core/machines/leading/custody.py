"""Whether a hop that a member reports on was handed to it by a process that had it; else who is to blame."""

from __future__ import annotations

from swarmflow.core.commit.step import Step
from swarmflow.core.machines.leading import plausibility
from swarmflow.core.machines.leading.departures import gone, keep_out, stage_is_lost_with
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.protocol.actions import Action, Count
from swarmflow.core.protocol.handovers import microbatch_of
from swarmflow.core.protocol.messages import Done, Message, NotFinite, Overflow
from swarmflow.core.protocol.types import ProcessId

TRAINER = -1  # the stage of a trainer
_NOT_HANDED = "had a microbatch on stage {} which nobody had to hand over to it"


def wrongly_handed(leader: LeaderState, sender: ProcessId, message: Message) -> tuple[ProcessId, str] | None:
    """Return who has handed over what it did not have, or has shown what does not hold, and in which way; else None.

    Each answers for the handover to itself: whether its giver serves the stage before, it knows.
    """
    if not isinstance(message, Done | Overflow | NotFinite) or not message.handovers:
        return None
    epoch = microbatch_of(message).epoch
    step = next((each for each in (leader.step, leader.ahead) if each is not None and each.epoch == epoch), None)
    if step is None:
        return None
    holder, stage = sender, message.handovers[0].stage
    for handover in message.handovers:
        served = _served(step, holder, handover.stage) and _served(step, handover.giver, handover.stage - 1)
        if handover.stage != stage or not served:
            return holder, _NOT_HANDED.format(stage)
        holder, stage = handover.giver, stage - 1
    return None if stage == TRAINER else (holder, _NOT_HANDED.format(stage))


def refuse(
    leader: LeaderState, sender: ProcessId, message: Message, blamed: tuple[ProcessId, str], now: float
) -> list[Action]:
    """Put out who is to blame for a report that does not count.

    A giver is convicted by its own signature, and the holder has computed with what it sent: the step starts over.
    """
    process, what = blamed
    if process == sender:
        return plausibility.refuse(leader, sender, message, what, now)
    reason = f"{process} {what}"
    voided = [action for step in (leader.step,) if step is not None for action in step.void(reason)]
    out = gone if stage_is_lost_with(leader, process) else keep_out
    return [Count("messages_refused", type(message).__name__), *voided, *out(leader, process, what, now)]


def _served(step: Step, process: ProcessId, stage: int) -> bool:
    return step.members.has_served(process, stage)
