"""The edge between two steps: the result, the validation, the checkpoint, moves and departures, the next step."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.commit.step import Step
from swarmflow.core.durability.versions import shared
from swarmflow.core.machines.leading import certifying, moves
from swarmflow.core.machines.leading.departures import settle_findings
from swarmflow.core.machines.leading.grants import grant, keep_donors
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState, ValidationState
from swarmflow.core.machines.leading.leaving import let_go
from swarmflow.core.machines.leading.opening import try_open
from swarmflow.core.machines.leading.saving import catch_up, keep, part, save, settle, spread, stop_now, stopped
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.protocol.actions import Abandon, Action, Log, Send, Validate
from swarmflow.core.protocol.events import CheckpointWritten, DiskChanged, Validated
from swarmflow.core.protocol.messages import state_name
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, Roster

DEATHS_MAX = 4  # over which a validation begins again: where peers die all the time it would never end


def close(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Close a committed step: count it, and go on."""
    assert step.decision is not None, "a step is committed by a decision"
    actions = settle_findings(leader, step, now)
    leader.version += 1
    actions += settle(leader, now)  # who has not written the version before by now never will
    leader.recovery.settle()
    leader.faults.suspicions.got_on(now)
    leader.name, leader.commit = state_name(step.open_step.lineage, step.epoch, step.ballot.number), step.decision
    leader.unconfirmed = None if step.applied >= step.roster.peer_ids else step.decision
    leader.recovery.absent.keep(leader.version, leader.name)
    leader.lineage.committed(step.open_step)
    for member in step.roster.peers:
        if (known := leader.membership.known.get(member.process)) is not None:
            known.version, known.tries = leader.version, 0
    leader.last, leader.step, leader.exponent = step.decision.result, None, DEFAULT_EXPONENT
    for entry in leader.membership.peers():
        late = entry.version != leader.version
        if entry.phase is MemberPhase.LOADING and entry.claim is not None and entry.claim.version < leader.version:
            entry.tries += 1
            actions += grant(leader, entry, entry.member.stage, "it lacks the update of this step")
        elif entry.phase is MemberPhase.LOADING:
            entry.tries += entry.tries > 0
            actions += keep_donors(leader, entry)
        elif entry.phase is MemberPhase.READY and late:
            entry.tries += 1
            actions += grant(leader, entry, entry.member.stage, "it lacks the update of this step")
    leader.votes.forget(leader.version)
    actions += certifying.see(leader, now)
    every = leader.settings.validate_every
    if every and leader.version % every == 0:
        return actions + measure(leader, now)
    return actions + _next(leader, now)


def measure(leader: LeaderState, now: float) -> list[Action]:
    """Have the validation loss measured by the peers present; a version that has lost a stage has none."""
    if not all(leader.membership.served(stage, leader.version) for stage in range(leader.plan.stages)):
        return _next(leader, now)
    deaths = leader.measuring.deaths + 1 if leader.phase is LeaderPhase.UNMEASURED else 0
    if deaths > DEATHS_MAX:
        return _leave_out(leader, f"{deaths} peers died during the validation of version {leader.version}", now)
    leader.move(LeaderPhase.VALIDATING)
    leader.measuring = ValidationState(leader.membership.roster(leader.version), deaths=deaths)
    return [Validate(leader.version, leader.measuring.roster)]


def see_validation(leader: LeaderState, now: float) -> list[Action]:
    """If no batch comes back any more, try only the peers through which some did; then do without a result."""
    measuring, last = leader.measuring, leader.last
    if leader.phase is not LeaderPhase.VALIDATING or last is None:
        return []
    measuring.duty.see("measure", (measuring.batches,), now)
    if now <= measuring.duty.due_s(max(leader.timeouts.stall_s, 2 * last.seconds)):
        return []
    stages = tuple(tuple(m for m in s if m.process in measuring.proven) for s in measuring.roster.stages)
    reason = f"no validation batch of version {leader.version} has come back for {now - measuring.duty.since_s:.0f} s"
    if all(stages) and stages != measuring.roster.stages:
        roster = Roster(stages, measuring.roster.trainers)
        leader.measuring = ValidationState(roster, measuring.proven, measuring.deaths)
        text = f"{reason}: it is measured on {roster.size - len(roster.trainers)} peers that gave some"
        return [Log("warning", text, EventKind.VALIDATED), Validate(leader.version, roster)]
    return _leave_out(leader, reason, now)


