"""The next step, begun while the one before is reduced (`[train] delay = 1`): its microbatches, without a ballot yet.

It has the members of the step before, which alone has ballots and elections. Its own OpenStep follows when that one is
committed; members keep what they have of it, and the run goes on from there.
"""

from __future__ import annotations

from swarmflow.core.commit.assignment import Assignment
from swarmflow.core.commit.step import Step, drop, reconsider
from swarmflow.core.commit.step_members import StepMembers
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Assign, OpenStep
from swarmflow.core.protocol.types import ProcessId


def begin(before: Step, learning_rate: float, now: float) -> tuple[Step, list[Action]]:
    """Begin the step after one whose microbatches are all done, with the members that have done them."""
    step = _after(before, learning_rate, now)
    return step, _assigns(step, step.assignment.shares())


def resume(before: Step, shares: dict[ProcessId, tuple[int, ...]], reassignment: int, learning_rate: float) -> Step:
    """Return the step that a former leader has begun ahead, without what has been done of it.

    shares: the microbatches of each trainer alive. The others' have to be given to somebody by `reassigned`.
    """
    step = _after(before, learning_rate, before.opened_s)
    owners = {index: trainer for trainer, indices in shares.items() for index in indices}
    step.assignment = Assignment(owners, reassignment)
    return step


def reassigned(step: Step) -> list[Action]:
    """Give the microbatches that no trainer has to those that are alive."""
    return _assigns(step, step.assignment.reassign_missing(step.plan.microbatches, step.members.trainers))


def gone(step: Step, process: ProcessId) -> tuple[tuple[tuple[int, int], ...], list[Action]]:
    """Take a dead process out. Returns the hops (stage, index) that no process holds any more, and what follows."""
    if process not in step.roster.id_set:
        return (), []
    lost, added = drop(step, process)
    reconsider(step)
    return lost, _assigns(step, added)


def opened(step: Step, open_step: OpenStep, now: float) -> list[Action]:
    """Open it: the step before is committed. Returns what follows for members that are not named any more."""
    places, actions = open_step.roster.stage_by_id, list[Action]()
    for process, stage in step.roster.stage_by_id.items():
        if places.get(process) != stage:
            actions += gone(step, process)[1]
    step.open_step, step.opened_s = open_step, now
    former, step.members = step.members, StepMembers(open_step, step.plan.shared)
    step.members.remember(former)
    return actions


def _after(before: Step, learning_rate: float, now: float) -> Step:
    roster, lineage = before.roster, before.open_step.lineage
    open_step = OpenStep(before.term, before.epoch.following, roster, lineage, ahead=True)
    step = Step(before.plan, before.term, open_step, learning_rate, before.clip, now)
    step.members.follow(before.members)
    before.members.followed = True
    return step


def _assigns(step: Step, added: dict[ProcessId, tuple[int, ...]]) -> list[Action]:
    reassignment = step.assignment.reassignment
    return [Send(to, Assign(step.term, step.epoch, indices, reassignment)) for to, indices in added.items()]
