"""What follows from the answers of peers that were asked for a slot, or sent a microbatch without asking.

Where a sender asks, it asks two peers or four, and the one that would return the gradient first gets the microbatch.

What a sender has measured of a peer says little of what others have sent there since: in a stage of many peers each
sender meets a peer once a step. Of two that are asked at random the better one is nearly as good as the best of all
(Mitzenmacher, 2001), for a question, an answer and a `Cancel` more. Who takes more than twice as long to answer is not
waited for, unless that is little beside what a tensor takes: else the peers of the own region would get all.
"""

from __future__ import annotations

import math

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.pipeline.patience import PATIENCE_S, too_late_s
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Cancel, Denied, SlotReserved
from swarmflow.core.protocol.types import ProcessId

WAIT = 0.05  # of what a tensor takes: so long other answers are awaited, after the first one


def reserved(dispatcher: Dispatcher, sender: ProcessId, message: SlotReserved, now: float) -> list[Action]:
    """Send the bytes to who reserves the best slot, or cancel it: the microbatch may have gone elsewhere meanwhile.

    It may also wait for this very peer with a later attempt: a peer that is asked twice, because its answer was
    late, can deny the first question and reserve a slot for the second.
    """
    dispatcher.router.record_downstream(sender, message.downstream_s)
    entry = dispatcher.flights.find(message.microbatch, message.attempt)
    if entry is not None and sender == entry.holder and not entry.reserving:
        return []
    if entry is None or sender not in entry.candidates:
        return [Send(sender, Cancel(message.microbatch, message.stage, message.attempt))]
    next_stage = dispatcher.next_stage
    next_stage.availability.record_free(sender, message.free, now)
    next_stage.record_queued(message.queued)
    dispatcher.due_s = min(dispatcher.due_s, now + next_stage.availability.pause_s)
    tensor_s = dispatcher.router.links.transfer_s(sender) or 0.0
    dispatcher.router.links.record_work(sender, message.work_s, message.each_s, now)
    entry.offers[sender] = message.work_s + _paths_s(entry, tensor_s, message)
    if len(entry.offers) < len(entry.candidates):
        if len(entry.offers) == 1:
            dispatcher.expect(entry, now + max(now - entry.sent_at_s, WAIT * tensor_s))
        return []
    return take(dispatcher, entry, now)


def _paths_s(entry: InFlight, tensor_s: float, message: SlotReserved) -> float:
    """Return what a microbatch takes to a peer, beyond it and back, without what it waits and computes there.

    In a repair the gradient comes to whoever computes the hop while its input does, and nothing beyond it is done
    again. Back goes what has not been there yet.
    """
    if not message.gradient_s:
        return 2.0 * tensor_s + message.downstream_s
    return max(tensor_s, message.gradient_s) + (0.0 if entry.settled else tensor_s)


def take(dispatcher: Dispatcher, entry: InFlight, now: float) -> list[Action]:
    """Send a microbatch to the best one of those that have reserved a slot for it, and cancel the others."""
    assert entry.holder is not None, "who is asked is the holder"
    best = min(entry.offers, key=lambda process: (entry.offers[process], process != entry.holder))
    if best != entry.holder:
        dispatcher.next_stage.swap(entry, best)
    others = [process for process in entry.offers if process != best]
    cancelled = cancel_alternatives(dispatcher, entry)
    late_s = too_late_s(dispatcher, best)
    if late_s > 0.0 and (entry.patient_s is None or now < entry.patient_s):
        for process in others:  # else they are asked next
            _leave_alone(dispatcher, process, too_late_s(dispatcher, process), now)
        return [*cancelled, *_postpone(dispatcher, entry, best, late_s, now), *dispatcher.route(entry, now)]
    dispatcher.next_stage.answered(entry)
    return [*cancelled, *dispatcher.send(entry, best, now), *dispatcher.retry(now)]


