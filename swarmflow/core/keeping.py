"""What a peer does when its leader speaks of the copies on its disk."""

from __future__ import annotations

from swarmflow.core.actions import Action, Connect, DropCopies, KeepCopies
from swarmflow.core.messages import Keep, Surplus


def told_of_copies(message: Keep | Surplus, stages: int) -> list[Action]:
    """Copy, or delete. stages: of the run; what does not fit it is left out."""
    if isinstance(message, Surplus):
        return [DropCopies(message.oldest, message.newest)]
    wanted = tuple(stage for stage in message.stages if 0 <= stage < stages)
    if len(message.snapshot.digests) != stages or message.snapshot.version < 1:
        return []
    return [Connect((message.holder,)), KeepCopies(message.holder, message.snapshot, wanted)]