def _leave_out(leader: LeaderState, reason: str, now: float) -> list[Action]:
    """Go on without the validation loss of this version."""
    log = Log("warning", f"{reason}: it is left out", EventKind.VALIDATED)
    return [log, Abandon("validation"), *_next(leader, now)]


def on_validated(leader: LeaderState, event: Validated, now: float) -> list[Action]:
    """Take the validation loss."""
    if leader.phase is not LeaderPhase.VALIDATING or event.version != leader.version or leader.last is None:
        return []
    leader.last = replace(leader.last, validation_loss=event.loss)
    return _next(leader, now)


def _next(leader: LeaderState, now: float) -> list[Action]:
    leader.gather()
    actions: list[Action] = []
    if leader.last is not None:
        trainers = [e.process for e in leader.membership.known.values() if e.role == "trainer"]
        actions += [Send(process, leader.last) for process in trainers]
    if leader.stopping:
        return actions + stop_now(leader)
    if leader.version >= leader.settings.steps:
        return actions + try_open(leader, now)
    if leader.safe.due(leader.version):
        actions += keep(leader)
    actions += catch_up(leader, now)
    return actions + spread(leader, now) + let_go(leader) + moves.move(leader, now) + try_open(leader, now)


def on_checkpoint_written(leader: LeaderState, event: CheckpointWritten, now: float) -> list[Action]:
    """Go on with what waited for a version to be written, or to fail.

    What was begun in an earlier reign, or in a history that was given up, is of no meaning here.
    """
    if leader.safe.saving is None or event.number != leader.safe.number:
        return []
    actions: list[Action] = [*leader.safe.written(event, now), *leader.safe.answers(now)]
    if event.ok:
        actions += shared(leader.safe, leader.me, [entry.member for entry in leader.membership.trainers()])
        actions += spread(leader, now)
    if leader.recovery.restoring is not None and leader.phase is LeaderPhase.GATHERING:
        if not event.ok:
            leader.recovery.restoring.failed(now, leader.timeouts.silence_s)
        return actions + let_go(leader) + try_open(leader, now)
    if leader.stopping and leader.phase is LeaderPhase.SAVING:
        return actions + (save(leader) if event.version < leader.version else stopped(leader, event.ok))
    if leader.phase is LeaderPhase.FINISHED:
        return actions + _last_written(leader, event, now)
    if leader.phase is LeaderPhase.SAVING:
        leader.move(LeaderPhase.GATHERING)
    return actions + let_go(leader) + (try_open(leader, now) if leader.phase is LeaderPhase.GATHERING else [])


def _last_written(leader: LeaderState, event: CheckpointWritten, now: float) -> list[Action]:
    if event.version != leader.version or not leader.safe.last:
        return save(leader, last=True)
    if event.ok and event.exported:
        return part(leader, now)
    leader.waits_for = f"the output to be written: {event.reason}"  # by itself as soon as it can be
    return []


def on_disk_changed(leader: LeaderState, event: DiskChanged, now: float) -> list[Action]:
    """Write or fetch again what cannot be used any more on the leader's own disk."""
    leader.safe.lost(event, leader.me)
    text = f"this trainer's disk: {event.reason}; its newest whole version is {event.version}"
    log = Log("warning", text, EventKind.CHECKPOINT)
    return [log, *(try_open(leader, now) if leader.phase is LeaderPhase.GATHERING else [])]
