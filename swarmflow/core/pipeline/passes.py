"""What a peer does with what it has computed: the next pass, the sum of gradients, the stages before and after."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.pipeline.hop import Hop, HopState
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.actions import Action, Discard, Release, RunBackward, Send
from swarmflow.core.protocol.events import (
    BackwardComputed,
    ForwardComputed,
    InputGradientComputed,
    LossComputed,
    Replayed,
)
from swarmflow.core.protocol.messages import Backward, Denied, Done
from swarmflow.core.protocol.types import Microbatch, ProcessId, Ref


def on_forward_computed(hops: HopTable, event: ForwardComputed, now: float) -> list[Action]:
    """Dispatch the activation to the next stage."""
    hop = hops.find(event.microbatch)
    if hop is None:
        return [Release((event.output,))]
    if hop.state is not HopState.FORWARD:
        return hops.restorer.recomputed(hop, event.output, now) + hops.report_successor(hop)
    hop.move(HopState.DISPATCHED)
    hops.admission.note(hop)
    bodies = (event.output, hop.targets)
    handed = hop.attempt, hop.handovers
    early, actions = hops.early.take(hop)
    if early is None:
        actions += hops.dispatcher.offer(hop.microbatch, bodies, now, *handed, hop.repair, hop.held_by)
    else:
        hops.dispatcher.offer_held(hop.microbatch, bodies, now, *handed, early.holder, early.successor)
    actions += hops.report_successor(hop) + hops.restorer.advance(hop)
    if early is not None and early.gradient is not None:
        returned = Backward(hop.microbatch, hops.stage, early.attempt)
        actions += on_backward(hops, early.holder, returned, (early.gradient,), now)
    return actions + (hops.grant_credits() if hops.admission.free(insist=False) else [*hops.admission.replays()])


def on_backward(
    hops: HopTable, sender: ProcessId, message: Backward, bodies: tuple[Ref, ...], now: float
) -> list[Action]:
    """Run the backward pass with the gradient of this hop's output, from downstream."""
    hop = hops.find(message.microbatch)
    if hops.early.arrived(sender, message, bodies):
        return []
    expected = hop is not None and hop.state is HopState.DISPATCHED
    if expected and not bodies:
        return []  # a bare acknowledgement cannot replace the gradient: this hop never received it, so it will ask
    fresh = hops.dispatcher.returned(sender, message.microbatch, message.attempt, now)
    if hop is None or not fresh or len(bodies) > 1:
        return [Release(bodies)] if bodies else []
    if not bodies:
        return hops.restorer.settled(hop) + hops.restorer.resend()
    if not expected:
        return hops.restorer.returned(hop, bodies[0]) + hops.restorer.resend()
    hop.gradient_in = bodies[0]
    hop.move(HopState.ACCUMULATING if hop.graph else HopState.NO_MEMORY)
    hops.admission.note(hop)
    hops.journal.weigh(hop)
    if hop.graph:
        return [RunBackward(hop.microbatch, bodies[0], hops.admission.deferred_max)]
    hops.admission.waiting[hop.microbatch] = hop
    return [*hops.admission.replays()]


def on_input_gradient_computed(hops: HopTable, event: InputGradientComputed) -> list[Action]:
    """Send the gradient of a hop's input upstream, while those of its parameters are yet to be computed."""
    hop = hops.find(event.microbatch)
    if hop is None:
        return _unused(event.gradient)
    hop.gradient = event.gradient
    hops.admission.note(hop)
    hops.journal.weigh(hop)
    return [] if hop.orphan else hops.restorer.give_back(hop)


def on_loss_computed(hops: HopTable, event: LossComputed) -> list[Action]:
    """Finish a hop of the last stage."""
    hop = hops.find(event.microbatch)
    if hop is None:
        return _unused(event.gradient)
    done = replace(_done(hops, hop), loss_sum=event.loss_sum, tokens=event.tokens)
    return _finish(hops, hop, event.gradient, done)


def on_backward_computed(hops: HopTable, event: BackwardComputed) -> list[Action]:
    """Report the accumulated gradient to the leader, and send the input's gradient upstream, unless it was sent."""
    hop = hops.find(event.microbatch)
    if hop is None:
        return _unused(event.gradient)
    return _finish(hops, hop, event.gradient, _done(hops, hop))


def on_replayed(hops: HopTable, event: Replayed) -> list[Action]:
    """Continue after a replay: of a hop without a graph, of an orphan, or for a gradient that a neighbour needs."""
    hop = hops.find(event.microbatch)
    if hop is None:
        return _unused(event.gradient)
    if event.weight == 0:
        return hops.restorer.replayed(hop, event)
    if event.weight > 0:
        return _finish(hops, hop, event.gradient, _done(hops, hop))
    hops.dropped[event.microbatch] = hop.upstream, hop.attempt
    return hops.drop(hop)


def failed(hops: HopTable, microbatch: Microbatch) -> tuple[ProcessId | None, list[Action]]:
    """Drop a hop whose bytes were invalid, and which is in no sum yet; return who sent them, for the leader."""
    hop = hops.find(microbatch)
    if hop is None:
        return None, []
    assert not hop.accumulated, "its gradient is in the sum"
    hops.delete(hop)
    sent = hops.dispatcher.flights.entries.get(microbatch)
    culprit = hop.upstream if sent is None else sent.holder
    denied = Send(hop.upstream, Denied(microbatch, hops.stage, hop.attempt, "invalid"))
    return culprit, [Discard(microbatch), *hops.restorer.drop(hop), denied, *hops.admission.replays()]


def _done(hops: HopTable, hop: Hop) -> Done:
    """Return the report of a hop as it came here first: who has taken it over since may have had no right to it."""
    flight = hops.dispatcher.flights.entries.get(hop.microbatch)
    successor = None if flight is None else flight.holder
    ballot = hops.ballot if hop.microbatch.epoch == hops.epoch else 0
    attempt, handovers = hop.handovers[0].attempt, hop.handovers
    return Done(hop.microbatch, hops.stage, attempt, handovers=handovers, successor=successor, ballot=ballot)


def _finish(hops: HopTable, hop: Hop, gradient: Ref | None, done: Done) -> list[Action]:
    """Report an accumulated hop; subtract it if the ballot counts another holder's."""
    orphan, given = hop.state is HopState.DISOWNED, hop.gradient is not None
    hop.gradient = hop.gradient if given else gradient
    hop.done = None if orphan else done
    hop.move(HopState.SUBTRACTING if orphan else HopState.DONE)
    hops.admission.note(hop)
    hops.journal.weigh(hop)
    if orphan:
        return hops.restorer.undo(hop)
    give = [] if given else hops.restorer.give_back(hop)
    return [*give, Send(hops.leader, done), *hops.journal.evict(), *hops.grant_credits()]


def _unused(gradient: Ref | None) -> list[Action]:
    return [Release((gradient,))] if gradient is not None else []
