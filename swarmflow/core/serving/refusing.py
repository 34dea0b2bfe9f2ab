"""What a peer does with a message that cannot be true, and with a sender whose message raised: that one is put out."""

from __future__ import annotations

from swarmflow.core.actions import Action, Count, Forget, Log, Send
from swarmflow.core.epoch_view import EpochView
from swarmflow.core.events import Lost, Mishandled, Received
from swarmflow.core.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    CreditAvailable,
    CreditReturned,
    Denied,
    DownstreamCost,
    Forward,
    Message,
    Probe,
    Probed,
    Recall,
    Recalled,
    RelayTensor,
    ReserveSlot,
    Routed,
    SlotReserved,
    Unrepairable,
)
from swarmflow.core.serving import leaders
from swarmflow.core.serving.peer_state import PeerState, release
from swarmflow.core.types import ProcessId

BEFORE, BESIDE, AFTER = -1, 0, 1  # the stage of a sender, as seen from the receiver's; trainers are before the first
_FROM: dict[type, tuple[int, ...]] = {
    **dict.fromkeys((Forward, ReserveSlot, Adopt, Cancel, CreditReturned), (BEFORE,)),
    **dict.fromkeys((Accepted, SlotReserved, Denied, CreditAvailable, Routed, Backward, DownstreamCost), (AFTER,)),
    Probe: (BEFORE, BESIDE),
    Probed: (BESIDE, AFTER),
}


def misplaced(peer: PeerState, sender: ProcessId, message: Message) -> str | None:
    """Why a message about a hop cannot come from where its sender serves; None: it can."""
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
        allowed = _FROM.get(type(message))
        fits = allowed is None or (place is not None and place - peer.stage in allowed)
    return None if fits else f"{type(message).__name__} from stage {place} to stage {peer.stage}"


def _astray(epoch_view: EpochView, sender: ProcessId, message: RelayTensor) -> str | None:
    """Why what is to be carried cannot go from its sender to there: who carries it answers for it."""
    place, there = epoch_view.place(sender), epoch_view.place(message.to)
    step = AFTER if message.forward is not None else BEFORE
    if place is None or there is None or there == place + step:
        return None
    return f"a {'Forward' if step == AFTER else 'Backward'} to be carried from stage {place} to stage {there}"


def refused(peer: PeerState, event: Received, what: str, now: float) -> list[Action]:
    """A message that cannot be true is not looked at any further."""
    if peer.phase == "gone":
        return release(event.bodies)
    counted = Count("messages_refused", type(event.message).__name__)
    return [counted, *release(event.bodies), *_put_out(peer, event.sender, f"sent what cannot be: {what}", now)]


def mishandled(peer: PeerState, event: Mishandled, now: float) -> list[Action]:
    """What was half changed belongs to the epoch at hand: the step starts over, and with it all of that is void."""
    if peer.phase == "gone":
        return []
    actions = _put_out(peer, event.process, event.reason, now)
    if peer.phase == "member":
        actions.append(Send(peer.leader, Unrepairable(peer.epoch, f"{event.process} {event.reason}")))
    return actions


def _put_out(peer: PeerState, sender: ProcessId, reason: str, now: float) -> list[Action]:
    """Nothing more comes over its connections, and the leader hears of it. Without the leader itself: join again."""
    if sender == peer.leader:
        return peer.leave(f"the leader {sender} {reason}")
    log = Log("warning", f"{sender} is put out: it {reason}")
    return [log, Forget(sender), *leaders.lost(peer, Lost(sender, reason), now)]
