"""Messages that nobody has a right to send. All that are forged are made here, field by field."""

from __future__ import annotations

from swarmflow.core.protocol.messages import (
    Adopt,
    Commit,
    Done,
    Elect,
    Evicted,
    Finished,
    Forward,
    Held,
    HopHandover,
    MemberFailed,
    NotFinite,
    OpenStep,
    Overflow,
    Ready,
    RelayedTensor,
    StepResult,
    Suspect,
)
from swarmflow.core.protocol.types import Attempt, Epoch, Holding, Member, Microbatch, ProcessId, Roster, Snapshot

Handovers = tuple[HopHandover, ...]
NO_ROOT = "0" * 64
HIGH = Attempt(reassignment=0, repair=9, denials=0)  # above all that an undisturbed run makes


def done(epoch: Epoch, index: int, stage: int, handovers: Handovers = ()) -> Done:
    """A hop that its sender was not given. handovers: of another one, which it was."""
    attempt = handovers[0].attempt if handovers else HIGH
    microbatch = Microbatch(epoch, index)
    return Done(microbatch=microbatch, stage=stage, attempt=attempt, loss_sum=1.0, tokens=1, handovers=handovers)


def ready(stage: int, version: int, grant: int) -> Ready:
    """A stage that was not loaded."""
    return Ready(stage=stage, version=version, root=NO_ROOT, capacity=1000, grant=grant)


def overflow(epoch: Epoch, index: int, handovers: Handovers = ()) -> Overflow:
    """A gradient that is not too large. handovers: as in `done`."""
    return Overflow(microbatch=Microbatch(epoch, index), handovers=handovers)


def not_finite(epoch: Epoch, index: int, handovers: Handovers = ()) -> NotFinite:
    """A value that is finite. handovers: as in `done`."""
    return NotFinite(epoch=epoch, index=index, value="gradient", layer="h.0", handovers=handovers)


def suspect(process: ProcessId) -> Suspect:
    """An accusation of a process that is well."""
    return Suspect(process=process, reason="the connection broke")


def adopt(epoch: Epoch, index: int, stage: int, handovers: Handovers = ()) -> Adopt:
    """The question of a predecessor that is none. handovers: of another hop to its sender."""
    return Adopt(microbatch=Microbatch(epoch, index), stage=stage, attempt=HIGH, handovers=handovers)


def forward(epoch: Epoch, index: int, stage: int, handovers: Handovers = ()) -> Forward:
    """A hop that nobody has given its sender to pass on. handovers: of another one, which was."""
    return Forward(microbatch=Microbatch(epoch, index), stage=stage, attempt=HIGH, handovers=handovers)


def relayed(origin: ProcessId, epoch: Epoch, index: int, stage: int) -> RelayedTensor:
    """A tensor that its origin has not given to the sender."""
    return RelayedTensor(origin=origin, forward=forward(epoch, index, stage))


def commit(term: int, epoch: Epoch, stages: int, microbatches: int) -> Commit:
    """The end of a step that its leader has not decided."""
    result = StepResult(
        term=term,
        epoch=epoch,
        loss=1.0,
        tokens=microbatches,
        seconds=1.0,
        grad_norm=1.0,
        learning_rate=1.0,
        microbatches=microbatches,
        peers=(1,) * stages,
        retries=0,
    )
    return Commit(term=term, epoch=epoch, ballot=1, scale=1.0, learning_rate=1.0, result=result)


def member_failed(term: int, epoch: Epoch, process: ProcessId) -> MemberFailed:
    """The death of a member that lives."""
    return MemberFailed(term=term, epoch=epoch, process=process, reason="it is silent")


def evicted() -> Evicted:
    """An exclusion by no leader."""
    return Evicted(reason="it takes no part in the step any more")


def finished(version: int) -> Finished:
    """The end of a run that goes on."""
    return Finished(version=version)


def open_step(term: int, epoch: Epoch, roster: Roster) -> OpenStep:
    """A step that no leader opens."""
    return OpenStep(term=term, epoch=epoch, roster=roster, lineage="forged")


def elect(term: int, me: Member) -> Elect:
    """A candidate that is no trainer."""
    return Elect(term=term, me=me)


def holding(version: int, stages: int, proof: bytes) -> Holding:
    """A copy of a version that the run has never had. proof: of another one."""
    snapshot = Snapshot(version=version, roots=(NO_ROOT,) * stages, proof=proof)
    return Holding(snapshot=snapshot, stages=tuple(range(stages)), whole=True)


def held(stage: int, version: int) -> Held:
    """A state in memory that the run has never had."""
    return Held(stage=stage, version=version, name="f" * 32, root=NO_ROOT)
