"""What the members of a step tell its leader, given to the step."""

from __future__ import annotations

from swarmflow.core.actions import Action
from swarmflow.core.messages import Committed, Done, Overflow, Prepared, Unprepared, Unrepairable
from swarmflow.core.step import Step
from swarmflow.core.types import ProcessId

AboutStep = Done | Prepared | Unprepared | Unrepairable | Overflow | Committed
ABOUT_STEP = (Done, Prepared, Unprepared, Unrepairable, Overflow, Committed)


def answered(step: Step, sender: ProcessId, message: AboutStep) -> list[Action]:
    """What follows from a member's message."""
    match message:
        case Done():
            return step.done(sender, message)
        case Prepared():
            return step.prepared(sender, message)
        case Unprepared():
            return step.unprepared(sender, message)
        case Overflow():
            return step.overflowed(message)
        case Unrepairable():
            return step.unrepairable(sender, message)
        case Committed():
            return step.committed(sender, message)
