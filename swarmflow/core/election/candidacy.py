"""A trainer takes over from a lost leader: it asks all members to follow, and goes on from what they hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from swarmflow.core.commit import ahead
from swarmflow.core.commit.provenance import wrongly_handed
from swarmflow.core.commit.quorum import Quorum, lies_max, quorum_size
from swarmflow.core.commit.step import Step, StepFailure
from swarmflow.core.commit.step_phase import BEFORE_BALLOT
from swarmflow.core.election.credibility import believed_dead, believed_newcomers, mistaken, of_its_history, of_its_role
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.election.gathered_roster import GatheredRoster
from swarmflow.core.protocol.actions import Action, Connect, Send
from swarmflow.core.protocol.messages import Commit, Elect, ElectionReport, OpenStep
from swarmflow.core.protocol.types import Epoch, Member, Plan, ProcessId, Roster

ASK_EVERY_S = 1.0
SETTLE_S = 2.0  # for answers beyond a majority; members that have not answered by then are taken for dead
STAGE_S = 6.0  # the same, where that would cost a whole stage, and with it the steps since the last checkpoint


@dataclass(slots=True)
class Candidacy:
    """One try of a trainer at leading.

    A process that follows has promised to accept no message of a lower term. A majority of the members of the last
    OpenStep has to follow, and one of the members of the last committed step (core/commit/quorum.py).
    """

    me: Member  # the trainer that stands
    term: int
    epoch_view: EpochView  # its own
    began_s: float
    steps: int = 1 << 40  # of the run
    reports: dict[ProcessId, ElectionReport] = field(init=False, default_factory=dict)
    _gathered: dict[Epoch, GatheredRoster] = field(init=False, default_factory=dict)  # rosters, by epoch
    _listed: Roster | None = field(init=False, default=None)  # the last roster whose members were asked
    _named: Counter[ProcessId] = field(init=False, default_factory=Counter)  # newcomers, by how many voters
    _asked: dict[ProcessId, Member] = field(init=False, default_factory=dict)
    _lost: set[ProcessId] = field(init=False, default_factory=set)
    _refused: set[ProcessId] = field(init=False, default_factory=set)
    _ask_again_s: float = field(init=False, default=0.0)

    def begin(self, own: ElectionReport, now: float) -> list[Action]:
        """Ask all members, beginning with the own report."""
        self._ask_again_s = now + ASK_EVERY_S
        return self.report(self.me.process, own)

    def report(self, sender: ProcessId, message: ElectionReport) -> list[Action]:
        """Take the report of a process that follows, and ask the members that only it knows.

        Who was not asked is no member: it has an OpenStep of some time, as anybody may who was one.
        """
        return self._take(sender, message) if sender in self._asked or sender == self.me.process else []

    def _take(self, sender: ProcessId, message: ElectionReport) -> list[Action]:
        if message.term != self.term or sender in self._refused:
            return []
        opened = self._with_roster(message)
        if opened is None or not self._is_about(sender, message, opened) or self._is_of_another_history(opened):
            return []
        self._gathered.setdefault(opened.epoch, GatheredRoster(opened)).add(opened)
        named = self._credible(sender, message)
        later = opened.epoch > self.epoch_view.epoch  # else who is a member is known here, and nobody else can say
        if opened.roster is not self._listed and (later or not opened.partial):
            named, self._listed = (*opened.roster.peers, *opened.roster.trainers, *named), opened.roster
        self.reports[sender] = of_its_history(replace(message, opened=opened))
        fresh = [m for m in named if m.process not in self._asked and m.process not in self.epoch_view.gone]
        self._asked |= {member.process: member for member in fresh}
        return self._ask([member for member in fresh if member.process != self.me.process])

    def _credible(self, sender: ProcessId, message: ElectionReport) -> tuple[Member, ...]:
        """Return the newcomers that a trainer names, or by now more voters than may lie: all are asked each second."""
        if message.join.role == "trainer" or not message.member.votes:
            return message.newcomers if message.join.role == "trainer" else ()
        if sender not in self.reports:
            self._named.update({member.process for member in message.newcomers})
        most = lies_max(self.epoch_view.opened.voters)
        return tuple(member for member in message.newcomers if self._named[member.process] > most)

    def _with_roster(self, message: ElectionReport) -> OpenStep | None:
        """Return the OpenStep of a report with its roster; None if that is not the one which the report names."""
        own, opened = self.epoch_view.opened, message.opened
        if opened.roster != Roster():
            return opened
        roster = own.roster if message.change is None else message.change.unfolded(own).roster
        if opened.whole and roster.digest != opened.whole:
            return None
        return replace(opened, roster=roster, whole="", named=0)

    def _is_about(self, sender: ProcessId, message: ElectionReport, opened: OpenStep) -> bool:
        """Return whether a report is about its sender, and about a place and a step that exist in this run.

        Who takes this trainer for dead does not follow it.
        """
        if sender != self.me.process and (opened.epoch.step >= self.steps or self.me.process in message.gone):
            return False
        stages = len(self.epoch_view.opened.roster.stages)
        placed = message.member.stage == -1 if message.join.role == "trainer" else 0 <= message.member.stage < stages
        return placed and len(opened.roster.stages) == stages and message.member.process == sender

    def _is_of_another_history(self, opened: OpenStep) -> bool:
        """Return whether it is a step of the same numbers as the own one, and not that one."""
        own = self.epoch_view.opened
        return opened.epoch == own.epoch and opened.lineage != own.lineage

    def lost(self, process: ProcessId) -> None:
        """Do not wait for a process that cannot be reached."""
        self._lost.add(process)

    def refuse(self, process: ProcessId) -> None:
        """Drop what a process has reported and will report."""
        self.lost(process)
        self._refused.add(process)
        self.reports.pop(process, None)
        self._gathered.clear()
        for report in self.reports.values():
            self._gathered.setdefault(report.opened.epoch, GatheredRoster(report.opened)).add(report.opened)

    def culprit(self, raises: Callable[[Candidacy], bool]) -> ProcessId | None:
        """Return the process whose report raises beside the own one; None if there is none or the own one does."""
        own = {self.me.process: self.reports[self.me.process]}
        if raises(self._of(own)):
            return None
        others = ((process, report) for process, report in self.reports.items() if process not in own)
        return next((process for process, report in others if raises(self._of({**own, process: report}))), None)

    def _of(self, reports: dict[ProcessId, ElectionReport]) -> Candidacy:
        alone = Candidacy(self.me, self.term, self.epoch_view, self.began_s, self.steps)
        for process, report in reports.items():
            alone._take(process, report)
        return alone

    def tick(self, now: float) -> list[Action]:
        """Ask again the members that have not answered: perhaps they did not doubt the former leader yet."""
        if now < self._ask_again_s:
            return []
        self._ask_again_s = now + ASK_EVERY_S
        return self._ask([m for p, m in sorted(self._asked.items()) if p not in self.reports])

    def next_deadline(self) -> float:
        """Return when tick is due."""
        return self._ask_again_s

    def elected(self, now: float) -> bool:
        """Return whether this trainer leads now."""
        latest, answered = self.latest(), len(self.reports) + len(self._lost)
        early = answered < len(self._asked) and now - self.began_s <= SETTLE_S
        if early or len(self.reports) < quorum_size(latest.voters):
            return False  # asked at each event: among 10,000 reports only what is cheap comes before this
        # A part of a roster may come from a liar, which gives votes as it likes: certificates are what counts.
        voting = {process for process, report in self.reports.items() if report.member.votes}
        return Quorum.of(latest).elects(voting) and self.settled(now)

    def settled(self, now: float) -> bool:
        """Return whether everybody has answered, is lost, or has had its time to answer."""
        if set(self._asked) <= set(self.reports) | self._lost:
            return True
        stages = [[member.process for member in stage] for stage in self.latest().roster.stages]
        kept = all(not self.reports.keys().isdisjoint(stage) or self._lost.issuperset(stage) for stage in stages)
        return now - self.began_s > (SETTLE_S if kept else STAGE_S)

    def sustained(self) -> bool:
        """Return whether those who follow hold the state of every stage, so that they can go on without a majority.

        Who has not heard of the last OpenStep, because its sender died meanwhile, holds it with the version before that
        step, or makes it of the commit that comes with that one.
        """
        latest = self.latest()
        dead = believed_dead(self.reports, latest)

        def holds(report: ElectionReport) -> bool:
            if report.opened.epoch == latest.epoch:
                return not report.abandoned
            brought = latest.commit is not None and makes(report, latest.commit)
            return brought or (report.ready and report.version == latest.epoch.step)

        holders = {process for process, report in self.reports.items() if process not in dead and holds(report)}
        return all(not holders.isdisjoint(member.process for member in stage) for stage in latest.roster.stages)

    def latest(self) -> OpenStep:
        """Return the last epoch that any follower knows, with all its members."""
        return self._gathered[max(self._gathered)].opened()

    def _ask(self, members: list[Member]) -> list[Action]:
        if not members:
            return []
        lead = Elect(self.term, self.me, self.epoch_view.opened.digest)
        return [Connect(tuple(members)), *(Send(m.process, lead) for m in members)]


@dataclass(frozen=True, slots=True)
class Takeover:
    """What a former leader left, put together from the reports."""

    step: Step
    reports: dict[ProcessId, ElectionReport]  # of those that may go on
    gone: tuple[ProcessId, ...]  # members that failed or did not answer
    expelled: tuple[ProcessId, ...]  # reported, although they were declared dead or have abandoned their part
    suspects: tuple[
        tuple[ProcessId, ProcessId], ...
    ]  # (accuser, accused) of those lost by a member and not declared dead
    convicted: dict[ProcessId, str]  # who has handed over what it did not have, and in which way
    doubtful: bool = False  # the step may be committed out of reach: another lineage follows
    ahead: Step | None = None  # the next step, where the former leader has begun it


def takeover_of(
    candidacy: Candidacy, plan: Plan, learning_rate: Callable[[int], float], clip: float, now: float
) -> Takeover:
    """Put together where the step stands, and which members are left. learning_rate: of each step.

    A commit that anybody has heard of is finished. So is a ballot that the former leader may have committed: one in
    which all of its members that are left have reduced (`_resume`). Otherwise nobody can have heard of a commit, and
    the work goes on from what is accumulated (design, "A step commits once, everywhere").
    """
    epoch = candidacy.latest().epoch
    reports = {p: of_its_role(report, plan) for p, report in sorted(candidacy.reports.items())}
    current = {p: r for p, r in reports.items() if r.opened.epoch == epoch}
    newcomers = believed_newcomers(current, candidacy.latest())
    open_step = _with_newcomers(candidacy.latest(), newcomers, candidacy.term)
    dead = believed_dead(current, open_step)
    dead |= mistaken(current, dead)
    named = open_step.roster.id_set
    undecided = all(report.commit is None for report in current.values())  # else their part is not needed any more
    dead |= {p for p, report in current.items() if p in named and _is_elsewhere(report, undecided)}
    gone = tuple(p for p in open_step.roster.ids if p in dead or p not in reports)
    step = Step(plan, candidacy.term, open_step, learning_rate(epoch.step), clip, now)
    step.members.resume(newcomers, {process for report in current.values() for process in report.entered})
    alive = {process: report for process, report in current.items() if process not in dead}
    # Those that the OpenStep of a step which was begun ahead has not reached have worked for it all the same.
    early = {p: r for p, r in reports.items() if r.ahead and r.opened.epoch == epoch.former}
    convicted = _convicted(step, {**alive, **early})
    doubtful = _resume(step, alive, early, gone)
    voids = [report.void for report in alive.values() if report.void]
    voids += [f"{process} {what}" for process, what in convicted.items()]
    if voids and step.phase in BEFORE_BALLOT:
        step.fail(StepFailure(voids[0]))
    spared = {*gone, candidacy.me.process}  # who leads has not lost itself
    lost = [(accuser, accused) for accuser, report in alive.items() for accused in report.suspects]
    return Takeover(
        step,
        {p: r for p, r in reports.items() if p not in dead},
        gone,
        tuple(sorted(dead & set(reports))),
        tuple(pair for pair in lost if pair[1] not in spared),
        convicted,
        doubtful,
        _begun_ahead(step, alive, learning_rate(epoch.step + 1)),
    )


def makes(report: ElectionReport, commit: Commit) -> bool:
    """Return whether a member can make the update of a commit that others have heard of, or makes it already."""
    if report.opened.epoch != commit.epoch or report.abandoned:
        return False
    return report.commit is not None or (report.ballot == commit.ballot and bool(report.results))


def _is_elsewhere(report: ElectionReport, undecided: bool) -> bool:
    """Return whether a member has dropped its part in the step for a state of which it cannot go on with the others.

    After the commit it may have moved to a stage of the version that follows. A former leader that had lost that
    version may have gone back to an earlier one with it.
    """
    left = undecided or (report.ready and report.version != report.opened.epoch.step + 1)
    return report.abandoned and left


def _convicted(step: Step, reports: dict[ProcessId, ElectionReport]) -> dict[ProcessId, str]:
    """Return who has handed a hop of this step over that it did not have: its holder has computed with what it sent."""
    every = ((process, done) for process, report in reports.items() for done in report.done)
    ours = ((process, done) for process, done in every if done.microbatch.epoch == step.epoch)
    found = ((process, wrongly_handed(step, process, done)) for process, done in ours)
    return {blamed[0]: blamed[1] for process, blamed in found if blamed is not None and blamed[0] != process}


def _begun_ahead(step: Step, alive: dict[ProcessId, ElectionReport], learning_rate: float) -> Step | None:
    """Return the step after this one, where any member knows that it has begun."""
    if not any(report.ahead for report in alive.values()):
        return None
    shares = {process: report.ahead_indices for process, report in alive.items() if report.ahead_indices}
    reassignment = max(report.reassignment for report in alive.values())
    following = ahead.resume(step, shares, reassignment, learning_rate)
    for process, report in alive.items():
        for done in report.done:
            if wrongly_handed(following, process, done) is None:
                following.done(process, done)
    return following


def _with_newcomers(opened: OpenStep, newcomers: dict[ProcessId, Member], term: int) -> OpenStep:
    """Return the OpenStep of the epoch with all members that came in meanwhile."""
    places = opened.roster.stage_by_id
    added = tuple(member for process, member in newcomers.items() if process not in places)
    roster = opened.roster.changed((), added)
    return replace(opened, term=term, roster=roster, newcomers=tuple(sorted(newcomers)), whole="", named=0)


def _resume(
    step: Step,
    alive: dict[ProcessId, ElectionReport],
    early: dict[ProcessId, ElectionReport],
    gone: tuple[ProcessId, ...],
) -> bool:
    """Bring a step to where the members alive have come.

    early: reports of the step before, by those that have worked ahead for this one.

    Returns whether it may be committed elsewhere while too little is left here to do the same.
    """
    if not alive:
        step.fail(StepFailure("nobody who is left knows how far it has come"))
        return True
    named = {process: report for process, report in early.items() if process in step.roster.id_set}
    step.assignment.resume(alive, named, step.open_step.ahead)
    step.ballot.number = max(report.ballot for report in alive.values())
    left = step.roster
    for process in gone:
        left = left.without(process)
    members = {member.process: alive.get(member.process) for member in left.peers}
    commits = [report.commit for report in alive.values() if report.commit is not None]
    if commits:
        for process in gone:
            step.members.remove(process)
        step.resume_commit(commits[0], {p for p, report in members.items() if report and report.applied})
        return False
    reduced = {p: r for p, r in members.items() if r is not None and r.ballot == step.ballot.number and r.results}
    missed = tuple(process for process in members if process not in reduced)
    nobody_left = not members and step.ballot.number > 0  # all may have reduced, and died since
    if nobody_left or (reduced and (not missed or _may_be_committed(step, alive, missed))):
        if missed or not all(left.stages):
            step.fail(StepFailure("another leader may have committed it, with peers that cannot be reached"))
            return True
        for process in gone:
            step.members.remove(process)
        tally = next(report.tally for report in reduced.values() if report.tally is not None)
        step.resume_prepared(tally, {process: report.results for process, report in reduced.items()})
        return step.failure is not None  # who reports another sum now may have reported the same to the former leader
    for report in alive.values():
        step.dropped |= {(report.member.stage, index) for index in report.dropped}
    for process, report in (*alive.items(), *early.items()):
        for done in report.done:
            if wrongly_handed(step, process, done) is None:
                step.done(process, done)
    step.ballot.begin_term(step.term)
    return False


def _may_be_committed(step: Step, alive: dict[ProcessId, ElectionReport], missed: tuple[ProcessId, ...]) -> bool:
    """Return whether the former leader may have committed its last ballot, in which not all who are left have reduced.

    It may, if those who have not are none of the ballot's members: it took them for dead, and nobody who is left was
    told so, since a death is told to the trainers and around its stage. So where a trainer or somebody of a stage
    beside has heard of the ballot, whoever is not reported as dead is a member of it.
    """
    ballot_stages = {
        process: report.member.stage for process, report in alive.items() if report.ballot == step.ballot.number
    }
    if -1 in ballot_stages.values() or not ballot_stages.keys().isdisjoint(missed):
        return False
    near = {stage + offset for stage in ballot_stages.values() for offset in (-1, 0, 1)}
    return all(step.roster.stage_of(process) not in near for process in missed)
