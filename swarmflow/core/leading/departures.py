"""Who leaves: by its own wish, by its death, or because its parameters differ."""

from __future__ import annotations

from functools import partial

from swarmflow.core.actions import Action, Count, Forget, Log, Send
from swarmflow.core.leading.findings import Finding, plain
from swarmflow.core.leading.membership import MemberRecord
from swarmflow.core.leading.opening import try_open
from swarmflow.core.leading.reign import LeaderState
from swarmflow.core.leading.saving import save, stop_run
from swarmflow.core.messages import Drain, Evicted, Left, MemberFailed, Needed, NotFinite, Released, Suspect
from swarmflow.core.step import Step
from swarmflow.core.types import ProcessId


def drain(reign: LeaderState, known: MemberRecord, message: Drain, now: float) -> list[Action]:
    """A process wants to go: at once, or after the step that it takes part in."""
    reign.membership.drain(known)
    told = _needed(reign, known) if _alone(reign, known) else []
    serving = reign.step is not None and known.process in reign.step.roster.everybody
    if serving and known.process != reign.me.process:
        return [Log("info", f"{known.process} leaves after this step"), *told]
    return told + let_go(reign) + (try_open(reign, now) if reign.phase == "gathering" else [])


def let_go(reign: LeaderState) -> list[Action]:
    """Release who is draining, unless its stage would be lost: then its state is brought to safety first."""
    actions: list[Action] = []
    serving = reign.step.roster.everybody if reign.step is not None else ()
    if reign.phase in ("finished", "unmeasured", "validating"):
        return []  # told to go as soon as the output is written, or the result is known
    for entry in [e for e in reign.membership.known.values() if e.draining and e.process not in serving]:
        if _alone(reign, entry) and reign.step is None and reign.safe.durable < reign.version:
            actions += [*save(reign), *_needed(reign, entry, saving=True)]
            reign.phase = "saving"
            reign.waits_for = f"a copy of stage {entry.member.stage}, whose last peer wants to leave"
            continue
        _forget(reign, entry.process)
        actions.append(Send(entry.process, Released()))
    return actions


def _alone(reign: LeaderState, entry: MemberRecord) -> bool:
    """Whether a stage has nobody else that holds it and means to stay."""
    return entry.role == "peer" and not reign.membership.served(entry.member.stage, reign.version)


def _needed(reign: LeaderState, entry: MemberRecord, saving: bool = False) -> list[Action]:
    """Tell who drains, once for each, what it waits for and what would be lost."""
    told, entry.needed = entry.needed, (reign.version, saving)
    if told == entry.needed or entry.phase != "ready":
        return []
    wait_s = _absence_s(reign)
    return [Send(entry.process, Needed(reign.version, min(reign.safe.durable, reign.version), saving, wait_s))]


def _absence_s(reign: LeaderState) -> float:
    """How long a peer with the only state of a stage is waited for: as long as it takes to do its steps again.

    Who waits as long as the other choice would take is never more than twice as late as with the better one. No less
    than a person needs to start it again.
    """
    steps = max(0, reign.version - reign.safe.durable)
    return max(reign.settings.memory_wait_s, steps * reign.last.seconds if reign.last is not None else 0.0)


def left(reign: LeaderState, process: ProcessId, message: Left, now: float) -> list[Action]:
    """A life has ended: it follows no other leader, and may have left what the run needs in its folder."""
    reign.bound |= {process} if message.term == reign.term else set()
    known, held = reign.membership.known.get(process), message.held
    if known is None or held is None or held.stage != known.member.stage or not reign.memories.possible(held):
        reign.absent.back(process.name)
    else:
        reign.absent.left(process.name, held, now + _absence_s(reign))
        return gone(reign, process, "it left, with its state in its folder", now)
    return try_open(reign, now) if reign.phase == "gathering" else []


def suspect(reign: LeaderState, known: MemberRecord, message: Suspect, now: float) -> list[Action]:
    """Somebody has lost its connection to another one, or got something unusable from it.

    The other one is told too, so that both go around each other: a link may be broken in one direction.
    """
    accused = message.process
    if accused not in reign.membership.known or accused == reign.me.process:
        return []
    reign.suspicions.accuse(known.process, accused, message.reason, now)
    told: list[Action] = [Count("accusations")]
    if reign.step is not None and accused in reign.step.roster.everybody:
        told.append(Send(accused, Suspect(known.process, f"it accuses this process: {message.reason}")))
    return told + weigh(reign, now)


def weigh(reign: LeaderState, now: float) -> list[Action]:
    """Put out those against whom accusations are enough by now."""
    actions: list[Action] = []
    while (found := reign.suspicions.verdict(reign.membership, now, partial(_stage_is_lost_with, reign))) is not None:
        actions += gone(reign, *found, now)
        reign.suspicions.forget(found[0])  # also of one who cannot go, such as this trainer: else this would not end
    return actions


