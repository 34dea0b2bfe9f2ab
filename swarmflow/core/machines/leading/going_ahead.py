"""The next step begins before the present one is over everywhere, where nothing has to happen between the two."""

from __future__ import annotations

from swarmflow.core.commit import ahead
from swarmflow.core.commit.step import Step
from swarmflow.core.machines.leading import moves, roots
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.types import Member, ProcessId


def go_ahead(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Begin the next step where the run delays its updates: all microbatches of this one are done."""
    if leader.plan.delay == 0 or leader.ahead is not None or not _nothing_between(leader, step, now):
        return []
    leader.ahead, actions = ahead.begin(step, leader.settings.learning_rate(leader.version + 1), now)
    return actions


def follows_at_once(leader: LeaderState, step: Step, now: float) -> bool:
    """Return whether the next step may be opened with the commit of this one, before its members have made the update.

    So no step waits for the slowest of them, nor for its answer. Not where the version is validated or written first,
    where peers load one, and where the roots of the version before are awaited: they would come too late.
    """
    following, every, safe = leader.version + 1, leader.settings.validate_every, leader.safe
    if leader.plan.delay or (every and following % every == 0) or roots.loaded_stages(leader):
        return False
    if safe.due(following) or safe.asked or safe.snapshots.version is not None:
        return False
    if leader.rooted == leader.version and not roots.is_certified(leader):
        return False
    return _nothing_between(leader, step, now)


def _nothing_between(leader: LeaderState, step: Step, now: float) -> bool:
    """Return whether the next step can have the members of this one, and nobody waits for the edge between them."""
    following, membership = leader.version + 1, leader.membership
    if following >= leader.settings.steps or leader.stopping:
        return False
    if step.open_step.careful or membership.suspended or leader.safe.holds_up(following):
        return False
    members = [membership.known[process] for process in step.roster.id_set if process in membership.known]
    if any(entry.draining for entry in members) or not all(step.members.opened.stages):
        return False
    return not moves.due(leader, now)


def lose_member(
    leader: LeaderState, process: ProcessId, reason: str, taken_over: bool = False, ready: tuple[Member, ...] = ()
) -> list[Action]:
    """Take a failed member out of the present step, and of the next one where that has begun (see `Step.gone`)."""
    step, following = leader.step, leader.ahead
    lost, assigned = ahead.gone(following, process) if following is not None else ((), [])
    if step is None:
        return assigned
    actions = step.gone(process, reason, taken_over, ready, lost)
    if following is not None:
        following.members.follow(step.members)
    return actions + assigned
