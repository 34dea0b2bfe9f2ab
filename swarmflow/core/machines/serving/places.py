"""Whether a message can come from the stage that its sender serves."""

from __future__ import annotations

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.protocol.messages import Message, Recall, Recalled, RelayTensor
from swarmflow.core.protocol.types import ProcessId

BEFORE, BESIDE, AFTER = -1, 0, 1  # the stage of a sender, as seen from the receiver's; trainers are before the first


def misplaced(peer: PeerState, sender: ProcessId, message: Message, places: tuple[int, ...] | None) -> str | None:
    """Return why a message cannot come from the stage that its sender serves; None: it can.

    places: the stages that may send it, as seen from here; None: any.
    """
    epoch_view = peer.epoch_view
    if isinstance(message, RelayTensor) and epoch_view is not None:
        return _astray(epoch_view, sender, message)
    if epoch_view is None or epoch_view.place(peer.me) != peer.stage:
        return None  # it was moved amid the step: what still comes was meant for its former stage
    place = epoch_view.place(sender)
    if isinstance(message, Recall):
        fits = place == peer.stage + (BEFORE if message.gradient else AFTER)
    elif isinstance(message, Recalled):
        fits = place == message.stage == peer.stage + (AFTER if message.gradient else BEFORE)
    else:
        fits = places is None or (place is not None and place - peer.stage in places)
    return None if fits else f"{type(message).__name__} from stage {place} to stage {peer.stage}"


def _astray(epoch_view: EpochView, sender: ProcessId, message: RelayTensor) -> str | None:
    """Return why a tensor cannot go from its sender to its receiver; the peer that relays it answers for it."""
    place, there = epoch_view.place(sender), epoch_view.place(message.to)
    step = AFTER if message.forward is not None else BEFORE
    if place is None or there is None or there == place + step:
        return None
    return f"a {'Forward' if step == AFTER else 'Backward'} to be carried from stage {place} to stage {there}"
