"""What a sender does when the connection to a peer of the next stage breaks, although that peer may live."""

from __future__ import annotations

from swarmflow.core.actions import Action
from swarmflow.core.outbox import Dispatcher
from swarmflow.core.types import ProcessId

AGAIN_S = 1.0  # after which the other end is asked what has reached it, if there is nobody else


def lost(outbox: Dispatcher, process: ProcessId, now: float) -> list[Action]:
    """What was on its way is lost: others get what is there, or else the peer is asked soon, and each time later."""
    if process not in outbox.takers:
        return []
    outbox.takers.lost(process, now)
    outbox.due_s = now
    actions: list[Action] = []
    for entry in list(outbox.entries.values()):
        if process in entry.asked:
            outbox.expect(entry, now + AGAIN_S)
        elif entry.holder != process or entry.returned:
            continue
        elif entry.reserving:
            outbox.hand(entry, None)
            actions += outbox.route(entry, now)
        elif outbox.takers.others(process):
            actions += outbox.move(entry, process, "lost", now)
        else:
            outbox.expect(entry, now + AGAIN_S * 2.0**entry.patience)
    return actions
