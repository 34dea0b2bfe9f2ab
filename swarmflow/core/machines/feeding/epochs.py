"""The epochs of a trainer: a step is opened, its members change, it is committed, and its result is recorded."""

from __future__ import annotations

from swarmflow.core.election.epoch_view import begun
from swarmflow.core.machines.feeding.trainer_state import TrainerState
from swarmflow.core.pipeline import lateness
from swarmflow.core.protocol.actions import Action, Connect, Forget, Record, Send
from swarmflow.core.protocol.messages import (
    Assign,
    MemberEntered,
    MemberFailed,
    OpenStep,
    Prepare,
    Prepared,
    RosterDelta,
    StepResult,
    Suspect,
)
from swarmflow.core.protocol.types import Microbatch


def on_open_step(trainer: TrainerState, message: OpenStep | RosterDelta, now: float) -> list[Action]:
    """Begin a step with this trainer's share of its microbatches."""
    if message.epoch <= trainer.epoch:
        return []
    epoch_view = begun(message, trainer.epoch_view)
    if epoch_view is None:
        return trainer.leave(f"this process was not told who takes part in step {message.epoch.step}")
    trainer.joined()
    trainer.epoch, trainer.epoch_view = message.epoch, epoch_view
    trainer.lease.term = max(trainer.lease.term, message.term)
    roster, me = epoch_view.opened.roster, trainer.me.process
    trainer.peers = set(roster.peer_ids)
    others = tuple(member for member in roster.members if member.process != me)
    flows = trainer.flows.open(roster, now) if trainer.flows is not None else []
    return [Connect(others), *trainer.source.open(epoch_view.opened, now), *flows]


def on_member_entered(trainer: TrainerState, message: MemberEntered, now: float) -> list[Action]:
    """Add a peer that takes part from now on, amid the step."""
    member = message.member
    if message.epoch != trainer.epoch or trainer.epoch_view is None:
        return []
    trainer.epoch_view.enter(member)
    trainer.peers.add(member.process)
    flows = trainer.flows.open(trainer.epoch_view.alive(), now) if trainer.flows is not None else []
    return [Connect((member,)), *trainer.source.enter(member, now), *flows]


def on_member_failed(trainer: TrainerState, message: MemberFailed, now: float) -> list[Action]:
    """Send the microbatches that a failed peer held to others; feed more if a trainer failed."""
    view = trainer.epoch_view
    if message.epoch != trainer.epoch or view is None:
        return []
    if message.process == trainer.me.process:
        return trainer.leave(f"taken for dead: {message.reason}")
    fewer_trainers = view.place(message.process) == -1 and message.process not in view.gone
    view.died(message.process)
    actions: list[Action] = [] if trainer.lead is not None else [Forget(message.process)]
    if trainer.flows is not None:
        actions += trainer.flows.gone(message.process, now)
    if fewer_trainers:
        actions += trainer.source.trainer_gone()
    trainer.peers.discard(message.process)
    first = {Microbatch(trainer.epoch, index) for stage, index in message.lost if stage == 0}
    first |= {Microbatch(trainer.epoch.following, index) for stage, index in message.lost_ahead if stage == 0}
    return actions + lateness.gone(trainer.source.dispatcher, message.process, now, first)


def on_suspect(trainer: TrainerState, message: Suspect, now: float) -> list[Action]:
    """Go around a peer that has lost its connection to this trainer."""
    return lateness.on_connection_lost(trainer.source.dispatcher, message.process, now)


def on_assign(trainer: TrainerState, message: Assign, now: float) -> list[Action]:
    """Take over microbatches of a failed trainer, or a share of the next step's."""
    return trainer.source.assign(message)


def on_prepare(trainer: TrainerState, message: Prepare, now: float) -> list[Action]:
    """Promise a ballot: should this trainer lead next, it goes on from it."""
    if message.epoch != trainer.epoch or trainer.epoch_view is None:
        return []
    trainer.epoch_view.prepare(message)
    return [Send(trainer.leader, Prepared(message.epoch, message.ballot, ()))]


def on_step_result(trainer: TrainerState, message: StepResult, now: float) -> list[Action]:
    """Record the result of a committed step, once: a leader that took over sends it again."""
    if message.epoch <= trainer.recorded:
        return []
    trainer.recorded = message.epoch
    return [*trainer.source.finish(message.epoch), Record(message)]
