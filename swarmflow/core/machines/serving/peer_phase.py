"""The phases of a peer's service, and the transitions between them."""

from __future__ import annotations

from enum import StrEnum

from swarmflow.core.transitions import Transitions


class PeerPhase(StrEnum):
    """One incarnation of a peer, from its first Join until it follows nobody any more."""

    JOINING = "joining"  # it asks the leader to be let in
    LOADING = "loading"  # it was granted a stage, and loads it
    READY = "ready"  # it holds its stage, and takes part from the next step on
    MEMBER = "member"  # it was named when a step was opened
    GONE = "gone"  # it has made its last promise; at most its disk is waited for


_GRANTED = "it is granted a stage"
_LEAVES = "it leaves, is turned away, or joins again as another one"

PEER = Transitions(
    "peer",
    PeerPhase.JOINING,
    {
        PeerPhase.JOINING: {PeerPhase.LOADING: _GRANTED, PeerPhase.GONE: _LEAVES},
        PeerPhase.LOADING: {
            PeerPhase.READY: "the stage is loaded",
            PeerPhase.LOADING: "it is granted another stage or version",
            PeerPhase.GONE: _LEAVES,
        },
        PeerPhase.READY: {
            PeerPhase.MEMBER: "a step is opened with it",
            PeerPhase.LOADING: _GRANTED,
            PeerPhase.GONE: _LEAVES,
        },
        PeerPhase.MEMBER: {
            PeerPhase.MEMBER: "the next step is opened with it",
            PeerPhase.LOADING: _GRANTED,
            PeerPhase.GONE: _LEAVES,
        },
        PeerPhase.GONE: {},
    },
)
