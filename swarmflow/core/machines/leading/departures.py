"""Departures: members that drain, that are taken for dead, that are put out or have to join again."""

from __future__ import annotations

from functools import partial

from swarmflow.core.commit.step import Step
from swarmflow.core.machines.leading.going_ahead import lose_member
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.machines.leading.leaving import absence_s, forget, is_alone, let_go, tell_needed
from swarmflow.core.machines.leading.opening import try_open
from swarmflow.core.machines.leading.saving import spread
from swarmflow.core.membership.duties import Pauses
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Count, Forget, Log, Send
from swarmflow.core.protocol.messages import Drain, Evicted, Left, MemberFailed, Suspect
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId


def on_drain(leader: LeaderState, known: MemberRecord, message: Drain, now: float) -> list[Action]:
    """Let a process go: at once, or after the step that it takes part in."""
    known.draining = True
    leader.membership.changed(known)
    needed = tell_needed(leader, known) if is_alone(leader, known) else []
    needed += spread(leader, now)  # what it keeps, others are to keep
    if known.process in leader.serving and known.process != leader.me.process:
        text = f"{known.process} leaves after this step"
        return [Log("info", text, EventKind.LEAVING, known.process, known.member.stage), *needed]
    return needed + let_go(leader) + (try_open(leader, now) if leader.phase is LeaderPhase.GATHERING else [])


def on_left(leader: LeaderState, process: ProcessId, message: Left, now: float) -> list[Action]:
    """Record that an incarnation has ended: it follows no other leader, and may have left state in its folder."""
    if message.term == leader.term and any(process in electorate.processes for electorate in leader.electorates):
        leader.lineage.committed_followers.add(process)
    known, held = leader.membership.known.get(process), message.held
    if known is None or held is None or held.stage != known.member.stage or not leader.recovery.memories.possible(held):
        leader.recovery.absent.back(process.name)
    else:
        leader.recovery.absent.left(process.name, held, now + absence_s(leader))
        return gone(leader, process, "it left, with its state in its folder", now)
    return try_open(leader, now) if leader.phase is LeaderPhase.GATHERING else []


def on_suspect(leader: LeaderState, known: MemberRecord, message: Suspect, now: float) -> list[Action]:
    """Record that a member has lost its connection to another one, or received something unusable from it.

    The other one is told too, so that both go around each other: a link may be broken in one direction.
    """
    accused = message.process
    if accused not in leader.membership.known or accused == leader.me.process:
        return []
    refused = message.refused and known.member.votes
    leader.faults.suspicions.accuse(known.process, accused, message.reason, now, refused)
    actions: list[Action] = [Count("accusations")]
    if leader.step is not None and accused in leader.step.roster.id_set:
        actions.append(Send(accused, Suspect(known.process, f"it accuses this process: {message.reason}")))
    return actions


def weigh(leader: LeaderState, now: float) -> list[Action]:
    """Put out the members against which the accusations suffice by now."""
    actions: list[Action] = []
    suspicions, spared = leader.faults.suspicions, partial(stage_is_lost_with, leader)
    while (found := suspicions.verdict(leader.membership, lambda: leader.lies_max, now, spared)) is not None:
        put_out = keep_out if found.guilty else gone
        actions += put_out(leader, found.process, found.reason, now)
        suspicions.forget(found.process)  # also of one that cannot go, such as this trainer
    return actions


def keep_out(
    leader: LeaderState, process: ProcessId, reason: str, now: float, records: Pauses | None = None
) -> list[Action]:
    """Put out a process that gets on with too few others, for longer each time; records: where its pauses are kept."""
    seconds = (records or leader.faults.pauses).begin(process.name, reason, now)
    return [Count("put_out"), *gone(leader, process, f"{reason}: put out for {seconds:.0f} s", now)]


def stage_is_lost_with(leader: LeaderState, process: ProcessId) -> bool:
    """Return whether no other peer serves the stage of a process."""
    known = leader.membership.known.get(process)
    if known is None or known.role == "trainer":
        return False
    return all(entry.process == process for entry in leader.membership.ready(known.member.stage, leader.version))


