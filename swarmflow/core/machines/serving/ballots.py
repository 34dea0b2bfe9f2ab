"""A peer's part in a ballot: it subtracts orphans, reduces with its stage, seals, and applies what is committed."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.commit.reduce import Ballot, Reduction, takes_part
from swarmflow.core.machines.serving.peer_state import PeerState, release
from swarmflow.core.pipeline import passes, reconciling, turnover
from swarmflow.core.protocol.actions import Action, Apply, Connect, Count, HashState, Send
from swarmflow.core.protocol.events import (
    Applied,
    PieceFailed,
    PieceReduced,
    Received,
    Replayed,
    Sealed,
    StateDamaged,
    StateHashed,
)
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Prepare,
    Prepared,
    ReducePart,
    ReduceSum,
    ReportRoot,
    StateRoot,
    Suspect,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.protocol.types import Group, ProcessId


def on_prepare(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Begin a ballot: reconcile the accumulated hops with those that count, then reduce what is not reduced yet."""
    message = event.message
    assert isinstance(message, Prepare)
    if message.epoch != peer.epoch or peer.hops is None or peer.epoch_view is None:
        return []
    actions = _keep(peer, message)
    peer.epoch_view.prepare(message)
    taken, missing = reconciling.reconcile(peer.hops, message.ballot, message.entries)
    actions += taken
    if message.ahead and peer.hops.ahead is None:
        actions += turnover.begin_ahead(peer.hops)
    if missing:
        return [*actions, *revoke(peer), Send(peer.leader, Unprepared(peer.epoch, message.ballot, missing))]
    peer.ballot = Ballot(message.ballot, began_s=now)
    if peer.hops.settling:
        peer.unsettled = message
        return actions
    return [*actions, *_reduce(peer, message, now)]


def _keep(peer: PeerState, message: Prepare) -> list[Action]:
    """Drop the reductions that a new ballot does not name. The leader that it comes from may be another one."""
    former = peer.reduction
    actions = revoke(peer) if former is None or former.term != message.term else former.keep(message.groups)
    peer.unsettled = None
    if peer.reduction is None:
        peer.reduction = Reduction(peer.me, peer.epoch, message.term, peer.elements, peer.piece)
    return actions


def on_replayed(peer: PeerState, event: Replayed, now: float) -> list[Action]:
    """Take the result of a replay, which may be that of the last orphan."""
    if peer.hops is None:
        return release((event.gradient,) if event.gradient is not None else ())
    return [*passes.on_replayed(peer.hops, event), *settled(peer, now)]


def settled(peer: PeerState, now: float) -> list[Action]:
    """Go on with a ballot that waits for orphans, when the last one is out of the sum."""
    message = peer.unsettled
    if message is None or peer.hops is None or peer.hops.settling:
        return []
    peer.unsettled = None
    return _reduce(peer, message, now)


def _reduce(peer: PeerState, message: Prepare, now: float) -> list[Action]:
    mine = tuple(group for group in message.groups if _is_mine(peer, group))
    assert peer.reduction is not None, "a ballot has one from its Prepare on"
    peer.begun = message.ballot
    if peer.ballot is not None:
        peer.ballot.began_s = now
    newcomers = tuple(member for member in message.newcomers if member.process != peer.me)
    begun = peer.reduction.begin(mine, bool(message.entries))
    return [Connect(newcomers), *begun, *_answer(peer, now)]


def _is_mine(peer: PeerState, group: Group) -> bool:
    if peer.me in group.members:
        return group.name in peer.elements
    return peer.me in group.owners and group.elements > 0


