"""Who shows signs of life and does nothing: put out for a while, with the reason, and its work goes on elsewhere.

Each second the leader looks at what every process owes. Nothing has a fixed time to be done in: whoever makes progress,
however slowly, is left alone, and what stands still does so by the measure of how fast it used to go.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

from swarmflow.core.commit.announcing import announce
from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.machines.leading import between_steps, roots
from swarmflow.core.machines.leading.departures import gone, keep_out, stage_is_lost_with
from swarmflow.core.machines.leading.grants import grant
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.duties import FIRST_FACTOR, Duty
from swarmflow.core.membership.member_phase import MemberPhase
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Abandon, Action, Count, Log, Rejoin, Send
from swarmflow.core.protocol.events import CheckpointWritten, Progressed
from swarmflow.core.protocol.messages import ReportRoot
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_rates import plausible_rates

FEED, OFFER, WORK, REPORT = "feed", "offer", "work", "report"
REDUCE, UPDATE, ROOT, LOAD, WRITE = "reduce", "update", "root", "load", "write"
TRANSFER_FACTOR = 2.0  # of the least time: who asks another for a part of a state gives it a minute before the next
_TASKS = {StepPhase.WORKING: WORK, StepPhase.PREPARING: REDUCE}  # of a member, by the phase of the step
_DOES = {
    FEED: "forms none of the microbatches that are its to form",
    OFFER: "has formed microbatches that no peer of the first stage reports",
    WORK: "computes none of the microbatches that it has",
    REPORT: "reports nothing of a microbatch that another stage says it has had",
    REDUCE: "does not get on with the all-reduce",
    UPDATE: "does not apply the update",
    ROOT: "does not report the root of its state",
    LOAD: "does not get on with loading its stage",
}


def see(leader: LeaderState, now: float) -> list[Action]:
    """Check what each process owes, each second, and act where none of it is done."""
    unfed = _unfed(leader)
    actions = _see_behind(leader, now)
    working = leader.step is not None and leader.step.phase is StepPhase.WORKING
    unreported = leader.step.ledger.unreported() if leader.step is not None and working else {}
    for entry in list(leader.membership.known.values()):
        duty, task = entry.duty, _task(leader, entry, unfed)
        if task in ("", WORK) and entry.process in unreported and not entry.load.queued:
            task = REPORT
        if not task and not duty.task:
            continue  # most of a large swarm
        left = unfed.get(entry.process, 0) if entry.process == leader.me.process else 0  # it sends itself no heartbeats
        duty.see(task, (entry.load.done, left), now, own=not entry.load.awaits)
        if duty.task and duty.task != REDUCE and _is_overdue(leader, entry, now):
            witness = unreported.get(entry.process) if duty.task == REPORT else None
            actions += _missed(leader, entry, now) if witness is None else _separate(leader, entry, witness, now)
    actions += _see_roots(leader, now)
    return actions + _see_saving(leader, now) + between_steps.see_validation(leader, now)


def _see_behind(leader: LeaderState, now: float) -> list[Action]:
    """Remove members that the OpenStep has not reached: they would never do their part.

    A lost message is noticed by the count in the next heartbeat, but not where the leader, before it led, lost its
    connection to the member and began to count anew, which the member does not know.
    """
    step = leader.step
    if step is None or leader.phase is not LeaderPhase.RUNNING:
        return []
    behind_s = {}
    for process in (member.process for member in step.roster.peers if member.process != leader.me.process):
        entry = leader.membership.known.get(process)
        if entry is None or _owes_update(step, entry):
            continue
        if entry.load.epoch is None or entry.load.epoch < step.epoch:
            behind_s[process] = step.behind_s.get(process, now)
    step.behind_s = behind_s
    late = [process for process, since_s in behind_s.items() if now - since_s > leader.timeouts.stall_s]
    return [action for process in late for action in gone(leader, process, "it has not begun the step", now)]


def _see_roots(leader: LeaderState, now: float) -> list[Action]:
    """Check who owes the root of its state, without which no version is certified, written or the last one."""
    actions: list[Action] = []
    awaited, version, step = roots.awaited(leader), leader.version, leader.step
    for entry in list(leader.membership.known.values()):
        duty = entry.root_duty
        owes = awaited and entry.role == "peer" and entry.holds(version) and version not in entry.roots
        owes = owes and (step is None or not _owes_update(step, entry))
        if not owes and not duty.task:
            continue
        duty.see(ROOT if owes else "", (max(entry.roots, default=-1),), now)
        if owes and now > duty.due_s(TRANSFER_FACTOR * leader.timeouts.stall_s):
            actions += _missed_root(leader, entry, now)
    return actions


def _missed_root(leader: LeaderState, entry: MemberRecord, now: float) -> list[Action]:
    """Ask a peer for its root again, and put it out the next time, where its stage can agree without it."""
    duty, again = entry.root_duty, Send(entry.process, ReportRoot(leader.version))
    reason = f"{_DOES[ROOT]}, and has not for {now - duty.since_s:.0f} s"
    duty.miss(now)
    if duty.misses == 1:
        return [again]  # the last time it may have had the update before to make
    if any(leader.version in mate.roots for mate in leader.membership.ready(entry.member.stage, leader.version)):
        return pause(leader, entry.process, reason, now)
    return [again, *_stands_still(entry, ROOT)]


def slept(leader: LeaderState, seconds: float) -> None:
    """Do not count the time in which this process slept: it could not see the others' progress."""
    duties = [duty for entry in leader.membership.known.values() for duty in (entry.duty, entry.root_duty)]
    for duty in (*duties, leader.safe.duty, leader.measuring.duty):
        duty.since_s += seconds
    if leader.step is not None:
        leader.step.behind_s.clear()
    leader.safe.copies.slept(seconds)


