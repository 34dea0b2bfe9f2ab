"""Granting a stage to a peer: which version it loads, and from whom."""

from __future__ import annotations

from swarmflow.core.actions import Action, Connect, Log, Send
from swarmflow.core.leading.membership import DONORS_MAX, MemberRecord
from swarmflow.core.leading.memories import holds
from swarmflow.core.leading.reign import LeaderState
from swarmflow.core.messages import Granted


def grant(reign: LeaderState, entry: MemberRecord, stage: int, reason: str, turn: int = 0) -> list[Action]:
    """Have a peer load a stage at the run's version. Whatever it answers to an earlier grant is void.

    turn: by so many it is to begin with another donor than it would.
    """
    donors, commit = reign.membership.donors(stage, reign.version, entry.process, turn), None
    if reign.name:
        donors = donors or reign.memories.donors(stage, reign.name, entry.process)[:DONORS_MAX]
    held = reign.memories.of(entry.process)
    resumes = held is not None and held.stage == stage and holds(held, reign.version, reign.name)
    if resumes:
        commit = reign.commit
    else:
        reign.memories.leave(entry.process)  # it lets go of it
    entry.hopeful = bool(donors) or resumes or reign.version == reign.safe.durable
    if not donors and not (reign.version == 0 and reign.settings.from_seed):
        donors = (reign.me,)
    reign.membership.move(entry, stage)
    reign.membership.mark(entry, "loading")
    entry.version, entry.grants = reign.version, entry.grants + 1
    return [
        Connect((entry.member,)),
        Send(entry.process, Granted(reign.term, stage, reign.version, donors, entry.grants, reign.name, commit)),
        Log("info", f"peer {entry.process} {'holds' if resumes else 'loads'} stage {stage}: {reason}"),
    ]
