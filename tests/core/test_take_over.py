"""A leader that takes over goes on from each point of a step; without a majority it waits."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.protocol.actions import Count, Log, Validate
from swarmflow.core.protocol.events import Lost
from swarmflow.core.protocol.messages import (
    Assign,
    Evicted,
    Join,
    MemberEntered,
    MemberFailed,
    OpenStep,
    Prepare,
    Prepared,
    Ready,
    StepResult,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, FIRST_ATTEMPT, Epoch, Roster
from tests.core.samples import LINEAGE, commits, member, messages, of_type
from tests.core.taken_over import (
    COMMIT,
    EPOCH,
    ME,
    OPENED,
    PEERS,
    PLAN,
    REDUCED,
    RESULT,
    SETTINGS,
    T0,
    T2,
    TRAINERS,
    A,
    B,
    Bench,
    C,
    done,
    peers,
    reduced,
    report,
)


def test_a_step_that_a_member_found_beyond_repair_starts_over() -> None:
    """The member has told the former leader, which died with it."""
    a, b, c = peers()
    bench = Bench([replace(a, done=(done(0),)), replace(b, void="its bytes cannot be used"), c])
    opened = messages(bench.began, OpenStep)
    assert {message.epoch for _, message in opened} == {Epoch(3, 5)}
    assert not messages(bench.began, Prepare)


def test_work_that_a_member_has_abandoned_is_done_again_by_others() -> None:
    """It was granted another state by a leader of the other side; its neighbours think that it has their hops."""
    a, b, c = peers()
    bench = Bench([replace(a, done=(done(0),)), replace(b, abandoned=True, ready=False), c])
    assert [to for to, _ in messages(bench.began, Evicted)] == [B]
    failed = [(to, dead) for to, dead in messages(bench.began, MemberFailed) if dead.process == B]
    assert {A, C, ME} <= {to for to, _ in failed}
    assert B not in bench.leader.membership.known


def test_what_was_abandoned_after_the_commit_is_of_no_use_any_more() -> None:
    a, b, c = (replace(reduced(told), commit=COMMIT) for told in peers())
    after = EPOCH.step + 1
    moved = replace(b, applied=True, abandoned=True, version=after)
    for here in (moved, replace(moved, ready=False, version=-1)):  # or it loads that state still
        bench = Bench([replace(a, applied=True, version=after), here, c])
        assert not messages(bench.began, Evicted)
        assert B in bench.leader.membership.known


def test_who_went_back_after_the_commit_is_not_taken_for_one_that_has_the_version() -> None:
    """A former leader had lost the version, and had it load an earlier one; others have it still."""
    a, b, c = (replace(reduced(told), commit=COMMIT) for told in peers())
    back = replace(b, applied=True, abandoned=True, version=EPOCH.step - 2)
    bench = Bench([replace(a, applied=True, version=EPOCH.step + 1), back, c])
    assert [to for to, _ in messages(bench.began, Evicted)] == [B]
    assert B not in bench.leader.membership.known


def test_the_work_of_a_step_goes_on() -> None:
    a, b, c = peers()
    bench = Bench([replace(a, done=(done(0),)), replace(b, done=(done(1),)), c])
    assert {dead.process for _, dead in messages(bench.began, MemberFailed)} == {T0, T2}
    assert {(dead.term, dead.epoch) for _, dead in messages(bench.began, MemberFailed)} == {(4, EPOCH)}
    given = [(to, message.indices) for to, message in messages(bench.began, Assign) if to == ME]
    assert sorted(index for _, indices in given for index in indices) == [0, 2], "those of t0 and t2"
    assert not messages(bench.began, OpenStep), "who is in the epoch stays in it"
    prepare = messages(bench.hear(C, done(2)), Prepare)
    assert [(to, message.entries) for to, message in prepare] == [
        (A, ((0, FIRST_ATTEMPT),)),
        (B, ((1, FIRST_ATTEMPT),)),
        (C, ((2, FIRST_ATTEMPT),)),
    ]
    [ballot] = {message.ballot for _, message in prepare}
    for peer in (A, B, C):
        actions = bench.hear(peer, Prepared(EPOCH, ballot, REDUCED))
    assert [(to, message.learning_rate) for to, message in commits(actions)] == [(A, 0.5), (B, 0.5), (C, 0.5)]
    [(_, opened)] = [sent for sent in messages(actions, OpenStep) if sent[0] == A]
    assert (opened.term, opened.epoch, opened.lineage, opened.exponent) == (4, Epoch(2, 6), LINEAGE, DEFAULT_EXPONENT)
    assert [trainer.process for trainer in opened.roster.trainers] == [ME]


def test_no_number_of_a_ballot_is_used_by_two_leaders() -> None:
    """A piece of the former leader's all-reduce may be under way yet, when the gradient that it is of has changed."""
    numbers = []
    for term in (4, 5):  # a death has voided the ballots of terms 3 and 4, so that no report tells of them
        own = replace(report(TRAINERS[1]), term=term)
        told = [replace(each, term=term, done=(done(index),)) for index, each in enumerate(peers())]
        bench = Bench(told, own, term=term)
        numbers.append({message.ballot for _, message in messages(bench.began, Prepare)})
    [[first], [second]] = numbers
    assert 1 < first < second, "a leader of term 3 has begun with 1"
    ballots_a_step = 10_000
    assert first + ballots_a_step < second


