"""How a peer's service ends: refused, evicted, released, the run is finished, or the person wants it to go."""

from __future__ import annotations

from swarmflow.core.actions import Action, Exit, Log, Send
from swarmflow.core.events import DrainAsked, Received
from swarmflow.core.messages import Drain, Evicted, Finished, Needed, Postponed, Refused
from swarmflow.core.serving.service import Service


def drain_asked(peer: Service, event: DrainAsked, now: float) -> list[Action]:
    """Leave at the end of the step, and take no new work unless nobody else can."""
    if peer.drain_until_s is not None or peer.phase in ("joining", "loading", "gone"):
        peer.phase = "gone"
        return [*peer.last_promise(), Exit("left")]
    peer.drain_until_s = now + peer.settings.drain_s
    if peer.hops is not None:
        alone = peer.standing is not None and len(peer.standing.living().stages[peer.stage]) == 1
        peer.hops.space.draining = not (alone and peer.phase == "member")
    return [
        Send(peer.leader, Drain()),
        Log("info", f"draining: no new work; leaving after this step, in {peer.settings.drain_s:.0f} s at most"),
    ]


def needed(peer: Service, event: Received, now: float) -> list[Action]:
    """It drains, and the run would lose its stage's state: say what it waits for, and what leaving now would cost."""
    message = event.message
    assert isinstance(message, Needed)
    if peer.drain_until_s is None:
        return []
    steps = message.version - message.durable
    lost = f"the {steps} steps since version {message.durable}" if steps else "the step that is under way"
    when = "is on a disk" if message.saving else "and the step under way are on a disk"
    left_s = max(0.0, peer.drain_until_s - now)
    return [
        Log("warning", f"no other peer serves stage {peer.stage}: leaving when version {message.version} {when}"),
        Log("warning", f"to leave now, by a second Ctrl-C or in {left_s:.0f} s, costs the run {lost}"),
    ]


def refused(peer: Service, event: Received, now: float) -> list[Action]:
    """The leader does not let it in."""
    assert isinstance(event.message, Refused)
    peer.phase = "gone"
    return [Exit(event.message.reason, ok=False)]


def postponed(peer: Service, event: Received, now: float) -> list[Action]:
    """The leader has put it out for a while; it goes on asking."""
    message = event.message
    assert isinstance(message, Postponed)
    if peer.phase != "joining" or message.reason == peer.postponed:
        return []
    peer.postponed = message.reason
    return [Log("warning", f"not let in for {message.wait_s:.0f} s yet: {message.reason}")]


def evicted(peer: Service, event: Received, now: float) -> list[Action]:
    """The leader does not know it any more."""
    assert isinstance(event.message, Evicted)
    return peer.leave(event.message.reason)


def released(peer: Service, event: Received, now: float) -> list[Action]:
    """It has drained."""
    peer.phase = "gone"
    return [*peer.last_promise(), Exit("drained: nothing depends on this process any more")]


def finished(peer: Service, event: Received, now: float) -> list[Action]:
    """There are no more steps."""
    assert isinstance(event.message, Finished)
    if event.message.reason:
        peer.phase = "gone"
        return [Exit(f"the run stopped at version {event.message.version}: {event.message.reason}", ok=False)]
    if peer.settings.stay:
        return [Log("info", f"the run is finished at version {event.message.version}; staying")]
    peer.phase = "gone"
    return [Exit(f"the run is finished at version {event.message.version}")]