def reduction_due_s(leader: LeaderState, step: Step, patience: float) -> float:
    """Return when an all-reduce counts as standing still: no member that still reduces makes progress.

    patience: a factor of the time without any progress.
    """
    least_s = leader.timeouts.ballot_s
    reducing = [d.since_s + d.patience_s(least_s) * patience for d in _reductions(leader, step)]
    updating = [_due_s(leader, entry) for entry in _owing(leader, step) if entry.duty.task == UPDATE]
    return max((*reducing, *updating), default=0.0)


def reduction_missed(leader: LeaderState, step: Step, now: float) -> None:
    """Note that it stands still: its time from here on is no measure of what is usual."""
    for duty in _reductions(leader, step):
        duty.miss(now)


def _reductions(leader: LeaderState, step: Step) -> list[Duty]:
    return [entry.duty for entry in _owing(leader, step) if entry.duty.task == REDUCE]


def _owing(leader: LeaderState, step: Step) -> list[MemberRecord]:
    """Return the members that have not reduced yet."""
    known = leader.membership.known
    return [known[process] for process in step.roster.peer_ids if process in known and step.owes(process)]


def blame(leader: LeaderState, step: Step) -> ProcessId | None:
    """Return the peer that holds up an all-reduce; None if it alone serves its stage.

    Who says that it waits for nobody of this step has something to compute, and does not. Else it is whom two others
    wait for, who may be done with its own stage and sum for another one; and else who is done and waited for, or, of
    those who wait for each other, the one that stopped first.
    """
    serving = step.roster.peer_ids
    behind = [entry for entry in _owing(leader, step) if not _owes_update(step, entry)]  # an update has its own time
    behind.sort(key=lambda entry: (entry.duty.since_s, entry.process))
    idle = [entry.process for entry in behind if not serving.intersection(entry.load.awaits)]
    accused = Counter(process for entry in behind for process in serving.intersection(entry.load.awaits))
    named = sorted(accused, key=lambda process: (-accused[process], process))
    twice = [process for process in named if accused[process] > 1]
    done = [process for process in named if not step.owes(process)]
    stages = [[member.process for member in stage] for stage in step.roster.stages]
    shared = {process for stage in stages if len(stage) > 1 for process in stage}
    suspects = idle or twice or [*done, *(entry.process for entry in behind)]
    return next((process for process in suspects if process in shared), None)


def pause(leader: LeaderState, process: ProcessId, reason: str, now: float) -> list[Action]:
    """Evict a process that is alive and does nothing, and keep it out for a while."""
    pause_s = leader.faults.pauses.begin(process.name, reason, now)
    return [Count("stalled"), *gone(leader, process, f"it {reason}: put out for {pause_s:.0f} s", now)]


def standing_still(leader: LeaderState) -> str:
    """Return, as a person reads it, which processes do nothing and cannot be spared; empty: none."""
    known = sorted(leader.membership.known.values(), key=lambda entry: entry.process)
    missed = [(entry, duty) for entry in known for duty in (entry.duty, entry.root_duty) if duty.misses]
    return "; ".join(_alone(e, duty.task) for e, duty in missed if duty.task in (FEED, OFFER, WORK, UPDATE, ROOT))


