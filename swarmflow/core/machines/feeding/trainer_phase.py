"""The phases of a trainer, and the transitions between them."""

from __future__ import annotations

from enum import StrEnum

from swarmflow.core.transitions import Transitions


class TrainerPhase(StrEnum):
    """One incarnation of a trainer: whom it follows, or that it leads."""

    JOINING = "joining"  # it asks the leader to be let in
    FOLLOWING = "following"  # it follows a leader, which may be lost
    STANDING = "standing"  # it stands for leader
    LEADING = "leading"  # it leads the run
    ENDED = "ended"  # it has exited, or joins again as another one


_ENDS = "it leaves, is turned away, or joins again as another one"

TRAINER = Transitions(
    "trainer",
    TrainerPhase.JOINING,
    {
        TrainerPhase.JOINING: {
            TrainerPhase.FOLLOWING: "the leader lets it in, or opens a step with it",
            TrainerPhase.LEADING: "it starts the run",
            TrainerPhase.ENDED: _ENDS,
        },
        TrainerPhase.FOLLOWING: {
            TrainerPhase.STANDING: "the leader is lost, and it is this trainer's turn",
            TrainerPhase.ENDED: _ENDS,
        },
        TrainerPhase.STANDING: {
            TrainerPhase.LEADING: "it is elected, or goes on without a majority",
            TrainerPhase.FOLLOWING: "the leader is back, or another candidate is followed",
            TrainerPhase.STANDING: "too few have followed, and it asks in a later term",
            TrainerPhase.ENDED: _ENDS,
        },
        TrainerPhase.LEADING: {TrainerPhase.ENDED: _ENDS},
        TrainerPhase.ENDED: {},
    },
)
