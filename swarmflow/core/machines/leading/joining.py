"""Joins, and answers of peers to the stages that they were granted."""

from __future__ import annotations

from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.durability.memories import holds
from swarmflow.core.durability.versions import shared
from swarmflow.core.machines.leading.departures import gone
from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.machines.leading.leaving import let_go
from swarmflow.core.machines.leading.opening import reconsider_version, try_open
from swarmflow.core.machines.leading.roots import agreed, holders
from swarmflow.core.machines.leading.saving import next_copies
from swarmflow.core.machines.leading.surveys import begin as begin_survey
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord, power_of
from swarmflow.core.membership.placement import SMALL_PEERS, is_narrow, place
from swarmflow.core.membership.settings import refusal
from swarmflow.core.protocol.actions import Action, Connect, Log, Send
from swarmflow.core.protocol.messages import CopiesHeld, Evicted, Join, LoadFailed, Postponed, Ready, Refused, Welcome
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId


def on_join(leader: LeaderState, sender: ProcessId, message: Join, now: float) -> list[Action]:
    """Let a process in and grant it a stage, or refuse it. A new incarnation of a name replaces the former one.

    The links deliver nothing of a life after the first message of the one that has replaced it. Incarnations have no
    order, so whoever was replaced is remembered, and refused should it speak again.
    """
    reason = refusal(leader.settings, leader.plan, sender, message)
    if reason is not None:
        log = Log("info", f"refused {sender}: {reason}", EventKind.EXCLUDED, sender)
        # What it says of another process must not decide where that one is dialled.
        itself: list[Action] = [Connect((message.member,))] if message.member.process == sender else []
        return [*itself, Send(sender, Refused(reason)), log]
    if leader.membership.incarnations.retired(sender):
        return [Send(sender, Evicted("another life of this process has taken its place"))]
    known = leader.membership.known.get(sender)
    if known is not None:
        leader.hear(known, now)
        return []
    actions: list[Action] = []
    former = leader.membership.incarnations.namesake(sender)
    if former is not None:
        leader.membership.incarnations.retire(former)
        actions += gone(leader, former, "it has started again", now)
    wait_s, reason = leader.faults.unbelieved.left(sender.name, now)
    if wait_s > 0:
        return [*actions, Connect((message.member,)), Send(sender, Postponed(f"it {reason}", wait_s))]
    wait_s, reason = leader.faults.pauses.left(sender.name, now)
    if wait_s > 0 and not _serves_alone(leader, message):
        return [*actions, Connect((message.member,)), Send(sender, Postponed(f"it {reason}", wait_s))]
    if leader.faults.failures.joined(sender):
        leader.membership.suspended[sender] = None
    if message.role == "trainer":
        return [*actions, *_join_trainer(leader, sender, message, now)]
    return [*actions, *_join_peer(leader, sender, message, now)]


def _join_peer(leader: LeaderState, sender: ProcessId, message: Join, now: float) -> list[Action]:
    """Let a peer in, and grant it the stage that it holds in memory or that needs it most."""
    leader.recovery.memories.record(message.member, message.held)
    leader.recovery.absent.back(sender.name)
    held = leader.recovery.memories.of(sender)
    if held is not None and held.stage in message.unfit:
        leader.recovery.memories.leave(sender)
        held = None
    stage, reason = place(leader.membership, message.member.stage, power_of(message), unfit=message.unfit)
    later = held is not None and (leader.recovery.restoring is not None or held.version > leader.version)
    if held is not None and (later or holds(held, leader.version, leader.name)):
        stage, reason = held.stage, "it holds that one"
    entry = leader.membership.enter(message, stage, now)
    if outside := _outside(leader, sender.name, now):
        leader.membership.mark(entry, MemberPhase.BARRED)
    leader.safe.copies.record(entry.member, message.copies)
    actions = reconsider_version(leader, now)
    if leader.recovery.restoring is not None:
        log = Log("info", f"peer {sender} waits to serve stage {stage}", EventKind.JOINED, sender, stage)
        return [*actions, Connect((entry.member,)), log]
    if held is not None and held.version > leader.version and entry.phase is not MemberPhase.LOADING:
        text = f"peer {sender} still held version {held.version}; this run has gone on from an earlier one meanwhile"
        actions.append(Log("warning", text, EventKind.OTHER, sender))
    if entry.phase is MemberPhase.LOADING:
        return actions
    if outside:
        text = f"peer {sender} was put out a while ago: it is granted nothing yet"
        log = Log("info", text, EventKind.EXCLUDED, sender)
        opened = try_open(leader, now) if leader.phase is LeaderPhase.GATHERING else []
        return [*actions, Connect((entry.member,)), log, *opened]
    measured = begin_survey(leader, entry, now) if held is None else []
    return [*actions, *(measured or grant(leader, entry, stage, reason))]


def _outside(leader: LeaderState, name: str, now: float) -> bool:
    """Return whether a process was put out a while ago, and is granted a stage only where no other serves it."""
    return any(records.left(name, now)[0] > 0 for records in (leader.faults.bars, leader.faults.pauses))


