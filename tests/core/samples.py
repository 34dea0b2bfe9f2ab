"""Processes, microbatches, a reader of actions and a measure of effort for the tests of the core."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeVar

from swarmflow.core.commit.step import Step
from swarmflow.core.machines.leader import Leader
from swarmflow.core.protocol.actions import Action, Release, Send
from swarmflow.core.protocol.events import CheckpointWritten
from swarmflow.core.protocol.messages import Commit, OpenStep, RosterDelta
from swarmflow.core.protocol.types import Attempt, Epoch, Member, Microbatch, ProcessId, Ref

EPOCH = Epoch(0, 0)
REPAIR = Attempt(repair=1)
LINEAGE = "first"
A = TypeVar("A")


def process(name: str, incarnation: int = 1) -> ProcessId:
    return ProcessId(name, incarnation)


def member(name: str, stage: int = 0, capacity: int = 4) -> Member:
    return Member(process(name), stage, capacity)


def microbatch(index: int, epoch: Epoch = EPOCH) -> Microbatch:
    return Microbatch(epoch, index)


def of_type(actions: Iterable[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def messages(actions: Iterable[Action], kind: type[A]) -> list[tuple[ProcessId, A]]:
    """(receiver, message) of what is sent of one kind."""
    return [(action.to, action.message) for action in of_type(actions, Send) if isinstance(action.message, kind)]


def commits(actions: Iterable[Action]) -> list[tuple[ProcessId, Commit]]:
    """(receiver, commit) of what peers are told, alone or with the next step, where trainers are named t."""
    sent = [(action.to, action.message) for action in of_type(actions, Send)]
    alone = [(to, message) for to, message in sent if isinstance(message, Commit)]
    opened = [(to, message.commit) for to, message in sent if isinstance(message, OpenStep | RosterDelta)]
    return alone + [(to, commit) for to, commit in opened if commit is not None and not to.name.startswith("t")]


def released(actions: Iterable[Action]) -> list[Ref]:
    return [ref for action in of_type(actions, Release) for ref in action.refs]


def written(leader: Leader, event: CheckpointWritten, now: float) -> list[Action]:
    """What the leader asked for last to be written has ended so."""
    return leader.handle(replace(event, number=leader.safe.number), now)


def decided(step: Step) -> Epoch:
    """Return the last step that is committed: the next one opens with its commit, or when all have made the update."""
    return step.epoch if step.decision is not None else step.epoch.former


def calls(of: Callable[[], object]) -> int:
    """How many functions are called meanwhile: a measure of effort that no other process disturbs."""
    count = 0

    def called(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        of()
    finally:
        sys.setprofile(None)
    return count