def _stage_is_lost_with(reign: LeaderState, process: ProcessId) -> bool:
    """Whether nobody else serves the stage of a process."""
    known = reign.membership.known.get(process)
    if known is None or known.role == "trainer":
        return False
    return all(entry.process == process for entry in reign.membership.ready(known.member.stage, reign.version))


def gone(reign: LeaderState, process: ProcessId, reason: str, now: float) -> list[Action]:
    """A process is taken for dead: everybody is told, and what it held is repaired."""
    known = reign.membership.known.get(process)
    if known is None or process == reign.me.process:
        return []
    stage = known.member.stage
    _forget(reign, process)
    reign.safe.disturbed()
    actions: list[Action] = [
        Log("warning", f"{process} is gone: {reason}"),
        Send(process, Evicted(reason)),
        Forget(process),
        Count("gone"),
        *tell_loading(reign, process, reason),
    ]
    if reign.step is not None:
        ready = () if stage < 0 else reign.membership.roster(reign.version).stages[stage]
        actions += reign.step.gone(process, reason, ready=ready)
    elif reign.phase == "gathering":
        actions += try_open(reign, now)
    elif reign.phase == "validating":
        reign.phase = "unmeasured"
    return actions


def tell_loading(reign: LeaderState, process: ProcessId, reason: str) -> list[Action]:
    """Who loads is in no epoch yet, but may be waiting for the dead one to give it its state."""
    message = MemberFailed(reign.term, reign.epoch, process, reason)
    return [Send(entry.process, message) for entry in reign.membership.loading()]


def settle_findings(reign: LeaderState, step: Step, now: float) -> list[Action]:
    """A step is committed: who gave a value that was not finite, where another gave a finite one, is put out.

    So is without whom it was committed after it had failed with it.
    """
    actions: list[Action] = []
    for finding in reign.findings.settle(reign.version):
        holder = finding.holder
        if holder is None or holder not in reign.membership.known:
            continue
        if holder in step.roster.everybody:  # nobody could stand in for it
            named = f"{finding}, on {holder}; it was finite the second time: check the memory of that machine"
            actions.append(Log("warning", named))
            continue
        actions += put_out(reign, holder, f"{finding}; on others it was: check the memory of this machine", now)
    reign.membership.suspended.clear()
    for process, text in reign.failures.settle():
        if process not in step.roster.everybody:
            actions += put_out(reign, process, f"{text}; without it the step was done", now)
    return actions


def put_out_differing(reign: LeaderState, step: Step, now: float) -> list[Action]:
    """Who has reduced another gradient than most of its stage goes, if the stage has somebody else."""
    actions: list[Action] = []
    for process in step.differing:
        if not _stage_is_lost_with(reign, process):
            actions += put_out(reign, process, "its reduced gradient is not that of most of its stage", now)
    return actions


def put_out(reign: LeaderState, process: ProcessId, reason: str, now: float) -> list[Action]:
    """A process leaves at once, and is granted nothing for a while when it comes again."""
    known = reign.membership.known.get(process)
    if known is not None and known.role == "trainer":
        seconds = reign.pauses.put_out(process.name, reason, now)
    else:
        seconds = reign.findings.bar(process.name, now)
    return [Count("put_out"), *gone(reign, process, f"{reason}; it may serve again in {seconds:.0f} s", now)]


def not_finite(reign: LeaderState, known: MemberRecord, message: NotFinite, now: float) -> list[Action]:
    """A value is not finite: the try at the step is void; or, of an update that is decided, the peer's own state."""
    step, process = reign.step, known.process
    if step is None or message.epoch != step.epoch or message.value != "update":
        return step.heard(process, message) if step is not None else []
    if step.phase not in ("committing", "committed") or process not in step.roster.serving:
        return []
    finding = Finding(reign.version, -1, known.member.stage, process, "update", plain(message.layer))
    others = any(entry.process != process for entry in reign.membership.peers(known.member.stage))
    reason = reign.findings.add(finding, others)
    actions: list[Action] = [Count("not_finite"), *put_out(reign, process, f"{finding}", now)]
    if not reason:
        return actions
    reign.version = reign.safe.durable
    return [*actions, *stop_run(reign, reason)]


def evict(reign: LeaderState, process: ProcessId, reason: str) -> list[Action]:
    """A process has to join again."""
    _forget(reign, process)
    return [Send(process, Evicted(reason)), Log("warning", f"{process} has to join again: {reason}")]


def _forget(reign: LeaderState, process: ProcessId) -> None:
    reign.safe.copies.leave(process)
    reign.memories.leave(process)
    reign.told.pop(process, None)
    reign.suspicions.forget(process)
    reign.membership.leave(process)