def _unfed(leader: LeaderState) -> Counter[ProcessId]:
    """Return how many microbatches each trainer still owes the first stage, if that has nothing else to do."""
    step = leader.step
    if leader.phase is not LeaderPhase.RUNNING or step is None or step.phase is not StepPhase.WORKING:
        return Counter()
    known = (leader.membership.known.get(member.process) for member in step.members.opened.stages[0])
    if any(entry is not None and (entry.load.held or entry.load.queued) for entry in known):
        return Counter()
    indices = (index for index in range(step.plan.microbatches) if not step.ledger.was_taken(index))
    return Counter(step.assignment.owners[index] for index in indices)


def _task(leader: LeaderState, entry: MemberRecord, unfed: Counter[ProcessId]) -> str:
    if entry.role == "trainer":
        return "" if entry.process not in unfed else FEED if _has_to_form(leader, entry) else OFFER
    if entry.phase is MemberPhase.LOADING:
        return LOAD
    step = leader.step
    if step is None or entry.process not in step.roster.peer_ids:
        return ""
    if _owes_update(step, entry):
        return UPDATE
    task = _TASKS.get(step.phase, "")
    if not task:
        return ""
    return task if (entry.load.queued if task == WORK else step.owes(entry.process)) else ""


def _owes_update(step: Step, entry: MemberRecord) -> bool:
    """Return whether a member has to make the update of a committed step: of this one, or of that before it.

    With the commit of that one this one was opened, and the member begins it afterwards.
    """
    if step.phase is StepPhase.COMMITTING:
        return step.owes(entry.process)
    commit = step.open_step.commit
    return commit is not None and (entry.load.epoch, entry.load.version) == (commit.epoch, commit.epoch.step)


def _has_to_form(leader: LeaderState, trainer: MemberRecord) -> bool:
    """Return whether a trainer says that it has microbatches to form yet, or has not begun the step."""
    if trainer.process == leader.me.process:
        return leader.forming > 0
    began = trainer.load.epoch is not None and (leader.step is None or trainer.load.epoch >= leader.step.epoch)
    return trainer.load.queued > 0 or not began


def _is_overdue(leader: LeaderState, entry: MemberRecord, now: float) -> bool:
    if now <= _due_s(leader, entry):
        return False
    # Asked last, since it looks at the links of all members.
    return entry.duty.task != REPORT or now > _due_s(leader, entry, _queued_s(leader))


def _due_s(leader: LeaderState, entry: MemberRecord, queued_s: float = 0.0) -> float:
    least_s, duty = leader.timeouts.stall_s, entry.duty
    if duty.task in (LOAD, REPORT):
        return duty.due_s(TRANSFER_FACTOR * least_s + queued_s)
    if duty.task == OFFER:  # how soon others took microbatches of it tells nothing of it
        return duty.since_s + FIRST_FACTOR * least_s * 2.0**duty.misses
    mates = leader.membership.usual_s(entry.member.stage, duty.task) if entry.role == "peer" else 0.0
    return duty.due_s(least_s, FIRST_FACTOR if duty.task in (WORK, UPDATE) else 1.0, mates)


def _queued_s(leader: LeaderState) -> float:
    """Return how long a tensor may wait behind all others that a peer of the narrowest stage sends in a step.

    By the median of the reported rates, on which no single peer has much influence. The stage after has computed a
    microbatch and reported it as soon as its gradient is in that queue.
    """
    reports = [entry.rates for entry in leader.membership.known.values() if entry.rates is not None]
    rates = [rate for report in reports for rate in plausible_rates(report).values()]
    if leader.step is None or not rates:
        return 0.0
    fewest = max(1, min(len(stage) for stage in leader.step.roster.stages))
    return leader.plan.microbatches / fewest * leader.plan.boundary_bytes / median(rates)


