"""Sends the roster of an epoch: to a peer the stages around its own, to a trainer all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import OpenStep, RosterDelta
from swarmflow.core.protocol.types import Member, ProcessId, SharedWeights

NOBODY: Mapping[ProcessId, int] = MappingProxyType({})


def announce(
    open_step: OpenStep,
    members: Iterable[Member],
    shared: tuple[SharedWeights, ...],
    change: RosterDelta | None = None,
    stages: Mapping[ProcessId, int] = NOBODY,
) -> list[Action]:
    """Return the messages that open an epoch to these members.

    A trainer, which may have to lead, gets the whole roster, a peer the stages around its own. shared: the weights that
    several stages have. change: the difference for those that have the OpenStep before; stages: the stage that each of
    them served then.
    """
    seen: dict[int, OpenStep] = {-1: open_step}
    actions: list[Action] = []
    for member in members:
        if change is not None and stages.get(member.process) == member.stage:
            actions.append(Send(member.process, change))
            continue
        if member.stage not in seen:
            seen[member.stage] = open_step.seen_from(member.stage, shared)
        actions.append(Send(member.process, seen[member.stage]))
    return actions
