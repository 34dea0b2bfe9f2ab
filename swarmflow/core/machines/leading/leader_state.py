"""The state of a leader, which its decisions work on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import InitVar, dataclass, field

from swarmflow.core.commit.lineage import Lineage
from swarmflow.core.commit.odd_sums import OddSums
from swarmflow.core.commit.quorum import Electorate, lies_max
from swarmflow.core.commit.step import Step
from swarmflow.core.durability.copies import Copies
from swarmflow.core.durability.memories import NOTHING, Former, Memories
from swarmflow.core.durability.recovery import Recovery
from swarmflow.core.durability.snapshots import Snapshots
from swarmflow.core.durability.versions import Durability
from swarmflow.core.machines.leading.leader_phase import LEADER, LeaderPhase
from swarmflow.core.machines.leading.stage_plans import StagePlans
from swarmflow.core.membership.disputes import MEMORY_S, Disputes
from swarmflow.core.membership.duties import Duty, Pauses
from swarmflow.core.membership.failures import Failures
from swarmflow.core.membership.findings import Findings
from swarmflow.core.membership.members import MemberRecord, Membership
from swarmflow.core.membership.root_votes import RootVotes
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.membership.suspicions import CHECK_BEATS, Suspicions
from swarmflow.core.protocol.messages import Commit, OpenStep, StepResult
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, Epoch, Member, Plan, ProcessId, Roster, Snapshot
from swarmflow.core.routing.link_rates import LinkTable
from swarmflow.latest import Latest

COPY_FACTOR = 60.0  # of stall_s: an hour, in which an eighth of a link of 200 Mb/s brings 11 GB
ROOTS_EVERY = 16  # versions: a hash takes four times as long as a checksum, and as many as 12 bytes a parameter take


# From the last generation that a trainer's folder tells of to that in which it begins anew. The folder is written once
# a second, and must not lag behind by so many: what was signed of a later epoch would count as the run's latest.
GENERATIONS = 1 << 16


@dataclass(slots=True)
class ValidationState:
    """A validation that is under way."""

    roster: Roster = field(default_factory=Roster)  # the peers that measure
    proven: set[ProcessId] = field(default_factory=set)  # through which batches have come back
    deaths: int = 0  # over which it has begun again
    batches: int = field(init=False, default=0)  # that have come back
    duty: Duty = field(init=False, default_factory=Duty)


@dataclass(slots=True)
class BallotTimes:
    """When a leader begins a ballot of its step, and when it begins one anew."""

    complete_s: float | None = field(init=False, default=None)  # since when every hop is done
    held_until_s: float = field(init=False, default=0.0)  # so long the first ballot waits for peers that load
    held_s: float = field(init=False, default=0.0)  # for which the first ballot of the last step has waited
    due_s: float = field(init=False, default=0.0)  # when the ballot is begun anew, unless it gets on
    in_vain: int = field(init=False, default=0)  # ballots in a row that stood still


@dataclass(slots=True)
class FaultRecords:
    """The records by which a leader puts members out, or leaves them out of a step."""

    suspicions: Suspicions  # members that lost each other
    disputes: Disputes  # of two that contradict each other, who had to go; those of `suspicions` too
    pauses: Pauses  # members that were put out for doing nothing, and for how long
    bars: Pauses  # peers that were put out for what they computed; these are never forgiven
    unbelieved: Pauses  # members whose reports nobody has confirmed: they are kept out of a stage without peers too
    findings: Findings = field(default_factory=Findings)  # values that were not finite
    odd_sums: OddSums = field(default_factory=OddSums)  # members that had other sums than most of their group
    failures: Failures = field(default_factory=Failures)  # other tries at the step that failed
    voters: set[str] = field(default_factory=set)  # those that had a part in failures of the present version, by name
    refused: Latest[str, None] = field(default_factory=Latest)  # senders of messages that cannot be true, by name
    # When a process last had another state than most of its stage, or sent what cannot be, by its name.
    wrong_s: Latest[str, float] = field(init=False, default_factory=Latest)
    # Trainers that had to join again because nobody had taken what they had formed, by name.
    unfed: Latest[str, None] = field(init=False, default_factory=Latest)

    def was_wrong(self, name: str, now: float) -> bool:
        """Return whether a process was lately wrong, as most of its stage could tell, or as could not be true."""
        return now - self.wrong_s.get(name, -MEMORY_S) < MEMORY_S

    def note_voters(self, membership: Membership, processes: Iterable[ProcessId]) -> None:
        """Remember which of these have a vote, also for the time after they went."""
        known = (membership.known.get(process) for process in processes)
        self.voters |= {entry.process.name for entry in known if entry is not None and entry.member.votes}


@dataclass(slots=True)
class LeaderState:
    """The state of a leader."""

    me: Member  # itself, as a member of the roster
    plan: Plan
    settings: LeaderSettings
    term: int
    version: int  # the run's
    on_disk: InitVar[int]  # the newest version that is complete on disk
    roots: InitVar[tuple[str, ...]] = ()  # of its stages
    known: InitVar[int] = 0  # the newest version that was on any disk, as far as the own disk tells
    former: InitVar[Former] = NOTHING  # what this trainer knew of the run before it led
    generation: int = field(init=False, default=0)
    phase: LeaderPhase = field(init=False, default=LEADER.initial)
    waits_for: str = field(init=False, default="")  # what opening the next step waits for
    # --- the version, and the last step ---
    certified: Snapshot | None = field(init=False, default=None)  # the last version whose stages agreed on their roots
    rooted: int = field(init=False, default=-ROOTS_EVERY)  # the last version whose roots were asked for
    votes: RootVotes = field(init=False, default_factory=RootVotes)  # on the roots of states
    name: str = field(init=False, default="")  # of the version's states, empty: not known
    commit: Commit | None = field(init=False, default=None)  # that made the version, where it is known
    unconfirmed: Commit | None = field(init=False, default=None)  # the same, while members may not have made its update
    last: StepResult | None = field(init=False, default=None)  # of the step before
    measuring: ValidationState = field(init=False, default_factory=ValidationState)
    lineage: Lineage = field(init=False)
    recovery: Recovery = field(init=False)
    safe: Durability = field(init=False)
    # --- the step ---
    step: Step | None = field(init=False, default=None)
    ahead: Step | None = field(init=False, default=None)  # the next one, begun while that one is reduced
    exponent: int = field(init=False, default=DEFAULT_EXPONENT)  # of the next one
    opened: OpenStep | None = field(init=False, default=None)  # the last one sent
    recipients: dict[ProcessId, int] = field(init=False, default_factory=dict)  # of that one: the stage of each then
    ballots: BallotTimes = field(init=False, default_factory=BallotTimes)
    # --- the members ---
    membership: Membership = field(init=False)
    faults: FaultRecords = field(init=False)
    plans: StagePlans | None = field(init=False, default=None)  # None: peers are placed by what they can do alone
    # --- the end ---
    forming: int = field(init=False, default=0)  # microbatches that this process has to form yet, as a trainer
    parting: bool = field(init=False, default=False)  # the output is written, and the peers of before are waited for
    parts_s: float = field(init=False, default=0.0)  # until when, if there are any
    notified: frozenset[ProcessId] = field(init=False, default=frozenset())  # that the run is finished
    notified_s: float = field(init=False, default=0.0)  # when the last of them was
    stopping: bool = field(init=False, default=False)  # a person wants this trainer to go, or the run cannot go on
    fate: str = field(init=False, default="")  # why the run cannot go on

    def __post_init__(self, on_disk: int, roots: tuple[str, ...], known: int, former: Former) -> None:
        stages, steps = self.plan.stages, self.settings.steps
        self.lineage = Lineage(self.settings.new_lineage(), self.me.process)
        times = self.timeouts
        disputes = Disputes()
        suspicions = Suspicions(times.silence_s, CHECK_BEATS * times.heartbeat_s, disputes)
        bars = Pauses(times.barred_s, math.inf)
        self.faults = FaultRecords(suspicions, disputes, Pauses(times.pause_s), bars, Pauses(times.barred_s))
        self.membership = Membership(self.plan)
        self.plans = StagePlans() if self.settings.planned else None
        self.recovery = Recovery(former, Memories(stages, steps))
        if former.generation >= 0:
            self.generation = former.generation + GENERATIONS
        copies = Copies(stages, steps, COPY_FACTOR * times.stall_s)
        every = self.settings.checkpoint_every
        self.certified = Snapshot(on_disk, roots) if roots else None
        self.safe = Durability(on_disk, times.silence_s, copies, Snapshots(stages), known, roots, every)
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

    def hear(self, known: MemberRecord, now: float) -> None:
        """Note that a message of a member has arrived."""
        known.last_seen_s = now
        self.faults.suspicions.hear(known.process, now)

    @property
    def timeouts(self) -> Timeouts:
        """Of the run."""
        return self.plan.timeouts

    @property
    def lies_max(self) -> int:
        """How many of the voters that are there may lie."""
        return lies_max(sum(entry.member.votes for entry in self.membership.known.values()))

    @property
    def electorates(self) -> list[Electorate]:
        """Those that have to agree to the steps at hand, and to the next one."""
        steps = [step for step in (self.step, self.ahead) if step is not None]
        last = [self.lineage.electorate] if self.lineage.electorate is not None else []
        return [*last, *(electorate for step in steps for electorate in step.members.quorum.electorates)]

    @property
    def epoch(self) -> Epoch:
        """Of the step at hand, or of the next one."""
        return Epoch(self.generation, self.version)

    @property
    def serving(self) -> Set[ProcessId]:
        """The members of the step at hand, and of the one that was begun ahead."""
        rosters = [step.roster.id_set for step in (self.step, self.ahead) if step is not None]
        return frozenset().union(*rosters)

    def start_over(self) -> None:
        """Void the step at hand, and what was begun ahead: the next OpenStep begins with nothing."""
        self.generation += 1
        self.step = self.ahead = self.ballots.complete_s = None

    @property
    def others(self) -> list[ProcessId]:
        """Everybody who is there, but for this trainer."""
        return [process for process in sorted(self.membership.known) if process != self.me.process]

    def links(self) -> LinkTable:
        """Return the link rates that the peers have reported."""
        links = LinkTable()
        for entry in self.membership.known.values():
            if entry.rates is not None:
                links.learn(entry.process, entry.member.stage, entry.rates)
        return links
