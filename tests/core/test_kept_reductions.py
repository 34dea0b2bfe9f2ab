"""A death voids a ballot, and of its reductions those alone in which the dead process had a part."""

from __future__ import annotations

from swarmflow.core.commit.reduce import PIECE_ELEMENTS, Reduction
from swarmflow.core.commit.step import Step
from swarmflow.core.protocol.actions import Action, Count, Rejoin, Release, Seal, Send, StorePiece, SumPiece
from swarmflow.core.protocol.events import PieceReduced, Sealed
from swarmflow.core.protocol.messages import (
    Commit,
    Denied,
    Done,
    Forward,
    MemberFailed,
    OpenStep,
    Prepare,
    Prepared,
    ReducePart,
    ReduceSum,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Group, Plan, ProcessId, Ref, Roster, SharedWeights, tied_ends
from swarmflow.core.routing.link_rates import LinkTable
from tests.core.peer_bench import LEADER, MATE, ME, RESULT, TALLY, Bench
from tests.core.samples import EPOCH, LINEAGE, REPAIR, member, messages, microbatch, of_type, process, released

A, B, C, D, E = (process(name) for name in "abcde")
ROSTER = Roster(((member("a"), member("b")), (member("c", 1), member("d", 1))), (member("t", -1),))
OTHER = process("other")  # of another stage


def prepared_step(shared: tuple[SharedWeights, ...] = ()) -> Step:
    """A step in its first ballot: A and C hold the first microbatch, B and D the second one."""
    plan = Plan(stages=2, microbatches=2, shared=shared)
    step = Step(plan, 1, OpenStep(1, EPOCH, ROSTER, LINEAGE), 0.1, 0.0, opened_s=0.0)
    for stage, holders in enumerate(((A, B), (C, D))):
        for index, holder in enumerate(holders):
            step.done(holder, Done(microbatch(index), stage, FIRST_ATTEMPT, loss_sum=1.0, tokens=1))
    step.prepare((), LinkTable())
    return step


def repair(step: Step, holder: ProcessId, stage: int, index: int) -> None:
    step.done(holder, Done(microbatch(index), stage, REPAIR, loss_sum=1.0, tokens=1, ballot=step.ballot.number))


def groups_of(step: Step, *newcomers: str) -> dict[ProcessId, tuple[Group, ...]]:
    """What each member reduces in the next ballot. newcomers: those that are ready, with the stage in the name."""
    ready = tuple(member(name, int(name[-1])) for name in newcomers)
    return {to: message.groups for to, message in messages(step.prepare(ready, LinkTable()), Prepare)}


# --- the leader -------------------------------------------------------------------------------------------------------


def test_a_group_that_lost_nobody_keeps_its_reduction() -> None:
    step = prepared_step()
    step.gone(D, "killed")
    repair(step, C, 1, 1)
    actions = step.prepare((), LinkTable())
    groups = {to: message.groups for to, message in messages(actions, Prepare)}
    assert groups[A] == groups[B] == (Group("stage-0", (A, B), ballot=1),)
    assert groups[C] == (Group("stage-1", (C,), ballot=2),)
    assert of_type(actions, Count) == [Count("reductions_kept", amount=1)]
    assert step.ballot.number == 2
    for peer in (A, B):
        step.prepared(peer, Prepared(EPOCH, 2, (("stage-0", 1.0, "x"),)))
    assert step.phase == "preparing"
    step.prepared(C, Prepared(EPOCH, 2, (("stage-1", 1.0, "y"),)))
    assert step.phase == "prepared"


def test_a_death_after_all_have_reduced_keeps_what_the_others_have() -> None:
    step = prepared_step()
    for peer, group in ((A, "stage-0"), (B, "stage-0"), (C, "stage-1"), (D, "stage-1")):
        step.prepared(peer, Prepared(EPOCH, 1, ((group, 1.0, "x"),)))
    assert step.phase == "prepared"
    step.gone(A, "killed")
    repair(step, B, 0, 0)
    assert {group.name: group.ballot for groups in groups_of(step).values() for group in groups} == {
        "stage-0": 2,
        "stage-1": 1,
    }


def test_a_trainer_that_dies_touches_no_group() -> None:
    step = prepared_step()
    step.gone(process("t"), "killed")
    assert {group.ballot for groups in groups_of(step).values() for group in groups} == {1}


def test_a_tied_weight_is_reduced_anew_for_the_other_end_too() -> None:
    step = prepared_step(tied_ends(2))
    step.gone(D, "killed")
    repair(step, C, 1, 1)
    assert {group.name: group.ballot for group in groups_of(step)[A]} == {"stage-0": 1, "tied": 2}


def test_newcomers_come_in_only_where_a_group_begins_anew() -> None:
    step = prepared_step()
    step.gone(D, "killed")
    repair(step, C, 1, 1)
    groups = groups_of(step, "e0", "e1")
    assert process("e0") not in groups, "it comes in with the next step"
    assert groups[process("e1")] == (Group("stage-1", (C, process("e1")), ballot=2),)
    step = prepared_step(tied_ends(2))
    step.ballot.void(lambda reducing: reducing.group.name == "stage-0")
    assert process("e0") not in groups_of(step, "e0"), "it would disturb the group of the tied weight"


def test_other_entries_are_reduced_anew() -> None:
    step = prepared_step()
    step.gone(D, "killed")
    repair(step, B, 0, 0)
    repair(step, C, 1, 1)
    groups = groups_of(step)
    assert [group.ballot for group in (*groups[A], *groups[C])] == [2, 2], "B has done again what A has done"


def test_who_sums_for_another_stage_has_a_part_in_its_group() -> None:
    step = prepared_step()
    step.ballot.reduce([Group("stage-0", (A, B), (C, A), 10)], step.ledger.entries())
    step.ballot.gone(C)
    assert set(step.ballot.reductions) == set()


# --- a member ---------------------------------------------------------------------------------------------------------


def test_a_reduction_goes_on_where_nobody_of_it_died() -> None:
    elements = {"g": 2 * PIECE_ELEMENTS, "h": 2 * PIECE_ELEMENTS}
    machine = Reduction(A, EPOCH, 1, elements)
    g, h = Group("g", (A, B, C), ballot=1), Group("h", (A, D, E), ballot=1)
    assert len(of_type(machine.begin((g, h)), Send)) == 2
    assert machine.part(B, ReducePart(EPOCH, 1, "g", 0), Ref(1)) == []
    assert machine.part(D, ReducePart(EPOCH, 1, "h", 0), Ref(2)) == []
    assert machine.lose(D) == [Release((Ref(2),))]
    [total] = of_type(machine.part(C, ReducePart(EPOCH, 1, "g", 0), Ref(3)), SumPiece)
    assert (total.ballot, total.parts) == (1, (None, Ref(1), Ref(3)))
    assert machine.part(E, ReducePart(EPOCH, 1, "h", 0), Ref(4)) == [Release((Ref(4),))], "it is void"
    again = Group("h", (A, E), ballot=2)
    begun = of_type(machine.begin((g, again)), Send)
    assert [send.message for send in begun] == [ReducePart(EPOCH, 2, "h", 1)], "nothing of the other one is sent again"
    assert machine.part(E, ReducePart(EPOCH, 1, "h", 0), Ref(5)) == [Release((Ref(5),))]
    assert of_type(machine.part(E, ReducePart(EPOCH, 2, "h", 0), Ref(6)), SumPiece)


def test_a_sum_of_a_void_reduction_is_dropped() -> None:
    machine = Reduction(A, EPOCH, 1, {})
    machine.begin((Group("g", (B, C), (A,), 10, ballot=1),))
    machine.lose(C)
    assert machine.reduced(1, "g", 0, "x", Ref(7)) == [Release((Ref(7),))]


def test_what_was_not_finite_is_found_again_in_the_next_ballot() -> None:
    machine, group = Reduction(A, EPOCH, 1, {"g": 10}), Group("g", (A,), ballot=1)
    assert of_type(machine.begin((group,)), Seal)
    assert of_type(machine.begin((group,)), Seal), "there is no result: it was not finite"
    machine.sealed(1, (("g", 1.0, "x"),))
    assert not machine.begin((group,))
    assert machine.results == (("g", 1.0, "x"),)


def prepare(bench: Bench, ballot: int, began: int, term: int = 1) -> list[Action]:
    group = Group("stage-0", (MATE, ME), ballot=began)
    return bench.hear(Prepare(term, EPOCH, ballot, ((0, FIRST_ATTEMPT),), (group,), TALLY))


def reducing() -> Bench:
    """A peer that reduces with its mate in the first ballot."""
    bench = Bench()
    bench.serve()
    bench.work()
    prepare(bench, 1, 1)
    return bench


RESULTS = (("stage-0", 1.0, "x"),)


def test_a_peer_reduces_on_through_a_death_elsewhere_and_reports_in_the_next_ballot() -> None:
    bench = reducing()
    bench.hear(MemberFailed(1, EPOCH, OTHER, "killed"))
    [(_, denied)] = messages(bench.hear(Forward(microbatch(1), 0, REPAIR), bodies=(Ref(10), Ref(11))), Denied)
    assert denied.reason == "full", "nothing may be added to the gradient"
    assert not messages(bench.event(Sealed(EPOCH, 1, RESULTS)), Prepared), "no ballot is under way"
    assert of_type(bench.hear(Commit(1, EPOCH, 1, 0.5, 0.1, RESULT)), Rejoin), "that ballot is void"


def test_what_is_reduced_already_is_reported_at_once() -> None:
    bench = reducing()
    bench.hear(MemberFailed(1, EPOCH, OTHER, "killed"))
    bench.event(Sealed(EPOCH, 1, RESULTS))
    answers = messages(prepare(bench, 2, 1), Prepared)
    assert answers == [(LEADER, Prepared(EPOCH, 2, RESULTS))]
    assert bench.peer.epoch_view is not None
    assert (bench.peer.epoch_view.ballot, bench.peer.epoch_view.results) == (2, RESULTS)


def test_a_piece_that_was_summed_meanwhile_counts() -> None:
    bench = reducing()
    bench.hear(MemberFailed(1, EPOCH, OTHER, "killed"))
    prepare(bench, 2, 1)
    [store] = of_type(bench.hear(ReduceSum(EPOCH, 1, "stage-0", 0, "y"), MATE, (Ref(20, 40),)), StorePiece)
    [seal] = of_type(bench.event(PieceReduced(EPOCH, store.ballot, "stage-0", 0)), Seal)
    assert (seal.ballot, seal.pieces) == (1, (("stage-0", ("y",)),))
    assert messages(bench.event(Sealed(EPOCH, 1, RESULTS)), Prepared) == [(LEADER, Prepared(EPOCH, 2, RESULTS))]


def test_another_leader_begins_all_reductions_anew() -> None:
    bench = reducing()
    bench.event(Sealed(EPOCH, 1, RESULTS))
    bench.peer.lease.term = 2
    bench.hear(MemberFailed(2, EPOCH, OTHER, "the former leader"))
    assert bench.peer.reduction is None
    assert not messages(prepare(bench, 2, 2, term=2), Prepared)


def test_a_ballot_that_waits_for_an_orphan_keeps_its_group() -> None:
    bench = Bench()
    bench.serve()
    bench.work()
    bench.hear(Forward(microbatch(1), 0, FIRST_ATTEMPT), bodies=(Ref(8), Ref(9)))
    prepare(bench, 1, 1)
    bench.hear(ReducePart(EPOCH, 1, "stage-0", 0), MATE, (Ref(20, 40),))
    assert len(bench.peer.early) == 1
    bench.hear(MemberFailed(1, EPOCH, OTHER, "killed"))
    assert len(bench.peer.early) == 1, "the mate goes on with this reduction, and will not send it again"
    bench.hear(MemberFailed(1, EPOCH, MATE, "killed"))
    assert bench.peer.unsettled is not None
    assert not bench.peer.unsettled.groups
    assert not released(bench.hear(ReducePart(EPOCH, 2, "stage-0", 0), MATE)), "of a ballot that is to come"
