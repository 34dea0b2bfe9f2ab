"""The leader: a hop counts for who was handed it by a process that had it, and who handed on what it had not goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.machines.leading.custody import wrongly_handed
from swarmflow.core.protocol.messages import Done, Evicted, HopHandover, NotFinite, Overflow
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Microbatch, ProcessId
from tests.core.samples import member, messages, process
from tests.core.test_leader import ME, A, B, Bench, C

TRAINER = ME.process
STRANGER = process("stranger")


def bench() -> Bench:
    """Return a run of three stages, each with one peer, in a step."""
    made = Bench(stages=3)
    for stage, peer in enumerate((A, B, C)):
        made.join(peer, stage)
    for stage, peer in enumerate((A, B, C)):
        made.ready(peer, stage)
    assert made.leader.step is not None
    return made


def done(made: Bench, stage: int, *givers: ProcessId) -> Done:
    assert made.leader.step is not None
    handovers = tuple(HopHandover(giver, stage - back, FIRST_ATTEMPT) for back, giver in enumerate(givers))
    return Done(Microbatch(made.leader.step.epoch, 0), stage, FIRST_ATTEMPT, 2.0, 1, handovers)


def test_a_hop_that_came_from_stage_to_stage_counts() -> None:
    made = bench()
    for sender, message in (
        (C, done(made, 2, B, A, TRAINER)),
        (B, done(made, 1, A, TRAINER)),
        (A, done(made, 0, TRAINER)),
    ):
        assert wrongly_handed(made.leader, sender, message) is None
        assert messages(made.hear(sender, message), Evicted) == []
    assert made.leader.step is not None
    assert made.leader.step.ledger.complete


@pytest.mark.parametrize(
    ("sender", "stage", "givers", "blamed"),
    [
        pytest.param(C, 2, (A, TRAINER), C, id="from a stage that does not hand over to it"),
        pytest.param(C, 2, (STRANGER, A), C, id="from a process that takes no part"),
        pytest.param(C, 2, (TRAINER,), C, id="from a trainer to a later stage"),
        pytest.param(A, 0, (B, TRAINER), A, id="to the first stage from a peer"),
        pytest.param(C, 2, (B, TRAINER), B, id="to the giver from a trainer"),
        pytest.param(C, 2, (B, STRANGER), B, id="to the giver from nobody"),
        pytest.param(C, 2, (B,), B, id="the giver has shown nothing"),
        pytest.param(B, 1, (A,), A, id="nor has the first peer"),
        pytest.param(C, 2, (B, A), A, id="to the giver's giver from nobody"),
        pytest.param(C, 2, (B, A, STRANGER), A, id="to the giver's giver from a process that takes no part"),
    ],
)
def test_who_answers_for_a_false_handover_is_put_out(
    sender: ProcessId, stage: int, givers: tuple[ProcessId, ...], blamed: ProcessId
) -> None:
    made = bench()
    message = done(made, stage, *givers)
    step = made.leader.step
    assert step is not None
    for report in (
        Overflow(message.microbatch, message.handovers),
        NotFinite(step.epoch, 0, "loss", handovers=message.handovers),
        message,
    ):
        found = wrongly_handed(made.leader, sender, report)
        assert found is not None
        assert found[0] == blamed
    actions = made.hear(sender, message)
    assert [to for to, _ in messages(actions, Evicted)] == [blamed]
    assert step.ledger.holder(stage, 0) is None
    assert blamed not in made.leader.membership.known


def test_who_has_left_since_may_have_handed_it_over() -> None:
    made = bench()
    second = process("a2")
    made.join(second, 0)
    made.ready(second, 0)
    assert made.leader.step is not None
    made.leader.step.members.enter([replace(member("a2"), process=second)], ballot=False)
    made.leader.step.members.remove(second)
    assert wrongly_handed(made.leader, B, done(made, 1, second, TRAINER)) is None


def test_what_is_about_another_step_is_not_judged() -> None:
    made = bench()
    message = done(made, 2, STRANGER)
    later = replace(message, microbatch=Microbatch(message.microbatch.epoch.following, 0))
    assert wrongly_handed(made.leader, C, later) is None
    repaired = replace(done(made, 2, B, A, TRAINER), attempt=Attempt(0, 1))
    assert wrongly_handed(made.leader, C, repaired) is None
