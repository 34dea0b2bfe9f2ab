"""What a sender does when the connection to a peer of the next stage breaks, although that peer may live."""

from __future__ import annotations

from swarmflow.core.actions import Action
from swarmflow.core.dispatcher import Dispatcher
from swarmflow.core.types import ProcessId

AGAIN_S = 1.0  # after which the other end is asked what has reached it, if there is nobody else


def lost(dispatcher: Dispatcher, process: ProcessId, now: float) -> list[Action]:
    """What was on its way is lost: others get what is there, or else the peer is asked soon, and each time later."""
    if process not in dispatcher.next_stage:
        return []
    dispatcher.next_stage.lost(process, now)
    dispatcher.due_s = now
    actions: list[Action] = []
    for entry in list(dispatcher.entries.values()):
        if process in entry.asked:
            dispatcher.expect(entry, now + AGAIN_S)
        elif entry.holder != process or entry.returned:
            continue
        elif entry.reserving:
            dispatcher.hand(entry, None)
            actions += dispatcher.route(entry, now)
        elif dispatcher.next_stage.others(process):
            actions += dispatcher.move(entry, process, "lost", now)
        else:
            dispatcher.expect(entry, now + AGAIN_S * 2.0**entry.patience)
    return actions
