"""A version is certified: the peers of each stage agree on its state, and whoever has another one is put out."""

from __future__ import annotations

from swarmflow.core.machines.leading import departures, joining, roots, saving
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Ready, StateRoot, VersionCertified

ROOTS_KEPT = 2  # of each peer: it may report that of the next version before all have reported that of the last one


def on_state_root(leader: LeaderState, known: MemberRecord, message: StateRoot, now: float) -> list[Action]:
    """Record the root of a peer's state."""
    upcoming = leader.step is not None and leader.step.decision is not None
    here = message.stage == known.member.stage and message.version in (leader.version, leader.version + upcoming)
    if not here:
        return []
    record(known, message.version, message.root)
    return certify(leader, now)


def on_ready(leader: LeaderState, known: MemberRecord, message: Ready, now: float) -> list[Action]:
    """Record what a peer has loaded, which may be what the certificate of the version has waited for."""
    return [*joining.on_ready(leader, known, message, now), *certify(leader, now)]


def record(known: MemberRecord, version: int, root: str) -> None:
    """Record what a peer says of its state."""
    known.roots[version] = root
    for old in sorted(known.roots)[:-ROOTS_KEPT]:
        del known.roots[old]


def certify(leader: LeaderState, now: float) -> list[Action]:
    """Certify the run's version once the roots of all stages are agreed, and go on with what has waited for that."""
    actions = [*_put_out(leader, now), *_answer(leader, now)]
    if leader.certified is not None and leader.certified.version == leader.version:
        return actions
    snapshot = roots.agreed_snapshot(leader)
    if snapshot is None:
        return actions
    leader.certified, message = snapshot, VersionCertified(snapshot)
    actions += [Send(entry.process, message) for entry in leader.membership.peers()]
    return [*actions, *saving.go_on(leader, now)]


def _put_out(leader: LeaderState, now: float) -> list[Action]:
    actions: list[Action] = []
    for entry in roots.differing(leader):
        reason = f"its state of stage {entry.member.stage} at version {leader.version} is not its stage's"
        actions += [Count("resynchronisations"), *departures.gone(leader, entry.process, reason, now)]
    return actions


def _answer(leader: LeaderState, now: float) -> list[Action]:
    """Answer the peers that have loaded a state of which nothing was known yet."""
    actions: list[Action] = []
    for entry in leader.membership.loading():
        claim = entry.claim
        if claim is not None and roots.agreed(leader, entry.member.stage, claim.version):
            entry.claim = None
            actions += joining.on_ready(leader, entry, claim, now)
    return actions
