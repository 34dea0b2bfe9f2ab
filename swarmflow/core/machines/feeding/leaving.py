"""How a trainer's part begins and ends: it is let in or turned away, released, or the run is finished."""

from __future__ import annotations

from swarmflow.core.machines.feeding.trainer_phase import TrainerPhase
from swarmflow.core.machines.feeding.trainer_state import TrainerState
from swarmflow.core.protocol.actions import Action, Exit, Log, Send
from swarmflow.core.protocol.messages import Drain, Evicted, Finished, Postponed, Refused, Released, Welcome


def on_welcome(trainer: TrainerState, message: Welcome, now: float) -> list[Action]:
    """The leader lets this trainer in."""
    trainer.joined()
    trainer.lease.term = message.term
    return [Log("info", f"joined; {trainer.leader} leads")]


def on_postponed(trainer: TrainerState, message: Postponed, now: float) -> list[Action]:
    """The leader does not let it in yet; it goes on asking."""
    if trainer.phase is not TrainerPhase.JOINING or message.reason == trainer.postponed:
        return []
    trainer.postponed = message.reason
    return [Log("warning", f"not let in for {message.wait_s:.0f} s yet: {message.reason}")]


def on_refused(trainer: TrainerState, message: Refused, now: float) -> list[Action]:
    """The leader does not let this trainer in."""
    trainer.end()
    return [Exit(message.reason, ok=False)]


def on_evicted(trainer: TrainerState, message: Evicted, now: float) -> list[Action]:
    """The leader does not know this incarnation any more."""
    return trainer.leave(message.reason)


def on_drain_asked(trainer: TrainerState) -> list[Action]:
    """Leave at the end of the step. Asked again, leave at once; a leader stops as `Leader.stop` has it."""
    if trainer.draining or trainer.phase is TrainerPhase.JOINING:
        return _exit(trainer, "left at once")
    trainer.draining = True
    if trainer.lead is not None:
        return trainer.lead.stop()
    return [Send(trainer.leader, Drain()), Log("info", "leaving after this step")]


def on_released(trainer: TrainerState, message: Released, now: float) -> list[Action]:
    """The step that this trainer took part in is over."""
    return _exit(trainer, "left after the step")


def on_finished(trainer: TrainerState, message: Finished, now: float) -> list[Action]:
    """There are no more steps."""
    if message.reason:
        trainer.end()
        return [Exit(f"the run stopped at version {message.version}: {message.reason}", ok=False)]
    return _exit(trainer, f"the run is finished at version {message.version}")


def _exit(trainer: TrainerState, reason: str) -> list[Action]:
    trainer.end()
    return [*trainer.last_promise(), Exit(reason)]
