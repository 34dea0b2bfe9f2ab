"""The roots of states: what the members of a stage report of theirs, and on which one they agree."""

from __future__ import annotations

from collections import Counter

from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.types import Snapshot


def loaded_stages(leader: LeaderState) -> tuple[int, ...]:
    """Return the stages that peers load, or have loaded too late for the step at hand: they lack its update."""
    stages = {entry.member.stage for entry in leader.membership.loading()}
    if leader.step is not None:
        ready = (entry for entry in leader.membership.peers() if entry.phase is MemberPhase.READY)
        stages |= {entry.member.stage for entry in ready if entry.process not in leader.step.roster.id_set}
    return tuple(sorted(stages))


def holders(leader: LeaderState, stage: int, version: int) -> list[MemberRecord]:
    """Return the peers of a stage at a version, also where their last update is not closed yet."""
    ready = (entry for entry in leader.membership.peers(stage) if entry.phase is MemberPhase.READY)
    return [entry for entry in ready if entry.version == version or entry.version == leader.version < version]


def agreed(leader: LeaderState, stage: int, version: int) -> str:
    """Return the root of a stage at a version: the certified one, else that of more than half of its peers.

    Empty: there is none, or none yet.
    """
    if leader.certified is not None and leader.certified.version == version:
        return leader.certified.roots[stage]
    found = holders(leader, stage, version)
    votes = Counter(entry.roots[version] for entry in found if version in entry.roots)
    root, count = max(votes.items(), key=lambda item: item[1], default=("", 0))
    return root if 2 * count > len(found) else ""


def agreed_snapshot(leader: LeaderState) -> Snapshot | None:
    """Return the run's version with the roots on which its stages agree; None: one does not, or not yet."""
    roots = tuple(agreed(leader, stage, leader.version) for stage in range(leader.plan.stages))
    return Snapshot(leader.version, roots) if all(roots) else None


def differing(leader: LeaderState) -> list[MemberRecord]:
    """Return the peers at the run's version whose state is not that of their stage.

    Where all peers of a stage have reported and no root has more than half of them, none of them can be trusted.
    """
    found: list[MemberRecord] = []
    for stage in range(leader.plan.stages):
        usual, here = agreed(leader, stage, leader.version), holders(leader, stage, leader.version)
        known = [entry for entry in here if leader.version in entry.roots]
        if usual or len(known) == len(here):
            found += [entry for entry in known if entry.roots[leader.version] != usual]
    return found
