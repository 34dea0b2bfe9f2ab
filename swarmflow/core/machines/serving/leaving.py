"""How a peer's service ends: refused, evicted, released, the run is finished, or the person wants it to go."""

from __future__ import annotations

from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.protocol.actions import Action, Exit, Log, Send, StoreState
from swarmflow.core.protocol.events import DrainAsked, Received, StateStored
from swarmflow.core.protocol.messages import Drain, Evicted, Finished, Needed, Postponed, Refused


def on_drain_asked(peer: PeerState, event: DrainAsked, now: float) -> list[Action]:
    """Leave at the end of the step, and take no new work unless nobody else can. Asked again, leave at once."""
    if peer.drain_until_s is not None or peer.phase in (PeerPhase.JOINING, PeerPhase.LOADING):
        return leave_now(peer, "left" if peer.drain_until_s is None else "left at once")
    own_s = peer.settings.drain_s
    drain_s = peer.plan.timeouts.drain_s if own_s is None else own_s
    peer.drain_until_s = now + drain_s
    if peer.hops is not None:
        peer.hops.admission.draining = not (peer.alone and peer.phase is PeerPhase.MEMBER)
    return [
        Send(peer.leader, Drain()),
        Log("info", f"draining: no new work; leaving after this step, in {drain_s:.0f} s at most"),
    ]


def leave_now(peer: PeerState, reason: str) -> list[Action]:
    """Leave now; only a write of what no other process may have is waited for."""
    held = peer.outlives() if peer.settings.stores and peer.alone else None
    peer.move(PeerPhase.GONE)
    if held is None:
        return [*peer.last_promise(), Exit(reason)]
    text = f"writing stage {held.stage} at version {held.version} to the state folder: nobody else may have it"
    return [*peer.last_promise(held), StoreState(held), Log("info", text)]


def on_state_stored(peer: PeerState, event: StateStored, now: float) -> list[Action]:
    """Exit after the state was written to the folder, or could not be."""
    if event.failed:
        return [*peer.last_promise(), Exit(f"left, and its state is lost: {event.failed}", ok=False)]
    wait_s = peer.needed.wait_s if peer.needed is not None else 0.0
    soon = f"within {wait_s:.0f} s it" if wait_s else "it"
    return [Exit(f"left with its state in the state folder; started again {soon} goes on from there")]


def on_needed(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Report what draining waits for, and what leaving now would cost: the run would lose the stage's state."""
    message = event.message
    assert isinstance(message, Needed)
    if peer.drain_until_s is None:
        return []
    peer.needed = message
    steps = message.version - message.durable
    lost = f"the {steps} steps since version {message.durable}" if steps else "the step that is under way"
    when = "is on a disk" if message.saving else "and the step under way are on a disk"
    left_s = max(0.0, peer.drain_until_s - now)
    if peer.settings.stores:
        lost += f", unless it is started again within {message.wait_s:.0f} s: its state stays in the state folder"
    return [
        Log("warning", f"no other peer serves stage {peer.stage}: leaving when version {message.version} {when}"),
        Log("warning", f"to leave now, by a second Ctrl-C or in {left_s:.0f} s, costs the run {lost}"),
    ]


def on_refused(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Exit: the leader does not let it in."""
    assert isinstance(event.message, Refused)
    peer.move(PeerPhase.GONE)
    return [Exit(event.message.reason, ok=False)]


def on_postponed(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Report that the leader keeps it out for a while; it goes on asking."""
    message = event.message
    assert isinstance(message, Postponed)
    if peer.phase is not PeerPhase.JOINING or message.reason == peer.postponed:
        return []
    peer.postponed = message.reason
    return [Log("warning", f"not let in for {message.wait_s:.0f} s yet: {message.reason}")]


def on_evicted(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Join again: the leader does not know it any more."""
    assert isinstance(event.message, Evicted)
    return peer.leave(event.message.reason)


def on_released(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Exit after draining."""
    peer.move(PeerPhase.GONE)
    return [*peer.last_promise(), Exit("drained: nothing depends on this process any more")]


def on_finished(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Exit, or stay if it is set so: there are no more steps."""
    assert isinstance(event.message, Finished)
    if event.message.reason:
        peer.move(PeerPhase.GONE)
        return [Exit(f"the run stopped at version {event.message.version}: {event.message.reason}", ok=False)]
    if peer.settings.stay:
        return [Log("info", f"the run is finished at version {event.message.version}; staying")]
    peer.move(PeerPhase.GONE)
    return [Exit(f"the run is finished at version {event.message.version}")]