def on_reduce_part(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Take another member's part of a piece, or an owner's sum of one."""
    message, reduction = event.message, peer.reduction
    assert isinstance(message, ReducePart | ReduceSum)
    if reduction is None or len(event.bodies) > 1 or not reduction.is_about(message):
        return release(event.bodies)
    if not event.bodies:
        return reduction.part(event.sender, message, None) if isinstance(message, ReducePart) else []
    if not reduction.fits(message, event.bodies[0]):
        return [*release(event.bodies), *_refuse_piece(peer, event.sender, message.group)]
    if isinstance(message, ReducePart):
        return reduction.part(event.sender, message, event.bodies[0])
    return reduction.summed(event.sender, message, event.bodies[0])


def _refuse_piece(peer: PeerState, sender: ProcessId, group: str) -> list[Action]:
    """Count an unusable piece, and accuse its sender."""
    refused = Count("frames_refused", "piece")
    if group not in peer.elements:  # how long another stage's gradient is, the leader alone has said
        return [refused]
    return [refused, Send(peer.leader, Suspect(sender, f"sent an unusable piece of {group[:20]}"))]


def on_piece_failed(peer: PeerState, event: PieceFailed, now: float) -> list[Action]:
    """Drop what does not decode of a piece, and accuse its senders."""
    if peer.reduction is None or event.epoch != peer.epoch:
        return []
    senders, actions = peer.reduction.failed(event.ballot, event.group, event.piece, event.parts)
    for sender in senders:
        actions += _refuse_piece(peer, sender, event.group)
    return actions


def on_piece_reduced(peer: PeerState, event: PieceReduced, now: float) -> list[Action]:
    """Take the sum of a piece that this peer owns."""
    if peer.reduction is None or event.epoch != peer.epoch:
        return release(() if event.sum is None else (event.sum,))
    return peer.reduction.reduced(event.ballot, event.group, event.piece, event.digest, event.sum)


def on_sealed(peer: PeerState, event: Sealed, now: float) -> list[Action]:
    """Take the norms of reduced gradients, and report to the leader when they are all there."""
    if peer.reduction is None or event.epoch != peer.epoch:
        return []
    peer.reduction.sealed(event.ballot, event.results)
    return _answer(peer, now)


def _answer(peer: PeerState, now: float) -> list[Action]:
    """Report once that the reduced gradients are ready for the commit; not while no ballot is under way."""
    ballot, reduction = peer.ballot, peer.reduction
    results = reduction.results if reduction is not None and peer.unsettled is None else None
    if ballot is None or ballot.answered or reduction is None or results is None:
        return []
    ballot.answered, ballot.sealed = True, all(digest for _, _, digest in results)
    if peer.epoch_view is not None and ballot.sealed:
        peer.epoch_view.results = results
    seconds = [] if reduction.alone_in_all else [Count("reduce_seconds", amount=now - ballot.began_s)]
    return [*seconds, Send(peer.leader, Prepared(peer.epoch, ballot.number, results))]


def on_commit(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Update the parameters: the leader has decided."""
    message = event.message
    assert isinstance(message, Commit)
    ballot, epoch_view = peer.ballot, peer.epoch_view
    if message.epoch != peer.epoch or epoch_view is None or epoch_view.commit is not None:
        return []
    if ballot is None or ballot.number != message.ballot or not ballot.sealed:
        return peer.leave(f"ballot {message.ballot} of step {peer.epoch.step} was committed without this process")
    peer.ballot = peer.reduction = None
    epoch_view.commit = message
    peer.memory.committed(epoch_view, message)
    peer.hashes = message.epoch.step + 1 if message.hashed else -1
    followed = peer.stage in message.followed
    return [Apply(peer.epoch, message.scale, message.learning_rate, followed, message.hashed)]


def on_applied(peer: PeerState, event: Applied, now: float) -> list[Action]:
    """Report that the parameters are those of the next version."""
    if event.epoch != peer.epoch:
        return []
    peer.version = event.epoch.step + 1
    if peer.epoch_view is not None:
        peer.epoch_view.applied = True
        peer.memory.applied()
    journal = turnover.finish(peer.hops, event.epoch) if peer.hops is not None else []
    return [*journal, Send(peer.leader, Committed(event.epoch, peer.version))]


def on_report_root(peer: PeerState, event: Received, now: float) -> list[Action]:
    """Report the root of the state, once it is hashed; nothing where the next update is made already."""
    message, view = event.message, peer.epoch_view
    assert isinstance(message, ReportRoot)
    updates = view is not None and view.commit is not None and not view.applied
    if peer.hops is None or message.version != peer.version or updates:
        return []
    if peer.root[0] == peer.version:
        return [Send(peer.leader, StateRoot(peer.stage, *peer.root))]
    if peer.hashes == peer.version:
        return []
    peer.hashes = peer.version
    return [HashState(peer.version)]


def on_state_hashed(peer: PeerState, event: StateHashed, now: float) -> list[Action]:
    """Report the root of the state."""
    peer.root = event.version, event.root
    return [Send(peer.leader, StateRoot(peer.stage, event.version, event.root))] if peer.hops is not None else []


def on_state_damaged(peer: PeerState, event: StateDamaged, now: float) -> list[Action]:
    """Void the step, and load the stage anew: what came of the state, others have already computed with."""
    if peer.hops is None or event.epoch not in (None, peer.epoch):
        return []
    reason = f"stage {peer.stage} at version {peer.version} is damaged in this process' memory"
    return [Send(peer.leader, Unrepairable(peer.epoch, reason)), Count("states_damaged"), *peer.leave(reason)]


def awaited(peer: PeerState) -> tuple[ProcessId, ...]:
    """Return the processes without which the current ballot cannot go on here."""
    return () if peer.reduction is None else peer.reduction.awaits()


def lose(peer: PeerState, process: ProcessId) -> list[Action]:
    """Drop what a dead process had a part in. What other groups reduce goes on, and counts in the next ballot."""
    peer.ballot = None
    if (message := peer.unsettled) is not None:
        groups = tuple(group for group in message.groups if not takes_part(process, group))
        peer.unsettled = replace(message, groups=groups)
    return peer.reduction.lose(process) if peer.reduction is not None else []


def holds_gradient(peer: PeerState) -> bool:
    """Return whether the own gradient is reduced, or about to be: nothing may be added to it."""
    waiting = peer.unsettled.groups if peer.unsettled is not None else ()
    reduced = peer.reduction is not None and peer.reduction.holds_own
    return reduced or any(peer.me in group.members for group in waiting)


def revoke(peer: PeerState) -> list[Action]:
    """Drop the current ballot and all that is reduced: it is void."""
    peer.begun = peer.epoch_view.ballot if peer.epoch_view is not None else 0
    reduction, peer.ballot, peer.unsettled, peer.reduction = peer.reduction, None, None, None
    return reduction.keep(()) if reduction is not None else []
