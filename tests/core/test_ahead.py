"""With a delay the leader begins the next step while one is reduced, and whoever takes over goes on with both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.leading.leader_phase import LeaderPhase
from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.events import Lost, Received
from swarmflow.core.protocol.messages import (
    Assign,
    Committed,
    Done,
    Drain,
    ElectionReport,
    Join,
    MemberEntered,
    MemberFailed,
    Message,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    Released,
    RosterDelta,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Microbatch, Plan, ProcessId
from tests.core.samples import member, messages, process
from tests.core.taken_over import EPOCH, OPENED, PEERS, SETTINGS, TRAINERS, report
from tests.core.test_leader import SETTINGS as LEADING

A, B, C, ME = process("a"), process("b"), process("c"), process("t0")
PLAN = Plan(1, 2, delay=1)


@dataclass
class Bench:
    """A leader of a run with one stage, two microbatches a step and a delay, whose peers are a and b."""

    leader: Leader = field(init=False)

    def __post_init__(self) -> None:
        self.leader = Leader(member("t0", -1), PLAN, replace(LEADING, peers_first=2), 1, 0, 0)
        self.leader.start(0.0)
        for peer in (A, B):
            self.hear(peer, Join("peer", "1.0", "run", replace(member(peer.name, -1), process=peer)))
        for peer in (A, B):
            self.hear(peer, Ready(0, 0, "root", 4))

    def hear(self, sender: ProcessId, message: Message) -> list[Action]:
        return self.leader.handle(Received(sender, message), 0.0)

    def done(self, peer: ProcessId, step: int, *indices: int) -> list[Action]:
        actions: list[Action] = []
        for index in indices:
            microbatch, present = Microbatch(Epoch(0, step), index), self.leader.step
            ballot = present.ballot.number if present is not None and present.epoch == microbatch.epoch else 0
            actions += self.hear(peer, Done(microbatch, 0, FIRST_ATTEMPT, 2.0, 1, ballot=ballot))
        return actions

    def commit(self, *peers: ProcessId) -> list[Action]:
        """Have the present step reduced and applied; returns what followed from the last answer."""
        step = self.leader.step
        assert step is not None
        for peer in peers:
            self.hear(peer, Prepared(step.epoch, step.ballot.number, (("stage-0", 1.0, "x"),)))
        actions: list[Action] = []
        for peer in peers:
            actions = self.hear(peer, Committed(step.epoch, step.epoch.step + 1))
        return actions


def test_the_next_step_begins_with_the_first_ballot_of_this_one_and_goes_on_when_that_is_committed() -> None:
    bench = Bench()
    actions = bench.done(A, 0, 0, 1)
    assert [prepare.ahead for _, prepare in messages(actions, Prepare)] == [True, True]
    assert messages(actions, Assign) == [(ME, Assign(1, Epoch(0, 1), (0, 1), 0))]
    assert bench.leader.epoch == Epoch(0, 0), "this one is not committed yet"
    bench.done(B, 1, 1)
    opened = messages(bench.commit(A, B), RosterDelta)
    assert {delta.epoch for _, delta in opened} == {Epoch(0, 1)}
    assert all(delta.ahead for _, delta in opened)
    assert bench.leader.step is not None
    assert bench.leader.step.ledger.missing() == ((0, 0),), "what was done of it counts"


def test_of_a_step_whose_microbatches_are_all_done_by_then_the_ballot_begins_at_once() -> None:
    bench = Bench()
    bench.done(A, 0, 0, 1)
    bench.done(B, 1, 0, 1)
    actions = bench.commit(A, B)
    assert {prepare.epoch for _, prepare in messages(actions, Prepare)} == {Epoch(0, 1)}
    assert {assign.epoch for _, assign in messages(actions, Assign)} == {Epoch(0, 2)}


def test_a_death_takes_hops_of_both_steps_away() -> None:
    bench = Bench()
    bench.done(A, 0, 0)
    bench.done(B, 0, 1)
    bench.done(A, 1, 1)
    actions = bench.leader.handle(Lost(A, "gone"), 0.0)
    failed = {told.process: told for _, told in messages(actions, MemberFailed)}[A]
    assert (failed.lost, failed.lost_ahead) == (((0, 0),), ((0, 1),))
    bench.done(B, 1, 0, 1)
    assert messages(bench.done(B, 0, 0), Prepare), "both are repaired, and this one goes on"
    bench.commit(B)
    assert bench.leader.epoch == Epoch(0, 1)


def test_who_comes_in_for_a_dead_peer_hears_that_the_next_step_has_begun() -> None:
    """Its trainers ask it for slots for that one too, which it would take for questions that come too early."""
    bench = Bench()
    bench.done(A, 0, 0, 1)
    bench.hear(C, Join("peer", "1.0", "run", replace(member("c", -1), process=C)))
    assert not messages(bench.hear(C, Ready(0, 0, "root", 4)), MemberEntered), "it is not needed yet"
    entered = messages(bench.leader.handle(Lost(A, "gone"), 0.0), MemberEntered)
    assert {(told.member.process, told.epoch, told.ahead) for _, told in entered} == {(C, Epoch(0, 0), True)}
    assert C in {to for to, _ in entered}


def test_where_somebody_wants_to_leave_the_next_step_waits_for_the_edge() -> None:
    bench = Bench()
    bench.hear(A, Drain())
    actions = bench.done(B, 0, 0, 1)
    assert not messages(actions, Assign)
    assert not any(prepare.ahead for _, prepare in messages(actions, Prepare))
    assert [to for to, _ in messages(bench.commit(A, B), Released)] == [A]


def test_whoever_wants_to_leave_later_stays_for_the_step_that_it_has_begun() -> None:
    bench = Bench()
    bench.done(A, 0, 0, 1)
    bench.hear(A, Drain())
    actions = bench.commit(A, B)
    assert not messages(actions, Released)
    assert bench.leader.step is not None
    assert A in bench.leader.step.roster.id_set
    bench.done(B, 1, 0, 1)
    assert [to for to, _ in messages(bench.commit(A, B), Released)] == [A]


def test_a_step_that_starts_over_takes_the_next_one_with_it() -> None:
    bench = Bench()
    bench.done(A, 0, 0, 1)
    bench.done(A, 1, 0)
    for peer, digest in ((A, "x"), (B, "odd")):
        bench.hear(peer, Prepared(Epoch(0, 0), 1, (("stage-0", 1.0, digest),)))
    assert bench.leader.ahead is None
    assert bench.leader.epoch == Epoch(1, 0)


def test_a_new_leader_finds_both_steps_and_gives_away_what_no_trainer_has() -> None:
    following = EPOCH.following
    reports = [
        replace(
            report(PEERS[0]),
            done=(
                Done(Microbatch(EPOCH, 0), 0, FIRST_ATTEMPT, 2.0, 1),
                Done(Microbatch(following, 2), 0, FIRST_ATTEMPT),
            ),
            ahead=True,
        ),
        report(PEERS[1]),
        report(PEERS[2]),
        replace(report(TRAINERS[2]), ahead=True, ahead_indices=(2,)),
    ]
    leader, actions = taken_over(reports)
    assert leader.ahead is not None
    assert leader.ahead.epoch == following
    assert leader.ahead.ledger.done_hops == 0, "a Done of the last stage says how many tokens there were"
    given = [(to.name, assign.indices) for to, assign in messages(actions, Assign) if assign.epoch == following]
    assert sorted(index for _, indices in given for index in indices) == [0, 1]
    assert leader.phase is LeaderPhase.RUNNING


def test_a_new_leader_gives_away_what_those_had_who_began_a_step_ahead_and_not_what_they_would_have_now() -> None:
    """It was shared out when t1 was not there yet: 0 and 2 were those of t0, which is gone."""
    opened = replace(OPENED, epoch=EPOCH.following, ahead=True)
    told = [report(peer, opened) for peer in PEERS]
    leader, actions = taken_over([*told, replace(report(TRAINERS[2], opened), indices=(1,))])
    given = [assign.indices for _, assign in messages(actions, Assign)]
    assert sorted(index for indices in given for index in indices) == [0, 2]
    assert leader.step is not None
    assert leader.step.assignment.owners[1] == TRAINERS[2].process


def test_a_new_leader_counts_what_those_have_done_whom_the_open_step_has_not_reached() -> None:
    opened = replace(OPENED, epoch=EPOCH.following, ahead=True)
    done = Done(Microbatch(EPOCH.following, 1), 0, FIRST_ATTEMPT, 2.0, 1)
    reports = [
        report(PEERS[0], opened),
        replace(report(PEERS[1]), done=(done,), ahead=True),
        report(PEERS[2], opened),
        report(TRAINERS[2], opened),
    ]
    leader, actions = taken_over(reports)
    assert leader.step is not None
    assert leader.step.epoch == EPOCH.following
    assert leader.step.ledger.missing() == ((0, 0), (0, 2))
    again = [action.to for action in actions if isinstance(action, Send) and isinstance(action.message, OpenStep)]
    assert again == [PEERS[1].process, TRAINERS[1].process]


def taken_over(reports: list[ElectionReport]) -> tuple[Leader, list[Action]]:
    own = report(TRAINERS[1])
    tried = Candidacy(TRAINERS[1], 4, EpochView(OPENED), 100.0)
    plan = Plan(1, 3, delay=1)
    for told in (own, *reports):
        tried.report(told.member.process, told)
    version = tried.latest().epoch.step
    estate = takeover_of(tried, plan, SETTINGS.learning_rate, 0.0, 100.0)
    leader = Leader(TRAINERS[1], plan, SETTINGS, 4, version, 4)
    return leader, leader.take_over(estate, 100.0)
