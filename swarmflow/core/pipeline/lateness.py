"""What a sender does about holders that are late, and about connections that broke although the peer may be alive."""

from __future__ import annotations

import math

from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.in_flight import FlightState, InFlight, next_repair
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Adopt, Cancel, ReserveSlot
from swarmflow.core.protocol.types import ProcessId

AGAIN_S = 1.0  # after a broken connection: when the only peer is asked what has reached it


def next_deadline(dispatcher: Dispatcher) -> float | None:
    """When a paused peer is tried again, a probe is due or a holder is late."""
    first = dispatcher.flights.first_late()
    rested_s = dispatcher.next_stage.next_rested_s() if dispatcher.waiting else None
    times = (None if first is None else first.late_s, rested_s, dispatcher.prober.next_deadline())
    return min((time_s for time_s in times if time_s is not None), default=None)


def tick(dispatcher: Dispatcher, now: float) -> list[Action]:
    """End pauses that have lasted long enough and handle late holders. Called after every event."""
    if now < dispatcher.due_s:
        return []
    flights, next_stage, prober = dispatcher.flights, dispatcher.next_stage, dispatcher.prober
    rested = next_stage.rested(now)
    actions = prober.tick(now)
    while (first := flights.first_late()) is not None and first.late_s <= now:
        actions += _late(dispatcher, first, now)
    actions += dispatcher.retry(now) if rested else []
    times = (flights.next_deadline_s, next_stage.next_rested_s(), prober.next_deadline())
    dispatcher.due_s = min((time_s for time_s in times if time_s is not None), default=math.inf)
    return actions


def _late(dispatcher: Dispatcher, entry: InFlight, now: float) -> list[Action]:
    """Move a late holder's microbatch to another peer; ask again where there is none or nothing to compute.

    A holder that has it repeats its answer, with the gradient if that is computed; one that has not never got it.
    """
    former, stage = entry.holder, dispatcher.stage
    entry.patience += 1
    dispatcher.expect(entry, now + dispatcher.deadline_s(entry, former))
    if former is None or not entry.awaited:
        silent = sorted(entry.asked) if former is None else [former]
        return [Send(process, Adopt(entry.microbatch, stage, entry.attempt, entry.settled)) for process in silent]
    if not dispatcher.next_stage.others(former):
        again = ReserveSlot if entry.reserving else Adopt
        return [Send(former, again(entry.microbatch, stage, entry.attempt, settled=entry.settled))]
    if entry.reserving:
        cancelled = Send(former, Cancel(entry.microbatch, stage, entry.attempt))
        dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
        return [cancelled, *dispatcher.route(entry, now, but=former)]
    return _move(dispatcher, entry, former, "late", now)


def _move(dispatcher: Dispatcher, entry: InFlight, former: ProcessId, reason: str, now: float) -> list[Action]:
    """Move a microbatch to another peer although its holder may be alive."""
    cancelled = Send(former, Cancel(entry.microbatch, dispatcher.stage, entry.attempt))
    entry.attempt, entry.repair = next_repair(entry.attempt), True
    dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
    return [Count("retries", reason), cancelled, *dispatcher.route(entry, now, but=former)]


def lost(dispatcher: Dispatcher, process: ProcessId, now: float) -> list[Action]:
    """Handle a broken connection: what was on its way is lost.

    Other peers get it; where there are none the same peer is asked soon what has reached it, and each time later.
    """
    if process not in dispatcher.next_stage:
        return []
    dispatcher.next_stage.lost(process, now)
    dispatcher.due_s = now
    actions: list[Action] = []
    for entry in list(dispatcher.flights.entries.values()):
        if process in entry.asked:
            dispatcher.expect(entry, now + AGAIN_S)
        elif entry.holder != process or entry.returned:
            continue
        elif entry.reserving:
            dispatcher.next_stage.withdraw(entry, FlightState.WAITING)
            actions += dispatcher.route(entry, now)
        elif dispatcher.next_stage.others(process):
            actions += _move(dispatcher, entry, process, "lost", now)
        else:
            dispatcher.expect(entry, now + AGAIN_S * 2.0**entry.patience)
    return actions


def again(dispatcher: Dispatcher, index: int, to: ProcessId, now: float) -> list[Action]:
    """Re-send a microbatch that was lost with the peer that relayed it."""
    entry = dispatcher.flights.entries.get(index)
    if entry is None or entry.holder != to or entry.arrived_s is not None or entry.reserving or entry.returned:
        return []
    return dispatcher.send(entry, to, now)
