"""What a former leader has left: where its step is found to stand, and who goes on with it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from swarmflow.core.election.candidacy import Candidacy, Takeover, takeover_of
from swarmflow.core.protocol.messages import Assign, Commit, ElectionReport, MemberFailed, OpenStep
from swarmflow.core.protocol.messages.checks import checks_of
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Epoch, Member, Roster
from tests.core.followers import (
    BEGAN_S,
    COMMIT,
    LATER,
    OPENED,
    PEERS,
    PLAN,
    RESULT,
    T0,
    T1,
    T2,
    TALLY,
    TRAINERS,
    A,
    B,
    C,
    D,
    N,
    candidacy,
    done,
    epoch_view,
    inherit,
    peers,
    reduced,
    report,
)
from tests.core.samples import EPOCH, member, messages


def test_a_commit_that_one_has_heard_is_finished() -> None:
    told = [reduced(told) for told in peers()]
    told[2] = replace(told[2], commit=COMMIT, applied=True)
    estate = inherit(*told)
    assert (estate.step.phase, estate.step.ballot.number) == ("committing", 3)
    assert estate.step.decision is not None
    assert estate.step.decision.result == RESULT
    again = messages(estate.step.commit_again(), Commit)
    assert again == [(to, replace(COMMIT, term=2)) for to in (A, B, D)], "C has applied it"
    assert estate.gone == (T0, T2)


def test_a_commit_is_finished_although_a_stage_has_nobody_left() -> None:
    estate = inherit(replace(reduced(report(PEERS[0][0])), commit=COMMIT, applied=True), report(TRAINERS[2]))
    assert estate.step.commit_again() == []
    assert estate.step.phase == "committed"
    assert estate.gone == (B, C, D, T0)


def test_a_ballot_that_all_who_are_left_have_reduced_is_finished_as_it_is() -> None:
    estate = inherit(*(reduced(told) for told in peers(B)))
    assert (estate.step.phase, estate.step.ballot.number, estate.step.ballot.tally) == ("prepared", 3, TALLY)
    commit = dict(messages(estate.step.commit(BEGAN_S), Commit))
    assert list(commit) == [A, C, D]
    assert {(message.term, message.ballot, message.scale) for message in commit.values()} == {(2, 3, 1 / 30)}
    assert {message.result.retries for message in commit.values()} == {1}


@pytest.mark.parametrize(
    "odd",
    [
        report(PEERS[1][1]),  # has not heard of the ballot
        replace(reduced(report(PEERS[1][1])), results=()),  # has not reduced it, or a death has revoked it
        reduced(report(PEERS[1][1]), ballot=2),
        reduced(report(PEERS[1][1]), ballot=4),
    ],
)
def test_a_ballot_that_somebody_has_not_reduced_is_not_finished(odd: ElectionReport) -> None:
    estate = inherit(*(reduced(told) for told in peers(D)), odd)
    assert estate.step.phase == "working"
    assert estate.step.ballot.number > max(3, odd.ballot)


def test_a_ballot_of_a_stage_that_nobody_is_left_of_is_not_finished() -> None:
    estate = inherit(reduced(report(PEERS[0][0])), reduced(report(PEERS[0][1])), report(TRAINERS[2]))
    assert (estate.step.phase, estate.doubtful) == ("failed", True), "those whom nobody hears of may go on from it"


@pytest.mark.parametrize(("ballot", "doubtful"), [(0, False), (3, True)])
def test_a_ballot_of_which_no_peer_is_left_may_be_committed(ballot: int, doubtful: bool) -> None:
    """All of them may have reduced, and the leader may have committed it before it died with the last one."""
    estate = inherit(replace(report(TRAINERS[2]), ballot=ballot))
    assert (estate.step.phase == "failed", estate.doubtful) == (doubtful, doubtful)


@dataclass(frozen=True)
class Line:
    """One peer on each of five stages, and one more on the last, which the former leader took for dead."""

    peers: tuple[Member, ...]
    extra: Member

    def opened(self) -> OpenStep:
        stages = (*((peer,) for peer in self.peers[:4]), (self.peers[4], self.extra))
        return replace(OPENED, roster=Roster(stages, TRAINERS))

    def reports(self, *stages: int) -> list[ElectionReport]:
        """Of those that have reduced, on these stages, and of the one that was left out."""
        opened = self.opened()
        return [*(reduced(report(self.peers[s], opened=opened)) for s in stages), report(self.extra, opened=opened)]

    def estate(self, *reports: ElectionReport, ballot: int = 0) -> Takeover:
        own = replace(report(TRAINERS[1], opened=self.opened()), ballot=ballot)
        tried = Candidacy(TRAINERS[1], 2, epoch_view(self.opened()), BEGAN_S)
        for told in (own, *reports):
            tried.report(told.member.process, told)
        return takeover_of(tried, replace(PLAN, stages=5), lambda step: 0.1, 0.0, BEGAN_S)


LINE = Line(tuple(member(name, stage) for stage, name in enumerate("abcde")), member("n", 4))


def test_a_ballot_that_left_out_a_death_nobody_here_was_told_of_may_be_committed_elsewhere() -> None:
    """Stages 0 to 2 are not told of a death on the last one; its other peer, which has reduced too, is not here."""
    line = LINE
    estate = line.estate(*line.reports(0, 1, 2))
    assert (estate.step.phase, estate.doubtful) == ("failed", True)
    assert estate.step.failure is not None
    assert "another leader may have committed it" in estate.step.failure.reason


@pytest.mark.parametrize(("stages", "ballot"), [((0, 1, 2, 3), 0), ((0, 1, 2), 3)])
def test_who_is_told_of_a_death_knows_that_a_ballot_it_does_not_leave_out_is_not_committed(
    stages: tuple[int, ...], ballot: int
) -> None:
    """A peer of stage 3 or a trainer would know: the one that has not reduced is a member, so nothing is committed."""
    line = LINE
    estate = line.estate(*line.reports(*stages), ballot=ballot)
    assert (estate.step.phase, estate.doubtful) == ("working", False)


def test_the_work_goes_on_with_the_hops_that_the_living_hold() -> None:
    a, b, c, _ = peers()
    estate = inherit(done(a, 0), done(b, 1, attempt=Attempt(repair=1)), done(c, 0, 2))
    step = estate.step
    assert (step.phase, step.term, step.epoch, step.open_step.exponent) == ("working", 2, EPOCH, 20)
    assert step.ledger.manifest() == (
        (0, 0, A, FIRST_ATTEMPT),
        (0, 1, B, Attempt(repair=1)),
        (1, 0, C, FIRST_ATTEMPT),
        (1, 2, C, FIRST_ATTEMPT),
    )
    assert estate.gone == (D, T0, T2)
    assert {to for to, _ in messages(step.gone(D, "not heard of"), MemberFailed)} >= {A, B, C, T1}


def test_all_hops_held_is_a_step_to_be_prepared() -> None:
    a, b, c, d = peers()
    estate = inherit(done(a, 0, 2), done(b, 1), done(c, 0), done(d, 1, 2))
    assert estate.step.phase == "complete"
    assert (estate.step.ledger.tokens, estate.step.ledger.loss) == (30, 2.0)


def test_microbatches_fall_to_the_living_with_attempts_above_all_that_were_given() -> None:
    own = replace(report(TRAINERS[1]), indices=(1, 2), reassignment=1)  # t2 died, and its share was given away
    estate = inherit(*(replace(told, gone=(T2,)) for told in peers()), own=replace(own, gone=(T2,)))
    assert estate.gone == (T0, T2)
    told = [sent for victim in estate.gone for sent in messages(estate.step.gone(victim, "lost"), Assign)]
    assert [(to, message.indices) for to, message in told] == [(T1, (0,))]
    assert told[0][1].reassignment > 2, "what the former leader may have assigned, unheard of, stays below"


def test_those_the_former_leader_gave_up_are_expelled_and_suspects_are_named() -> None:
    told = peers()
    told[0] = replace(told[0], gone=(B,), suspects=(D, T0))
    told[2] = replace(told[2], gone=(B,))
    estate = inherit(*told)
    assert (estate.gone, estate.expelled, estate.suspects) == ((B, T0, T2), (B,), ((A, D),))
    assert sorted(estate.reports) == [A, C, D, T1]


def test_who_alone_takes_a_member_for_dead_has_to_join_again_itself() -> None:
    told = peers()
    told[0] = replace(told[0], gone=(B, C))
    assert inherit(*told).expelled == (A,), "one of the seven may lie"
    assert inherit(*told, own=replace(report(TRAINERS[1]), gone=(B, C))).expelled == (B, C), "trainers do not"


def test_what_only_a_trainer_knows_no_peer_can_claim() -> None:
    told = peers()
    told[0] = replace(told[0], indices=(0, 1), reassignment=1 << 30, ahead=True, ahead_indices=(2,))
    estate = inherit(*told)
    assert estate.ahead is None, "of a run without a delay"
    assert A not in estate.step.assignment.owners.values()
    assert estate.step.assignment.reassignment < 1 << 30


def test_who_reports_another_sum_than_its_mates_may_hide_a_commit() -> None:
    told = [reduced(each) for each in peers()]
    told[1] = replace(told[1], results=(("stage-0", 1.0, "other"),))
    estate = inherit(*told)
    assert (estate.step.phase, estate.doubtful) == ("failed", True)


def test_who_leads_has_not_lost_itself() -> None:
    told = peers()
    told[0] = replace(told[0], suspects=(T1, D))
    assert inherit(*told).suspects == ((A, D),)


def test_those_of_the_last_epoch_who_call_each_other_dead_leave_nobody_who_knows_of_it() -> None:
    a, b = (replace(report(who, opened=LATER), gone=(other,)) for who, other in zip(PEERS[0], (B, A), strict=True))
    estate = inherit(a, b, *peers(A, B))
    assert (estate.step.epoch, estate.step.phase, estate.doubtful) == (LATER.epoch, "failed", True)
    assert estate.expelled == (A, B)


@pytest.mark.parametrize(
    "odd", [replace(report(PEERS[0][0]), gone=(T1,)), report(PEERS[0][0], opened=replace(OPENED, epoch=Epoch(9, 7)))]
)
def test_who_takes_the_candidate_for_dead_or_tells_of_a_step_after_the_last_does_not_follow(
    odd: ElectionReport,
) -> None:
    tried = Candidacy(TRAINERS[1], 2, epoch_view(), BEGAN_S, steps=7)
    tried.begin(report(TRAINERS[1]), BEGAN_S)
    tried.report(A, odd)
    assert list(tried.reports) == [T1]
    assert tried.latest() == OPENED


def test_what_one_that_is_given_up_reports_counts_for_nothing() -> None:
    told = peers()
    told[0], told[2] = (replace(each, gone=(B,)) for each in (told[0], told[2]))
    told[1] = replace(done(told[1], 0), commit=COMMIT)
    estate = inherit(*told)
    assert (estate.step.phase, estate.step.ledger.done_hops) == ("working", 0)


def test_who_has_not_heard_of_the_last_epoch_is_waited_for_and_has_done_nothing_of_it() -> None:
    late = replace(done(reduced(report(PEERS[0][0])), 0, 1), gone=(C,))
    told = [report(who, opened=LATER) for stage in PEERS for who in stage if who.process != A]
    estate = inherit(late, *told, own=report(TRAINERS[1], opened=LATER))
    assert (estate.step.epoch, estate.step.phase) == (LATER.epoch, "working")
    assert estate.step.ledger.done_hops == 0
    assert A not in estate.gone
    assert C not in estate.gone, "it died to another epoch"


def test_newcomers_take_part_in_the_update_but_take_no_work() -> None:
    came = member("n", 1)
    heard = replace(OPENED, roster=Roster((PEERS[0], (*PEERS[1], came)), TRAINERS), newcomers=(N,))
    told = [replace(reduced(told), newcomers=(came,)) for told in peers()]
    estate = inherit(*told, reduced(report(came, opened=heard)))
    step = estate.step
    assert (step.phase, list(step.members.newcomers)) == ("prepared", [N])
    assert [to for to, _ in messages(step.commit(BEGAN_S), Commit)] == [A, B, C, D, N]
    assert N not in step.members.opened.ids
    named = replace(report(TRAINERS[2]), newcomers=(came,))
    alone = inherit(named, *peers(), report(came, opened=heard))
    assert list(alone.step.members.newcomers) == [N], "no other peer may have heard of it"
    assert N in alone.step.roster.ids


def test_who_was_not_asked_is_no_member() -> None:
    """Anybody may have an OpenStep of some time that a trainer has signed."""
    stranger = member("s", 1)
    tried = candidacy(*peers(), report(stranger))
    assert stranger.process not in tried.reports
    assert A in tried.reports
    named = replace(report(TRAINERS[2]), newcomers=(stranger,))
    assert stranger.process in candidacy(named, report(stranger)).reports, "now it is asked"


def test_a_whole_report_of_another_history_is_none() -> None:
    """All that it shows is signed, and of the same numbers."""
    commit, tally = replace(COMMIT, lineage="former"), replace(TALLY, lineage="former")
    told = replace(reduced(peers()[0]), opened=replace(OPENED, lineage="former"), commit=commit, tally=tally)
    tried = candidacy(told, *peers()[1:])
    assert A not in tried.reports
    estate = inherit(told, *peers()[1:])
    assert (estate.step.phase, estate.step.open_step.lineage) == ("working", OPENED.lineage)


@pytest.mark.parametrize("lineage", ["former", ""])
def test_a_decision_of_another_history_is_none_of_this_step(lineage: str) -> None:
    """Generations and ballots begin again with each history that begins from a disk, and signatures last."""
    old = replace(COMMIT, lineage=lineage)
    told = [replace(reduced(who), commit=old, tally=replace(TALLY, lineage=lineage)) for who in peers()[:1]]
    estate = inherit(*told, *peers()[1:])
    assert (estate.step.phase, estate.step.decision) == ("working", None)
    assert not estate.doubtful


def test_nobody_comes_in_who_is_there_already_or_has_no_place() -> None:
    """Else what the next leader tells could not be, and all who hear it would leave it."""
    odd = (member("a", 1), member("b", 0, capacity=9), member("t2", 0), member("n", -1), member("n", 1))
    told = [replace(told, newcomers=(named,)) for told, named in zip([*peers(), report(TRAINERS[2])], odd, strict=True)]
    said = inherit(*told).step.open_step
    assert said.roster == Roster((PEERS[0], (*PEERS[1], member("n", 1))), TRAINERS)
    assert checks_of(PLAN).wrong(said) is None


def test_one_liar_makes_no_newcomers_and_takes_nobody_out_of_the_majority() -> None:
    made_up, named = tuple(member(f"x{i}", 1) for i in range(5)), tuple(member for stage in PEERS for member in stage)
    told = peers()
    told[0] = replace(told[0], newcomers=(*named, *made_up))
    estate = inherit(*told, report(TRAINERS[2]))
    assert (estate.gone, estate.step.members.newcomers) == ((T0,), {})
    assert estate.step.members.quorum.electorates[0].size == 7
    assert set(estate.step.members.opened.peers) == set(named)


def test_newcomers_who_are_gone_again_cost_no_majority() -> None:
    came = tuple(member(name, 1) for name in ("n", "o", "p"))
    told = [replace(told, newcomers=came) for told in peers()]
    assert candidacy(*told).elected(BEGAN_S + 3.0), "5 of the 7 that the OpenStep named"
    estate = inherit(*told)
    for victim in estate.gone:
        estate.step.gone(victim, "not heard of")
    assert estate.step.members.has_majority(set()), "who was elected may commit"


def test_newcomers_elect_nobody() -> None:
    came = tuple(member(name, 1) for name in "ijklmnop")
    roster = Roster((PEERS[0], (*PEERS[1], *came)), TRAINERS)
    heard = replace(LATER, roster=roster, newcomers=tuple(who.process for who in came))
    assert not candidacy(*(report(who, opened=heard) for who in came)).elected(BEGAN_S + 60.0)


def test_the_shares_are_those_of_the_first_open_and_not_of_what_a_newcomer_was_told() -> None:
    """A newcomer is told who lives; which trainer began with which microbatch follows from who lived at first."""
    came = member("0", 1)  # sorts before everybody
    heard = replace(OPENED, roster=Roster((PEERS[0], (*PEERS[1], came)), TRAINERS[:2]), newcomers=(came.process,))
    own = replace(report(TRAINERS[1]), gone=(T2,))  # t1 had microbatch 1, t0 had 0 and 3; 2, of t2, fell to t0
    others = [replace(told, gone=(T2,), newcomers=(came,)) for told in peers()]
    tried = candidacy(*others, report(came, opened=heard), own=own)
    step = takeover_of(tried, replace(PLAN, microbatches=4), lambda step: 0.1, 0.0, BEGAN_S).step
    told = [sent for victim in (T0, T2) for sent in messages(step.gone(victim, "lost"), Assign)]
    assert {index for to, message in told if to == T1 for index in message.indices} == {0, 2, 3}


def test_a_report_of_another_process_or_of_a_stage_that_there_is_not_is_no_promise() -> None:
    candidacy = Candidacy(TRAINERS[1], 2, epoch_view(), BEGAN_S)
    candidacy.begin(report(TRAINERS[1]), BEGAN_S)
    [one, other] = PEERS[0]
    candidacy.report(other.process, report(one))
    for stage in (-1, 99):
        candidacy.report(one.process, replace(report(one), member=replace(one, stage=stage)))
    assert list(candidacy.reports) == [TRAINERS[1].process]
    candidacy.report(one.process, report(one))
    assert list(candidacy.reports) == [TRAINERS[1].process, one.process]
