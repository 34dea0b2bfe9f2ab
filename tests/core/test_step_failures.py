"""What a step does when a trainer dies, who makes a majority then, and which gradients make it start over."""

from __future__ import annotations

import pytest

from swarmflow.core.commit.step import Step
from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.protocol.messages import (
    Assign,
    Commit,
    Done,
    MemberFailed,
    OpenStep,
    Overflow,
    Prepare,
    Prepared,
    Tally,
    Unrepairable,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Epoch, Plan, ProcessId, Roster
from swarmflow.core.routing.link_rates import LinkTable
from tests.core.samples import EPOCH, LINEAGE, member, messages, microbatch, process

A, B, C = process("a"), process("b"), process("c")
T, U, V = process("t"), process("u"), process("v")
STAGES = ((member("a"), member("b")), (member("c", 1),))
ROSTER = Roster(STAGES, (member("t", -1), member("u", -1), member("v", -1)))
PLAN = Plan(stages=2, microbatches=6)


def step() -> Step:
    """Of three trainers, each with two microbatches."""
    return Step(PLAN, 1, OpenStep(1, EPOCH, ROSTER, LINEAGE), 0.1, 0.0, opened_s=0.0)


def complete(machine: Step) -> None:
    for index in range(PLAN.microbatches):
        machine.done(A, Done(microbatch(index), 0, FIRST_ATTEMPT))
        machine.done(C, Done(microbatch(index), 1, FIRST_ATTEMPT, loss_sum=4.0, tokens=2))


def reduced(machine: Step) -> None:
    for stage, group in enumerate(STAGES):
        for peer in group:
            results = ((f"stage-{stage}", 1.0, "x"),)
            machine.prepared(peer.process, Prepared(EPOCH, machine.ballot.number, results))


def test_a_ballot_says_what_another_leader_needs_to_finish_it() -> None:
    machine = step()
    complete(machine)
    prepare = messages(machine.prepare((member("n", 1),), LinkTable()), Prepare)
    assert {message.tally for _, message in prepare} == {Tally(loss=2.0, tokens=12, retries=0, lineage=LINEAGE)}
    assert {message.newcomers for _, message in prepare} == {(member("n", 1),)}
    machine.prepared(process("n"), Prepared(EPOCH, 1, (("stage-1", 1.0, "x"),)))
    reduced(machine)
    commit = messages(machine.commit(3.0), Commit)
    assert machine.decision is not None
    result = machine.decision.result
    assert {message.result for _, message in commit} == {result}
    assert (result.epoch, result.step, result.seconds) == (EPOCH, 0, 3.0)


def test_a_newcomer_is_told_who_is_there_and_that_it_is_new() -> None:
    machine = step()
    complete(machine)
    machine.gone(V, "test")
    [(to, said)] = messages(machine.prepare((member("n", 1),), LinkTable()), OpenStep)
    assert (to, said.newcomers, said.epoch) == (process("n"), (process("n"),), EPOCH)
    assert [peer.process for peer in said.roster.stages[1]] == [C, process("n")]
    assert [trainer.process for trainer in said.roster.trainers] == [T, U]


def test_a_dead_trainers_microbatches_are_dealt_out_and_what_is_done_stays_done() -> None:
    machine = step()
    machine.done(A, Done(microbatch(1), 0, FIRST_ATTEMPT))
    actions = machine.gone(U, "test")
    assert {to for to, _ in messages(actions, MemberFailed)} >= {A, B, C, T, V}
    told = messages(actions, Assign)
    assert told == [(T, Assign(1, EPOCH, (1,), 1)), (V, Assign(1, EPOCH, (4,), 1))]
    assert (machine.phase, machine.ledger.done_hops) == (StepPhase.WORKING, 1)


def test_a_trainers_death_revokes_the_ballot_and_reopens_no_hop() -> None:
    machine = step()
    complete(machine)
    machine.prepare((), LinkTable())
    machine.gone(V, "test")
    assert machine.phase == "complete"
    reduced(machine)
    assert machine.phase == "complete", "the lower ballot is revoked"


@pytest.mark.parametrize(
    ("dead", "enough"),
    [
        ((A, B, C), True),  # all trainers are here: there is nobody else who could lead
        ((U,), True),
        ((U, V), True),
        ((U, V, A), False),  # 3 of 6
        ((U, A, B), False),
    ],
)
def test_a_majority_of_those_named_is_needed_once_a_trainer_is_gone(dead: tuple[ProcessId, ...], enough: bool) -> None:
    machine = step()
    for victim in dead:
        machine.gone(victim, "test")
    assert machine.members.has_majority(set()) is enough


def test_newcomers_make_no_majority() -> None:
    machine = step()
    complete(machine)
    machine.prepare((member("n", 1), member("o", 1)), LinkTable())
    for victim in (U, V, B):
        machine.gone(victim, "test")
    assert not machine.members.has_majority(set())


def test_a_gradient_that_does_not_fit_starts_the_step_over() -> None:
    machine = step()
    overflow = Overflow(microbatch(1))
    machine.overflowed(A, overflow)
    assert machine.failure is not None
    assert (machine.phase, machine.failure.overflow) == (StepPhase.FAILED, overflow)
    assert machine.failure.reason == f"a gradient of microbatch 0/1 is too large to be added up exactly, on {A}"


def test_what_is_committed_or_of_another_epoch_does_not_start_over() -> None:
    machine = step()
    other = Epoch(1, 0)
    machine.overflowed(A, Overflow(microbatch(0, other)))
    machine.unrepairable(A, Unrepairable(other, "evicted"))
    assert machine.phase == "working"
    complete(machine)
    machine.prepare((), LinkTable())
    reduced(machine)
    machine.commit(1.0)
    machine.overflowed(A, Overflow(microbatch(0)))
    machine.unrepairable(A, Unrepairable(EPOCH, "evicted"))
    assert machine.phase == "committing"
