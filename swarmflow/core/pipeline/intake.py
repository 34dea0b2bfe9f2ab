"""What a peer does with microbatches from the stage before: admits, reserves, adopts or denies them."""

from __future__ import annotations

from swarmflow.core.pipeline.hop import UNFINISHED, Hop, HopState
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, Count, Release, RunForward, RunLoss, Send
from swarmflow.core.protocol.handovers import handovers_of
from swarmflow.core.protocol.messages import (
    Accepted,
    Adopt,
    Cancel,
    CreditReturned,
    Denied,
    Forward,
    Probe,
    Probed,
    Recall,
    ReserveSlot,
    SlotReserved,
)
from swarmflow.core.protocol.types import ProcessId, Ref

Bodies = tuple[Ref, ...]


def on_forward(hops: HopTable, sender: ProcessId, message: Forward, bodies: Bodies, now: float) -> list[Action]:
    """Admit a microbatch from a predecessor and compute it, or deny it. Without bodies it is announced."""
    if not bodies:
        known = message.microbatch in hops.hops or _refusal(hops, sender, message) is not None
        return [] if known else hops.early.announced(sender, message)
    hops.admission.landed(sender, message.microbatch)
    refuse = _refusal(hops, sender, message) or (None if len(bodies) == 2 else "invalid")
    hop = hops.hops.get(message.microbatch)
    drop: list[Action] = [Release(bodies)]
    if refuse is not None:
        return [*drop, *hops.deny(sender, message, refuse)]
    if hop is not None and not hop.orphan:
        return [*hops.restorer.offered(hop, bodies), *_take_over(hops, hop, sender, message)]
    admission = hops.admission
    slot = admission.give_up(message.microbatch, message.attempt)
    if hop is not None or not (slot or admission.free(message.insist, message.microbatch.epoch)):
        drop += hops.early.drop(message.microbatch)
        return [*drop, *hops.deny(sender, message, admission.deny(sender, message.insist))]
    if slot is not None:
        admission.arrive(slot)
    return _begin(hops, sender, message, bodies)


def _begin(hops: HopTable, sender: ProcessId, message: Forward, bodies: Bodies) -> list[Action]:
    """Enter an admitted hop and compute it."""
    (data, targets), graph = bodies, hops.admission.graph
    origin = message.attempt, sender, message.repair, message.held_by
    hop = Hop(message.microbatch, *origin, data, targets, graph, message.settled)
    hop.handovers = handovers_of(sender, message)
    if hops.last:
        hop.move(HopState.ACCUMULATING)
    hops.hops[message.microbatch] = hop
    hops.admission.note(hop)
    hops.journal.weigh(hop)
    deferred_max = hops.admission.deferred_max
    work: Action = RunForward(hop.microbatch, data, targets, graph, deferred_max=deferred_max)
    if hops.last:
        work = RunLoss(hop.microbatch, data, targets, deferred_max)
    actions = [Send(sender, _accepted(hops, hop)), work]
    if (asker := hops.early.begun(message.microbatch)) is not None:  # it is answered once the output is computed
        actions += hops.restorer.on_recall(asker, Recall(message.microbatch, hops.stage, gradient=False))
    return actions


def on_reserve_slot(
    hops: HopTable, sender: ProcessId, message: ReserveSlot, bodies: Bodies, now: float
) -> list[Action]:
    """Reserve a slot for a microbatch before its bytes are sent, or deny it."""
    refuse, microbatch = _refusal(hops, sender, message), message.microbatch
    if refuse is not None:
        return hops.deny(sender, message, refuse)
    hop, admission = hops.hops.get(microbatch), hops.admission
    unarrived = admission.unarrived(sender, message.sent)
    if hop is None or hop.orphan:  # else it needs no slot, and is taken over with the bytes: their sender signs them
        reserved = microbatch in admission.reserved
        if hop is not None or not (reserved or admission.offered(message.insist, microbatch.epoch, unarrived)):
            return hops.deny(sender, message, admission.deny(sender, message.insist))
        admission.reserve(microbatch, sender, message.attempt)
    free = admission.offered(message.insist, microbatch.epoch, unarrived)
    if not free:
        admission.serve_last(sender)
    router, held_by = hops.dispatcher.router, message.held_by
    gradient_s = 0.0 if held_by is None else router.links.usual_transfer_s(held_by)
    costs = router.downstream_s, free, hops.queued, hops.workload.work_s, hops.workload.each_s, gradient_s
    return [Send(sender, SlotReserved(message.microbatch, hops.stage, message.attempt, *costs))]


