"""What a peer does with a message that cannot be true, or that raised: it puts the sender out."""

from __future__ import annotations

from swarmflow.core.machines.serving import leaders
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState, release
from swarmflow.core.protocol.actions import Action, Count, Forget, Log
from swarmflow.core.protocol.events import Lost, Mishandled, Received
from swarmflow.core.protocol.messages import Unrepairable
from swarmflow.core.protocol.types import ProcessId


def refuse(peer: PeerState, event: Received, what: str, now: float) -> list[Action]:
    """Refuse a message that cannot be true."""
    if peer.phase is PeerPhase.GONE:
        return release(event.bodies)
    counted = Count("messages_refused", type(event.message).__name__)
    return [counted, *release(event.bodies), *_drop_sender(peer, event.sender, f"sent what cannot be: {what}", now)]


def on_mishandled(peer: PeerState, event: Mishandled, now: float) -> list[Action]:
    """Have the step start over after a message raised: what it has half changed is void with the epoch."""
    if peer.phase is PeerPhase.GONE:
        return []
    actions = _drop_sender(peer, event.process, event.reason, now)
    if peer.phase is PeerPhase.MEMBER:
        reason = f"{event.process} {event.reason}"
        actions += peer.void(Unrepairable(peer.epoch, reason), reason)
        if peer.hops is not None and peer.hops.ahead is not None:
            actions += peer.void(Unrepairable(peer.hops.ahead, reason), reason)
    return actions


def _drop_sender(peer: PeerState, sender: ProcessId, reason: str, now: float) -> list[Action]:
    """Close a sender's connections and report it to the leader; if it is the leader, join again."""
    if sender == peer.leader:
        return peer.leave(f"the leader {sender} {reason}")
    log = Log("warning", f"{sender} is put out: it {reason}")
    return [log, Forget(sender), *leaders.on_lost(peer, Lost(sender, reason), now, refused=True)]
