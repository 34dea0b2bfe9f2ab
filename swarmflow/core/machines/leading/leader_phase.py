"""The phases of a leader between and during steps, and the transitions between them."""

from __future__ import annotations

from enum import StrEnum

from swarmflow.core.transitions import Transitions


class LeaderPhase(StrEnum):
    """What a leader does: it gathers members, runs a step, and sees to the version that the step has made."""

    GATHERING = "gathering"  # no step is open: it waits for what the next one needs
    RUNNING = "running"  # a step is open
    UNMEASURED = "unmeasured"  # a peer that took part in the validation died: it begins again
    VALIDATING = "validating"  # the validation loss of the committed version is being measured
    SAVING = "saving"  # a version has to be on disk before the leader goes on or exits
    FINISHED = "finished"  # all steps are committed: the last version and the model are being written


_STOP = "it stops, and the version is not on disk"

LEADER = Transitions(
    "leader",
    LeaderPhase.GATHERING,
    {
        LeaderPhase.GATHERING: {
            LeaderPhase.RUNNING: "every stage is served, or a former leader's step is taken over",
            LeaderPhase.SAVING: "the last peer of a stage leaves, or the leader stops",
            LeaderPhase.FINISHED: "all steps are committed",
        },
        LeaderPhase.RUNNING: {
            LeaderPhase.GATHERING: "the step is committed, or starts over",
            LeaderPhase.VALIDATING: "the step is committed, and its version is due for validation",
            LeaderPhase.SAVING: _STOP,
        },
        LeaderPhase.UNMEASURED: {
            LeaderPhase.VALIDATING: "every stage is served",
            LeaderPhase.GATHERING: "the version has lost a stage, or one peer too many, and is not measured",
        },
        LeaderPhase.VALIDATING: {
            LeaderPhase.GATHERING: "the loss is measured, or left out",
            LeaderPhase.UNMEASURED: "a peer that measures it died",
        },
        LeaderPhase.SAVING: {
            LeaderPhase.GATHERING: "the version is on disk, or could not be written",
            LeaderPhase.SAVING: "another stage is to be saved",
        },
        LeaderPhase.FINISHED: {LeaderPhase.GATHERING: "the write failed and is due again"},
    },
)
