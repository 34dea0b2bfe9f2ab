"""What a leader knows and holds; everything that it decides works on this."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field

from swarmflow.core.leading.absent import Absentees
from swarmflow.core.leading.copies import Copies
from swarmflow.core.leading.durability import Durability
from swarmflow.core.leading.duties import Duty, Pauses
from swarmflow.core.leading.failures import Failures
from swarmflow.core.leading.findings import Findings
from swarmflow.core.leading.leader_phase import LEADER, LeaderPhase
from swarmflow.core.leading.membership import Membership
from swarmflow.core.leading.memories import NOTHING, Former, Memories
from swarmflow.core.leading.restoring import Restoring
from swarmflow.core.leading.suspicions import CHECK_BEATS, Suspicions
from swarmflow.core.messages import Commit, OpenStep, StepResult
from swarmflow.core.quorum import Electorate
from swarmflow.core.settings import LeaderSettings
from swarmflow.core.step import Step
from swarmflow.core.timeouts import Timeouts
from swarmflow.core.types import EXPONENT, Epoch, Member, Plan, ProcessId, Roster


@dataclass(slots=True)
class ValidationState:
    """A validation that is under way on these peers. batches: that came back; proven: through whom they went."""

    roster: Roster = field(default_factory=Roster)
    proven: set[ProcessId] = field(default_factory=set)
    batches: int = 0
    duty: Duty = field(default_factory=Duty)


@dataclass(slots=True)
class LeaderState:
    """The state of a leader.

    me: itself, as a member of the roster. version: the run's. on_disk: the newest version that is complete on disk.
    digests: of its files. known: the newest version that was on disk, here or elsewhere, as far as the own disk tells.
    lineage: the history that this leader goes on with; founded: it has begun one, from disk. electors: who votes on the
    next step beside those whom it names: who voted in the last step committed in it, or in its first. bound: itself,
    and who has left for good: they follow nobody else. restoring: which version to go on from is not decided yet;
    restored: it is, and no step has been committed since. last: the result of the step before. waits_for: what opening
    the next one waits for. name: of the version's states, empty: not known. memories: what peers that joined still
    hold. commit: the one that made the version, where it is known. absent: who may come back with it. former: what it
    knew of the run. stopping: the person wants this trainer to go, or (fate: why) the run cannot go on. findings:
    values that were not finite; failures: other tries at the step that failed. opened: the last OpenStep, and
    recipients: who was sent it, and on which stage it was then. pauses: who was put out, and for how long. left: this
    trainer has given up the lead.
    """

    me: Member
    plan: Plan
    settings: LeaderSettings
    term: int
    version: int
    on_disk: InitVar[int]
    digests: InitVar[tuple[str, ...]] = ()
    known: InitVar[int] = 0
    former: Former = NOTHING
    generation: int = field(init=False, default=0)
    phase: LeaderPhase = field(init=False, default=LEADER.initial)
    step: Step | None = field(init=False, default=None)
    exponent: int = field(init=False, default=EXPONENT)
    lineage: str = field(init=False)
    founded: bool = field(init=False, default=True)
    electors: Electorate | None = field(init=False, default=None)
    bound: set[ProcessId] = field(init=False, default_factory=set)
    membership: Membership = field(init=False)
    safe: Durability = field(init=False)
    suspicions: Suspicions = field(init=False)
    restoring: Restoring | None = field(init=False, default=None)
    restored: bool = field(init=False, default=False)
    last: StepResult | None = field(init=False, default=None)
    complete_s: float | None = field(init=False, default=None)
    stopping: bool = field(init=False, default=False)
    fate: str = field(init=False, default="")
    findings: Findings = field(init=False)
    failures: Failures = field(init=False, default_factory=Failures)
    opened: OpenStep | None = field(init=False, default=None)
    recipients: dict[ProcessId, int] = field(init=False, default_factory=dict)
    waits_for: str = field(init=False, default="")
    name: str = field(init=False, default="")
    memories: Memories = field(init=False)
    commit: Commit | None = field(init=False, default=None)
    absent: Absentees = field(init=False, default_factory=Absentees)
    pauses: Pauses = field(init=False)
    measuring: ValidationState = field(init=False, default_factory=ValidationState)
    left: bool = field(init=False, default=False)

    def __post_init__(self, on_disk: int, digests: tuple[str, ...], known: int) -> None:
        self.lineage = self.settings.new_lineage()
        self.bound.add(self.me.process)
        settings, timeouts, stages, steps = self.settings, self.timeouts, self.plan.stages, self.settings.steps
        self.suspicions = Suspicions(timeouts.silence_s, CHECK_BEATS * timeouts.heartbeat_s)
        self.findings = Findings(timeouts.barred_s)
        self.membership, self.memories = Membership(self.plan), Memories(stages, steps)
        self.pauses = Pauses(timeouts.pause_s)
        copies = Copies(stages, steps)
        self.safe = Durability(on_disk, timeouts.silence_s, copies, known, digests, settings.checkpoint_every)
        self.safe.number = self.term << 32

    def move(self, to: LeaderPhase) -> None:
        """Enter a phase. A step is open in none but `running`, and always there."""
        phase = LEADER.move(self.phase, to)
        assert phase is not LeaderPhase.RUNNING or self.step is not None, "running without a step"
        measures = phase in (LeaderPhase.VALIDATING, LeaderPhase.UNMEASURED)
        assert not measures or (self.step is None and self.last is not None), f"{phase} with the step {self.step}"
        self.phase = phase

    def gather(self) -> None:
        """Gather members for the next step, unless the leader does so already."""
        if self.phase is not LeaderPhase.GATHERING:
            self.move(LeaderPhase.GATHERING)

    @property
    def timeouts(self) -> Timeouts:
        """Of the run."""
        return self.plan.timeouts

    @property
    def epoch(self) -> Epoch:
        """Of the step at hand, or of the next one."""
        return Epoch(self.generation, self.version)

    @property
    def others(self) -> list[ProcessId]:
        """Everybody who is there, but for this trainer."""
        return [process for process in sorted(self.membership.known) if process != self.me.process]