def _serves_alone(leader: LeaderState, message: Join) -> bool:
    """Return whether a stage that a peer may serve has no other peer."""
    if message.role != "peer":
        return False
    wish, lost = message.member.stage, leader.membership.lost(leader.version)
    fitting = set(lost) - set(message.unfit)
    return bool(fitting) and (wish < 0 or message.rebalance_s > 0 or wish in fitting)


def readmit(leader: LeaderState, now: float) -> list[Action]:
    """Grant a stage to each peer that was put out and whose time has passed, once it is known at which version.

    And to each newcomer that should have measured its links by now.
    """
    actions: list[Action] = []
    for entry in leader.membership.idle():
        measures = entry.phase is MemberPhase.MEASURING
        if now < entry.survey_until_s if measures else _outside(leader, entry.process.name, now):
            continue
        if leader.recovery.restoring is not None:
            leader.membership.mark(entry, MemberPhase.WAITING)
        else:
            stage, reason = place(leader.membership, entry.wish, entry.power, unfit=entry.unfit)
            before = "it has not reported its links" if measures else "its time outside is over"
            actions += grant(leader, entry, stage, f"{before}; {reason}")
    return actions


def _join_trainer(leader: LeaderState, sender: ProcessId, message: Join, now: float) -> list[Action]:
    leader.membership.enter(message, -1, now)
    leader.safe.copies.record(message.member, message.copies)
    log = Log("info", f"trainer {sender} joined", EventKind.JOINED, sender)
    let_in: list[Action] = [Connect((message.member,)), Send(sender, Welcome(leader.term)), log]
    copied = shared(leader.safe, leader.me, (message.member,)) if leader.safe.roots else []
    return [*let_in, *copied, *reconsider_version(leader, now)]


def on_copies_held(leader: LeaderState, known: MemberRecord, message: CopiesHeld, now: float) -> list[Action]:
    """Record what lies on a process' disk now.

    After each version every peer reports what is left of the earlier ones. Most of a large swarm had nothing of them,
    and who is to copy what is weighed among all.
    """
    safe = leader.safe
    news = safe.copies.record(known.member, message.copies)
    if not news and not message.failed:
        return []
    kept = safe.copies.kept(known.process, message.failed, *safe.in_use)
    return [*kept, *next_copies(leader, now), *let_go(leader), *reconsider_version(leader, now)]


def on_ready(leader: LeaderState, known: MemberRecord, message: Ready, now: float) -> list[Action]:
    """Record that a peer has loaded what it was granted, or have it follow the run's updates further.

    Its donors may have applied a commit that others have not confirmed yet: then it is a version ahead. Where the peers
    of the stage have not agreed on their state yet, the answer waits for that.
    """
    if not _answers(known, message):
        return []
    decided = leader.step is not None and leader.step.decision is not None
    if message.version not in (leader.version, leader.version + decided):
        known.tries = max(known.tries, 1)  # each step that closes without it counts once
        return grant(leader, known, known.member.stage, f"version {message.version} is out of date")
    stage = known.member.stage
    right = agreed(leader, stage, message.version)
    if right not in ("", message.root):
        return grant(leader, known, stage, f"what it has loaded of version {message.version} is not its stage's state")
    if not right and holders(leader, stage, message.version):
        known.claim = message
        return []
    leader.membership.mark(known, MemberPhase.READY)
    known.loaded(message.version, message.capacity)
    leader.membership.changed(known)
    leader.recovery.memories.leave(known.process)
    text = f"peer {known.process} has loaded stage {stage} at version {message.version}"
    log = Log("info", text, EventKind.SERVING, known.process, stage)
    if leader.phase is LeaderPhase.GATHERING:
        return [log, *try_open(leader, now)]
    return [log, *_relieve(leader, known)]


def _relieve(leader: LeaderState, known: MemberRecord) -> list[Action]:
    """Let a peer that has loaded take work of the step at hand if its stage has fewer peers than others, and few.

    Else it does in the next one. In a large stage it would take little, and all peers around it would have to know.
    """
    step, stage = leader.step, known.member.stage
    if step is None or step.phase is not StepPhase.WORKING or leader.ahead is not None:
        return []
    fits = known.holds(step.epoch.step) and known.process not in leader.membership.suspended and not known.draining
    helps = is_narrow(step.members.opened.stages, stage, SMALL_PEERS)
    return step.members.enter((known.member,), False) if fits and helps else []


def on_load_failed(leader: LeaderState, known: MemberRecord, message: LoadFailed, now: float) -> list[Action]:
    """Grant a stage anew to a peer that could not load the last one."""
    if not _answers(known, message):
        return []
    leader.membership.mark(known, MemberPhase.FAILED)
    leader.recovery.memories.leave(known.process)
    known.tries = 0
    actions = try_open(leader, now) if leader.phase is LeaderPhase.GATHERING else []
    if known.phase is not MemberPhase.FAILED:
        return actions  # the run went back, which granted a stage to everybody
    stage, reason = place(leader.membership, known.wish, known.power, unfit=known.unfit)
    return [*actions, *grant(leader, known, stage, f"{message.reason}; {reason}")]


def _answers(known: MemberRecord, message: Ready | LoadFailed) -> bool:
    """Return whether a message answers the last grant."""
    return (message.grant, message.stage, known.phase) == (known.grants, known.member.stage, MemberPhase.LOADING)
