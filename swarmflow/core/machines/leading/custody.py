"""Who reports a hop that was not handed to it, or has handed one over that it did not have, does not stay."""

from __future__ import annotations

from swarmflow.core.commit import provenance
from swarmflow.core.machines.leading import plausibility
from swarmflow.core.machines.leading.departures import gone, keep_out, stage_is_lost_with
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.protocol.actions import Action, Count
from swarmflow.core.protocol.handovers import microbatch_of
from swarmflow.core.protocol.messages import Done, Message, NotFinite, Overflow
from swarmflow.core.protocol.types import ProcessId


def wrongly_handed(leader: LeaderState, sender: ProcessId, message: Message) -> tuple[ProcessId, str] | None:
    """Return who is to blame for a report of a hop in a present step, and for what (commit/provenance.py)."""
    if not isinstance(message, Done | Overflow | NotFinite) or not message.handovers:
        return None
    epoch = microbatch_of(message).epoch
    step = next((each for each in (leader.step, leader.ahead) if each is not None and each.epoch == epoch), None)
    return None if step is None else provenance.wrongly_handed(step, sender, message)


def refuse(
    leader: LeaderState, sender: ProcessId, message: Message, blamed: tuple[ProcessId, str], now: float
) -> list[Action]:
    """Put out who is to blame for a report that does not count.

    A giver is convicted by its own signature, and the holder has computed with what it sent: the step starts over.
    """
    process, what = blamed
    if process == sender:
        return plausibility.refuse(leader, sender, message, what, now)
    reason = f"{process} {what}"
    voided = [action for step in (leader.step,) if step is not None for action in step.void(reason)]
    return [Count("messages_refused", type(message).__name__), *voided, *convict(leader, process, what, now)]


def convict(leader: LeaderState, process: ProcessId, what: str, now: float) -> list[Action]:
    """Put out who has handed over what it did not have, by its own signature; keep it out where others can stand in."""
    out = gone if stage_is_lost_with(leader, process) else keep_out
    return out(leader, process, what, now)
