"""One step as its leader sees it: work, prepare, commit; the exact number of microbatches, once everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field, replace

from swarmflow.core.actions import Action, Count, Log, Send
from swarmflow.core.dispatcher import TAKEOVER
from swarmflow.core.leading.findings import VALUES, Finding, blame, plain
from swarmflow.core.leading.norms import clipping, fits, squared_norms
from swarmflow.core.leading.piece_owners import LinkTable, peers_beside, shared_out
from swarmflow.core.ledger import Ledger
from swarmflow.core.messages import (
    Assign,
    Commit,
    Committed,
    Done,
    MemberEntered,
    MemberFailed,
    NotFinite,
    OpenStep,
    Overflow,
    Prepare,
    Prepared,
    RosterDelta,
    StepResult,
    Tally,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.quorum import Quorum
from swarmflow.core.reduce import agree, differing, diverged, reduction_groups
from swarmflow.core.roster_parts import NOBODY, PART_MEMBERS, tell
from swarmflow.core.source import shares
from swarmflow.core.types import Epoch, Group, Member, Plan, ProcessId, Roster

AboutStep = Done | Prepared | Unprepared | Unrepairable | Overflow | NotFinite | Committed

_OVER = ("committing", "committed", "failed")  # phases in which nothing voids the step any more


@dataclass(slots=True)
class Step:
    """The leader's machine for one epoch.

    phase: `working` until the ledger is `complete`, `preparing` while the stages reduce, `prepared` when all have,
    `committing`, `committed`, or `failed` when it has to be started over (reason in `failure`).
    open_step: the OpenStep that began it; its roster is who was named then. opened: who takes work, of those who live.
    roster: the same and the newcomers, who take part in the all-reduce and the update. clip: largest global
    gradient norm, 0: no clipping. learning_rate: of this step. owners: the trainer of each microbatch. overflow: a
    gradient was too large for the exponent. finding: a value was not finite. decision: the commit, once there is
    one. dropped: hops of which somebody has taken an orphan away, when this leader took over. inherited: a former
    leader may have committed the ballot that is prepared. differing: members whose reduced gradient is not that of
    most of their group. culprits: who made it fail; of several it was one.
    """

    plan: Plan
    term: int
    open_step: OpenStep
    learning_rate: float
    clip: float
    opened_s: float
    phase: str = "working"
    failure: str = ""
    ballot: int = 0
    tally: Tally | None = None
    result: StepResult | None = None
    overflow: Overflow | None = None
    finding: Finding | None = None
    decision: Commit | None = None
    attempt: int = 0
    opened: Roster = field(init=False)
    roster: Roster = field(init=False)
    ledger: Ledger = field(init=False)
    owners: dict[int, ProcessId] = field(init=False)
    newcomers: dict[ProcessId, Member] = field(default_factory=dict)
    dropped: set[tuple[int, int]] = field(default_factory=set)
    inherited: bool = False
    differing: tuple[ProcessId, ...] = ()
    culprits: tuple[ProcessId, ...] = ()
    _prepared: dict[ProcessId, dict[str, tuple[float, str]]] = field(default_factory=dict)
    _blamed: dict[ProcessId, ProcessId] = field(default_factory=dict)
    _promised: set[ProcessId] = field(default_factory=set)  # trainers that have answered the ballot
    _committed: dict[ProcessId, str] = field(default_factory=dict)
    _quorum: Quorum = field(init=False)

    def __post_init__(self) -> None:
        self._quorum = Quorum.of(self.open_step)
        self.opened = self.roster = self.open_step.roster
        self.ledger = Ledger(self.plan.stages, self.plan.microbatches)
        trainers = tuple(member.process for member in self.open_step.roster.trainers)
        shared = shares(trainers, self.plan.microbatches).items()
        self.owners = {index: trainer for trainer, share in shared for index in share}

    @property
    def epoch(self) -> Epoch:
        """Which try at which step."""
        return self.open_step.epoch

    def open(self, base: OpenStep | None = None, told: Mapping[ProcessId, int] = NOBODY) -> list[Action]:
        """Tell everybody that the step begins; those who were told `base` what has changed since.

        told: the stage that each of them served then.
        """
        change = RosterDelta.after(base, self.open_step) if base is not None else None
        if change is not None and len(change.gone) + len(change.came) > PART_MEMBERS:
            change = None
        return tell(self.open_step, self.roster.all_members, self.plan.tied, change, told)

    def heard(self, sender: ProcessId, message: AboutStep) -> list[Action]:
        """What follows from what a member says of it."""
        match message:
            case Done():
                return self.done(sender, message)
            case Prepared():
                return self.prepared(sender, message)
            case Unprepared():
                return self.unprepared(sender, message)
            case Overflow():
                return self.overflowed(sender, message)
            case NotFinite():
                return self.not_finite(sender, message)
            case Unrepairable():
                return self.unrepairable(sender, message)
            case Committed():
                return self.committed(sender, message)

    def done(self, sender: ProcessId, message: Done) -> list[Action]:
        """A hop is accumulated."""
        if message.microbatch.epoch != self.epoch or self.phase not in ("working", "complete", "preparing"):
            return []
        if sender not in self._members() or not self.ledger.valid(message):
            return []
        self.ledger.done(sender, message)
        if self.phase == "working" and self.ledger.complete:
            self.phase = "complete"
        return []

    def gone(
        self, process: ProcessId, reason: str, taken_over: bool = False, ready: tuple[Member, ...] = ()
    ) -> list[Action]:
        """A process died. What it had accumulated is done again by others, from its neighbours' journals.

        taken_over: the ledger was put together from reports; what it lacks and somebody has dropped was the dead one's.
        ready: peers of its stage who hold this version: they take part from now on.
        """
        if process not in self.roster.all_processes:
            return []
        entered = [] if self.phase in _OVER else self._enter(ready)
        trainer = process in [member.process for member in self.roster.trainers]
        hearers = self.roster.processes() if taken_over else self._concerned(self.roster.stage_of(process))
        self.roster = self.roster.without(process)
        self.opened = self.opened.without(process)
        self.newcomers.pop(process, None)
        reduced = self._prepared.pop(process, None) is not None
        self._blamed.pop(process, None)
        self._committed.pop(process, None)
        if self.phase in ("committing", "committed"):
            return self._commit_if_all()  # nobody is told: they would send again what needs no repair any more
        if self.inherited and self.phase == "prepared":  # told of it, the others would let go of their sums
            self._promised |= {process} if reduced else set()
            return [] if all(self.roster.stages) else self._fail(f"nobody is left on a stage after {process} went")
        lost = self.ledger.gone(process)
        dropped = tuple(hop for hop in self.ledger.missing() if hop in self.dropped)
        message = MemberFailed(self.term, self.epoch, process, reason, dropped if taken_over else lost)
        told: list[Action] = [*entered, *(Send(other, message) for other in hearers)]
        if self.phase == "failed":
            return told
        if any(not stage for stage in self.opened.stages):
            return told + self._fail(f"nobody is left on a stage after {process} went")
        self.phase = "complete" if self.ledger.complete else "working"
        if trainer:
            told += self.assign([index for index, owner in self.owners.items() if owner == process])
        return told + ([Count("hops_lost", amount=len(lost))] if lost else [])

    def _enter(self, ready: tuple[Member, ...]) -> list[Action]:
        """Some come in amid the step. A ballot under way has to be void after this: it was without them."""
        strangers = [member for member in ready if member.process not in self.roster.all_processes]
        came = tuple(member for member in ready if member.process not in self.opened.all_processes)
        self.newcomers |= {member.process: member for member in strangers}
        self.roster, self.opened = self.roster.changed((), tuple(strangers)), self.opened.changed((), came)
        revised = replace(self.open_step, roster=self.roster, newcomers=tuple(self.newcomers))
        actions = tell(revised, strangers, self.plan.tied)
        for member in came:
            message = MemberEntered(self.term, self.epoch, member)
            actions += [Send(other, message) for other in self._concerned(member.stage)]
        return actions + ([Count("entered", amount=len(came))] if came else [])

    def entered(self) -> list[Action]:
        """Who came in amid the step, told once more: the former leader may have died while it told of them."""
        members = [member for process, member in self.newcomers.items() if process in self.opened.all_processes]
        messages = [MemberEntered(self.term, self.epoch, member) for member in members]
        return [Send(other, message) for message in messages for other in self._concerned(message.member.stage)]

    def _concerned(self, stage: int) -> tuple[ProcessId, ...]:
        """Who hears of a death or an entry there: the trainers, who may have to lead, and those around that stage.

        Amid a ballot everybody, since it is void. Were everybody always told, what a peer hears would grow with the
        number of all the others.
        """
        if stage < 0 or self.phase not in ("working", "complete"):
            return self.roster.processes()
        return self.roster.around(stage, self.plan.tied).processes()

    def assign(self, orphaned: list[int]) -> list[Action]:
        """Microbatches whose trainer is dead fall to those who live."""
        trainers = tuple(member.process for member in self.opened.trainers)
        self.attempt += TAKEOVER
        actions: list[Action] = []
        for trainer, share in shares(trainers, len(orphaned)).items():
            indices = tuple(orphaned[rank] for rank in share)
            self.owners |= dict.fromkeys(indices, trainer)
            if indices:
                actions.append(Send(trainer, Assign(self.term, self.epoch, indices, self.attempt)))
        return actions

    def overflowed(self, sender: ProcessId, message: Overflow) -> list[Action]:
        """A gradient does not fit: the step starts over with a smaller exponent."""
        if message.microbatch.epoch != self.epoch or self.phase in _OVER or sender not in self._members():
            return []
        self.overflow, whose = message, f"a gradient of microbatch {message.microbatch}"
        return self._fail(f"{whose} is too large to be added up exactly, on {sender}", sender)

    def not_finite(self, sender: ProcessId, message: NotFinite) -> list[Action]:
        """A member found a value that is not finite: nothing of this try may reach the weights."""
        if message.epoch != self.epoch or self.phase in _OVER:
            return []
        known = message.value in VALUES and -1 <= message.index < self.plan.microbatches
        if not known or sender not in self._members():
            return []
        if message.owner is not None:  # perhaps it was given such a value itself: who gave it says so before the end
            if self.phase != "preparing":
                return []
            self._blamed[sender] = message.owner
            return self._reduced()
        stage, layer = self.roster.stage_of(sender), plain(message.layer)
        return self._find(Finding(self.epoch.step, message.index, stage, sender, message.value, layer))

    def prepare(self, newcomers: tuple[Member, ...], ways: LinkTable) -> list[Action]:
        """The ledger is complete: a new ballot.

        newcomers: peers that hold this version and are not in the roster. ways: between the peers, where known.
        """
        self.ballot += 1
        self.phase = "preparing"
        self.ledger.settle()
        self._prepared.clear()
        self._blamed.clear()
        self._promised.clear()
        present = self._members()
        added = tuple(member for member in newcomers if member.process not in present)
        stages = tuple(
            tuple(sorted((*members, *(m for m in added if m.stage == stage))))
            for stage, members in enumerate(self.roster.stages)
        )
        self.roster = Roster(stages, self.roster.trainers)
        self.newcomers |= {member.process: member for member in added}
        revised = replace(self.open_step, roster=self.roster, newcomers=tuple(self.newcomers))
        actions = tell(revised, added, self.plan.tied)
        entries = self.ledger.entries()
        groups: dict[ProcessId, list[Group]] = {}
        for group in shared_out(self._groups(), entries, peers_beside(self.roster), ways):
            for process in dict.fromkeys((*group.members, *group.owners)):
                groups.setdefault(process, []).append(group)
        self.tally = Tally(self.ledger.loss, self.ledger.tokens, self.ledger.retries)
        came = tuple(self.newcomers.values())
        for process in sorted(self._members()):
            own = entries.get(process, ())
            message = Prepare(self.term, self.epoch, self.ballot, own, tuple(groups[process]), self.tally, came)
            actions.append(Send(process, message))
        return actions

    def ask_trainers(self, bound: Set[ProcessId]) -> list[Action]:
        """Have the trainers promise the ballot: each may have to lead, and has to know of it then.

        bound: processes that follow no other leader any more: this one, and those that have left for good.
        """
        assert self.tally is not None, "prepare has made it"
        came = tuple(self.newcomers.values())
        message = Prepare(self.term, self.epoch, self.ballot, (), (), self.tally, came)
        return [Send(member.process, message) for member in self.roster.trainers if member.process not in bound]

    def prepared(self, sender: ProcessId, message: Prepared) -> list[Action]:
        """A member has reduced its groups."""
        if (message.epoch, message.ballot) != (self.epoch, self.ballot):
            return []
        if sender in self.roster.ids[-1]:
            self._promised.add(sender)
        if self.phase != "preparing" or sender not in self._members():
            return []
        self._prepared[sender] = {name: (norm, digest) for name, norm, digest in message.results}
        return self._reduced()

    def _reduced(self) -> list[Action]:
        """Go on when every member has reduced, or has said that the sum is not finite."""
        if not self._prepared.keys() | self._blamed.keys() >= self._members():
            return []
        if self._blamed:
            return self._find(blame(self.epoch.step, self._blamed, self.roster))
        return self._judge()

    def _judge(self) -> list[Action]:
        """Every member has reduced: may it be committed, as far as the sums tell?"""
        assert self.tally is not None, "known since the ballot began"
        for group in self._groups():
            results = [self._prepared[process].get(group.name, (0.0, "")) for process in group.members]
            if not agree(results):
                self.differing = differing(group, results)
                text = f"the members of {group.name} do not agree on the reduced gradient"
                return self._fail(text, *(self.differing or group.members))
        if not fits(squared_norms(self._groups(), self._prepared), self.tally.tokens, self.clip):
            return self._find(Finding(self.epoch.step, -1, -1, None, "gradient"))
        self.phase = "prepared"
        return []

    def unprepared(self, sender: ProcessId, message: Unprepared) -> list[Action]:
        """A member does not hold what the manifest lists."""
        if (message.epoch, message.ballot, self.phase) != (self.epoch, self.ballot, "preparing"):
            return []
        return self._fail(f"{sender} could not prepare: {message.reason}", sender)

    def unrepairable(self, sender: ProcessId, message: Unrepairable) -> list[Action]:
        """A member has not kept what a repair needs."""
        if message.epoch != self.epoch or self.phase in _OVER or sender not in self.roster.all_processes:
            return []
        return self._fail(f"{sender} cannot repair it: {message.reason}", sender)

    def commit(self, now: float) -> list[Action]:
        """Decide: from here on the step happens. The clip factor is that of the exact norm over all stages."""
        assert self.tally is not None, "prepare has made it"
        tokens = self.tally.tokens
        norm, factor = clipping(squared_norms(self._groups(), self._prepared), tokens, self.clip)
        self.phase = "committing"
        self.result = StepResult(
            term=self.term,
            epoch=self.epoch,
            loss=self.tally.loss,
            tokens=tokens,
            seconds=now - self.opened_s,
            grad_norm=norm,
            learning_rate=self.learning_rate,
            microbatches=self.plan.microbatches,
            peers=tuple(len(stage) for stage in self.roster.stages),
            retries=self.tally.retries,
        )
        message = Commit(self.term, self.epoch, self.ballot, factor / tokens, self.learning_rate, self.result)
        self.decision = message
        return [Send(member.process, message) for member in self.roster.members()]

    def committed(self, sender: ProcessId, message: Committed) -> list[Action]:
        """A member has applied the update."""
        if message.epoch != self.epoch or self.phase != "committing" or sender not in self._members():
            return []
        self._committed[sender] = message.digest
        return self._commit_if_all()

    def diverged(self) -> list[ProcessId]:
        """Members whose parameters differ from those of most of their stage."""
        return diverged(self.roster, self._committed)

    def waits_for(self) -> str:
        """What is missing, in words."""
        match self.phase:
            case "working":
                return f"{self.ledger.done_hops} of {self.plan.stages * self.plan.microbatches} hops are done"
            case "preparing" | "committing" as phase:
                names = ", ".join(str(process) for process in sorted(filter(self.owes, self._members())))
                return f"the {'all-reduce' if phase == 'preparing' else 'update'} of {names}"
            case "prepared":
                return "the promise of a majority to commit"
        return self.phase

    def owes(self, process: ProcessId) -> bool:
        """Whether a member has not reduced the ballot at hand yet, or not applied the update once it is committed."""
        return process not in (self._committed if self.phase == "committing" else self._prepared)

    def resume_commit(self, commit: Commit, digests: dict[ProcessId, str]) -> None:
        """Take over from a leader that has committed. digests: of the parameters of those who have applied it."""
        self.phase, self.ballot, self.result = "committing", commit.ballot, commit.result
        self.decision = replace(commit, term=self.term)
        self._committed = dict(digests)

    def give_up(self, reason: str) -> None:
        """The step has to start over."""
        self.phase, self.failure = "failed", reason

    def resume_prepared(self, tally: Tally, results: dict[ProcessId, tuple[tuple[str, float, str], ...]]) -> None:
        """Take over from a leader that may have committed this ballot: everybody who is left has reduced.

        Where their sums do not agree it has not.
        """
        self.tally = tally
        self._prepared = {p: {name: (norm, digest) for name, norm, digest in rows} for p, rows in results.items()}
        self._judge()
        self.inherited = self.phase == "prepared"

    def commit_again(self) -> list[Action]:
        """Tell those who have not applied the former leader's commit."""
        if self.decision is None or self.phase != "committing":
            return []
        left = [m.process for m in self.roster.members() if m.process not in self._committed]
        return [*(Send(process, self.decision) for process in left), *self._commit_if_all()]

    def may_commit(self, bound: Set[ProcessId]) -> bool:
        """Return whether enough processes have promised this ballot that whoever is elected next knows of it.

        bound: processes that follow no other leader any more: this one, and those that have left for good.
        """
        return self._quorum.commits(self._prepared.keys() | self._promised | bound)

    def has_majority(self, bound: Set[ProcessId]) -> bool:
        """Return whether those that are alive are enough for a commit."""
        return self._quorum.commits(self.roster.all_processes | bound)

    def summary(self) -> str:
        """Where it stands, in words."""
        return f"step {self.epoch.step} is {self.phase}, {self.ledger.done_hops} hops are done"

    def void(self, reason: str) -> list[Action]:
        """What is known of it here cannot be relied on any more."""
        return [] if self.phase in _OVER else self._fail(reason)

    def groups_of(self, process: ProcessId) -> tuple[str, ...]:
        """The names of the groups in which a member reduces."""
        return tuple(group.name for group in self._groups() if process in group.members)

    def _commit_if_all(self) -> list[Action]:
        if self.phase == "committing" and self._committed.keys() >= self._members():
            self.phase = "committed"
        return []

    def _find(self, finding: Finding) -> list[Action]:
        """Nothing of this try may be committed."""
        self.finding = finding
        whose = f", on {finding.holder}" if finding.holder is not None else ""
        return [*self._fail(f"{finding}{whose}"), Count("not_finite")]

    def _fail(self, reason: str, *culprits: ProcessId) -> list[Action]:
        self.phase, self.failure, self.culprits = "failed", reason, culprits
        return [Log("warning", f"step {self.epoch.step} starts over: {reason}"), Count("steps_restarted")]

    def _groups(self) -> tuple[Group, ...]:
        return reduction_groups(self.roster, self.plan.tied)

    def _members(self) -> frozenset[ProcessId]:
        return self.roster.serving
