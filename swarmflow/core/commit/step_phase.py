"""The phases of a step as its leader sees it, and the transitions between them."""

from __future__ import annotations

from enum import StrEnum

from swarmflow.core.transitions import Transitions


class StepPhase(StrEnum):
    """The leader's view of one epoch, from its first microbatch to the update at every member."""

    WORKING = "working"  # hops are still to be done
    COMPLETE = "complete"  # every hop has a holder, and no ballot has begun
    PREPARING = "preparing"  # the members of each stage reduce their gradients
    PREPARED = "prepared"  # all members have reduced and agree; the decision is open
    COMMITTING = "committing"  # the decision is made, and members apply the update
    COMMITTED = "committed"  # every member alive has applied it, or nothing waits for that
    FAILED = "failed"  # nothing of it counts: the step starts over in another epoch


OVER = (StepPhase.COMMITTING, StepPhase.COMMITTED, StepPhase.FAILED)  # nothing voids the step any more
BEFORE_BALLOT = (StepPhase.WORKING, StepPhase.COMPLETE)
_VOIDED = "a member fails, and hops are lost with it"
_KEPT = "a member fails, and others hold all of its hops"

STEP = Transitions(
    "step",
    StepPhase.WORKING,
    {
        StepPhase.WORKING: {
            StepPhase.COMPLETE: "every hop has a holder",
            StepPhase.WORKING: "a member fails",
            StepPhase.PREPARED: "a new leader finds that every member has reduced",
            StepPhase.COMMITTING: "a new leader finds a commit",
            StepPhase.FAILED: "it cannot be completed",
        },
        StepPhase.COMPLETE: {
            StepPhase.PREPARING: "a ballot begins",
            StepPhase.WORKING: _VOIDED,
            StepPhase.COMPLETE: _KEPT,
            StepPhase.FAILED: "it cannot be completed",
        },
        StepPhase.PREPARING: {
            StepPhase.PREPARED: "every member has reduced, and the results agree",
            StepPhase.PREPARING: "another ballot begins",
            StepPhase.WORKING: _VOIDED,
            StepPhase.COMPLETE: _KEPT,
            StepPhase.FAILED: "results differ or are not finite, or a member cannot prepare",
        },
        StepPhase.PREPARED: {
            StepPhase.COMMITTING: "the leader decides, since a majority has promised",
            StepPhase.PREPARING: "another ballot begins",
            StepPhase.WORKING: _VOIDED,
            StepPhase.COMPLETE: _KEPT,
            StepPhase.FAILED: "a stage has lost all members, or a member reports what voids it",
        },
        StepPhase.COMMITTING: {StepPhase.COMMITTED: "every member alive has applied the update, or is left to it"},
        StepPhase.COMMITTED: {},
        StepPhase.FAILED: {},
    },
)
