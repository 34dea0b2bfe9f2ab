"""The leader: a hop counts for who was handed it by a process that had it, and who handed on what it had not goes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.election.candidacy import Candidacy, takeover_of
from swarmflow.core.election.epoch_view import EpochView
from swarmflow.core.machines.leading.custody import wrongly_handed
from swarmflow.core.protocol.messages import Done, Evicted, HopHandover, NotFinite, Overflow
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Microbatch, Plan, ProcessId, Roster
from tests.core.samples import member, messages, process
from tests.core.taken_over import OPENED, PEERS, SETTINGS, TRAINERS, done, report
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


def reported(made: Bench, stage: int, *givers: ProcessId) -> Done:
    assert made.leader.step is not None
    handovers = tuple(HopHandover(giver, stage - back, FIRST_ATTEMPT) for back, giver in enumerate(givers))
    return Done(Microbatch(made.leader.step.epoch, 0), stage, FIRST_ATTEMPT, 2.0, 1, handovers)


def test_a_hop_that_came_from_stage_to_stage_counts() -> None:
    made = bench()
    for sender, message in (
        (C, reported(made, 2, B, A, TRAINER)),
        (B, reported(made, 1, A, TRAINER)),
        (A, reported(made, 0, TRAINER)),
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
    message = reported(made, stage, *givers)
    step = made.leader.step
    assert step is not None
    for told in (
        Overflow(message.microbatch, message.handovers),
        NotFinite(step.epoch, 0, "loss", handovers=message.handovers),
        message,
    ):
        found = wrongly_handed(made.leader, sender, told)
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
    assert wrongly_handed(made.leader, B, reported(made, 1, second, TRAINER)) is None


def test_what_is_about_another_step_is_not_judged() -> None:
    made = bench()
    message = reported(made, 2, STRANGER)
    later = replace(message, microbatch=Microbatch(message.microbatch.epoch.following, 0))
    assert wrongly_handed(made.leader, C, later) is None
    repaired = replace(reported(made, 2, B, A, TRAINER), attempt=Attempt(0, 1))
    assert wrongly_handed(made.leader, C, repaired) is None


def test_a_new_leader_believes_no_report_of_a_hop_that_was_not_handed_on_and_begins_the_step_again() -> None:
    """A serves stage 0, and nobody has handed the microbatch to it that b has from it."""
    first, *last = PEERS
    opened = replace(OPENED, roster=Roster(((first,), tuple(replace(peer, stage=1) for peer in last)), TRAINERS))
    stolen = replace(done(0), stage=1, handovers=(HopHandover(first.process, 1, FIRST_ATTEMPT),))
    reports = [report(first, opened), *(report(replace(peer, stage=1), opened) for peer in last)]
    reports[1] = replace(reports[1], done=(stolen,))
    tried = Candidacy(TRAINERS[1], 4, EpochView(opened), 100.0)
    for told in (report(TRAINERS[1], opened), report(TRAINERS[2], opened), *reports):
        tried.report(told.member.process, told)
    takeover = takeover_of(tried, Plan(2, 3), SETTINGS.learning_rate, 0.0, 100.0)
    assert takeover.step.ledger.done_hops == 0
    assert takeover.convicted.keys() == {first.process}
    assert takeover.step.phase is StepPhase.FAILED