def _missed(leader: LeaderState, entry: MemberRecord, now: float) -> list[Action]:
    duty, me = entry.duty, leader.me.process
    reason = f"{_DOES[duty.task]}, and has shown no progress for {now - duty.since_s:.0f} s"
    duty.miss(now)
    if duty.task == LOAD and duty.misses == 1:
        return grant(leader, entry, entry.member.stage, f"it {reason}", turn=1)
    if entry.process == me and len(leader.membership.trainers()) > 1:
        return [Log("warning", f"this trainer {reason}: another one has to lead"), Rejoin(f"it {reason}")]
    if duty.task == OFFER and entry.process != me and entry.process.name not in leader.faults.unfed:
        leader.faults.unfed[entry.process.name] = None  # nothing shows whose fault it is: it may come back at once
        return [Count("stalled"), *gone(leader, entry.process, f"it {reason}", now)]
    if entry.process != me and (duty.task in (FEED, OFFER, LOAD) or _has_mate(leader, entry)):
        return pause(leader, entry.process, reason, now)
    step, again = leader.step, list[Action]()
    if step is not None and duty.task == UPDATE and step.phase is not StepPhase.COMMITTING:
        again = announce(step.open_step, (entry.member,), leader.plan.shared)  # it may not have heard of the commit
    return [*again, *_stands_still(entry, duty.task)]


def _stands_still(entry: MemberRecord, task: str) -> list[Action]:
    text = f"the run waits for {_alone(entry, task)}"
    return [Log("warning", text, EventKind.WAITING, entry.process, entry.member.stage), Count("standstills")]


def _separate(leader: LeaderState, entry: MemberRecord, witness: ProcessId, now: float) -> list[Action]:
    """Put out who reports nothing of a microbatch, or the peer of another stage that says so, and may keep its tensor.

    Nothing shows which. Who owes the report goes first, unless its stage alone has nobody else, and the other one when
    they come to the same point again.
    """
    known, disputes, lies_max = leader.membership.known.get(witness), leader.faults.disputes, leader.lies_max
    reason = f"{entry.process} {_DOES[REPORT]}, as {witness} has shown"
    entry.duty.miss(now)
    if known is None:
        return gone(leader, entry.process, reason, now)
    judgement = disputes.judge(entry.member, known.member, lies_max, now)
    if judgement is not None:
        loser = entry.process if judgement.loser == entry.process.name else witness
    else:
        needed = stage_is_lost_with(leader, entry.process) and not stage_is_lost_with(leader, witness)
        loser = witness if needed else entry.process
    disputes.settle(entry.member, known.member, loser.name, now)
    out = keep_out if judgement is not None and judgement.guilty else gone
    return out(leader, loser, reason, now)


def _has_mate(leader: LeaderState, entry: MemberRecord) -> bool:
    """Return whether others of its stage can go on without it."""
    step = leader.step
    if step is None:
        return False
    mates = [m.process for m in step.roster.stages[entry.member.stage] if m.process != entry.process]
    known = [leader.membership.known[mate] for mate in mates if mate in leader.membership.known]
    return any(entry.duty.task != UPDATE or not _owes_update(step, mate) for mate in known)


def _alone(entry: MemberRecord, task: str) -> str:
    where = f" of stage {entry.member.stage}" if entry.role == "peer" else ""
    return f"{entry.process}{where}: it {_DOES[task]}, and nobody can do so in its place"


# --- saves ------------------------------------------------------------------------------------------------------------


def on_progressed(leader: LeaderState, event: Progressed, now: float) -> list[Action]:
    """Count a part of what this trainer asked its runtime for."""
    if event.of == "save":
        leader.safe.arrived(event.version)
    elif event.of == "validation" and leader.phase is LeaderPhase.VALIDATING:
        leader.measuring.batches += 1
        leader.measuring.proven.update(event.through)
    return []


def _see_saving(leader: LeaderState, now: float) -> list[Action]:
    """Give up, for now, a version of which nothing arrives any more; it is tried again from other peers."""
    safe = leader.safe
    safe.duty.see("" if safe.saving is None else WRITE if safe.copied else LOAD, (safe.parts,), now)
    if safe.saving is None or now <= safe.duty.due_s(TRANSFER_FACTOR * leader.timeouts.stall_s):
        return []
    idle_s = now - safe.duty.since_s
    safe.duty.miss(now)
    if safe.copied:  # the run needs no peer for it any more, and goes on
        return [Log("warning", f"version {safe.saving} is copied, but not written for {idle_s:.0f} s: see to the disk")]
    reason = f"nothing of it has come for {idle_s:.0f} s"
    safe.turn += 1
    safe.disturbed()  # it is to be tried again, however often that was
    failed = CheckpointWritten(safe.saving, False, reason, number=safe.number)
    return [Abandon("save"), *between_steps.on_checkpoint_written(leader, failed, now)]
