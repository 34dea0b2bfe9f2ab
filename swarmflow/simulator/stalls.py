"""Devices that breathe and do nothing: kinds of work that a pretended computer takes up and never does."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from swarmflow.core.actions import (
    Action,
    Apply,
    FormMicrobatch,
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
    "load": (LoadState,),  # a peer's load never ends
    "validate": (Validate,),  # a trainer's validation never ends
    "save": (WriteCheckpoint,),  # a trainer's checkpoint is never written
    GIVE: (),  # a peer gives nothing of its state to who asks for it, and brings no validation batch back
}


@dataclass(slots=True)
class Stalls:
    """What one device does not do, although its process lives and shows it: World.stall says so.

    The next life of the process has a device of its own, which works.
    """

    left: dict[str, float] = field(default_factory=dict)

    def begin(self, kind: str, times: float = math.inf) -> None:
        """From now on the next so many actions of a kind are taken up and never done. Raises KeyError: no such kind."""
        STALLS[kind]
        self.left[kind] = times

    def swallow(self, action: Action) -> bool:
        """Whether an action is never done."""
        kind = next((kind for kind, left in self.left.items() if left > 0 and type(action) in STALLS[kind]), None)
        if kind is None:
            return False
        self.left[kind] -= 1
        return True

    @property
    def gives(self) -> bool:
        """Whether others get what they ask it for."""
        return self.left.get(GIVE, 0.0) <= 0
