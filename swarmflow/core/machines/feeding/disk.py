"""The versions on a trainer's disk: those it copies from the leader, and what it reports of them."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.machines.feeding.trainer_state import TrainerState
from swarmflow.core.protocol.actions import Action, Connect, Log, Send, WriteCheckpoint
from swarmflow.core.protocol.events import CheckpointWritten, DiskChanged
from swarmflow.core.protocol.messages import CopiesHeld, KeepCopy
from swarmflow.core.protocol.types import Holding, Roster, Snapshot


def on_keep_copy(trainer: TrainerState, message: KeepCopy, now: float) -> list[Action]:
    """Copy a whole version, unless it or a later one is here."""
    here, wanted = Snapshot(trainer.on_disk, trainer.roots), message.snapshot
    if trainer.lead is not None or wanted.version < here.version or wanted == here:
        return []
    if message.stages != tuple(range(trainer.plan.stages)):
        return []
    roster = Roster(message.holders)
    return [Connect(tuple(dict.fromkeys(roster.peers))), WriteCheckpoint(wanted.version, roster, roots=wanted.roots)]


def on_checkpoint_written(trainer: TrainerState, event: CheckpointWritten, now: float) -> list[Action]:
    """A version is on this trainer's disk, or could not be brought there."""
    if event.ok and event.version >= trainer.on_disk:
        trainer.on_disk, trainer.roots, trainer.parts = event.version, event.roots, ()
    if trainer.lead is not None:
        return trainer.lead.handle(event, now)
    log = Log("warning", f"version {event.version} could not be copied here: {event.reason}")
    return [*([] if event.ok else [log]), *_report(trainer, "" if event.ok else event.reason)]


def on_disk_changed(trainer: TrainerState, event: DiskChanged, now: float) -> list[Action]:
    """Something on this trainer's disk cannot be used any more."""
    trainer.on_disk, trainer.roots, trainer.parts = event.version, event.roots, event.parts
    if trainer.lead is not None:
        return trainer.lead.handle(event, now)
    return [Log("warning", event.reason), *_report(trainer)]


def _report(trainer: TrainerState, failed: str = "") -> list[Action]:
    whole = Holding(Snapshot(trainer.on_disk, trainer.roots), tuple(range(trainer.plan.stages)))
    copies = (*([whole] if trainer.roots else []), *trainer.parts)
    trainer.join = replace(trainer.join, copies=copies)
    return [Send(trainer.leader, CopiesHeld(copies, failed))]
