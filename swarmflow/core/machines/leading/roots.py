"""The roots of states: when the members of a stage report theirs, and on which one they agree.

A root costs a hash of the whole state. So it is reported of each ROOTS_EVERYth version, and of those that somebody is
about to compare with something: what is written, loaded, or gone on from.
"""

from __future__ import annotations

from collections import Counter

from swarmflow.core.machines.leading.leader_state import ROOTS_EVERY, LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Ready, ReportRoot
from swarmflow.core.protocol.types import Snapshot


def loaded_stages(leader: LeaderState) -> tuple[int, ...]:
    """Return the stages that peers load, or have loaded too late for the step at hand: they lack its update."""
    stages = {entry.member.stage for entry in leader.membership.loading()}
    if leader.step is not None:
        ready = (entry for entry in leader.membership.peers() if entry.phase is MemberPhase.READY)
        stages |= {entry.member.stage for entry in ready if entry.process not in leader.step.roster.id_set}
    return tuple(sorted(stages))


def is_certified(leader: LeaderState) -> bool:
    """Return whether the stages have agreed on their roots of the run's version."""
    return leader.certified is not None and leader.certified.version == leader.version


def due(leader: LeaderState, version: int) -> bool:
    """Return whether the roots of a version, the run's or the next one, are needed.

    Its turn has come, or nobody has asked for any since this trainer leads, a step failed or the run went back; or it
    is the last one, to be written, or what peers that load are compared with.
    """
    if version - leader.rooted >= ROOTS_EVERY or version >= leader.settings.steps or leader.safe.due(version):
        return True
    return leader.stopping or bool(leader.safe.asked) or bool(loaded_stages(leader))


def begin(leader: LeaderState, version: int) -> bool:
    """Return whether peers hash the version that the commit at hand makes."""
    if not due(leader, version):
        return False
    leader.rooted = version
    return True


def ask(leader: LeaderState) -> list[Action]:
    """Have the peers report the roots of the run's version, once."""
    if is_certified(leader) or leader.rooted == leader.version:
        return []
    leader.rooted = leader.version
    ready = (entry for entry in leader.membership.peers() if entry.phase is MemberPhase.READY)
    return [Send(entry.process, ReportRoot(leader.version)) for entry in ready if leader.version not in entry.roots]


def awaited(leader: LeaderState) -> bool:
    """Return whether roots of the run's version are missing. With the next update they are not to be had any more."""
    decided = leader.step is not None and leader.step.decision is not None
    return leader.rooted == leader.version and not is_certified(leader) and not decided


def holders(leader: LeaderState, stage: int, version: int) -> list[MemberRecord]:
    """Return the peers of a stage at a version, also where their last update is not closed yet."""
    ready = (entry for entry in leader.membership.peers(stage) if entry.phase is MemberPhase.READY)
    return [entry for entry in ready if entry.version == version or entry.version == leader.version < version]


def agreed(leader: LeaderState, stage: int, version: int) -> str:
    """Return the root of a stage at a version on which it has agreed; empty: there is none, or none yet."""
    if leader.certified is not None and leader.certified.version == version:
        return leader.certified.roots[stage]
    return leader.votes.agreed.get((stage, version), "")


def count(leader: LeaderState, stage: int, version: int) -> list[MemberRecord]:
    """Count what the peers of a stage have reported; return those whose state is not its own.

    More than half of them agree on the root. Where all have reported and none has so many, nobody can be trusted.
    """
    found = holders(leader, stage, version)
    reported = {entry.process: entry.roots[version] for entry in found if version in entry.roots}
    root, votes = max(Counter(reported.values()).items(), key=lambda item: item[1], default=("", 0))
    if 2 * votes > len(found):
        leader.votes.agreed[stage, version] = root
    elif len(reported) < len(found):
        return []
    usual = agreed(leader, stage, version)
    return [entry for entry in found if reported.get(entry.process, usual) != usual]


def agreed_snapshot(leader: LeaderState) -> Snapshot | None:
    """Return the run's version with the roots on which its stages agree; None: one does not, or not yet."""
    roots = tuple(agreed(leader, stage, leader.version) for stage in range(leader.plan.stages))
    return Snapshot(leader.version, roots) if all(roots) else None


def overruled(leader: LeaderState, known: MemberRecord, claim: Ready) -> list[MemberRecord]:
    """Return the peers whose state of a stage is outvoted by those that have made it themselves; forget their root.

    The run's first version is made by each peer from the seed. Who is ready first has nobody to agree with, and what it
    reports is the stage's root. Later ones have made their state themselves too, so they count as much.
    """
    stage, root = known.member.stage, claim.root
    made = claim.version == leader.version == 0 and leader.settings.from_seed and not known.donors
    if not made or agreed(leader, stage, 0) in ("", root):
        return []
    known.made = root
    wrong = holders(leader, stage, 0)
    if sum(entry.made == root for entry in leader.membership.loading() if entry.member.stage == stage) <= len(wrong):
        return []
    leader.votes.agreed.pop((stage, 0), None)
    leader.certified = None
    return wrong
