"""One step as its leader sees it: work, prepare, commit; the exact number of microbatches, once everywhere."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field, replace
from typing import Any

from swarmflow.core.commit.assignment import Assignment
from swarmflow.core.commit.ledger import Ledger
from swarmflow.core.commit.norms import clipping, fits, squared_norms
from swarmflow.core.commit.piece_owners import Owning, adjacent_peers, with_owners
from swarmflow.core.commit.reduce import agree, differing
from swarmflow.core.commit.step_ballot import StepBallot, by_group
from swarmflow.core.commit.step_members import StepMembers
from swarmflow.core.commit.step_phase import BEFORE_BALLOT, OVER, STEP, StepPhase
from swarmflow.core.commit.takeovers import Takeovers
from swarmflow.core.membership.findings import VALUES, Finding, blame, plain
from swarmflow.core.protocol.actions import Action, Count, Log, Send
from swarmflow.core.protocol.messages import (
    Assign,
    Commit,
    Committed,
    Done,
    MemberFailed,
    NotFinite,
    OpenStep,
    Overflow,
    Prepared,
    StepResult,
    Tally,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.protocol.timeline import EventKind
from swarmflow.core.protocol.types import Epoch, Member, Plan, ProcessId, Roster
from swarmflow.core.routing.link_rates import LinkTable

ALL_OWN = Owning()
AboutStep = Done | Prepared | Unprepared | Unrepairable | Overflow | NotFinite | Committed


@dataclass(frozen=True, slots=True)
class StepFailure:
    """Why a step has to start over."""

    reason: str
    culprits: tuple[ProcessId, ...] = ()  # the members that may have made it fail; of several it was one
    differing: tuple[ProcessId, ...] = ()  # members whose reduced gradient is not that of most of their group
    summed_by: ProcessId | None = None  # who has summed that gradient for all; None: several have
    overflow: Overflow | None = None  # a gradient was too large for the exponent
    finding: Finding | None = None  # a value was not finite


@dataclass(slots=True)
class Step:
    """The leader's machine for one epoch."""

    plan: Plan
    term: int
    open_step: OpenStep  # with which it began
    learning_rate: float
    clip: float  # largest global gradient norm, 0: no clipping
    opened_s: float
    phase: StepPhase = field(init=False, default=STEP.initial)
    failure: StepFailure | None = field(init=False, default=None)
    decision: Commit | None = field(init=False, default=None)  # the commit, from `committing` on
    members: StepMembers = field(init=False)
    ledger: Ledger = field(init=False)
    assignment: Assignment = field(init=False)
    ballot: StepBallot = field(init=False, default_factory=StepBallot)
    takeovers: Takeovers = field(init=False, default_factory=Takeovers)
    dropped: set[tuple[int, int]] = field(init=False, default_factory=set)  # hops taken away before a takeover
    applied: set[ProcessId] = field(init=False, default_factory=set)  # members that have made the update
    # Members whose heartbeats show an earlier epoch, and since when: the OpenStep may not have reached them.
    behind_s: dict[ProcessId, float] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.members = StepMembers(self.open_step, self.plan.shared)
        self.ledger = Ledger(self.plan.stages, self.plan.microbatches)
        self.assignment = Assignment.of(self.members.trainers, self.plan.microbatches)

    @property
    def epoch(self) -> Epoch:
        """Which try at which step."""
        return self.open_step.epoch

    @property
    def roster(self) -> Roster:
        """The members alive, with those that have come in."""
        return self.members.roster

    # --- messages of members ------------------------------------------------------------------------------------------

    def done(self, sender: ProcessId, message: Done) -> list[Action]:
        """Enter an accumulated hop in the ledger.

        Not one that crosses with a Prepare: a hop that it does not list its sender subtracts.
        """
        accepting = (StepPhase.WORKING, StepPhase.COMPLETE)
        crossed = sender in self.ballot.asked and message.ballot < self.ballot.number
        if message.microbatch.epoch != self.epoch or self.phase not in accepting or crossed:
            return []
        without_tokens = message.stage == self.plan.stages - 1 and message.tokens < 1
        if sender not in self.roster.peer_ids or without_tokens:
            return []
        self.ledger.done(sender, message)
        actions = self.takeovers.done(sender, message)
        if self.phase is StepPhase.WORKING and self.ledger.complete:
            self._move(StepPhase.COMPLETE)
            actions += self.takeovers.complete()
        return actions

    def overflowed(self, sender: ProcessId, message: Overflow) -> list[Action]:
        """Start over with a smaller exponent: a gradient does not fit."""
        if message.microbatch.epoch != self.epoch or self.phase in OVER or sender not in self.roster.peer_ids:
            return []
        reason = f"a gradient of microbatch {message.microbatch} is too large to be added up exactly, on {sender}"
        return self.fail(StepFailure(reason, (sender,), overflow=message))

    def not_finite(self, sender: ProcessId, message: NotFinite) -> list[Action]:
        """A member found a value that is not finite: nothing of this try may reach the weights."""
        if message.epoch != self.epoch or self.phase in OVER:
            return []
        known = message.value in VALUES and -1 <= message.index < self.plan.microbatches
        if not known or sender not in self.roster.peer_ids:
            return []
        if message.owner is not None:  # the owner may have been given the value itself, and then blames its giver too
            if self.phase is not StepPhase.PREPARING:
                return []
            self.ballot.blamed[sender] = message.owner
            return self._reduced()
        stage, layer = self.roster.stage_of(sender), plain(message.layer)
        return self.fail(_void(Finding(self.epoch.step, message.index, stage, sender, message.value, layer)))

    def prepared(self, sender: ProcessId, message: Prepared) -> list[Action]:
        """A member has reduced its groups, or a trainer promises the ballot."""
        if (message.epoch, message.ballot) != (self.epoch, self.ballot.number):
            return []
        if sender in self.roster.ids_by_stage[-1]:
            self.ballot.promised.add(sender)
        if self.phase is not StepPhase.PREPARING or sender not in self.roster.peer_ids:
            return []
        self.ballot.results[sender] = by_group(message.results)
        return self._reduced()

    def unprepared(self, sender: ProcessId, message: Unprepared) -> list[Action]:
        """A member does not hold what the manifest lists."""
        current = (self.epoch, self.ballot.number, StepPhase.PREPARING)
        if (message.epoch, message.ballot, self.phase) != current or sender not in self.roster.peer_ids:
            return []
        return self.fail(StepFailure(f"{sender} could not prepare: {message.reason}", (sender,)))

    def unrepairable(self, sender: ProcessId, message: Unrepairable) -> list[Action]:
        """A member has not kept what a repair needs."""
        if message.epoch != self.epoch or self.phase in OVER or sender not in self.roster.id_set:
            return []
        return self.fail(StepFailure(f"{sender} cannot repair it: {message.reason}", (sender,)))

    def committed(self, sender: ProcessId, message: Committed) -> list[Action]:
        """A member has applied the update."""
        current = message.epoch == self.epoch and self.phase is StepPhase.COMMITTING
        if not current or sender not in self.roster.peer_ids:
            return []
        self.applied.add(sender)
        return self._commit_if_all()

    # --- members ------------------------------------------------------------------------------------------------------

    def gone(
        self,
        process: ProcessId,
        reason: str,
        taken_over: bool = False,
        ready: tuple[Member, ...] = (),
        lost_ahead: tuple[tuple[int, int], ...] = (),
    ) -> list[Action]:
        """A process died. What it had accumulated is done again by others, from its neighbours' journals.

        taken_over: the ledger was put together from reports; what it lacks and somebody has dropped was the dead one's.
        ready: peers of its stage that hold this version: they take part from now on. lost_ahead: hops (stage, index) of
        the next step that have lost their holder too.
        """
        members = self.members
        if process not in self.roster.id_set:
            return []
        ballot = self.phase not in BEFORE_BALLOT
        fixed = self.ballot.inherited and self.phase is StepPhase.PREPARED  # it may be committed elsewhere, as it is
        entered = [] if fixed or self.phase in OVER else members.enter(ready, ballot)
        stage = self.roster.stage_of(process)
        recipients = self.roster.ids if taken_over else members.concerned(stage, ballot)
        if self.phase in (StepPhase.COMMITTING, StepPhase.COMMITTED):
            members.remove(process)
            self.applied.discard(process)
            return self._commit_if_all()  # nobody is notified: they would send again what needs no repair any more
        deserted = StepFailure(f"nobody is left on a stage after {process} went")
        if fixed:  # notified, the others would drop their sums
            members.remove(process)
            self.ballot.promised |= {process} if self.ballot.gone(process) else set()
            return [] if all(self.roster.stages) else self.fail(deserted)
        lost, added = drop(self, process)
        dropped = tuple(hop for hop in self.ledger.missing() if hop in self.dropped)
        message = MemberFailed(self.term, self.epoch, process, reason, dropped if taken_over else lost, lost_ahead)
        actions: list[Action] = [*entered, *(Send(other, message) for other in recipients)]
        if self.phase is StepPhase.FAILED:
            return actions
        if any(not each for each in members.opened.stages):
            return actions + self.fail(deserted)
        reconsider(self)
        reassignment = self.assignment.reassignment
        actions += [Send(to, Assign(self.term, self.epoch, indices, reassignment)) for to, indices in added.items()]
        return actions + ([Count("hops_lost", amount=len(lost))] if lost else [])

    def entered(self) -> list[Action]:
        """Announce once more who came in amid the step: the former leader may have died while it did so."""
        return self.members.entered(self.phase not in BEFORE_BALLOT)

    # --- the ballot ---------------------------------------------------------------------------------------------------

    def prepare(
        self,
        newcomers: tuple[Member, ...],
        links: LinkTable,
        ahead: bool = False,
        busy: Set[ProcessId] = frozenset(),
        owning: Owning = ALL_OWN,
    ) -> list[Action]:
        """Begin a ballot: send each member what of its work counts, and who reduces what with whom.

        newcomers: peers that hold this version and are not in the roster. links: between the peers, where measured.
        ahead: the next step begins already. busy: peers that sum for no other stage. owning: who may sum.
        """
        self.ledger.settle()
        entries, ballot = self.ledger.entries(), self.ballot
        ballot.keep(self.members.groups, entries)
        newcomers = tuple(member for member in newcomers if not ballot.disturbed_by(member, self.plan))
        totals = self.ledger.loss, self.ledger.tokens, self.ledger.retries
        ballot.begin(Tally(*totals, self.open_step.lineage))
        self._move(StepPhase.PREPARING)
        actions = self.members.join_update(newcomers)
        adjacent = adjacent_peers(self.roster, busy)
        begun = [group for group in self.members.groups if group.name not in ballot.reductions]
        kept = len(ballot.reductions)
        ballot.reduce(with_owners(begun, owning, entries, adjacent, links), entries)
        groups, newcomers = ballot.groups_of(), tuple(self.members.newcomers.values())
        for process in sorted(self.roster.peer_ids):
            own = entries.get(process, ()), groups[process]
            actions.append(Send(process, ballot.message(self.term, self.epoch, newcomers, *own, ahead=ahead)))
        ballot.asked = self.roster.peer_ids
        return actions + ([Count("reductions_kept", amount=kept)] if kept else [])

    def ask_trainers(self, bound: Set[ProcessId]) -> list[Action]:
        """Have the trainers promise the ballot: each may have to lead, and has to know of it then.

        bound: processes that follow no other leader any more: this one, and those that have left for good.
        """
        newcomers = tuple(self.members.newcomers.values())
        message = self.ballot.message(self.term, self.epoch, newcomers)
        return [Send(trainer, message) for trainer in self.roster.ids_by_stage[-1] if trainer not in bound]

    def _reduced(self) -> list[Action]:
        """Go on when every member has reduced, or has reported that the sum is not finite."""
        if not self.ballot.answered(self.roster.peer_ids):
            return []
        if self.ballot.blamed:
            return self.fail(_void(blame(self.epoch.step, self.ballot.blamed, self.roster)))
        return self._judge()

    def _judge(self) -> list[Action]:
        """Every member has reduced: decide whether the sums can be committed."""
        tally, groups = self.ballot.tally, self.members.groups
        assert tally is not None, "a ballot has a tally from its beginning"
        for group in groups:
            results = [self.ballot.results[process].get(group.name, (0.0, "")) for process in group.members]
            if not agree(results):
                by = self.ballot.sole_owner(group.name)
                odd = differing(group, results, by)
                reason = f"the members of {group.name} do not agree on the reduced gradient"
                return self.fail(StepFailure(reason, odd or group.members, differing=odd, summed_by=by))
        squared = squared_norms(groups, self.ballot.results)
        if not fits(squared, tally.tokens, self.clip):
            largest = groups[max(range(len(groups)), key=lambda which: squared[which])]
            finding = Finding(self.epoch.step, -1, -1, None, "gradient")
            return self.fail(replace(_void(finding), culprits=largest.members))
        self._move(StepPhase.PREPARED)
        return []

    def owes(self, process: ProcessId) -> bool:
        """Return whether a member has still to reduce for the ballot or, once it is committed, to apply the update."""
        return process not in (self.applied if self.phase is StepPhase.COMMITTING else self.ballot.results)

    # --- the decision -------------------------------------------------------------------------------------------------

    def commit(
        self, now: float, followed: tuple[int, ...] = (), hashed: bool = False, awaited: bool = True
    ) -> list[Send]:
        """Decide: from here on the step happens. The clip factor is that of the exact norm over all stages.

        followed: stages that peers load. hashed: whether peers hash what the update makes. awaited: whether anything
        waits until all members have made the update.
        """
        tally = self.ballot.tally
        assert tally is not None, "a ballot has a tally from its beginning"
        norm, factor = clipping(squared_norms(self.members.groups, self.ballot.results), tally.tokens, self.clip)
        result = StepResult(
            term=self.term,
            epoch=self.epoch,
            loss=tally.loss,
            tokens=tally.tokens,
            seconds=now - self.opened_s,
            grad_norm=norm,
            learning_rate=self.learning_rate,
            microbatches=self.plan.microbatches,
            peers=tuple(len(stage) for stage in self.roster.stages),
            retries=tally.retries,
            kept=self.open_step.kept,
        )
        scale = factor / tally.tokens
        update = scale, self.learning_rate
        lineage = self.open_step.lineage
        message = Commit(self.term, self.epoch, self.ballot.number, *update, result, followed, hashed, lineage)
        self.decision = message
        self._move(StepPhase.COMMITTING)
        if not awaited:
            self._move(StepPhase.COMMITTED)
        return [Send(member.process, message) for member in self.roster.peers]

    def resume_commit(self, commit: Commit, applied: set[ProcessId]) -> None:
        """Take over from a leader that has committed. applied: those that have made the update."""
        self.ballot.number = commit.ballot
        self.decision = replace(commit, term=self.term, proof=b"")
        self.applied = set(applied)
        self._move(StepPhase.COMMITTING)

    def resume_prepared(self, tally: Tally, results: dict[ProcessId, tuple[tuple[str, float, str], ...]]) -> None:
        """Take over from a leader that may have committed this ballot: every member alive has reduced.

        Where their sums do not agree it has not.
        """
        self.ballot.resume(tally, results)
        self._judge()
        self.ballot.inherited = self.phase is StepPhase.PREPARED

    def commit_again(self) -> list[Action]:
        """Send the former leader's commit to the members that have not applied it."""
        if self.decision is None or self.phase is not StepPhase.COMMITTING:
            return []
        behind = [m.process for m in self.roster.peers if m.process not in self.applied]
        return [*(Send(process, self.decision) for process in behind), *self._commit_if_all()]

    def void(self, reason: str) -> list[Action]:
        """Start over, unless it is over: what is recorded of it here cannot be relied on any more."""
        return [] if self.phase in OVER else self.fail(StepFailure(reason))

    def fail(self, failure: StepFailure) -> list[Action]:
        """Start over: nothing of this try may be committed."""
        self.failure = failure
        self._move(StepPhase.FAILED)
        log = Log("warning", f"step {self.epoch.step} starts over: {failure.reason}", EventKind.RESTARTED)
        return [log, Count("steps_restarted"), *([Count("not_finite")] if failure.finding is not None else [])]

    def _commit_if_all(self) -> list[Action]:
        if self.phase is StepPhase.COMMITTING and self.applied >= self.roster.peer_ids:
            self._move(StepPhase.COMMITTED)
        return []

    def _move(self, to: StepPhase) -> None:
        """Enter a phase, in which what it means has to be true."""
        phase = STEP.move(self.phase, to)
        decided = phase in (StepPhase.COMMITTING, StepPhase.COMMITTED)
        assert decided == (self.decision is not None), f"{phase} with the decision {self.decision}"
        assert (phase is StepPhase.FAILED) == (self.failure is not None), f"{phase} with the failure {self.failure}"
        if phase in (StepPhase.COMPLETE, StepPhase.PREPARING):
            assert self.ledger.complete, f"{phase} with {self.ledger.done_hops} hops"
        if phase in (StepPhase.PREPARING, StepPhase.PREPARED):
            assert self.ballot.tally is not None, f"{phase} without a tally"
        if phase is StepPhase.PREPARED:
            assert self.ballot.results.keys() >= self.roster.peer_ids, "prepared before all members have reduced"
        self.phase = phase


