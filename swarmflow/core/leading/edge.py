"""The edge between two steps: the result, the validation, the checkpoint, moves and departures, the next step."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.actions import Abandon, Action, Count, Log, Send, Validate
from swarmflow.core.events import CheckpointWritten, DiskChanged, Progressed, Validated
from swarmflow.core.leading.departures import evict, let_go, settle_findings
from swarmflow.core.leading.grants import grant
from swarmflow.core.leading.opening import try_open
from swarmflow.core.leading.reign import LeaderState, ValidationState
from swarmflow.core.leading.saving import goodbye, save, spread, stop_now, stopped
from swarmflow.core.messages import state_name
from swarmflow.core.quorum import electorate
from swarmflow.core.step import Step
from swarmflow.core.types import EXPONENT, Roster


def close(reign: LeaderState, step: Step, now: float) -> list[Action]:
    """A step is committed everywhere: count it, and go on."""
    actions = settle_findings(reign, step, now)
    for process in step.strays():
        reason = "its parameters differ from its stage's"
        actions += [Count("resynchronisations"), *evict(reign, process, reason)]
    reign.version += 1
    reign.restored = False
    reign.name, reign.commit = state_name(step.said.lineage, step.epoch, step.ballot), step.decision
    reign.absent.keep(reign.version, reign.name)
    if step.said.lineage == reign.lineage:  # else it was finished for a history that this leader has left
        reign.electors = electorate(step.said)
        reign.bound &= {*reign.electors.processes, reign.me.process}
    for member in step.roster.members():
        if (known := reign.membership.known.get(member.process)) is not None:
            known.version = reign.version
    reign.last, reign.step, reign.exponent = step.result, None, EXPONENT
    for entry in reign.membership.peers():
        if entry.phase in ("loading", "ready") and entry.version != reign.version:
            entry.tries += 1
            actions += grant(reign, entry, entry.member.stage, "it came too late for this step")
    every = reign.settings.validate_every
    if every and reign.version % every == 0:
        return actions + measure(reign, now)
    return actions + _next(reign, now)


def measure(reign: LeaderState, now: float) -> list[Action]:
    """Have the validation loss measured on those who are there; a version that has lost a stage has none."""
    if not all(reign.membership.served(stage, reign.version) for stage in range(reign.plan.stages)):
        return _next(reign, now)
    reign.phase = "validating"
    reign.measuring = ValidationState(reign.membership.roster(reign.version))
    return [Validate(reign.version, reign.measuring.roster)]


def measured_some(reign: LeaderState, event: Progressed, now: float) -> None:
    """A validation batch has come back."""
    if reign.phase == "validating":
        reign.measuring.batches += 1
        reign.measuring.proven.update(event.through)


def see_validation(reign: LeaderState, now: float) -> list[Action]:
    """Where no batch comes back any more, those through whom some did are tried alone; then there is no result."""
    measuring, last = reign.measuring, reign.last
    if reign.phase != "validating" or last is None:
        return []
    measuring.duty.see("measure", (measuring.batches,), now)
    if now <= measuring.duty.due_s(max(reign.settings.stall_s, 2 * last.seconds)):
        return []
    stages = tuple(tuple(m for m in s if m.process in measuring.proven) for s in measuring.roster.stages)
    reason = f"no validation batch of version {reign.version} has come back for {now - measuring.duty.since_s:.0f} s"
    if all(stages) and stages != measuring.roster.stages:
        roster = Roster(stages, measuring.roster.trainers)
        reign.measuring = ValidationState(roster, measuring.proven)
        text = f"{reason}: it is measured on {roster.size - len(roster.trainers)} peers that gave some"
        return [Log("warning", text), Validate(reign.version, roster)]
    return [Log("warning", f"{reason}: it is left out"), Abandon("validation"), *_next(reign, now)]


def validated(reign: LeaderState, event: Validated, now: float) -> list[Action]:
    """The validation loss is there."""
    if reign.phase != "validating" or event.version != reign.version or reign.last is None:
        return []
    reign.last = replace(reign.last, validation_loss=event.loss)
    return _next(reign, now)


def _next(reign: LeaderState, now: float) -> list[Action]:
    reign.phase = "gathering"
    actions: list[Action] = []
    if reign.last is not None:
        trainers = [e.process for e in reign.membership.known.values() if e.role == "trainer"]
        actions += [Send(process, reign.last) for process in trainers]
    if reign.stopping:
        return actions + stop_now(reign)
    if reign.version >= reign.settings.steps:
        return actions + try_open(reign, now)
    if reign.safe.due(reign.version):
        actions += save(reign)
    return actions + spread(reign) + let_go(reign) + _move(reign, now) + try_open(reign, now)


def _move(reign: LeaderState, now: float) -> list[Action]:
    """Between two steps who stood in goes home, or one peer may move to where it is needed more: no step misses it."""
    home: list[Action] = []
    for entry in reign.membership.homeward(reign.version):
        reason = f"it asked for it, and stage {entry.member.stage} has another peer by now"
        entry.settled_s = now
        home += grant(reign, entry, entry.wish, reason)
    if home:
        return home
    move = reign.membership.better_placed(reign.version, now)
    if move is None:
        return []
    entry = reign.membership.known[move.process]
    entry.settled_s = reign.membership.moved_s = now
    entry.stands_in = False
    return [Count("rebalances"), *grant(reign, entry, move.stage, f"rebalanced, {move.reason}")]


def checkpoint_written(reign: LeaderState, event: CheckpointWritten, now: float) -> list[Action]:
    """A version is on disk, or could not be brought there: go on with what waited for it.

    What was begun in an earlier reign, or in a history that was given up, is of no meaning here.
    """
    if reign.safe.saving is None or event.number != reign.safe.number:
        return []
    actions: list[Action] = [*reign.safe.written(event, now), *reign.safe.answers(now)]
    if event.ok:
        actions += reign.safe.share(reign.me, [entry.member for entry in reign.membership.trainers()])
        actions += spread(reign)
    if reign.restoring is not None and reign.phase == "gathering":
        if not event.ok:
            reign.restoring.failed(now, reign.settings.silence_s)
        return actions + try_open(reign, now)
    if reign.stopping and reign.phase == "saving":
        return actions + (save(reign) if event.version < reign.version else stopped(reign, event.ok))
    if reign.phase == "finished":
        return actions + _last_written(reign, event)
    if reign.phase == "saving":
        reign.phase = "gathering"
        return actions + (let_go(reign) if event.ok else []) + try_open(reign, now)
    return actions + (try_open(reign, now) if reign.phase == "gathering" else [])


def _last_written(reign: LeaderState, event: CheckpointWritten) -> list[Action]:
    if event.version != reign.version or not reign.safe.last:
        return save(reign, last=True)
    if event.ok and event.exported:
        return goodbye(reign)
    reign.waits_for = f"the output to be written: {event.reason}"  # by itself as soon as it can be
    return []


def disk_changed(reign: LeaderState, event: DiskChanged, now: float) -> list[Action]:
    """Something that was on the own disk is of no use any more: it is written again, or fetched from who has it."""
    reign.safe.lost(event, reign.me)
    log = Log("warning", f"this trainer's disk: {event.reason}; its newest whole version is {event.version}")
    return [log, *(try_open(reign, now) if reign.phase == "gathering" else [])]
