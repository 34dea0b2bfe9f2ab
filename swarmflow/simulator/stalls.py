"""Devices that hang: kinds of work that a pretended computer accepts and never does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarmflow.core.protocol.actions import (
    Action,
    Apply,
    FormMicrobatch,
    HashState,
    LoadState,
    RunBackward,
    RunForward,
    RunLoss,
    RunReplay,
    Seal,
    StorePiece,
    SumPiece,
    Validate,
    WriteCheckpoint,
)

GIVE = "give"
_COMPUTING = (RunForward, RunLoss, RunBackward, RunReplay, SumPiece, StorePiece, Seal, Apply)
STALLS: dict[str, tuple[type[Action], ...]] = {
    "feed": (FormMicrobatch,),  # a trainer forms no microbatches
    "compute": _COMPUTING,  # a peer whose executor hangs: its hops stay in its queue
    "reduce": (SumPiece, StorePiece),  # a peer brings its stage's all-reduce to a halt
    "seal": (Seal,),  # a peer withholds Prepared
    "update": (Apply,),  # a peer withholds Committed
    "hash": (HashState,),  # a peer reports no root of its state
    "load": (LoadState,),  # a peer's load never ends
    "validate": (Validate,),  # a trainer's validation never ends
    "save": (WriteCheckpoint,),  # a trainer's checkpoint is never written
    GIVE: (),  # a peer gives no state to others, and returns no validation batch
}


@dataclass(slots=True)
class Stalls:
    """The work that one device leaves undone while its process stays alive (interventions.stall).

    The next life of the process has a device of its own, which works.
    """

    left: dict[str, float] = field(init=False, default_factory=dict)  # actions to leave undone, by kind of work

    def begin(self, kind: str, times: float = math.inf) -> None:
        """Leave the next so many actions of a kind undone. Raises KeyError for an unknown kind."""
        STALLS[kind]
        self.left[kind] = times

    def swallow(self, action: Action) -> bool:
        """Return whether an action is to be left undone, and count it."""
        kind = next((kind for kind, left in self.left.items() if left > 0 and type(action) in STALLS[kind]), None)
        if kind is None:
            return False
        self.left[kind] -= 1
        return True

    @property
    def gives(self) -> bool:
        """Whether it gives others the state that they ask for."""
        return self.left.get(GIVE, 0.0) <= 0
