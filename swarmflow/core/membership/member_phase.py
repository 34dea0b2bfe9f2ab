"""The phases of a member as its leader knows it, and the transitions between them."""

from __future__ import annotations

from enum import StrEnum

from swarmflow.core.transitions import Transitions


class MemberPhase(StrEnum):
    """A process in the leader's membership, from its Join until it is gone."""

    WAITING = "waiting"  # it is granted nothing yet
    MEASURING = "measuring"  # it measures its links, by which its stage is chosen
    LOADING = "loading"  # it loads the stage that it was granted
    READY = "ready"  # it holds its stage at its version; a trainer needs no stage
    FAILED = "failed"  # it could not load what it was granted
    BARRED = "barred"  # it was put out a while ago, and is granted a stage only where nobody else serves it
    GONE = "gone"  # it has left, or is taken for dead


_GRANTED = "it is granted a stage"
_SOUGHT = "which version to go on from is open again"
_LEFT = "it leaves, or is taken for dead"

MEMBER = Transitions(
    "member",
    MemberPhase.WAITING,
    {
        MemberPhase.WAITING: {
            MemberPhase.LOADING: _GRANTED,
            MemberPhase.READY: "it is a trainer, or a new leader learns that it holds its stage",
            MemberPhase.BARRED: "it was put out a while ago",
            MemberPhase.MEASURING: "its links are to decide on its stage",
            MemberPhase.WAITING: _SOUGHT,
            MemberPhase.GONE: _LEFT,
        },
        MemberPhase.MEASURING: {MemberPhase.LOADING: _GRANTED, MemberPhase.WAITING: _SOUGHT, MemberPhase.GONE: _LEFT},
        MemberPhase.LOADING: {
            MemberPhase.READY: "it has loaded the run's version",
            MemberPhase.FAILED: "nobody could give it the stage",
            MemberPhase.LOADING: "it is granted another stage or version",
            MemberPhase.WAITING: _SOUGHT,
            MemberPhase.GONE: _LEFT,
        },
        MemberPhase.READY: {
            MemberPhase.LOADING: "it is granted another stage or version",
            MemberPhase.WAITING: _SOUGHT,
            MemberPhase.GONE: _LEFT,
        },
        MemberPhase.FAILED: {MemberPhase.LOADING: _GRANTED, MemberPhase.WAITING: _SOUGHT, MemberPhase.GONE: _LEFT},
        MemberPhase.BARRED: {MemberPhase.LOADING: _GRANTED, MemberPhase.WAITING: _SOUGHT, MemberPhase.GONE: _LEFT},
        MemberPhase.GONE: {},
    },
)
