"""Roots of states: reported by the members of a stage after a commit, and sent to the peers that load the stage."""

from __future__ import annotations

from collections import Counter

from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Log, Send
from swarmflow.core.protocol.messages import StateRoot


def loaded_stages(leader: LeaderState) -> tuple[int, ...]:
    """Return the stages that peers load, or have loaded too late for the step at hand: they lack its update."""
    stages = {entry.member.stage for entry in leader.membership.loading()}
    if leader.step is not None:
        ready = (entry for entry in leader.membership.peers() if entry.phase is MemberPhase.READY)
        stages |= {entry.member.stage for entry in ready if entry.process not in leader.step.roster.id_set}
    return tuple(sorted(stages))


def on_state_root(leader: LeaderState, known: MemberRecord, message: StateRoot, now: float) -> list[Action]:
    """Record a root; as soon as most members of the stage agree, send it to those that load the stage."""
    stage = known.member.stage
    upcoming = leader.step is not None and leader.step.decision is not None
    if message.stage != stage or message.version not in (leader.version, leader.version + upcoming):
        return []
    before, known.root = known.root, (message.version, message.root)
    peers = leader.membership.peers(stage)
    members = [entry for entry in peers if entry.phase is MemberPhase.READY]
    agreed = Counter(entry.root for entry in members)[known.root]
    if known.root == before or known not in members or agreed != len(members) // 2 + 1:
        return []  # known before, or not a majority, or one that was sent when it became one
    loading = [entry.process for entry in peers if entry.phase is MemberPhase.LOADING]
    differing = [entry for entry in members if entry.root != known.root and entry.root[0] == message.version]
    logs = [
        Log("warning", f"{entry.process} has another state of stage {stage} at version {message.version} than most")
        for entry in differing
    ]
    return [*logs, *(Send(process, message) for process in loading)]
