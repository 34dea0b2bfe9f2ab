"""The ballots of a step: when one begins, what of it begins anew, and what follows when it stands still."""

from __future__ import annotations

from swarmflow.core.commit.reduce import takes_part
from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import BEFORE_BALLOT, StepPhase
from swarmflow.core.commit.step_summary import waits_for
from swarmflow.core.machines.leading import departures, going_ahead, progress
from swarmflow.core.machines.leading.leader_state import LeaderState
from swarmflow.core.membership.placement import is_narrow
from swarmflow.core.protocol.actions import Action, Count, Log
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import Group, ProcessId
from swarmflow.core.routing.link_rates import LinkTable


def weigh(leader: LeaderState, now: float) -> list[Action]:
    """Weigh accusations. Members that lost each other reduce anew: messages between them may be lost."""
    answered = leader.faults.suspicions.answered(now)
    actions = departures.weigh(leader, now)
    step = leader.step
    if step is None or not answered or step.phase not in (*BEFORE_BALLOT, StepPhase.PREPARING):
        return actions
    void = step.ballot.void(lambda reducing: any(_share(reducing.group, *pair) for pair in answered))
    if not void or step.phase is not StepPhase.PREPARING:
        return actions
    text = f"ballot {step.ballot.number} is begun anew: a link between its members broke"
    return [*actions, Log("info", text, EventKind.RESTARTED), Count("ballots_again"), *prepare(leader, step, now)]


def held_long_enough(leader: LeaderState, step: Step, now: float) -> bool:
    """Return whether peers that lack nothing but the last updates have had their time to take part in this one."""
    ballots = leader.ballots
    if ballots.complete_s is None:
        ballots.complete_s = now
    # Without what the last step waited: else each wait would make the next one longer.
    step_s = leader.last.seconds - ballots.held_s if leader.last is not None else 0.0
    hold_s = max((leader.timeouts.hold_s(entry.tries, step_s) for entry in leader.membership.loading()), default=0.0)
    ballots.held_until_s = ballots.complete_s + hold_s
    if now < ballots.held_until_s:
        return False
    if step.ballot.tally is None:  # it is the first one
        ballots.held_s = now - ballots.complete_s
    return True


def late(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Begin a ballot anew that stands still. The second time, put out the peer that does nothing."""
    leader.ballots.due_s = progress.reduction_due_s(leader, step, 2.0**leader.ballots.in_vain)
    if now < leader.ballots.due_s:
        return []
    leader.ballots.in_vain += 1
    culprit = progress.blame(leader, step) if leader.ballots.in_vain > 1 else None
    progress.reduction_missed(leader, step, now)
    if culprit is not None:
        reason = f"holds up the all-reduce of step {leader.version}, which was begun anew and stands still again"
        return progress.pause(leader, culprit, reason, now)
    alone = ", which nobody can do for them" if leader.ballots.in_vain > 1 else ""
    step.ballot.void(lambda reducing: any(step.owes(process) for process in reducing.group.members))
    text = f"ballot {step.ballot.number} of step {leader.version} is begun anew: {waits_for(step)} does not end{alone}"
    return [Log("warning", text, EventKind.RESTARTED), Count("ballots_again"), *prepare(leader, step, now)]


def prepare(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Begin a ballot with the peers that are ready by now. Each one in vain gives the next one more time."""
    leader.ballots.due_s = now + leader.timeouts.ballot_s * 2.0**leader.ballots.in_vain
    ready, present = leader.membership.roster(leader.version).peers, step.roster.id_set
    newcomers = tuple(member for member in ready if member.process not in present)
    # Beside a step that has begun ahead no link is idle, so that help makes it longer (docs/decisions/delay.md). After
    # two ballots in vain nobody sums for another stage: it may be to blame.
    alone = leader.plan.delay > 0 or leader.ballots.in_vain >= 2
    links = LinkTable() if alone else leader.links()
    begun = going_ahead.go_ahead(leader, step, now)
    owning = leader.faults.odd_sums.owning(leader.version, now)
    prepared = step.prepare(newcomers, links, leader.ahead is not None, _busy_donors(leader, step), owning)
    if leader.ahead is not None:
        leader.ahead.members.follow(step.members)
    return [*prepared, *step.ask_trainers(leader.lineage.committed_followers), *begun]


def ask_again(leader: LeaderState, step: Step, now: float) -> list[Action]:
    """Ask for promises again: by another ballot, unless this one may be committed elsewhere."""
    if not step.ballot.inherited:
        return prepare(leader, step, now)
    leader.ballots.due_s = now + leader.timeouts.ballot_s
    return step.ask_trainers(leader.lineage.committed_followers)


def _share(group: Group, one: ProcessId, other: ProcessId) -> bool:
    """Return whether two processes may have to send each other pieces of a group's gradient."""
    return takes_part(one, group) and takes_part(other, group)


def _busy_donors(leader: LeaderState, step: Step) -> frozenset[ProcessId]:
    """Return the peers that serve a narrow stage alone while another one loads it: a part of their link is taken."""
    stages = step.roster.stages
    loaded = {entry.member.stage for entry in leader.membership.loading()}
    alone = [stage for stage in loaded if len(stages[stage]) == 1 and is_narrow(stages, stage)]
    return frozenset(stages[stage][0].process for stage in alone)
