"""The epochs of a peer: a step is opened with it or without it, and others of the step die."""

from __future__ import annotations

from swarmflow.core.election.epoch_view import begun
from swarmflow.core.machines.serving.ballots import holds_gradient, lose, revoke
from swarmflow.core.machines.serving.peer_phase import PeerPhase
from swarmflow.core.machines.serving.peer_state import PeerState
from swarmflow.core.pipeline import downstream, reconciling, turnover
from swarmflow.core.protocol.actions import Action, Connect, Forget, Log, Reset
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import MemberEntered, MemberFailed, OpenStep, RosterDelta
from swarmflow.core.protocol.types import Microbatch
from swarmflow.core.routing.link_rates import NEAR_MAX


def on_open_step(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Begin a step; what was held for another one is void."""
    opening = event.message
    assert isinstance(opening, OpenStep | RosterDelta)
    if opening.term < peer.lease.term or opening.epoch <= peer.epoch:
        return []
    epoch_view = begun(opening, peer.epoch_view)
    if epoch_view is None:
        return peer.leave(f"this process was not told who takes part in step {opening.epoch.step}")
    message = epoch_view.opened
    peer.lease.term, peer.epoch, peer.epoch_view = message.term, message.epoch, epoch_view
    actions = revoke(peer)
    ids = message.roster.ids_by_stage
    if peer.stage < 0 or peer.me not in ids[peer.stage] or peer.hops is None:
        return actions
    if peer.version != peer.epoch.step:
        return [*actions, *peer.leave(f"at version {peer.version}, but the swarm opened {peer.epoch.step}")]
    if peer.phase is PeerPhase.READY:
        actions.append(Log("info", f"serving stage {peer.stage} from step {peer.epoch.step} on"))
    peer.move(PeerPhase.MEMBER)
    around = message.roster.around(peer.stage, peer.plan.shared).members
    actions.append(Connect(tuple([m for m in around if m.process != peer.me])))
    next_stage = ids[peer.stage + 1] if not peer.hops.last else ()
    shares = message.roster.slots_per_sender[peer.stage + 1] if not peer.hops.last else {}
    mates, before = tuple([mate for mate in ids[peer.stage] if mate != peer.me]), ids[peer.stage - 1]
    peer.hops.dispatcher.trainers = ids[-1]
    if peer.epoch == peer.hops.ahead:
        actions += turnover.go_on(peer.hops, next_stage, before, shares, mates, now) + peer.void_deferred()
    else:
        peer.deferred = None
        actions.append(Reset(message.exponent, message.careful, message.kept))
        actions += peer.hops.open(peer.epoch, next_stage, before, shares, mates)
    nearby = {0: mates, 1: next_stage, -1: before if peer.stage > 0 else ()}
    few = {place: stage for place, stage in nearby.items() if len(stage) <= NEAR_MAX}
    peer.relays.open(peer.hops.dispatcher.link_rates, few)
    peer.relays.report_changes(peer.hops.dispatcher.router)
    return actions + (peer.flows.open(message.roster, now) if peer.flows is not None else [])


def on_member_entered(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Add a peer that takes part from now on, amid the step."""
    message = event.message
    assert isinstance(message, MemberEntered)
    member, epoch_view = message.member, peer.epoch_view
    if message.epoch != peer.epoch or epoch_view is None:
        return []
    epoch_view.enter(member)
    if peer.hops is None:
        return []
    if member.process == peer.me:  # the others have heard that the next step has begun
        return turnover.begin_ahead(peer.hops) if message.ahead and peer.hops.ahead is None else []
    alive = epoch_view.alive()
    mates = alive.stages[peer.stage]
    if all(mate.process != peer.me for mate in mates):
        return []  # it takes no part yet, or on another stage, and has loaded this one since
    near = member in alive.around(peer.stage, peer.plan.shared).peers
    connect: list[Action] = [Connect((member,))] if near else []
    if member.stage == peer.stage - 1:
        peer.hops.restorer.before[member.process] = None
    if peer.flows is not None:
        connect += peer.flows.open(alive, now)
    if member.stage != peer.stage + 1:
        return connect
    return connect + peer.hops.enter(member.process, member.capacity // len(mates), now)


def on_member_failed(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Send what a failed member held to others. The ballot is void, and the reductions in which it took part."""
    message = event.message
    assert isinstance(message, MemberFailed)
    if message.epoch != peer.epoch or peer.hops is None or peer.epoch_view is None:
        return [Forget(message.process)] if peer.phase is PeerPhase.LOADING else []  # it may be what it loads from
    if message.process == peer.me:
        return peer.leave(f"taken for dead: {message.reason}")
    peer.epoch_view.died(message.process)
    after = peer.stage + 1
    lost = [Microbatch(peer.epoch, index) for stage, index in message.lost if stage == after]
    lost += [Microbatch(peer.epoch.following, index) for stage, index in message.lost_ahead if stage == after]
    void = peer.reduction is None or peer.reduction.term != message.term  # a new leader begins all reductions anew
    actions = revoke(peer) if void else lose(peer, message.process)
    actions += peer.hops.gone(message.process, now, lost)
    own = [Microbatch(peer.epoch, index) for stage, index in message.lost if stage == peer.stage]
    actions += reconciling.disclaim(peer.hops, own)
    if not holds_gradient(peer):  # else nothing is lost of this stage: what it has accumulated stays as it is
        actions += reconciling.reopen(peer.hops)
    relayed = peer.relays.gone(message.process, now)
    peer.relays.report_changes(peer.hops.dispatcher.router)
    actions += [action for to, sent in relayed for action in downstream.again(peer.hops, to, sent, now)]
    if peer.flows is not None:
        actions += peer.flows.gone(message.process, now)
    return [*actions, Forget(message.process)]
