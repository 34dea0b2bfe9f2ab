"""A step whose gradients do not fit starts over with a smaller exponent, in whatever term."""

from __future__ import annotations

from dataclasses import replace

from swarmflow.core.membership.failures import EXPONENT_MIN, EXPONENT_STEP
from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.events import Lost
from swarmflow.core.protocol.messages import Evicted, OpenStep, Overflow
from swarmflow.core.protocol.types import DEFAULT_EXPONENT, Epoch, Microbatch
from tests.core.samples import messages
from tests.core.taken_over import COMMIT, A, B, Bench, peers, reduced
from tests.core.test_leader import Bench as FirstBench
from tests.core.test_leader import C


def overflow(bench: Bench) -> list[Action]:
    """The peers say so in turn."""
    assert bench.leader.step is not None
    epoch = bench.leader.step.epoch
    return bench.hear((A, B)[epoch.generation % 2], Overflow(Microbatch(epoch, 1)))


def test_a_step_whose_gradients_overflow_starts_over_with_a_smaller_exponent() -> None:
    bench = Bench(peers())
    exponents = [20]
    while exponents[-1] > EXPONENT_MIN:
        overflow(bench)
        step = bench.leader.step
        assert step is not None
        exponents.append(step.open_step.exponent)
        assert step.epoch == Epoch(2 + len(exponents) - 1, 5)
    assert exponents == list(range(20, EXPONENT_MIN - 1, -EXPONENT_STEP))


def test_who_reports_a_gradient_that_no_exponent_holds_is_kept_out_since_there_is_no_such_number() -> None:
    bench = Bench(peers())
    assert bench.leader.step is not None
    bench.leader.step.open_step = replace(bench.leader.step.open_step, exponent=EXPONENT_MIN)
    [(to, evicted)] = messages(overflow(bench), Evicted)
    assert to == A
    assert "there is no such number: put out for 60 s" in evicted.reason
    assert bench.leader.exponent == DEFAULT_EXPONENT


def test_the_next_step_begins_with_the_usual_exponent() -> None:
    bench = Bench([replace(reduced(told), commit=COMMIT, applied=True, version=6) for told in peers()])
    assert {message.exponent for _, message in messages(bench.began, OpenStep)} == {DEFAULT_EXPONENT}


def test_a_step_of_another_version_that_the_run_goes_back_to_begins_with_the_usual_exponent() -> None:
    bench = FirstBench()
    bench.serve(A)
    bench.commit()
    bench.hear(A, Overflow(Microbatch(bench.leader.epoch, 0)))
    assert bench.leader.step is not None
    assert bench.leader.step.open_step.exponent == DEFAULT_EXPONENT - EXPONENT_STEP
    bench.leader.handle(Lost(A, "killed"), 0.0)
    bench.serve(C)
    assert bench.leader.version == 0
    assert bench.leader.step.open_step.exponent == DEFAULT_EXPONENT
