"""A version is certified: the peers of each stage agree on its state, and whoever has another one is put out.

Ten thousand peers report at each step. So a stage is counted when its reports may suffice, once as a rule.
"""

from __future__ import annotations

from collections.abc import Iterable

from swarmflow.core.durability.doubts import certify
from swarmflow.core.machines.leading import departures, joining, roots, saving
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Ready, StateRoot, VersionCertified

ROOTS_KEPT = 2  # of each peer: it may report that of the next version before all have reported that of the last one


def on_state_root(leader: LeaderState, known: MemberRecord, message: StateRoot, now: float) -> list[Action]:
    """Record the root of a peer's state."""
    upcoming = leader.step is not None and leader.step.decision is not None
    here = message.stage == known.member.stage and message.version in (leader.version, leader.version + upcoming)
    return vote(leader, known, message.version, message.root, now) if here else []


def on_ready(leader: LeaderState, known: MemberRecord, message: Ready, now: float) -> list[Action]:
    """Record what a peer has loaded, which may be what the certificate of the version has waited for."""
    actions = _put_out(leader, roots.overruled(leader, known, message), now)
    actions += joining.on_ready(leader, known, message, now)
    if known.phase is not MemberPhase.READY or known.roots:
        return actions  # it was not let in, or had been before
    return [*actions, *vote(leader, known, message.version, message.root, now)]


def vote(leader: LeaderState, known: MemberRecord, version: int, root: str, now: float) -> list[Action]:
    """Record what a peer says of its state, and see whether that decides something."""
    stage = known.member.stage
    record(leader, known, version, root)
    right = roots.agreed(leader, stage, version)
    if right:
        wrong = root != right and known.version == leader.version == version
        return _put_out(leader, [known], now) if wrong else []
    enough = leader.votes.suffice(stage, version, root, leader.membership.ready_peers(stage))
    return _count(leader, [stage], version, now) if enough else []


def record(leader: LeaderState, known: MemberRecord, version: int, root: str) -> None:
    """Record what a peer says of its state."""
    leader.votes.add(known.member.stage, version, root, known.roots.get(version))
    known.roots[version] = root
    for old in sorted(known.roots)[:-ROOTS_KEPT]:
        del known.roots[old]


def see(leader: LeaderState, now: float) -> list[Action]:
    """Ask for the roots that are needed, and count the stages that have not agreed yet: who owes one may be gone."""
    if roots.is_certified(leader):
        return []
    asked = roots.ask(leader) if roots.due(leader, leader.version) else []
    return asked + _count(leader, range(leader.plan.stages), leader.version, now)


def _count(leader: LeaderState, stages: Iterable[int], version: int, now: float) -> list[Action]:
    """Count the reports of stages, and certify the run's version once all stages have agreed on its roots."""
    actions: list[Action] = []
    for stage in stages:
        counted = roots.count(leader, stage, version)
        wrong = counted if version == leader.version else []
        if roots.agreed(leader, stage, version):
            actions += _put_out(leader, wrong, now)
        elif len(wrong) == 2:
            actions += _put_out_two(leader, wrong[0], wrong[1], now)
        else:
            actions += [action for entry in wrong for action in _part(leader, entry, now)]
        actions += _answer(leader, stage, now) if roots.agreed(leader, stage, version) else []
    if roots.is_certified(leader):
        return actions
    snapshot = roots.agreed_snapshot(leader)
    if snapshot is None:
        return actions
    leader.certified, message = snapshot, VersionCertified(snapshot)
    leader.rooted = max(leader.rooted, snapshot.version)
    certify(leader.safe, snapshot)
    actions += [Send(entry.process, message) for entry in leader.membership.peers()]
    return [*actions, *saving.go_on(leader, now)]


def _put_out(leader: LeaderState, wrong: list[MemberRecord], now: float) -> list[Action]:
    """Put out those whose states are not what most of their stage have."""
    for entry in wrong:
        leader.faults.wrong_s[entry.process.name] = now
    return [action for entry in wrong for action in _part(leader, entry, now)]


def _put_out_two(leader: LeaderState, one: MemberRecord, other: MemberRecord, now: float) -> list[Action]:
    """Put out the only two peers of a stage, whose states differ: nobody knows which of them is right.

    One of them is kept out for a while if anything tells them apart: so the stage gets on.
    """
    loser = _worse(leader, one, other, now)
    leader.faults.disputes.settle(one.member, other.member, (loser or one).process.name, now)
    if loser is None:
        return [*_part(leader, one, now), *_part(leader, other, now)]
    reason = f"its state of stage {loser.member.stage} is not that of others, time and again"
    kept = departures.keep_out(leader, loser.process, reason, now)
    return [*kept, *_part(leader, other if loser is one else one, now)]


def _worse(leader: LeaderState, one: MemberRecord, other: MemberRecord, now: float) -> MemberRecord | None:
    """Return which of two is in disputes with more than can lie, alone was wrong lately, or is next in turn."""
    faults = leader.faults
    judgement = faults.disputes.judge(one.member, other.member, leader.lies_max, now)
    wrong = [entry for entry in (one, other) if faults.was_wrong(entry.process.name, now)]
    if len(wrong) == 1 and not (judgement is not None and judgement.guilty):
        return wrong[0]
    if judgement is None:
        return None
    return one if judgement.loser == one.process.name else other


def _part(leader: LeaderState, entry: MemberRecord, now: float) -> list[Action]:
    reason = f"its state of stage {entry.member.stage} at version {leader.version} is not its stage's"
    return [Count("resynchronisations"), *departures.gone(leader, entry.process, reason, now)]


def _answer(leader: LeaderState, stage: int, now: float) -> list[Action]:
    """Answer the peers that have loaded the state of a stage on which it had not agreed yet."""
    actions: list[Action] = []
    for entry in leader.membership.loading():
        claim = entry.claim
        if entry.member.stage == stage and claim is not None and roots.agreed(leader, stage, claim.version):
            entry.claim = None
            actions += on_ready(leader, entry, claim, now)
    return actions
