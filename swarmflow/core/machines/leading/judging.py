"""What a leader concludes from a step that failed: who is left out, who is kept out, and whether the run stops.

A run stops only for what an honest process has reported. Where that is not sure, who reports it is kept out, for longer
each time, and its stage waits for another peer, which will confirm it or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from swarmflow.core.commit.step import Step, StepFailure, received
from swarmflow.core.durability.doubts import go_back
from swarmflow.core.machines.leading.departures import bar, keep_out
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.machines.leading.saving import stop_run
from swarmflow.core.membership.failures import EXPONENT_MIN, Failure
from swarmflow.core.membership.findings import Finding, plain
from swarmflow.core.membership.members import MemberRecord
from swarmflow.core.protocol.actions import Action, Count
from swarmflow.core.protocol.messages import NotFinite
from swarmflow.core.protocol.types import ProcessId


def judge(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Conclude from a step that failed. Where the run stops for it, `leader.fate` says why."""
    failure = step.failure
    if failure is None:
        return []
    leader.faults.note_voters(leader.membership, (*failure.culprits, *_holder(failure.finding)))
    return _failed(leader, step, failure, now) if failure.finding is None else _found(leader, failure, now)


def on_not_finite(leader: LeaderState, known: MemberRecord, message: NotFinite, now: float) -> list[Action]:
    """Void the step for a value that is not finite; in a decided update, put out the peer, whose state is lost."""
    step, process = leader.step, known.process
    if step is None or message.value != "update":
        return received(step, process, message) if step is not None else []
    decided = step.decision or step.open_step.commit  # of this step, or of the one with whose commit it was opened
    if decided is None or message.epoch != decided.epoch or process not in step.roster.peer_ids:
        return []
    leader.faults.note_voters(leader.membership, (process,))
    finding = Finding(decided.epoch.step, -1, known.member.stage, process, "update", plain(message.layer))
    others = any(entry.process != process for entry in leader.membership.peers(known.member.stage))
    reason = leader.faults.findings.add(finding, others)
    counted = Count("not_finite")
    if not reason:
        return [counted, *bar(leader, process, f"{finding}", now)]
    if not _finite_nowhere(leader, finding.stage, _reporters(leader, finding)):
        return [counted, *_disbelieve(leader, (process,), reason, now)]
    actions = [counted, *bar(leader, process, f"{finding}", now)]
    leader.version = go_back(leader.safe)
    return [*actions, *stop_run(leader, reason)]


def _found(leader: LeaderState, failure: StepFailure, now: float) -> list[Action]:
    """Leave out the peer whose value was not finite while others can compute it; found again, the run stops."""
    finding, membership = failure.finding, leader.membership
    assert finding is not None, "of a value that was not finite"
    holder = finding.holder
    before = {first.holder for first in leader.faults.findings.of(finding.version)} | {holder}
    ready = membership.ready(finding.stage, leader.version) if finding.stage >= 0 else []
    others = any(entry.process not in before for entry in ready)
    reason = leader.faults.findings.add(finding, others)
    if holder is not None and holder in membership.known:
        membership.suspended[holder] = None
    if not reason:
        return []
    reporters = _reporters(leader, finding) if holder is not None else failure.culprits
    if _finite_nowhere(leader, finding.stage, reporters):
        return stop_run(leader, reason)
    again = holder is not None and [process.name for process in reporters].count(holder.name) > 1
    if others and not again and not leader.faults.findings.too_many(finding.version):
        return []  # one more has to confirm it
    return _disbelieve(leader, _holder(finding) or failure.culprits, reason, now)


def _failed(leader: LeaderState, step: Step, failure: StepFailure, now: float) -> list[Action]:
    """Leave out the member that makes the step fail again, while others can replace it."""
    membership, failures = leader.membership, leader.faults.failures
    culprits = [process for process in failure.culprits if process in membership.known]
    if not culprits or (failure.differing and failure.summed_by not in membership.known):
        return []  # with one owner it will show who it is; or that one is at fault, and put out for it
    before = failures.left_out
    otherwise = membership.suspended.keys() - set(before)

    def mates(process: ProcessId) -> list[ProcessId]:
        return [mate for mate in membership.mates(process, leader.version) if mate not in otherwise]

    def believed(reporters: Iterable[ProcessId]) -> bool:
        return _believed(leader, reporters)

    culprits.sort(key=lambda process: (leader.faults.bars.last_s(process.name), process))
    exponent = step.open_step.exponent if failure.overflow is not None else None
    failed = Failure(leader.version, tuple(culprits), failure.reason, exponent)
    reason, actions = failures.add(failed, mates, believed), list[Action]()
    if reason:
        impossible = exponent is not None and exponent <= EXPONENT_MIN
        if not impossible and len(culprits) == 1 and believed(culprits):
            return stop_run(leader, reason)
        unbelieved = leader.faults.unbelieved
        out = min(culprits, key=lambda process: (unbelieved.last_s(process.name), process))
        failures.forget(out.name)
        actions = _disbelieve(leader, (out,), reason, now)
    for process in before:
        membership.suspended.pop(process, None)
    membership.suspended |= {process: None for process in failures.left_out if process in membership.known}
    if exponent is not None:
        leader.exponent = failures.exponent(leader.version)
    return actions


def _disbelieve(leader: LeaderState, culprits: Iterable[ProcessId], reason: str, now: float) -> list[Action]:
    """Keep out who reports what nobody confirms, also where nobody else serves its stage."""
    actions: list[Action] = []
    for process in culprits:
        leader.faults.findings.thin(process.name)
        text = f"reports what no sufficient number of others confirms: {reason}"
        actions += keep_out(leader, process, text, now, leader.faults.unbelieved)
    return actions


def _reporters(leader: LeaderState, finding: Finding) -> list[ProcessId]:
    """Return who has found the same; where there are too many findings, who has found any."""
    found = leader.faults.findings.of(finding.version)
    alike = found if leader.faults.findings.too_many(finding.version) else [f for f in found if f.same_hop(finding)]
    return [process for each in alike for process in _holder(each)]


def _finite_nowhere(leader: LeaderState, stage: int, reporters: Sequence[ProcessId]) -> bool:
    """Return whether one of these is honest, or they are all that serve a stage, and two at least.

    Who has all of a stage can agree on a wrong state as well. stage: -1: they are all that have the sum.
    """
    ready = leader.membership.ready(stage, leader.version) if stage >= 0 else ()
    voters = {process.name for process in reporters} & leader.faults.voters
    every = len(voters) > 1 and all(entry.process.name in voters for entry in ready)
    return every or _believed(leader, reporters)


def _believed(leader: LeaderState, reporters: Iterable[ProcessId]) -> bool:
    """Return whether one of these is honest: a trainer, or more voters than may lie."""
    known, names = leader.membership.known, {process.name for process in reporters}
    if any(entry.role == "trainer" and entry.process.name in names for entry in known.values()):
        return True
    return len(names & leader.faults.voters) > leader.lies_max


def _holder(finding: Finding | None) -> tuple[ProcessId, ...]:
    return () if finding is None or finding.holder is None else (finding.holder,)