def gone(leader: LeaderState, process: ProcessId, reason: str, now: float) -> list[Action]:
    """Take a process for dead: notify the members concerned, and have what it held repaired."""
    known = leader.membership.known.get(process)
    if known is None or process == leader.me.process:
        return []
    stage = known.member.stage
    forget(leader, process)
    leader.safe.disturbed()
    actions: list[Action] = [
        Log("warning", f"{process} is gone: {reason}", EventKind.DIED, process, stage),
        Send(process, Evicted(reason)),
        Forget(process),
        Count("gone"),
        *tell_loading(leader, process, reason),
    ]
    ready = () if stage < 0 else leader.membership.roster(leader.version).stages[stage]
    actions += lose_member(leader, process, reason, ready=ready)
    if leader.phase is LeaderPhase.GATHERING:
        actions += try_open(leader, now)
    elif leader.phase is LeaderPhase.VALIDATING and process in leader.measuring.roster.peer_ids:
        leader.move(LeaderPhase.UNMEASURED)
    return actions


def tell_loading(leader: LeaderState, process: ProcessId, reason: str) -> list[Action]:
    """Notify peers that load: they are in no epoch yet, but may be waiting for the dead one's state."""
    message = MemberFailed(leader.term, leader.epoch, process, reason)
    return [Send(entry.process, message) for entry in leader.membership.loading()]


def settle_findings(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """After a commit, put out each peer whose value was not finite where another peer's was finite.

    A member is put out too if the step failed with it and was committed without it.
    """
    actions: list[Action] = []
    for finding in leader.faults.findings.settle(leader.version):
        holder = finding.holder
        if holder is None or holder not in leader.membership.known:
            continue
        if holder in step.roster.id_set:  # nobody could stand in for it
            named = f"{finding}, on {holder}; it was finite the second time: check the memory of that machine"
            actions.append(Log("warning", named, EventKind.OTHER))
            continue
        actions += bar(leader, holder, f"{finding}; on others it was: check the memory of this machine", now)
    leader.membership.suspended.clear()
    leader.faults.voters.clear()
    for process, text in leader.faults.failures.settle():
        if process not in step.roster.id_set:
            actions += bar(leader, process, f"{text}; without it the step was done", now)
    return actions


def bar_differing(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Put out peers whose reduced gradient differs from most of their stage's, or who has summed it for them.

    Any of several owners may have sent a peer another sum than the others. So the step is tried again, with one owner.
    Where nothing shows whether that one or the peer is at fault, neither of them sums any more, and both stay.
    """
    failure = step.failure
    if failure is None or not failure.differing:
        return []
    owner = failure.summed_by
    leader.faults.odd_sums.differed(leader.version, owner is not None)
    by = leader.membership.known.get(owner) if owner is not None else None
    actions: list[Action] = []
    for process in failure.differing:
        known = leader.membership.known.get(process)
        if known is None or by is None or stage_is_lost_with(leader, process):
            continue
        if process == owner:
            actions += keep_out(leader, process, "what it has summed it gives to others otherwise", now)
            continue
        judgement = leader.faults.disputes.judge(by.member, known.member, leader.lies_max, now)
        leader.faults.odd_sums.apart(by.process.name, process.name, now)
        leader.faults.disputes.settle(by.member, known.member, judgement.loser if judgement is not None else "", now)
        what = f"the gradient that {owner} has summed, or the state, is another one on {process}"
        if judgement is None:
            text = f"{what} than on most of its stage: neither of them sums any more"
            actions.append(Log("warning", text, EventKind.OTHER, process))
            continue
        loser = by.process if judgement.loser == by.process.name else process
        put_out = keep_out if judgement.guilty else gone
        actions += put_out(leader, loser, f"{what} than on most of its stage", now)
    return actions


def bar(leader: LeaderState, process: ProcessId, reason: str, now: float) -> list[Action]:
    """Put a process out at once; it is granted nothing for a while when it joins again."""
    known = leader.membership.known.get(process)
    trainer = known is not None and known.role == "trainer"
    records = leader.faults.pauses if trainer else leader.faults.bars
    seconds = records.begin(process.name, reason, now)
    return [Count("put_out"), *gone(leader, process, f"{reason}; it may serve again in {seconds:.0f} s", now)]


def evict(leader: LeaderState, process: ProcessId, reason: str) -> list[Action]:
    """Have a process join again."""
    forget(leader, process)
    log = Log("warning", f"{process} has to join again: {reason}", EventKind.EXCLUDED, process)
    return [Send(process, Evicted(reason)), log]