def test_who_came_in_amid_the_step_is_told_to_all_once_more() -> None:
    """The former leader may have died while it told of it: who has not heard would never send it anything."""
    d = member("d")
    came = replace(OPENED, roster=Roster(((*PEERS, d),), TRAINERS), newcomers=(d.process,))
    heard = replace(report(PEERS[0]), newcomers=(d,), entered=(d.process,))
    bench = Bench([heard, replace(report(PEERS[1]), newcomers=(d,)), report(PEERS[2]), report(d, came)])
    told = [to for to, said in messages(bench.began, MemberEntered) if said.member == d]
    assert sorted(told) == sorted([A, B, C, d.process, T0, ME, T2])
    assert bench.leader.step is not None
    assert d in bench.leader.step.members.opened.stages[0]


def test_a_ballot_that_everybody_has_reduced_is_committed_at_once() -> None:
    bench = Bench([reduced(told) for told in peers()])
    commit = dict(commits(bench.began))
    assert list(commit) == [A, B, C]
    assert {(message.term, message.ballot, message.scale) for message in commit.values()} == {(4, 1, 1 / 30)}
    assert not messages(bench.began, MemberFailed), "no repair of what is committed"
    [(to, result)] = messages(bench.began, StepResult)
    assert (to, result.epoch, result.loss, result.tokens, result.retries) == (ME, EPOCH, 2.0, 30, 1)


def test_after_sums_that_do_not_agree_another_lineage_follows_since_one_may_hide_a_commit() -> None:
    told = [reduced(told) for told in peers()]
    told[2] = replace(told[2], results=(("stage-0", 1.0, "y"),))
    bench = Bench(told)
    assert not commits(bench.began)
    assert not messages(bench.began, Evicted), "the next try shows whose it is"
    assert bench.leader.lineage.name == "new"
    assert bench.leader.epoch == Epoch(EPOCH.generation + 1, EPOCH.step)


def inherited() -> Bench:
    """All who are left have reduced the ballot, but only three of six have promised it: the other trainer is asked."""
    bench = Bench([*(reduced(told) for told in peers(C)), report(TRAINERS[2])])
    assert bench.leader.step is not None
    assert bench.leader.step.phase == "prepared"
    return bench


def test_a_death_leaves_a_ballot_that_may_be_committed_elsewhere_as_it_is() -> None:
    bench = inherited()
    actions = bench.leader.handle(Lost(B, "killed"), bench.now)
    assert not messages(actions, MemberFailed), "told of it the others would let go of their sums"
    assert {to for to, _ in commits(bench.hear(T2, Prepared(EPOCH, 1, ())))} == {A}


