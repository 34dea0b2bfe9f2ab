"""A trainer that stands for leader, and the reports of those who follow it."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.election.candidacy import Candidacy, Takeover, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.protocol.messages import Commit, Done, ElectionReport, Join, OpenStep, StepResult, Tally
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Epoch, Member, Plan, ProcessId, Roster
from tests.core.samples import EPOCH, LINEAGE, member, microbatch, process

A, B, C, D, N = (process(name) for name in "abcdn")
T0, T1, T2 = process("t0"), process("t1"), process("t2")
PEERS = ((member("a"), member("b")), (member("c", 1), member("d", 1)))
TRAINERS = (member("t0", -1), member("t1", -1), member("t2", -1))
OPENED = OpenStep(1, EPOCH, Roster(PEERS, TRAINERS), LINEAGE, exponent=20)
LATER = replace(OPENED, epoch=Epoch(0, 1))
PLAN = Plan(stages=2, microbatches=3)
TALLY = Tally(2.0, 30, 1, LINEAGE)
RESULT = StepResult(1, EPOCH, 2.0, 30, 4.0, 0.5, 0.1, 3, (2, 2), 1)
COMMIT = Commit(1, EPOCH, 3, 0.25, 0.1, RESULT, lineage=LINEAGE)
BEGAN_S = 100.0


def report(who: Member, term: int = 2, opened: OpenStep = OPENED) -> ElectionReport:
    """Of a process that has heard of nothing but the OpenStep; a trainer has its share."""
    role = "trainer" if who.stage < 0 else "peer"
    share = TRAINERS.index(who) if who in TRAINERS else len(TRAINERS)
    indices = tuple(range(PLAN.microbatches)[share::3])
    return ElectionReport(
        term, Join(role, "1.0", "run", who), who, True, opened.epoch.step, False, opened, indices=indices
    )


def epoch_view(opened: OpenStep = OPENED, *dead: ProcessId) -> EpochView:
    heard = EpochView(opened)
    for victim in dead:
        heard.died(victim)
    return heard


def candidacy(*followers: ElectionReport, own: ElectionReport | None = None) -> Candidacy:
    """Trainer t1, in term 2, and who follows it."""
    tried = Candidacy(TRAINERS[1], 2, epoch_view(), BEGAN_S)
    tried.begin(own or report(TRAINERS[1]), BEGAN_S)
    for told in followers:
        tried.report(told.member.process, told)
    return tried


def inherit(*followers: ElectionReport, own: ElectionReport | None = None) -> Takeover:
    return takeover_of(candidacy(*followers, own=own), PLAN, lambda step: 0.1, 0.0, BEGAN_S)


def peers(*but: ProcessId) -> list[ElectionReport]:
    return [report(who) for stage in PEERS for who in stage if who.process not in but]


def reduced(told: ElectionReport, ballot: int = 3, digest: str = "x") -> ElectionReport:
    """The same, from one that has reduced a ballot."""
    return replace(told, ballot=ballot, tally=TALLY, results=((f"stage-{told.member.stage}", 1.0, digest),))


def done(told: ElectionReport, *indices: int, attempt: Attempt = FIRST_ATTEMPT) -> ElectionReport:
    """The same, from one that has accumulated these."""
    stage = told.member.stage
    return replace(told, done=tuple(Done(microbatch(i), stage, attempt, 20.0 * stage, 10 * stage) for i in indices))