def _postpone(dispatcher: Dispatcher, entry: InFlight, process: ProcessId, late_s: float, now: float) -> list[Action]:
    """Take a question back from a peer that would take longer than others which are full now."""
    links, cancelled = dispatcher.router.links, Send(process, Cancel(entry.microbatch, dispatcher.stage, entry.attempt))
    # Who says for ever that it will soon have a slot, or takes for ever, must not hold a microbatch up for ever.
    entry.patient_s = entry.patient_s or now + min(PATIENCE_S, links.work_s(process))
    _leave_alone(dispatcher, process, late_s, now)
    dispatcher.next_stage.withdraw(entry, FlightState.WAITING, arrived=True)
    entry.attempt = entry.attempt.next()
    return [Count("retries", "later"), cancelled]


def _leave_alone(dispatcher: Dispatcher, process: ProcessId, late_s: float, now: float) -> None:
    """Ask a peer for nothing for as long as it would be later than others, if it would be."""
    if late_s > 0.0:
        each_s = dispatcher.router.links.peer_work(process).each_s
        until_s = dispatcher.next_stage.availability.postpone(process, max(late_s, each_s), now)
        dispatcher.due_s = min(dispatcher.due_s, until_s)


def denied(dispatcher: Dispatcher, sender: ProcessId, message: Denied, now: float) -> list[Action]:
    """Ask or try the next peer after a denial; leave a full one alone until it has a free slot."""
    entry, reason = dispatcher.flights.find(message.microbatch, message.attempt), message.reason
    if entry is None:
        return []
    if sender in entry.asked:
        return dispatcher.unanswered(entry, sender, now)
    if sender != entry.holder and sender not in entry.alternatives:
        return []
    if entry.returned and reason != "orphan":
        return []  # nothing but a ballot takes what is done out of a sum; what else is denied, a newer attempt has
    dispatcher.next_stage.availability.denied(sender, reason, now)
    if reason == "full":
        dispatcher.router.links.record_work(sender, message.work_s, message.each_s, now)
    # The end of a question allows another one: what waits may go to this peer yet, if all of them are draining.
    dispatcher.due_s = (
        -math.inf if entry.reserving else min(dispatcher.due_s, now + dispatcher.next_stage.availability.pause_s)
    )
    if entry.returned:
        return [Count("retries", reason), *dispatcher.repair(entry, now)]
    if entry.alternatives:
        return without(dispatcher, entry, sender, now)
    # A peer that lost it (its gradient was invalid, or it was cancelled) may have passed it on before.
    entry.repair |= reason in ("unknown", "invalid", "orphan")
    # What was passed on may have been repaired downstream: an attempt of the next repair is above all of those.
    fresh = reason in ("full", "draining", "stage")
    entry.attempt = entry.attempt.next() if fresh else entry.attempt.next_repair()
    retried: list[Action] = [Count("retries", "asked" if entry.reserving and fresh else reason)]
    dispatcher.next_stage.withdraw(entry, FlightState.WAITING, arrived=True)
    return retried + dispatcher.route(entry, now)


def without(dispatcher: Dispatcher, entry: InFlight, process: ProcessId, now: float) -> list[Action]:
    """Go on with the others that were asked: this one denies it, is gone, or cannot be reached."""
    if process == entry.holder:
        dispatcher.next_stage.swap(entry, next(iter(entry.alternatives)))
    dispatcher.next_stage.end_alternative(entry, process)
    if not entry.offers:  # the deadline was that of the others after its answer, which counts no more
        dispatcher.expect(entry, now + dispatcher.deadline_s(entry, entry.holder))
    return take(dispatcher, entry, now) if len(entry.offers) == len(entry.candidates) else []


def cancel_alternatives(dispatcher: Dispatcher, entry: InFlight) -> list[Action]:
    """Take the question back from all that were asked but the holder."""
    others = list(entry.alternatives)
    for process in others:
        dispatcher.next_stage.end_alternative(entry, process)
    return [Send(process, Cancel(entry.microbatch, dispatcher.stage, entry.attempt)) for process in others]
