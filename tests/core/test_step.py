"""One step: it commits with the exact manifest only, clips as torch does, and a death revokes a ballot."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from swarmflow.core.commit.reduce import groups_of_stage, reduction_groups
from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import STEP, StepPhase
from swarmflow.core.protocol.messages import (
    Assign,
    Commit,
    Committed,
    Done,
    MemberFailed,
    OpenStep,
    Prepare,
    Prepared,
    Tally,
    Unprepared,
)
from swarmflow.core.protocol.types import (
    FIRST_ATTEMPT,
    Attempt,
    Epoch,
    Group,
    Plan,
    ProcessId,
    Roster,
    SharedWeights,
    tied_ends,
)
from swarmflow.core.routing.link_rates import LinkTable
from swarmflow.core.transitions import IllegalTransition
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, process

A, B, C, T = process("a"), process("b"), process("c"), process("t")
ROSTER = Roster(((member("a"), member("b")), (member("c", 1),)), (member("t", -1),))
PLAN = Plan(stages=2, microbatches=2)


def step(clip: float = 0.0) -> Step:
    return Step(PLAN, 1, OpenStep(1, EPOCH, ROSTER, LINEAGE), 0.1, clip, opened_s=0.0)


def complete(machine: Step, holders: tuple[ProcessId, ProcessId] = (A, B)) -> None:
    for index, holder in enumerate(holders):
        machine.done(holder, Done(microbatch(index), 0, FIRST_ATTEMPT))
        machine.done(C, Done(microbatch(index), 1, FIRST_ATTEMPT, loss_sum=4.0, tokens=2))


def prepared(machine: Step, norms: tuple[float, float] = (9.0, 16.0), digest_of_b: str = "x") -> None:
    ballot = machine.ballot.number
    machine.prepared(A, Prepared(EPOCH, ballot, (("stage-0", norms[0], "x"),)))
    machine.prepared(B, Prepared(EPOCH, ballot, (("stage-0", norms[0], digest_of_b),)))
    machine.prepared(C, Prepared(EPOCH, ballot, (("stage-1", norms[1], "y"),)))


def test_a_step_commits_once_everywhere() -> None:
    machine = step()
    assert [to for to, _ in messages(machine.members.open(), OpenStep)] == [A, B, C, T]
    complete(machine)
    assert machine.phase == "complete"
    prepare = dict(messages(machine.prepare((), LinkTable()), Prepare))
    assert {to: message.entries for to, message in prepare.items()} == {
        A: ((0, FIRST_ATTEMPT),),
        B: ((1, FIRST_ATTEMPT),),
        C: ((0, FIRST_ATTEMPT), (1, FIRST_ATTEMPT)),
    }
    prepared(machine)
    assert machine.phase == "prepared"
    commit = dict(messages(machine.commit(3.0), Commit))
    assert {message.scale for message in commit.values()} == {1 / 4}
    assert list(commit) == [A, B, C]
    for peer in (A, B, C):
        assert machine.phase == "committing"
        machine.committed(peer, Committed(EPOCH, 1))
    assert machine.phase == "committed"
    assert machine.decision is not None
    result = machine.decision.result
    assert result is not None
    assert (result.loss, result.tokens, result.seconds, result.grad_norm) == (2.0, 4, 3.0, 5.0 / 4)
    assert (result.peers, result.retries) == ((2, 1), 0)


@settings(max_examples=50)
@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=8), st.sampled_from([0.1, 1.0, 50.0]))
def test_the_clip_factor_is_that_of_torch(values: list[float], clip: float) -> None:
    tokens = 4
    parameters = [torch.nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor([value / tokens], dtype=torch.float64)
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip)
    machine = step(clip)
    complete(machine)
    machine.prepare((), LinkTable())
    prepared(machine, (sum(value**2 for value in values[1:]), values[0] ** 2))
    [scale] = {message.scale for _, message in messages(machine.commit(1.0), Commit)}
    assert machine.decision is not None
    assert machine.decision.result.grad_norm == pytest.approx(norm.item())
    for parameter, value in zip(parameters, values, strict=True):
        assert parameter.grad is not None
        assert scale * value == pytest.approx(parameter.grad.item(), abs=1e-12)


def test_what_is_done_twice_is_listed_once() -> None:
    machine = step()
    complete(machine)
    machine.done(B, Done(microbatch(0), 0, Attempt(repair=1)))
    prepare = dict(messages(machine.prepare((), LinkTable()), Prepare))
    assert {to: message.entries for to, message in prepare.items()} == {
        A: (),
        B: ((0, Attempt(repair=1)), (1, FIRST_ATTEMPT)),
        C: ((0, FIRST_ATTEMPT), (1, FIRST_ATTEMPT)),
    }


@pytest.mark.parametrize("late", [FIRST_ATTEMPT, Attempt(repair=2)], ids=["of a lower attempt", "of a higher one"])
@pytest.mark.parametrize("dies_first", [False, True])
def test_what_crosses_with_a_ballot_that_does_not_list_it_is_taken_away_and_not_entered(
    dies_first: bool, late: Attempt
) -> None:
    machine = step()
    repair = Attempt(repair=1)
    complete(machine)
    machine.done(A, Done(microbatch(0), 0, repair))
    machine.prepare((), LinkTable())  # on its arrival B subtracts what it has accumulated of microbatch 0
    crossed = Done(microbatch(0), 0, late)
    if not dies_first:
        machine.done(B, crossed)
    lost = {message.lost for _, message in messages(machine.gone(A, "test"), MemberFailed)}
    assert lost == {((0, 0),)}
    if dies_first:
        machine.done(B, crossed)
    assert machine.phase == "working"
    machine.done(B, Done(microbatch(0), 0, Attempt(repair=3), ballot=1))
    prepare = dict(messages(machine.prepare((), LinkTable()), Prepare))
    assert prepare[B].entries == ((0, Attempt(repair=3)), (1, FIRST_ATTEMPT))


def test_who_came_in_after_a_ballot_has_reconciled_with_none() -> None:
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    newcomer = member("n")
    machine.gone(A, "test", ready=(newcomer,))
    machine.done(newcomer.process, Done(microbatch(0), 0, Attempt(repair=1)))
    assert machine.phase == "complete"


def test_only_a_member_can_be_unprepared() -> None:
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    machine.unprepared(process("x"), Unprepared(EPOCH, 1, "no"))
    assert machine.phase == "preparing"
    machine.unprepared(A, Unprepared(EPOCH, 1, "no"))
    assert machine.phase == "failed"


def test_a_death_tells_which_hops_nobody_holds() -> None:
    machine = step()
    complete(machine)
    told = messages(machine.gone(A, "killed"), MemberFailed)
    assert {message.lost for _, message in told} == {((0, 0),)}


def test_strangers_and_other_epochs_do_not_count() -> None:
    machine = step()
    machine.done(process("x"), Done(microbatch(0), 0, FIRST_ATTEMPT))
    machine.done(A, Done(microbatch(0, Epoch(1, 0)), 0, FIRST_ATTEMPT))
    machine.done(A, Done(microbatch(0), 1, FIRST_ATTEMPT))
    assert machine.ledger.done_hops == 0


def test_a_death_opens_its_hops_again_and_revokes_the_ballot() -> None:
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    told = messages(machine.gone(A, "test"), MemberFailed)
    assert {to for to, _ in told} >= {B, C, T}
    assert machine.phase == "working"
    prepared(machine)
    assert machine.phase == "working", "the lower ballot is revoked"
    machine.done(B, Done(microbatch(0), 0, Attempt(repair=1), ballot=1))
    assert machine.phase == "complete"
    entries = {to: message.entries for to, message in messages(machine.prepare((), LinkTable()), Prepare)}
    assert entries == {B: ((0, Attempt(repair=1)), (1, FIRST_ATTEMPT)), C: ((0, FIRST_ATTEMPT), (1, FIRST_ATTEMPT))}
    assert machine.ballot.number == 2
    machine.prepared(B, Prepared(EPOCH, 1, (("stage-0", 1.0, "x"),)))
    machine.prepared(C, Prepared(EPOCH, 1, (("stage-1", 1.0, "y"),)))
    assert machine.phase == "preparing", "answers to the lower ballot do not count"


def test_a_death_after_the_decision_changes_nothing_and_repairs_nothing() -> None:
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    prepared(machine)
    machine.commit(1.0)
    assert machine.gone(A, "test") == [], "to send again what is committed would be work for nothing"
    machine.committed(B, Committed(EPOCH, 1))
    machine.committed(C, Committed(EPOCH, 1))
    assert machine.phase == "committed"


def test_a_step_that_lost_a_stage_starts_over() -> None:
    machine = step()
    machine.gone(C, "test")
    assert machine.phase == "failed"
    assert machine.failure is not None
    assert "nobody is left on a stage" in machine.failure.reason


def test_the_microbatches_of_a_dead_trainer_fall_to_those_who_live() -> None:
    other, third = process("u"), process("v")
    roster = Roster(ROSTER.stages, (member("t", -1), member("u", -1), member("v", -1)))
    machine = Step(Plan(2, 9), 1, OpenStep(1, EPOCH, roster, LINEAGE), 0.1, 0.0, 0.0)
    first = dict(messages(machine.gone(T, "test"), Assign))
    assert {to: message.indices for to, message in first.items()} == {other: (0, 6), third: (3,)}
    assert machine.phase == "working"
    [(to, second)] = messages(machine.gone(third, "test"), Assign)
    assert (to, set(second.indices)) == (other, {2, 3, 5, 8})
    assert second.reassignment > max(message.reassignment for message in first.values())


def test_members_that_disagree_start_the_step_over() -> None:
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    prepared(machine, digest_of_b="other")
    assert machine.phase == "failed"
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    machine.unprepared(B, Unprepared(EPOCH, 1, "one is missing"))
    assert machine.failure is not None
    assert (machine.phase, "one is missing" in machine.failure.reason) == (StepPhase.FAILED, True)


def test_the_norm_is_that_of_all_members_of_a_group() -> None:
    three = Roster(((member("a"), member("b"), member("c")),), (member("t", -1),))
    for norms, phase, odd in (
        ((9.0, 9.0, 9.0 + 1e-9), StepPhase.PREPARED, ()),
        ((1e30, 9.0, 9.0), StepPhase.FAILED, (A,)),
        ((9.0, 9.0, 0.0), StepPhase.FAILED, (C,)),
        ((9.0, 16.0, 25.0), StepPhase.FAILED, ()),
    ):
        machine = Step(Plan(1, 1), 1, OpenStep(1, EPOCH, three, LINEAGE), 0.1, 0.0, opened_s=0.0)
        machine.done(A, Done(microbatch(0), 0, FIRST_ATTEMPT, loss_sum=1.0, tokens=1))
        machine.prepare((), LinkTable())
        for peer, norm in zip((A, B, C), norms, strict=True):
            machine.prepared(peer, Prepared(EPOCH, 1, (("stage-0", norm, "x"),)))
        assert (machine.phase, machine.failure.differing if machine.failure is not None else ()) == (phase, odd)
        if phase is StepPhase.PREPARED:
            machine.commit(1.0)
            assert machine.decision is not None
            assert machine.decision.result.grad_norm == 3.0


def test_newcomers_take_part_in_the_update_but_not_in_the_work() -> None:
    machine = step()
    complete(machine)
    actions = machine.prepare((member("n", 1),), LinkTable())
    new = process("n")
    assert [to for to, _ in messages(actions, OpenStep)] == [new]
    prepare = dict(messages(actions, Prepare))
    assert prepare[new].entries == ()
    assert prepare[A].groups == (Group("stage-0", (A, B), ballot=1),), "each hears of its own"
    assert prepare[new].groups == (Group("stage-1", (C, new), ballot=1),)
    machine.gone(C, "test")
    assert machine.phase == "failed", "the newcomer takes no work, so nobody is left on the stage"


def test_a_tied_weight_is_reduced_over_both_ends() -> None:
    assert reduction_groups(ROSTER, tied_ends(2))[-1] == Group("tied", (A, B, C))
    assert [group.name for group in reduction_groups(Roster(ROSTER.stages[:1]), tied_ends(1))] == ["stage-0"]


def test_the_weights_that_stages_share_are_reduced_over_all_of_these() -> None:
    stages = tuple((member(f"a{stage}", stage), member(f"b{stage}", stage)) for stage in range(4))
    shared = (SharedWeights("shared-0", (1, 2)), SharedWeights("shared-1", (2, 3)))
    *own, first, second = reduction_groups(Roster(stages, ()), shared)
    assert [group.name for group in own] == [f"stage-{stage}" for stage in range(4)]
    assert [one.name for one in first.members] == ["a1", "b1", "a2", "b2"]
    assert [one.name for one in second.members] == ["a2", "b2", "a3", "b3"]
    assert [groups_of_stage(stage, shared)[1:] for stage in (0, 2)] == [(), ("shared-0", "shared-1")]


def test_a_death_is_told_to_those_around_and_amid_a_ballot_to_everybody() -> None:
    stages = tuple((member(f"a{stage}", stage), member(f"b{stage}", stage)) for stage in range(5))
    roster = Roster(stages, (member("t", -1), member("u", -1)))

    def recipients(phase: StepPhase, dead: str) -> set[str]:
        machine = Step(Plan(stages=5, microbatches=1), 1, OpenStep(1, EPOCH, roster, LINEAGE), 0.1, 0.0, opened_s=0.0)
        if phase is not StepPhase.WORKING:
            for stage in range(5):
                machine.done(process(f"a{stage}"), Done(microbatch(0), stage, FIRST_ATTEMPT, loss_sum=1.0, tokens=1))
            machine.prepare((), LinkTable())
        if phase is StepPhase.PREPARED:
            for peer in roster.peers:
                result = (f"stage-{peer.stage}", 1.0, "x")
                machine.prepared(peer.process, Prepared(EPOCH, 1, (result,)))
        assert machine.phase is phase
        return {to.name for to, _ in messages(machine.gone(process(dead), "killed"), MemberFailed)}

    assert recipients(StepPhase.WORKING, "a3") == {"a2", "b2", "a3", "b3", "a4", "b4", "t", "u"}
    members = {m.process.name for m in roster.members}
    assert recipients(StepPhase.PREPARING, "a3") == recipients(StepPhase.PREPARED, "a3") == members
    assert recipients(StepPhase.WORKING, "u") == members


def test_a_phase_that_cannot_follow_leaves_the_step_as_it_was() -> None:
    machine = step()
    complete(machine)
    with pytest.raises(IllegalTransition, match="committing cannot follow complete"):
        STEP.move(machine.phase, StepPhase.COMMITTING)
    with pytest.raises(IllegalTransition, match="prepared cannot follow complete"):
        machine.resume_prepared(
            Tally(1.0, 1, 0), dict.fromkeys((A, B, C), (("stage-0", 1.0, "x"), ("stage-1", 1.0, "x")))
        )
    assert machine.phase == "complete"


def test_no_ballot_begins_before_every_hop_is_done() -> None:
    machine = step()
    with pytest.raises(IllegalTransition, match="preparing cannot follow working"):
        machine.prepare((), LinkTable())
    assert machine.phase == "working"
