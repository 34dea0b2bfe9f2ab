"""A trainer that takes over the run of another one, with whatever reports its members give."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.leader import Leader
from swarmflow.core.membership.settings import LeaderSettings
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Received, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Committed,
    Done,
    ElectionReport,
    Heartbeat,
    Join,
    Message,
    OpenStep,
    StateRoot,
    StepResult,
    Tally,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Member, Microbatch, Plan, ProcessId, Roster
from tests.core.samples import LINEAGE, member, process

A, B, C = process("a"), process("b"), process("c")
T0, ME, T2 = process("t0"), process("t1"), process("t2")
PEERS = (member("a"), member("b"), member("c"))
TRAINERS = (member("t0", -1), member("t1", -1), member("t2", -1))
EPOCH = Epoch(2, 5)
OPENED = OpenStep(3, EPOCH, Roster((PEERS,), TRAINERS), LINEAGE, exponent=20)
PLAN = Plan(1, 3)
TALLY = Tally(2.0, 30, 1, LINEAGE)
RESULT = StepResult(3, EPOCH, 2.0, 30, 1.0, 0.5, 0.3, 3, (3,), 1)
COMMIT = Commit(3, EPOCH, 1, 1 / 30, 0.3, RESULT, lineage=LINEAGE)
REDUCED = (("stage-0", 1.0, "x"),)
ROOT = "root"  # of the stage's state
SETTINGS = LeaderSettings(9, lambda step: 0.1 * step, 0.0, "1.0", "run", from_seed=True, new_lineage=lambda: "new")


def report(who: Member, opened: OpenStep = OPENED) -> ElectionReport:
    role = "trainer" if who.stage < 0 else "peer"
    indices = (TRAINERS.index(who),) if who in TRAINERS else ()
    return ElectionReport(
        4, Join(role, "1.0", "run", who), who, True, opened.epoch.step, False, opened, indices=indices, root=ROOT
    )


def reduced(told: ElectionReport) -> ElectionReport:
    return replace(told, ballot=1, tally=TALLY, results=REDUCED)


def peers(*but: ProcessId) -> list[ElectionReport]:
    return [report(who) for who in PEERS if who.process not in but]


def done(index: int) -> Done:
    return Done(Microbatch(EPOCH, index), 0, FIRST_ATTEMPT, 20.0, 10)


@dataclass
class Bench:
    """Trainer t1, which takes over the run of trainer t0 in a later term: step 5, in its third try, on one stage."""

    reports: list[ElectionReport]
    own: ElectionReport = field(default_factory=lambda: report(TRAINERS[1]))
    settings: LeaderSettings = SETTINGS
    on_disk: int = 4
    roots: tuple[str, ...] = ()  # of what is on disk
    term: int = 4
    now: float = 100.0
    leader: Leader = field(init=False)
    began: list[Action] = field(init=False)

    def __post_init__(self) -> None:
        tried = Candidacy(TRAINERS[1], self.term, EpochView(OPENED), self.now)
        for told in (self.own, *self.reports):
            tried.report(told.member.process, told)
        estate = takeover_of(tried, PLAN, self.settings.learning_rate, 0.0, self.now)
        disk = self.on_disk, self.roots
        self.leader = Leader(TRAINERS[1], PLAN, self.settings, self.term, estate.step.epoch.step, *disk)
        self.began = self.leader.take_over(estate, self.now)

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), self.now)

    def wait(self, seconds: float, *living: ProcessId) -> list[Action]:
        """Let time pass, in which these are heard each second."""
        actions: list[Action] = []
        for _ in range(int(seconds)):
            self.now += 1.0
            for process_heard in living:
                actions += self.hear(process_heard, Heartbeat())
            actions += self.leader.handle(Tick(), self.now)
        return actions

    def commit(self, epoch: Epoch, *members: ProcessId) -> list[Action]:
        """All members apply the step that is committed; returns what followed from the last one."""
        actions: list[Action] = []
        for peer in members:
            actions = self.hear(peer, Committed(epoch, epoch.step + 1))
        for peer in members:
            actions += self.hear(peer, StateRoot(0, epoch.step + 1, ROOT))
        return actions
