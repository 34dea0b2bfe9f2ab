"""What a sender does when the peer that holds a microbatch is late or dies, or when the connection to it breaks.

The holder of a microbatch in flight is the peer of the next stage that it was sent to. It owes an answer, and later
the gradient; each has a deadline (`InFlight.late_s`). A holder that is late may be dead, slow or well, or the message
was lost: so it is asked with an Adopt. Whoever has the microbatch answers again, and says whether it has computed it;
whoever has not denies it, and then it is sent anew, as after a death.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from swarmflow.core.pipeline import offers
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Accepted, Cancel
from swarmflow.core.protocol.types import Microbatch, ProcessId

ASK_AFTER_S = 1.0  # from a broken connection until a peer is asked what has reached it; twice as long each time
WAITS_MAX = 3  # times: a peer that is late gets no more time for what it answers
# Times that a peer is asked for the gradient of what it says to have passed on, which may be a lie. The last deadline
# ends after 127 times the first one, half an hour at least. An honest holder has moved the microbatch by then from a
# successor that does nothing: that takes 8 deadlines (WAITS_MAX), or 64 as long as no peer has passed anything on. Only
# where it waits for a stage without peers for so long is its hop computed again in vain, when nothing else can be. Each
# deadline is twice the one before, at the next holder too: of several senders before a liar, the one that is next to it
# has the least patience in the end, and goes around it.
GRADIENT_WAITS_MAX = 6


def next_deadline(dispatcher: Dispatcher) -> float | None:
    """Return when a pause of a peer ends that a waiting microbatch needs, a probe is due, or a holder is late."""
    first = dispatcher.flights.first_late()
    pause_over_s = dispatcher.next_stage.availability.next_pause_over_s() if dispatcher.waiting else None
    times = (None if first is None else first.late_s, pause_over_s, dispatcher.prober.next_deadline())
    return min((time_s for time_s in times if time_s is not None), default=None)


def tick(dispatcher: Dispatcher, now: float) -> list[Action]:
    """End pauses that are over, send probes that are due, and handle late holders. Called after every event."""
    if now < dispatcher.due_s:  # a lower bound of all these times: most events end here
        return []
    flights, next_stage, prober = dispatcher.flights, dispatcher.next_stage, dispatcher.prober
    pauses_ended = next_stage.availability.end_pauses(now)
    actions = prober.tick(now)
    while (first := flights.first_late()) is not None and first.late_s <= now:
        actions += _handle_late(dispatcher, first, now)  # which sets a later deadline
    pauses_ended |= next_stage.availability.end_pauses(now)  # a late holder was asked for a slot, and is not any more
    actions += dispatcher.retry(now) if dispatcher.send_window.reopened() or pauses_ended else []
    times = (flights.next_deadline_s, next_stage.availability.next_pause_over_s(), prober.next_deadline())
    dispatcher.due_s = min((time_s for time_s in times if time_s is not None), default=math.inf)
    return actions


def _handle_late(dispatcher: Dispatcher, entry: InFlight, now: float) -> list[Action]:
    """Ask, or ask again, whoever is late; move a microbatch to another peer when its holder does not answer.

    A peer that has passed the microbatch on and owes the gradient is only asked for long: the stages after it may be at
    fault. Then its own hop is repaired; its successor, if it has one, keeps the next hop.
    """
    holder, stage = entry.holder, dispatcher.stage
    if entry.offers:  # of those that were asked, some do not answer
        return offers.take(dispatcher, entry, now)
    if holder is not None and entry.awaited:
        if entry.reserving:
            return _ask_elsewhere(dispatcher, entry, holder, now)
        due_s = entry.sent_at_s + dispatcher.deadline_s(entry, holder)
        if not entry.unheard and due_s > now:  # as is known by now: it has more to compute first, or all are slow
            dispatcher.expect(entry, due_s)
            return []
        if dispatcher.next_stage.availability.others(holder):
            if entry.unheard or entry.arrived_s is None:
                return _repair_elsewhere(dispatcher, entry, holder, "late", now)
            entry.unheard = True
            dispatcher.expect(entry, now + dispatcher.late_min_s)
            return [Send(holder, entry.adopt(stage))]
    entry.times_late += 1
    if (
        holder is not None
        and entry.times_late > GRADIENT_WAITS_MAX
        and dispatcher.next_stage.availability.others(holder)
    ):
        return _repair_elsewhere(dispatcher, entry, holder, "late", now)
    dispatcher.expect(entry, now + dispatcher.deadline_s(entry, holder))
    silent = sorted(entry.asked) if holder is None else [holder]
    return [Send(process, entry.adopt(stage)) for process in silent]


def _ask_elsewhere(dispatcher: Dispatcher, entry: InFlight, holder: ProcessId, now: float) -> list[Action]:
    """Ask others for a slot, where there are any: who does not answer at once will not answer later either."""
    if not dispatcher.next_stage.availability.others(holder):
        dispatcher.expect(entry, now + dispatcher.deadline_s(entry, holder))
        return [Send(holder, dispatcher.next_stage.question(entry, dispatcher.stage, holder))]
    asked = entry.candidates  # the bytes were not sent: it is no repair
    cancelled = [Send(process, Cancel(entry.microbatch, dispatcher.stage, entry.attempt)) for process in asked]
    dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
    entry.attempt = entry.attempt.next()  # one of them may be asked again: its late answer is none to that
    return [*cancelled, *dispatcher.route(entry, now, asked)]


def accepted(dispatcher: Dispatcher, sender: ProcessId, message: Accepted, now: float) -> list[Action]:
    """Record that a peer holds a microbatch; if it was late and asked, decide whether to wait on.

    Who has computed it waits for room in the stage after it, and nothing is gained by computing it again. As long as no
    peer has passed anything on, the others may be as slow.
    """
    entry = dispatcher.flights.held_by(sender, message.microbatch, message.attempt)
    was_late = entry is not None and entry.unheard and entry.awaited and not entry.reserving
    dispatcher.accepted(sender, message, now)
    if entry is None or not was_late or not dispatcher.next_stage.availability.others(sender):
        return []
    is_slow = message.queued > 0 and dispatcher.router.links.any_pass_s is not None
    if is_slow or entry.times_late >= WAITS_MAX:
        return _repair_elsewhere(dispatcher, entry, sender, "late", now)
    entry.times_late += 1
    dispatcher.expect(entry, entry.sent_at_s + dispatcher.deadline_s(entry, sender))
    return []


def _repair_elsewhere(
    dispatcher: Dispatcher, entry: InFlight, holder: ProcessId, reason: str, now: float
) -> list[Action]:
    """Send a microbatch to another peer although its holder may be alive, whose results are void from now on.

    So the attempt is that of the next repair: above all that the holder may have passed on.
    """
    cancelled = Send(holder, Cancel(entry.microbatch, dispatcher.stage, entry.attempt))
    entry.attempt, entry.repair = entry.attempt.next_repair(), True
    dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
    return [Count("retries", reason), cancelled, *dispatcher.route(entry, now, (holder,))]


def gone(dispatcher: Dispatcher, process: ProcessId, now: float, lost: Collection[Microbatch] = ()) -> list[Action]:
    """Re-send what a dead process held to others.

    lost: microbatches of this stage that no process holds any more, whoever the holder seemed to be: its hop may
    have been an orphan that was taken away.
    """
    served, actions = dispatcher.next_stage.gone(process), list[Action]()
    dispatcher.prober.gone(process)
    dispatcher.due_s = now
    for entry in list(dispatcher.flights.entries.values()):
        if process in entry.asked:
            actions += dispatcher.unanswered(entry, process, now)
        elif entry.alternatives and process in entry.candidates:
            actions += offers.without(dispatcher, entry, process, now)
        elif entry.holder == process or (entry.returned and entry.microbatch in lost):
            actions += _send_again(dispatcher, entry, now)
    dispatcher.next_stage.forget(process)
    # If only draining peers are left, they have to take what waits.
    return actions + (dispatcher.retry(now) if served else [])


def _send_again(dispatcher: Dispatcher, entry: InFlight, now: float) -> list[Action]:
    if entry.reserving:  # the bytes were never sent
        dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
        return dispatcher.route(entry, now)
    return [Count("retries", "gone"), *dispatcher.repair(entry, now)]


def on_connection_lost(dispatcher: Dispatcher, process: ProcessId, now: float) -> list[Action]:
    """Handle a broken connection to a peer that may be alive: what was on its way to or from it may be lost.

    Its microbatches go to other peers. Where it is the only one, it is asked after a while what has reached it.
    """
    if process not in dispatcher.next_stage.availability:
        return []
    dispatcher.next_stage.availability.on_connection_lost(process, now)  # which pauses it
    dispatcher.due_s = now  # some deadlines are earlier from here on
    actions: list[Action] = []
    for entry in list(dispatcher.flights.entries.values()):
        if process in entry.asked:
            dispatcher.expect(entry, now + ASK_AFTER_S)
        elif entry.alternatives and process in entry.candidates:
            actions += offers.without(dispatcher, entry, process, now)
        elif entry.holder != process or entry.returned:
            continue
        elif entry.reserving:
            dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
            entry.attempt = entry.attempt.next()
            actions += dispatcher.route(entry, now)
        elif dispatcher.next_stage.availability.others(process):
            actions += _repair_elsewhere(dispatcher, entry, process, "lost", now)
        else:
            entry.unheard = True
            dispatcher.expect(entry, now + ASK_AFTER_S * entry.patience)
    return actions


def send_again(dispatcher: Dispatcher, microbatch: Microbatch, to: ProcessId, now: float) -> list[Action]:
    """Send a microbatch once more whose relay has died, unless it has arrived at its holder or has another one."""
    entry = dispatcher.flights.entries.get(microbatch)
    if entry is None or entry.holder != to or entry.arrived_s is not None or entry.reserving or entry.returned:
        return []
    return dispatcher.send(entry, to, now)
