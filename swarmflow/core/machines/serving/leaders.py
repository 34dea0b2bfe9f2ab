"""The leaders of a peer: which one it follows, what it does when that is lost, and its report to the next one."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.commit.roster_parts import answer
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.protocol.actions import Action, Connect, Count, Log, Send
from swarmflow.core.protocol.events import Lost, Received
from swarmflow.core.protocol.messages import Deposed, Done, Elect, MemberFailed, Message, Suspect
from swarmflow.core.protocol.types import ProcessId


def on_lost(peer: PeerState, event: Lost, now: float) -> list[Action]:
    """Report that the connection to a process broke; if it is the leader's, wait for a candidate."""
    if event.process == peer.leader:
        known = peer.lease.lost
        peer.lease.lose(now)
        return [] if known else [Log("warning", f"the leader {peer.leader} was lost: {event.reason}")]
    if peer.epoch_view is not None and peer.epoch_view.takes_part(event.process):
        peer.epoch_view.suspects[event.process] = None
        return [Send(peer.leader, Suspect(event.process, event.reason)), *go_around(peer, event.process, now)]
    return []


def go_around(peer: PeerState, process: ProcessId, now: float) -> list[Action]:
    """Go around a process whose link broke: send what it holds of this peer's to others, or ask for it."""
    if peer.hops is None or peer.phase is not PeerPhase.MEMBER:
        return []
    return peer.hops.unreachable(process, now)


def on_suspect(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Go around a process that has lost its connection to this one, as the leader reports."""
    assert isinstance(event.message, Suspect)
    return go_around(peer, event.message.process, now)


def possible_leaders(peer: PeerState) -> list[ProcessId]:
    """Return the trainers of the current epoch that may be alive and take over, if this peer is a member."""
    epoch_view = peer.epoch_view
    if epoch_view is None or not epoch_view.takes_part(peer.me):
        return []
    return [t for t in epoch_view.trainers() if t != peer.leader and t not in epoch_view.suspects]


def on_elect(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Follow a trainer that stands for leader, unless the leader has sent a message lately."""
    sender, message = event.sender, event.message
    assert isinstance(message, Elect)
    epoch_view, lease = peer.epoch_view, peer.lease
    if epoch_view is None or sender not in epoch_view.trainers():
        return [Count("messages_ignored", "Elect")]
    again = sender == peer.leader and message.term >= lease.term
    if not again and message.term <= lease.term:
        return [Send(sender, Deposed(lease.term))]
    if not again and not lease.suspects(now):
        return []
    lease.follow(sender, message.term, now)
    peer.grant = -1  # it counts its grants anew: what comes of a former leader's must not look like one of them
    done: tuple[Done, ...] = ()
    dropped: tuple[int, ...] = ()
    if peer.hops is not None:
        peer.hops.leader, done, dropped = sender, peer.hops.done(), tuple(peer.hops.dropped)
        peer.hops.dispatcher.speeds.forget_reports()
    capacity = peer.hops.capacity if peer.hops is not None else peer.settings.join.member.capacity
    member = replace(peer.settings.join.member, stage=peer.stage, capacity=capacity)
    report = epoch_view.report(
        message.term,
        peer.join(),
        member,
        ready=peer.hops is not None,
        version=peer.version,
        draining=peer.drain_until_s is not None,
        done=done,
        dropped=dropped,
        known=message.roster,
    )
    answered: list[Action] = [Connect((message.me,)), *answer(sender, report)]
    return answered if again else [*answered, Log("info", f"trainer {sender} leads from here on")]


def on_order_of_another(peer: PeerState, sender: ProcessId, message: Message) -> list[Action]:
    """Answer a message that only a leader sends, from another one: depose a former leader; obey no later one."""
    ignored: list[Action] = [Count("messages_ignored", type(message).__name__)]
    term = getattr(message, "term", peer.lease.term)
    if term < peer.lease.term:
        return [*ignored, Send(sender, Deposed(peer.lease.term))]
    if isinstance(message, MemberFailed) and peer.lease.passed_over(peer.me, sender, message, peer.epoch_view):
        return peer.leave(f"taken for dead: {message.reason}")
    return ignored