def on_adopt(hops: HopTable, sender: ProcessId, message: Adopt, bodies: Bodies, now: float) -> list[Action]:
    """Take a new predecessor for a hop that is here already, or answer that it is not."""
    if message.stage != hops.stage:
        return hops.deny(sender, message, "stage")
    hop = hops.hops.get(message.microbatch)
    if hop is None or hop.orphan:
        hops.floor[message.microbatch] = message.attempt, sender
        hops.admission.give_up(message.microbatch, message.attempt)
        return [Send(sender, Denied(message.microbatch, hops.stage, message.attempt, "unknown"))]
    return _take_over(hops, hop, sender, message)


def on_cancel(hops: HopTable, sender: ProcessId, message: Cancel, bodies: Bodies, now: float) -> list[Action]:
    """Drop a hop or a reservation that was cancelled, unless its gradient is being accumulated already."""
    if hops.admission.give_up(message.microbatch, message.attempt):
        return hops.early.drop(message.microbatch) + hops.grant_credits()
    hop = hops.find(message.microbatch)
    if hop is None or (hop.upstream, hop.attempt) != (sender, message.attempt):
        return []
    return hops.drop(hop) if hop.state in UNFINISHED and hop.state is not HopState.ACCUMULATING else []


def on_credit_returned(
    hops: HopTable, sender: ProcessId, message: CreditReturned, bodies: Bodies, now: float
) -> list[Action]:
    """Give a slot that a sender has no microbatch for to another one."""
    return hops.grant_credits() if hops.admission.free(insist=False) else []


def on_probe(hops: HopTable, sender: ProcessId, message: Probe, bodies: Bodies, now: float) -> list[Action]:
    """Answer a probe of the link to this peer."""
    if sender in hops.restorer.before:  # peers of the own stage measure their links too
        hops.probers[sender] = None
    answer = Send(sender, Probed(message.epoch, message.loaded, hops.dispatcher.router.downstream_s))
    return [*([Release(bodies)] if bodies else []), answer]


def _refusal(hops: HopTable, sender: ProcessId, message: Forward | ReserveSlot) -> str | None:
    if message.stage != hops.stage:
        return "stage"
    return "stale" if hops.is_over(sender, message.microbatch, message.attempt) else None


def _accepted(hops: HopTable, hop: Hop) -> Accepted:
    computing = hop.state is (HopState.ACCUMULATING if hops.last else HopState.FORWARD)
    queued = hops.queued if computing else 0
    costs = (
        hops.dispatcher.router.downstream_s,
        queued,
        hops.timer.forward_s or 0.0,
        hops.workload.work_s,
        hops.workload.each_s,
    )
    return Accepted(hop.microbatch, hops.stage, hop.attempt, *costs)


def _take_over(hops: HopTable, hop: Hop, sender: ProcessId, message: Forward | Adopt) -> list[Action]:
    """Serve a newer attempt with a hop that is here already, so that nothing is computed twice."""
    attempt = message.attempt
    if attempt < hop.attempt and hop.upstream not in hops.dead:
        return [Send(sender, Denied(hop.microbatch, hops.stage, attempt, "stale"))]
    hops.admission.give_up(hop.microbatch, attempt)
    again = (hop.upstream, hop.attempt) == (sender, attempt)  # the same predecessor asks again
    if hop.former is None and hop.upstream not in (sender, *hops.dead) and hop.state is not HopState.DONE:
        hop.former = hop.upstream, hop.attempt  # whether it has really lost the hop, only its own predecessor knows
    hop.upstream, hop.attempt, hop.reported, hop.settled = sender, attempt, None, message.settled
    counted: list[Action] = [] if again else [Count("adoptions")]
    actions = [*counted, Send(sender, _accepted(hops, hop)), *hops.report_successor(hop)]
    return actions + (hops.restorer.give_back(hop) if hop.given_back else [])