def test_whoever_is_ready_to_take_a_dead_ones_place_has_no_part_in_such_a_ballot() -> None:
    bench = inherited()
    new = member("n")
    bench.hear(new.process, Join("peer", "1.0", "run", new))
    bench.hear(new.process, Ready(0, 5, "root", 4, bench.leader.membership.known[new.process].grants))
    bench.leader.handle(Lost(B, "killed"), bench.now)
    assert {to for to, _ in commits(bench.hear(T2, Prepared(EPOCH, 1, ())))} == {A}


def test_such_a_ballot_is_asked_for_again_and_never_begun_anew() -> None:
    bench = inherited()
    actions = bench.wait(61.0, A, B, T2)
    assert {(to, message.ballot) for to, message in messages(actions, Prepare)} == {(T2, 1)}


def test_such_a_step_starts_over_in_another_lineage_alone() -> None:
    bench = inherited()
    for victim in (A, B):
        bench.leader.handle(Lost(victim, "killed"), bench.now)
    assert bench.leader.lineage.name == "new"


def test_a_commit_is_told_to_those_who_have_not_applied_it() -> None:
    told = [reduced(told) for told in peers()]
    told[1] = replace(told[1], commit=COMMIT, applied=True, version=6)
    bench = Bench(told)
    assert commits(bench.began) == [(A, replace(COMMIT, term=4)), (C, replace(COMMIT, term=4))]
    actions = bench.commit(EPOCH, A, C)
    assert messages(actions, StepResult) == [(ME, RESULT)], "the very line that the former leader would have told"
    assert bench.leader.version == 6


def test_a_step_that_everybody_has_applied_is_followed_by_the_next() -> None:
    applied = [replace(reduced(told), commit=COMMIT, applied=True, version=6) for told in peers()]
    bench = Bench(applied, settings=replace(SETTINGS, validate_every=6))
    assert not commits(bench.began)
    assert [action.version for action in of_type(bench.began, Validate)] == [6]
    assert not messages(bench.began, StepResult), "it is told with its validation loss"
    opened = messages(Bench(applied).began, OpenStep)
    assert {message.epoch for _, message in opened} == {Epoch(2, 6)}
    assert [to for to, _ in opened] == [A, B, C, ME]


def test_a_state_that_strays_is_found_by_the_next_leader_too() -> None:
    told = [replace(reduced(told), commit=COMMIT, applied=True, version=6) for told in peers()]
    told[2] = replace(told[2], root="other")
    assert [to for to, _ in messages(Bench(told).began, Evicted)] == [C]


def left_alone() -> Bench:
    """A leader that only one peer is left of, of the six that the OpenStep named; that one has reduced the step."""
    bench = Bench([*peers(), report(TRAINERS[2])])
    for victim in (T2, B, C):
        bench.leader.handle(Lost(victim, "cut off"), bench.now)
    for index in range(PLAN.microbatches):
        bench.hear(A, done(index))
    assert bench.leader.step is not None
    assert not commits(bench.hear(A, Prepared(EPOCH, bench.leader.step.ballot.number, REDUCED)))
    return bench


def test_without_a_majority_nothing_is_committed_until_it_has_stayed_away_for_long() -> None:
    bench = left_alone()
    assert bench.leader.step is not None
    assert bench.leader.step.phase == "prepared"
    actions = bench.wait(Timeouts().majority_s - 1, A)
    assert not commits(actions)
    assert not messages(actions, OpenStep)
    actions = bench.wait(1, A)
    assert Count("lineages") in actions
    opened = messages(actions, OpenStep)
    assert [to for to, _ in opened] == [A, ME]
    assert {(message.epoch, message.lineage) for _, message in opened} == {(Epoch(3, 5), "new")}


def test_the_wait_for_a_majority_is_told_once() -> None:
    bench = left_alone()
    assert not [log for log in of_type(bench.wait(20, A), Log) if "most of the swarm" in log.text], "told before"
