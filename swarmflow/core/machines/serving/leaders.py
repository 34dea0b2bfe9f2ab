"""Whom a peer follows: broken connections, a candidate's Elect, and orders of those that it does not follow."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.protocol.actions import Action, Connect, Count, Log, Send
from swarmflow.core.protocol.events import Lost, Received
from swarmflow.core.protocol.messages import Deposed, Done, Elect, ElectionReport, MemberFailed, Message, Suspect
from swarmflow.core.protocol.types import ProcessId


def on_lost(peer: PeerState, event: Lost, now: float, refused: bool = False) -> list[Action]:
    """Note a broken connection. Of the leader: a candidate may be followed now. Of a member: tell the leader of it.

    refused: this peer has closed it, after a message that cannot be true. Should the leader be lost too, the next one
    reads of the suspicion in this peer's report.
    """
    if peer.survey is not None:
        peer.survey.prober.gone(event.process)
    if event.process == peer.leader:
        already_lost = peer.lease.lost
        peer.lease.lose(now)
        return [] if already_lost else [Log("warning", f"the leader {peer.leader} was lost: {event.reason}")]
    if peer.epoch_view is not None and peer.epoch_view.takes_part(event.process):
        peer.epoch_view.suspects[event.process] = None  # until a message arrives from it
        suspect = Suspect(event.process, event.reason, refused)
        return [Send(peer.leader, suspect), *go_around(peer, event.process, now)]
    return []


def go_around(peer: PeerState, process: ProcessId, now: float) -> list[Action]:
    """Move the microbatches that a process holds for this peer to others; where there are none, ask it what it has."""
    if peer.hops is None or peer.phase is not PeerPhase.MEMBER:
        return []
    return peer.hops.unreachable(process, now)


def on_suspect(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Go around a member that has lost its connection to this peer.

    A member's Suspect to the leader names whom it has lost; the leader's to that one names who has lost it.
    """
    assert isinstance(event.message, Suspect)
    return go_around(peer, event.message.process, now)


def possible_leaders(peer: PeerState) -> list[ProcessId]:
    """Return the trainers of the epoch that may be alive and take over, if this peer is a member."""
    epoch_view = peer.epoch_view
    if epoch_view is None or not epoch_view.takes_part(peer.me):
        return []
    return [
        trainer for trainer in epoch_view.trainers() if trainer != peer.leader and trainer not in epoch_view.suspects
    ]


def on_elect(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Follow a candidate and report to it what this peer has done, or do not.

    The trainer that is followed already is answered again. A term that is not later than the present one has passed:
    the candidate is told so. Who hears of its leader does not answer: the candidate asks again.
    """
    sender, message = event.sender, event.message
    assert isinstance(message, Elect)
    epoch_view, lease = peer.epoch_view, peer.lease
    if epoch_view is None or sender not in epoch_view.trainers():
        return [Count("messages_ignored", "Elect")]
    is_followed = sender == peer.leader and message.term >= lease.term
    if not is_followed and message.term <= lease.term:
        return [Send(sender, Deposed(lease.term))]
    if not is_followed and not lease.doubted(now):
        return []
    lease.follow(sender, message.term, now)
    peer.grant = -1  # no grant of the new leader has this number: it counts its own
    if peer.hops is not None:
        peer.hops.leader = sender
        peer.hops.dispatcher.link_rates.forget_reports()  # the new leader has none: all are due again
    answer: list[Action] = [Connect((message.me,)), Send(sender, _report(peer, epoch_view, message))]
    return answer if is_followed else [*answer, Log("info", f"trainer {sender} leads from here on")]


def _report(peer: PeerState, epoch_view: EpochView, message: Elect) -> ElectionReport:
    done: tuple[Done, ...] = ()
    dropped: tuple[int, ...] = ()
    ahead = False
    capacity = peer.settings.join.member.capacity  # as a user set it; once a stage is loaded, as measured
    if peer.hops is not None:
        done, capacity, ahead = peer.hops.done(), peer.hops.capacity, peer.hops.ahead is not None
        dropped = tuple(microbatch.index for microbatch in peer.hops.dropped if microbatch.epoch == peer.epoch)
    report = epoch_view.report(
        message.term,
        peer.join(),
        replace(peer.settings.join.member, stage=peer.stage, capacity=capacity),
        ready=peer.hops is not None,
        version=peer.version,
        draining=peer.drain_until_s is not None,
        done=done,
        dropped=dropped,
        ahead=ahead,
        known=message.roster,  # which the candidate has: the report need not repeat it
    )
    return replace(report, root=peer.root[1] if peer.root[0] == peer.version else "")


def on_order_of_another(peer: PeerState, sender: ProcessId, message: Message) -> list[Action]:
    """Answer an order of a process that this peer does not follow.

    In an earlier term it is told that it leads no more. In a later one this peer follows it when it asks (Elect), not
    before; but once it has declared this peer dead, the others have followed it, and this peer joins again.
    """
    ignored: list[Action] = [Count("messages_ignored", type(message).__name__)]
    term = getattr(message, "term", peer.lease.term)  # an order without a term changes nothing
    if term < peer.lease.term:
        return [*ignored, Send(sender, Deposed(peer.lease.term))]
    if isinstance(message, MemberFailed) and peer.lease.passed_over(peer.me, sender, message, peer.epoch_view):
        return peer.leave(f"taken for dead: {message.reason}")
    return ignored
