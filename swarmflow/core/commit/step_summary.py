"""Where a step stands, as a person reads it."""

from __future__ import annotations

from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import StepPhase


def waits_for(step: Step) -> str:
    """Return what a step waits for, as a person reads it."""
    match step.phase:
        case StepPhase.WORKING:
            return f"{step.ledger.done_hops} of {step.plan.stages * step.plan.microbatches} hops are done"
        case StepPhase.PREPARING | StepPhase.COMMITTING as phase:
            names = ", ".join(str(process) for process in sorted(filter(step.owes, step.roster.peer_ids)))
            return f"the {'all-reduce' if phase is StepPhase.PREPARING else 'update'} of {names}"
        case StepPhase.PREPARED:
            return "the promise of a majority to commit"
    return str(step.phase)


def summary(step: Step) -> str:
    """Return where a step stands, as a person reads it."""
    return f"step {step.epoch.step} is {step.phase}, {step.ledger.done_hops} hops are done"
