"""Of two members that contradict each other the one goes that does so with others too, and the run gets on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow import latest
from swarmflow.core.membership.disputes import MEMORY_S, Disputes, Judgement
from swarmflow.core.protocol.events import Lost
from swarmflow.core.protocol.messages import Committed, Evicted, Ready, StateRoot, VersionCertified
from swarmflow.core.protocol.types import ProcessId, Snapshot
from tests.core.samples import member, messages
from tests.core.test_leader import Bench

A, B, C, D = (ProcessId(name, 1) for name in "abcd")


def again(process: ProcessId) -> ProcessId:
    """The next life of a process."""
    return process._replace(incarnation=process.incarnation + 1)


def differ(bench: Bench, one: ProcessId, other: ProcessId) -> None:
    """Have two peers serve the stage and report different states after a step."""
    bench.serve(one, other)
    bench.commit()  # the first step begins with one of them
    step = bench.leader.step
    assert step is not None
    assert step.roster.peer_ids == {one, other}
    bench.committing()
    for peer in (one, other):
        bench.hear(peer, Committed(step.epoch, step.epoch.step + 1))
    for peer in (one, other):
        bench.hear(peer, StateRoot(0, step.epoch.step + 1, f"of {peer.name}"))
    assert bench.leader.membership.known.keys().isdisjoint((one, other))


def kept_out(bench: Bench, process: ProcessId) -> float:
    return bench.leader.faults.pauses.left(process.name, bench.now)[0]


def test_who_differs_from_one_mate_after_the_other_is_kept_out() -> None:
    bench = Bench()
    differ(bench, A, B)
    assert not kept_out(bench, A)
    assert not kept_out(bench, B)
    differ(bench, again(A), C)
    assert kept_out(bench, A) == bench.timeouts.pause_s
    assert not kept_out(bench, C)
    bench.serve(again(B), again(C))
    bench.commit()
    bench.commit()
    assert bench.leader.version == 2, "the others get on"


def test_of_two_that_differ_again_and_again_each_is_kept_out_in_turn() -> None:
    bench = Bench()
    differ(bench, A, B)
    differ(bench, again(A), again(B))
    assert (kept_out(bench, A) > 0) != (kept_out(bench, B) > 0)


def test_of_two_that_differ_the_one_is_kept_out_that_most_of_a_stage_contradicted_before() -> None:
    bench = Bench()
    for peer in (A, B, C):
        bench.join(peer)
    bench.ready(A)
    for peer in (B, C):
        bench.hear(peer, Ready(0, 0, "other", 4))
    for peer in (B, C):
        bench.leader.handle(Lost(peer, "reset"), bench.now)
    differ(bench, D, again(A))
    assert kept_out(bench, A) == bench.timeouts.pause_s
    assert not kept_out(bench, D)


def test_the_first_to_be_ready_does_not_say_alone_what_the_first_version_is() -> None:
    bench = Bench()
    for peer in (A, B, C):
        bench.join(peer)
    bench.ready(A)
    assert not messages(bench.hear(B, Ready(0, 0, "other", 4)), Evicted), "one against one"
    assert [to for to, _ in messages(bench.hear(C, Ready(0, 0, "other", 4)), Evicted)] == [A]
    assert bench.leader.membership.known[C].phase == "ready"
    certified = [sent for _, sent in messages(bench.hear(C, StateRoot(0, 0, "other")), VersionCertified)]
    assert not certified, "it is already"
    assert bench.leader.certified == Snapshot(0, ("other",))


def test_a_dispute_is_forgotten_after_an_hour() -> None:
    disputes = Disputes()
    one, other = member("a", 0), member("b", 0)
    disputes.settle(one, other, "a", 0.0)
    assert disputes.partners("a", MEMORY_S) == {"b"}
    assert not disputes.partners("a", MEMORY_S + 1.0)


def test_as_many_disputes_are_remembered_as_the_limit_says_with_their_voters_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(latest, "ENTRIES_MAX", 6)
    disputes = Disputes()
    one, other = member("a", 0), member("b", 0)
    for number in range(9):
        disputes.settle(one, member(f"x{number}", 0), "a", float(number))
    assert disputes.partners("a", 9.0) == {f"x{number}" for number in range(3, 9)}
    for name in ("x0", "x1"):
        disputes.settle(other, replace(member(name, 0), votes=False), "b", 9.0)
    judgement = disputes.judge(other, member("c", 0), 1, 9.0)
    assert judgement is None or not judgement.guilty, "the votes of former namesakes are forgotten with their disputes"


def test_whose_turn_it_was_is_forgotten_after_an_hour() -> None:
    disputes = Disputes()
    one, other = member("a", 0), member("b", 0)
    disputes.settle(one, other, "a", 0.0)
    assert disputes.judge(one, other, 0, MEMORY_S) == Judgement("b", guilty=False)
    assert disputes.judge(one, other, 0, MEMORY_S + 1.0) is None


@pytest.mark.parametrize(("lies_max", "guilty"), [(0, True), (1, True), (2, False)])
def test_who_is_in_disputes_with_no_more_than_may_lie_is_not_guilty(lies_max: int, guilty: bool) -> None:
    disputes = Disputes()
    one = member("a", 0)
    disputes.settle(one, member("b", 0), "b", 0.0)
    judgement = disputes.judge(one, member("c", 0), lies_max, 1.0)
    assert judgement is not None
    assert (judgement.loser, judgement.guilty) == ("a", guilty)


def test_disputes_with_those_that_have_no_vote_make_no_voter_guilty() -> None:
    disputes = Disputes()
    one = member("a", 0)
    disputes.settle(one, replace(member("b", 0), votes=False), "b", 0.0)
    judgement = disputes.judge(one, replace(member("c", 0), votes=False), 0, 1.0)
    assert judgement is None or not judgement.guilty
