"""Whether a hop that a member reports on was handed to it by a process that had it; else who is to blame."""

from __future__ import annotations

from swarmflow.core.commit.step import Step
from swarmflow.core.protocol.messages import Done, NotFinite, Overflow
from swarmflow.core.protocol.types import ProcessId

TRAINER = -1  # the stage of a trainer
_NOT_HANDED = "had a microbatch on stage {} which nobody had to hand over to it"


def wrongly_handed(step: Step, sender: ProcessId, report: Done | Overflow | NotFinite) -> tuple[ProcessId, str] | None:
    """Return who has handed over what it did not have, or has shown what does not hold, and in which way; else None.

    Each answers for the handover to itself: whether its giver serves the stage before, it knows.
    """
    if not report.handovers:
        return None
    holder, stage, served = sender, report.handovers[0].stage, step.members.has_served
    for handover in report.handovers:
        if handover.stage != stage or not (served(holder, stage) and served(handover.giver, stage - 1)):
            return holder, _NOT_HANDED.format(stage)
        holder, stage = handover.giver, stage - 1
    return None if stage == TRAINER else (holder, _NOT_HANDED.format(stage))
