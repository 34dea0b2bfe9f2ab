"""What a leader does about a step that fails again and again by what the same members say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swarmflow.core.commit.step import Step
from swarmflow.core.membership.failures import EXPONENT_MIN, EXPONENT_STEP
from swarmflow.core.membership.findings import TRIES_MAX
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import (
    Done,
    Evicted,
    Granted,
    Heartbeat,
    Overflow,
    Postponed,
    Prepared,
    Ready,
    Unprepared,
    Unrepairable,
)
from swarmflow.core.protocol.timeouts import Timeouts
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, FIRST_ATTEMPT, Microbatch, ProcessId
from tests.core import test_leader
from tests.core.samples import messages, process
from tests.core.test_leader import ME, OTHER, TIMEOUTS, A, B, C


class Bench(test_leader.Bench):
    """A leader whose step is worked off, with members that spoil it."""

    @property
    def step(self) -> Step:
        assert self.leader.step is not None
        return self.leader.step

    @property
    def serving(self) -> list[ProcessId]:
        return [member.process for member in self.step.roster.peers]

    def work(self) -> list[Action]:
        return self.hear(self.serving[0], Done(Microbatch(self.step.epoch, 0), 0, FIRST_ATTEMPT, 2.0, 1))

    def reduce(self, **odd: str) -> list[Action]:
        """Work, and reduce; who is named has another digest than the others."""
        actions, epoch = self.work(), self.step.epoch
        for peer in self.serving:
            digest = odd.get(peer.name, "x")
            actions = self.hear(peer, Prepared(epoch, self.step.ballot.number, (("stage-0", 1.0, digest),)))
        return actions

    def overflow(self, peer: ProcessId) -> list[Action]:
        return self.hear(peer, Overflow(Microbatch(self.step.epoch, 0)))

    def rejoin(self, peer: ProcessId) -> ProcessId:
        """Another life of a peer comes, is granted its stage if it is granted any, and is ready."""
        again = ProcessId(peer.name, peer.incarnation + 1)
        for _, granted in messages(self.join(again), Granted):
            self.hear(again, Ready(0, granted.version, "root", 4, granted.grant))
        return again


def serving(*peers: ProcessId) -> Bench:
    bench = Bench()
    bench.serve(*peers)
    bench.commit()
    return bench


def unprepared(bench: Bench, peer: ProcessId) -> list[Action]:
    bench.work()
    return bench.hear(peer, Unprepared(bench.step.epoch, bench.step.ballot.number, "one is missing"))


def unrepairable(bench: Bench, peer: ProcessId) -> list[Action]:
    return bench.hear(peer, Unrepairable(bench.step.epoch, "the bytes are spoilt"))


SPOILS = pytest.mark.parametrize("spoil", [unprepared, unrepairable, Bench.overflow])
Spoil = Callable[[Bench, ProcessId], list[Action]]


@SPOILS
def test_who_makes_a_step_fail_twice_is_left_out_and_put_out_when_it_is_done_without(spoil: Spoil) -> None:
    bench = serving(A, B)
    spoil(bench, B)
    assert bench.serving == [A, B], "once may be chance"
    spoil(bench, B)
    assert bench.serving == [A]
    actions = bench.commit()
    [(to, evicted)] = messages(actions, Evicted)
    assert to == B
    assert f"{TIMEOUTS.barred_s:.0f} s" in evicted.reason
    assert bench.leader.membership.known[bench.rejoin(B)].phase == "barred"


@SPOILS
def test_another_life_of_who_is_left_out_is_left_out_too(spoil: Spoil) -> None:
    bench = serving(A, B)
    spoil(bench, B)
    spoil(bench, B)
    again = bench.rejoin(B)
    assert bench.leader.membership.known[again].phase == "ready"
    actions = bench.commit()
    assert bench.leader.version == 2
    assert [to for to, _ in messages(actions, Evicted)] == [again]


@SPOILS
def test_of_two_who_make_a_step_fail_one_after_the_other_stands_in(spoil: Spoil) -> None:
    bench = serving(A, B)
    for peer in (B, B):
        spoil(bench, peer)
    for _ in range(2):
        assert bench.serving == [A]
        unprepared(bench, A)
    assert bench.serving == [B]


def test_a_step_that_fails_by_those_whom_nobody_can_stand_in_for_stops_the_run_and_names_them() -> None:
    bench = serving(A)
    for _ in range(TRIES_MAX - 1):
        unprepared(bench, A)
        assert bench.serving == [A]
    unprepared(bench, A)
    assert bench.leader.fate == f"step 1: {A} could not prepare: one is missing, for the {TRIES_MAX}th time"


def test_a_trainer_that_makes_a_step_fail_twice_is_left_out_and_kept_out_for_a_while() -> None:
    bench = Bench(timeouts=Timeouts(pause_s=30.0))
    bench.join(OTHER, role="trainer")
    bench.serve(A)
    for _ in range(2):
        assert [trainer.process for trainer in bench.step.roster.trainers] == [ME.process, OTHER]
        unrepairable(bench, OTHER)
    assert [trainer.process for trainer in bench.step.roster.trainers] == [ME.process]
    [(to, _)] = messages(bench.commit(), Evicted)
    assert to == OTHER
    assert messages(bench.join(process(OTHER.name, 2), role="trainer"), Postponed)


def test_a_stranger_makes_no_step_fail() -> None:
    bench = serving(A)
    late = process("late")
    bench.join(late)
    for _ in range(2):
        bench.overflow(late)
        unrepairable(bench, late)
    assert bench.step.epoch.generation == 0
    assert bench.step.phase == "working"


# --- members that do not agree ----------------------------------------------------------------------------------------


def test_of_two_that_do_not_agree_one_is_left_out_and_at_another_step_the_other_one() -> None:
    bench = serving(A, B)
    bench.reduce(b="odd")
    assert bench.serving == [A, B], "once may be chance"
    bench.reduce(b="odd")
    assert bench.serving == [B]
    [(to, evicted)] = messages(bench.commit(), Evicted)
    assert (to, "do not agree" in evicted.reason) == (A, True)
    again = bench.rejoin(A)
    bench.now += TIMEOUTS.barred_s
    [(to, granted)] = messages([act for peer in (B, again) for act in bench.hear(peer, Heartbeat())], Granted)
    bench.hear(to, Ready(0, granted.version, "root", 4, granted.grant))
    bench.commit()
    assert bench.serving == [again, B]
    for _ in range(2):
        bench.reduce(b="odd")
    assert bench.serving == [again], "now it is the other one's turn"


def test_of_two_that_do_not_agree_the_one_that_made_the_step_fail_before_is_left_out() -> None:
    bench = serving(A, B)
    unrepairable(bench, B)
    bench.reduce(b="odd")
    assert bench.serving == [A]
    [(to, _)] = messages(bench.commit(), Evicted)
    assert to == B


def owners(bench: Bench) -> tuple[ProcessId, ...]:
    """Who sums the pieces in the ballot that is under way, once the work is done."""
    bench.work()
    return bench.step.ballot.reductions["stage-0"].group.owners


def test_who_differs_whoever_has_summed_is_kept_out() -> None:
    bench = serving(A, B, C)
    assert not messages(bench.reduce(b="odd"), Evicted), "any of the three may have sent it another sum"
    assert bench.serving == [A, B, C]
    assert not messages(bench.reduce(b="odd"), Evicted), "it may be that of the one who has summed now"
    assert bench.serving == [A, B, C]
    assert [to for to, _ in messages(bench.reduce(b="odd"), Evicted)] == [B]
    assert bench.serving == [A, C]
    assert bench.leader.faults.pauses.left(B.name, bench.now)[0] > 0


def test_an_owner_and_who_says_that_it_got_another_sum_both_stay_and_sum_no_more() -> None:
    bench = serving(A, B, C)
    bench.reduce(b="odd")
    assert owners(bench) == (A,)
    bench.reduce(b="odd")
    assert owners(bench) == (C,)
    assert not messages(bench.reduce(), Evicted)
    bench.commit()
    assert (bench.serving, owners(bench)) == ([A, B, C], (C,)), "for as long as disputes are remembered"


def test_whose_own_sum_is_another_one_than_what_it_gave_to_others_is_kept_out() -> None:
    bench = serving(A, B, C)
    bench.reduce(a="odd")
    bench.reduce(a="odd")
    assert bench.serving == [B, C]
    assert bench.leader.faults.pauses.left(A.name, bench.now)[0] > 0


def test_of_three_that_all_differ_one_after_the_other_is_left_out() -> None:
    bench = serving(A, B, C)
    for _ in range(2):
        bench.reduce(b="odd", c="other")
    assert bench.serving == [B, C]
    bench.reduce(b="odd", c="other")
    assert bench.serving == [C]
    assert {to for to, _ in messages(bench.commit(), Evicted)} == {A, B}


# --- gradients that do not fit ----------------------------------------------------------------------------------------


def test_without_who_alone_says_so_the_exponent_is_the_usual_one() -> None:
    bench = serving(A, B)
    bench.overflow(B)
    assert (bench.serving, bench.step.open_step.exponent) == ([A, B], DEFAULT_EXPONENT - EXPONENT_STEP)
    bench.overflow(B)
    assert (bench.serving, bench.step.open_step.exponent) == ([A], DEFAULT_EXPONENT)
    bench.commit()
    assert bench.leader.version == 2


def test_who_says_so_is_right_when_another_one_does_for_the_same_exponent() -> None:
    bench = serving(A, B)
    for peer in (B, B, A):
        bench.overflow(peer)
    assert (bench.serving, bench.step.open_step.exponent) == ([A], DEFAULT_EXPONENT - EXPONENT_STEP)
    bench.overflow(A)
    assert (bench.serving, bench.step.open_step.exponent) == ([A, B], DEFAULT_EXPONENT - 2 * EXPONENT_STEP)
    assert not messages(bench.commit(), Evicted)


def test_a_peer_for_whose_gradients_no_exponent_is_left_is_kept_out_and_its_stage_waits() -> None:
    bench = serving(A)
    for exponent in range(DEFAULT_EXPONENT, EXPONENT_MIN - 1, -EXPONENT_STEP):
        assert bench.step.open_step.exponent == exponent
        bench.overflow(A)
    assert not bench.leader.fate
    assert bench.leader.waits_for.startswith(f"a peer for stage 0; {A.name} is kept out: it reports what no")
    assert messages(bench.join(process(A.name, 2)), Postponed), "although nobody else serves its stage"
    bench.now += TIMEOUTS.barred_s
    bench.rejoin(process(A.name, 2))
    assert bench.step.open_step.exponent == DEFAULT_EXPONENT, "what it said does not count any more"


def test_of_five_voters_two_lower_the_exponent_for_all_and_one_never_does() -> None:
    bench = serving(A, B, C, process("d"))
    for peer in (B, B, A):
        bench.overflow(peer)
    assert bench.serving == [A, C, process("d")]
    bench.overflow(A)
    assert bench.step.open_step.exponent == DEFAULT_EXPONENT - 2 * EXPONENT_STEP, "more than may lie have said so"


def test_what_a_stages_only_peer_alone_reports_stops_no_run_whose_members_may_lie() -> None:
    bench = serving(A)
    for number in range(4):
        bench.join(process(f"t{number}"), role="trainer")
    for _ in range(TRIES_MAX):
        unrepairable(bench, A)
    assert not bench.leader.fate
    assert f"{A.name} is kept out" in bench.leader.waits_for
    assert messages(bench.join(process(A.name, 2)), Postponed)
