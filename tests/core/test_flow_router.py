"""Microbatches go along free units of flow, and by the shortest expected delay only where there is none."""

from __future__ import annotations

from collections import Counter

from swarmflow.core.pipeline import lateness, offers
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.protocol.messages import Accepted, Denied, Forward
from swarmflow.core.protocol.types import FIRST_ATTEMPT, ProcessId, Ref
from swarmflow.core.routing.flow.router import FlowRouter
from swarmflow.core.routing.shortest import Shortest
from tests.core.measuring import transferred
from tests.core.samples import EPOCH, messages, microbatch, process

X, Y, Z = process("x"), process("y"), process("z")
SOURCE, OTHER = process("s"), process("t")
SOON = 1.0
DOWNSTREAM_S = 10.0  # the rest of the path is much longer than the next hop


def dispatcher(units: dict[tuple[ProcessId, ProcessId], int]) -> Dispatcher:
    """Return a dispatcher to three peers, of which Z is the fastest. Microbatches 0, 2, 4 ... are of SOURCE."""
    shortest = Shortest()
    made = Dispatcher(1, FlowRouter(shortest, units))
    made.trainers = SOURCE, OTHER
    made.open(EPOCH, (X, Y, Z))
    for peer, seconds in ((X, 0.3), (Y, 0.2), (Z, 0.1)):
        shortest.links.record_service(peer, 0.01, SOON)
        transferred(shortest, peer, seconds, SOON)
        shortest.record_downstream(peer, DOWNSTREAM_S)
    return made


def sent(made: Dispatcher, *indices: int) -> list[ProcessId]:
    """Return the peers to which these microbatches go."""
    actions = [made.offer(microbatch(index), (Ref(index, 9), Ref(100 + index)), SOON) for index in indices]
    return [to for some in actions for to, _ in messages(some, Forward)]


def test_each_unit_carries_one_microbatch_at_a_time() -> None:
    made = dispatcher({(X, SOURCE): 2, (Y, SOURCE): 1})
    assert Counter(sent(made, 0, 2, 4)) == {X: 2, Y: 1}
    assert sent(made, 6, 8)[:1] == [Z]  # no unit is free


def test_units_of_the_own_trainer_go_before_those_of_another_one() -> None:
    made = dispatcher({(X, SOURCE): 1, (Y, OTHER): 1})
    assert sent(made, 0) == [X]
    assert sent(made, 2) == [Y]  # only a short message returns to a trainer
    assert sent(made, 1) == [Z]


def test_a_unit_is_free_again_when_the_gradient_is_back() -> None:
    made = dispatcher({(X, SOURCE): 1})
    assert sent(made, 0) == [X]
    made.accepted(X, Accepted(microbatch(0), 1, FIRST_ATTEMPT, DOWNSTREAM_S), SOON)
    assert sent(made, 2) == [Z]
    assert made.returned(X, microbatch(0), FIRST_ATTEMPT, SOON)
    assert sent(made, 4) == [X]


def test_a_peer_that_denies_is_left_out_until_it_has_a_free_slot() -> None:
    made = dispatcher({(X, SOURCE): 1})
    assert sent(made, 0) == [X]
    (again,) = messages(offers.denied(made, X, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"), SOON), Forward)
    assert again[0] != X
    assert sent(made, 2) != [X]
    made.credit(X, SOON)
    assert sent(made, 4) == [X]


def test_a_microbatch_of_a_dead_peer_goes_along_another_unit() -> None:
    made = dispatcher({(X, SOURCE): 1, (Y, SOURCE): 1})
    assert sorted(sent(made, 0, 2)) == [X, Y]
    lost = messages(lateness.gone(made, Y, SOON), Forward)
    assert [to for to, _ in lost] == [Z]
    router = made.router
    assert isinstance(router, FlowRouter)
    assert router.busy == {(X, SOURCE): 1, (Z, SOURCE): 1}


def test_a_flow_that_is_held_up_is_left_for_a_much_shorter_path() -> None:
    made = dispatcher({(X, SOURCE): 2})
    transferred(made.router, X, 100.0, SOON + 200.0)
    assert sent(made, 0) == [Z]


def test_a_flow_is_followed_though_an_unmeasured_peer_may_be_as_fast() -> None:
    router = FlowRouter(Shortest(), {(X, SOURCE): 1})
    router.begin_epoch((X, *(process(f"unmeasured{n}") for n in range(9))))
    router.shortest.links.record_service(X, 0.01, SOON)
    transferred(router, X, 0.3, SOON)
    assert {choice.process for _ in range(20) if (choice := router.choose((), SOURCE))} == {X}


def test_a_flow_to_a_process_that_does_not_serve_the_stage_carries_nothing() -> None:
    made = dispatcher({(process("stranger"), SOURCE): 4})
    assert sent(made, 0) == [Z]


def test_a_new_epoch_finds_all_units_free() -> None:
    made = dispatcher({(X, SOURCE): 1})
    assert sent(made, 0) == [X]
    made.open(EPOCH, (X, Y, Z))
    assert sent(made, 0) == [X]
