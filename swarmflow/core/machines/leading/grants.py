"""Granting a stage to a peer: which version it loads, and from whom."""

from __future__ import annotations

from swarmflow.core.durability.memories import holds
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import DONORS_MAX, MemberRecord
from swarmflow.core.protocol.actions import Action, Connect, Log, Send
from swarmflow.core.protocol.messages import Granted
from swarmflow.core.protocol.timeline import EventKind

_LOADED = (MemberPhase.LOADING, MemberPhase.READY, MemberPhase.FAILED)


def grant(
    leader: LeaderState, entry: MemberRecord, stage: int, reason: str, turn: int = 0, follows: bool = False
) -> list[Action]:
    """Have a peer load a stage at the run's version. Whatever it answers to an earlier grant is void.

    turn: by so many it is to begin with another donor than it would. follows: what it has loaded of the stage is of
    this history, although another leader granted it.
    """
    follows = follows or (entry.grants >= 0 and entry.member.stage == stage and entry.phase in _LOADED)
    donors = leader.membership.donors(stage, leader.version, entry.process, turn)
    if leader.name:
        donors = donors or leader.recovery.memories.donors(stage, leader.name, entry.process)[:DONORS_MAX]
    held = leader.recovery.memories.of(entry.process)
    resumes = held is not None and held.stage == stage and holds(held, leader.version, leader.name)
    if not resumes:
        leader.recovery.memories.leave(entry.process)  # it lets go of it
    entry.hopeful = bool(donors) or resumes or leader.version == leader.safe.durable
    if not donors and not (leader.version == 0 and leader.settings.from_seed):
        donors = (leader.me,)
    moves = entry.phase is MemberPhase.READY and entry.member.stage != stage
    leader.membership.move(entry, stage)
    if leader.plans is not None:
        leader.plans.granted(entry.process, stage)
    leader.membership.mark(entry, MemberPhase.LOADING)
    entry.version, entry.grants = leader.version, entry.grants + 1
    entry.roots, entry.claim = {}, None
    entry.donors = frozenset(donor.process for donor in donors)
    known = leader.certified if leader.certified is not None and leader.certified.version == leader.version else None
    made = leader.name, leader.commit
    granted = Granted(leader.term, stage, leader.version, donors, entry.grants, *made, follows, known)
    return [
        Connect((entry.member,)),
        Send(entry.process, granted),
        Log(
            "info",
            f"peer {entry.process} {'holds' if resumes else 'loads'} stage {stage}: {reason}",
            EventKind.MOVED if moves else EventKind.LOADING,
            entry.process,
            stage,
        ),
    ]


def keep_donors(leader: LeaderState, entry: MemberRecord) -> list[Action]:
    """Tell a peer that loads who can give its stage now, if these are not the same as before.

    What it loads follows the commits of its donors by itself.
    """
    entry.version = leader.version
    found = leader.membership.donors(entry.member.stage, leader.version, entry.process)
    donors = frozenset(donor.process for donor in found)
    alive = {process for process in entry.donors if process in leader.membership.known}
    enough = entry.donors == alive and len(alive) >= DONORS_MAX
    if enough or not donors or donors == entry.donors:
        return []
    return grant(leader, entry, entry.member.stage, "others can give it now")