def drop(step: Step, process: ProcessId) -> tuple[tuple[tuple[int, int], ...], dict[ProcessId, tuple[int, ...]]]:
    """Take a dead member out.

    Returns the hops (stage, index) that no process holds any more, and a dead trainer's microbatches by the trainers
    that form them from now on.
    """
    trainer, stage = process in step.roster.ids_by_stage[-1], step.roster.stage_of(process)
    step.members.remove(process)
    step.ballot.gone(process)
    step.applied.discard(process)
    if trainer:
        return step.ledger.gone(process), step.assignment.reassign(process, step.members.trainers)
    step.takeovers.died(process, stage)
    return step.ledger.gone(process), {}


def reconsider(step: Step) -> None:
    """Go back to work after a death, or to the end of it where nothing was lost."""
    step._move(StepPhase.COMPLETE if step.ledger.complete else StepPhase.WORKING)


def _void(finding: Finding) -> StepFailure:
    """Return the failure of a step in which a value was not finite."""
    whose = f", on {finding.holder}" if finding.holder is not None else ""
    return StepFailure(f"{finding}{whose}", finding=finding)


def received(step: Step, sender: ProcessId, message: AboutStep) -> list[Action]:
    """Give a step a member's message."""
    return _HANDLERS[type(message)](step, sender, message)


_HANDLERS: dict[type, Callable[[Step, ProcessId, Any], list[Action]]] = {
    Done: Step.done,
    Prepared: Step.prepared,
    Unprepared: Step.unprepared,
    Overflow: Step.overflowed,
    NotFinite: Step.not_finite,
    Unrepairable: Step.unrepairable,
    Committed: Step.committed,
}
