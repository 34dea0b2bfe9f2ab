"""What a sender does when the peer that holds a microbatch is late, or when the connection to it breaks.

The holder of a microbatch in flight is the peer of the next stage that it was sent to. It owes an answer, and later
the gradient; each has a deadline (`InFlight.late_s`). A holder that is late may be dead, slow or well, or the message
was lost: so it is asked with an Adopt. Whoever has the microbatch answers again; whoever has not denies it, and then it
is sent anew, as after a death.
"""

from __future__ import annotations

import math

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Cancel
from swarmflow.core.protocol.types import Microbatch, ProcessId

ASK_AFTER_S = 1.0  # from a broken connection until a peer is asked what has reached it; twice as long each time


def next_deadline(dispatcher: Dispatcher) -> float | None:
    """Return when a pause of a peer ends that a waiting microbatch needs, a probe is due, or a holder is late."""
    first = dispatcher.flights.first_late()
    pause_over_s = dispatcher.next_stage.next_pause_over_s() if dispatcher.waiting else None
    times = (None if first is None else first.late_s, pause_over_s, dispatcher.prober.next_deadline())
    return min((time_s for time_s in times if time_s is not None), default=None)


def tick(dispatcher: Dispatcher, now: float) -> list[Action]:
    """End pauses that are over, send probes that are due, and handle late holders. Called after every event."""
    if now < dispatcher.due_s:  # a lower bound of all these times: most events end here
        return []
    flights, next_stage, prober = dispatcher.flights, dispatcher.next_stage, dispatcher.prober
    pauses_ended = next_stage.end_pauses(now)
    actions = prober.tick(now)
    while (first := flights.first_late()) is not None and first.late_s <= now:
        actions += _handle_late(dispatcher, first, now)  # which sets a later deadline
    pauses_ended |= next_stage.end_pauses(now)  # a late holder was asked for a slot, and is not any more
    actions += dispatcher.retry(now) if pauses_ended else []
    times = (flights.next_deadline_s, next_stage.next_pause_over_s(), prober.next_deadline())
    dispatcher.due_s = min((time_s for time_s in times if time_s is not None), default=math.inf)
    return actions


def _handle_late(dispatcher: Dispatcher, entry: InFlight, now: float) -> list[Action]:
    """Move a late holder's microbatch to another peer, where there is one and computing is what it is late with.

    Else ask again: whoever was asked for a microbatch and has not answered, the only peer of the stage, or a peer that
    has passed the microbatch on and owes the gradient, for which the stages after it may be at fault.
    """
    holder, stage = entry.holder, dispatcher.stage
    entry.times_late += not entry.reserving  # who does not answer at once will not answer later either
    dispatcher.expect(entry, now + dispatcher.deadline_s(entry, holder))
    if holder is None or not entry.awaited:
        silent = sorted(entry.asked) if holder is None else [holder]
        return [Send(process, entry.adopt(stage)) for process in silent]
    if not dispatcher.next_stage.others(holder):
        asked = dispatcher.next_stage.question(entry, stage) if entry.reserving else entry.adopt(stage)
        return [Send(holder, asked)]
    if entry.reserving:  # the bytes were not sent: it is no repair
        cancelled = Send(holder, Cancel(entry.microbatch, stage, entry.attempt))
        dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
        return [cancelled, *dispatcher.route(entry, now, but=holder)]
    return _repair_elsewhere(dispatcher, entry, holder, "late", now)


def _repair_elsewhere(
    dispatcher: Dispatcher, entry: InFlight, holder: ProcessId, reason: str, now: float
) -> list[Action]:
    """Send a microbatch to another peer although its holder may be alive, whose results are void from now on.

    So the attempt is that of the next repair: above all that the holder may have passed on.
    """
    cancelled = Send(holder, Cancel(entry.microbatch, dispatcher.stage, entry.attempt))
    entry.attempt, entry.repair = entry.attempt.next_repair(), True
    dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
    return [Count("retries", reason), cancelled, *dispatcher.route(entry, now, but=holder)]


def on_connection_lost(dispatcher: Dispatcher, process: ProcessId, now: float) -> list[Action]:
    """Handle a broken connection to a peer that may be alive: what was on its way to or from it may be lost.

    Its microbatches go to other peers. Where it is the only one, it is asked after a while what has reached it.
    """
    if process not in dispatcher.next_stage:
        return []
    dispatcher.next_stage.on_connection_lost(process, now)  # which pauses it
    dispatcher.due_s = now  # some deadlines are earlier from here on
    actions: list[Action] = []
    for entry in list(dispatcher.flights.entries.values()):
        if process in entry.asked:
            dispatcher.expect(entry, now + ASK_AFTER_S)
        elif entry.holder != process or entry.returned:
            continue
        elif entry.reserving:
            dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
            actions += dispatcher.route(entry, now)
        elif dispatcher.next_stage.others(process):
            actions += _repair_elsewhere(dispatcher, entry, process, "lost", now)
        else:
            dispatcher.expect(entry, now + ASK_AFTER_S * 2.0**entry.times_late)
    return actions


def send_again(dispatcher: Dispatcher, microbatch: Microbatch, to: ProcessId, now: float) -> list[Action]:
    """Send a microbatch once more whose relay has died, unless it has arrived at its holder or has another one."""
    entry = dispatcher.flights.entries.get(microbatch)
    if entry is None or entry.holder != to or entry.arrived_s is not None or entry.reserving or entry.returned:
        return []
    return dispatcher.send(entry, to, now)
