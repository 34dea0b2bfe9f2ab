"""Slots of a peer: reserved, freed, announced, and microbatches without a graph."""

from __future__ import annotations

import itertools
import math

import pytest

from swarmflow.core.pipeline import passes, reconciling
from swarmflow.core.pipeline.admission import LAST_STAGE_MIN, Admission
from swarmflow.core.pipeline.dispatcher import Dispatcher
from swarmflow.core.pipeline.hop import Hop, HopState
from swarmflow.core.pipeline.hop_table import RESERVED_FACTOR, HopTable
from swarmflow.core.protocol.actions import DEFERRED_MIN, Action, Discard, RunBackward, RunForward, RunReplay, Send
from swarmflow.core.protocol.events import BackwardComputed, ForwardComputed, LossComputed, Replayed, Tick
from swarmflow.core.protocol.messages import (
    Accepted,
    Backward,
    Cancel,
    CreditAvailable,
    CreditReturned,
    Denied,
    Done,
    Forward,
    ReserveSlot,
    SlotReserved,
)
from swarmflow.core.protocol.types import FIRST_ATTEMPT, WITHOUT_GRAPH, Attempt, Microbatch, ProcessId
from swarmflow.core.routing.compute_timer import UNKNOWN_S
from swarmflow.core.routing.shortest import Shortest
from tests.core.hops import computed, receive
from tests.core.measuring import transferred
from tests.core.samples import EPOCH, REPAIR, messages, microbatch, of_type, process
from tests.core.test_hop_table import (
    DOWN,
    DOWN2,
    GRADIENT,
    INPUT,
    LEADER,
    OUTPUT,
    OWN,
    TARGETS,
    UP,
    UP2,
    finished,
    forward,
    hops,
)

OTHER, OTHER2 = process("other"), process("other2")


def reserve(index: int, attempt: Attempt = FIRST_ATTEMPT, stage: int = 2) -> ReserveSlot:
    return ReserveSlot(microbatch(index), stage, attempt)


def test_room_is_kept_for_who_asked_until_the_bytes_come() -> None:
    machine = hops(stage=2, capacity=1, stages=4, without_graph=0)
    assert receive(machine, UP, reserve(0)) == [
        Send(UP, SlotReserved(microbatch(0), 2, FIRST_ATTEMPT, work_s=3 * UNKNOWN_S))
    ]
    assert messages(receive(machine, UP2, reserve(1)), Denied) == [
        (UP2, Denied(microbatch(1), 2, FIRST_ATTEMPT, "full"))
    ]
    assert messages(receive(machine, UP2, forward(1, 2), (INPUT, TARGETS)), Denied)
    assert messages(receive(machine, UP, forward(0, 2), (INPUT, TARGETS)), Accepted)
    assert machine.admission.reserved == {}


def test_who_offers_a_slot_for_a_repair_tells_how_far_the_gradient_is() -> None:
    machine = hops(stage=2, capacity=4)
    told_s = []
    for index, held_by in enumerate((None, DOWN, DOWN2)):
        question = ReserveSlot(microbatch(index), 2, FIRST_ATTEMPT, held_by=held_by)
        [(_, slot)] = messages(receive(machine, UP, question), SlotReserved)
        told_s.append(slot.gradient_s)
        transferred(machine.dispatcher.router, DOWN, 3.0)
    assert told_s == [0.0, 3.0, 3.0], "of who was not measured as of the others"


def test_room_is_left_for_what_is_on_its_way() -> None:
    machine = hops(stage=2, capacity=2, stages=4, without_graph=0)
    assert messages(receive(machine, UP, ReserveSlot(microbatch(1), 2, FIRST_ATTEMPT, sent=1)), SlotReserved)
    assert messages(receive(machine, UP, ReserveSlot(microbatch(2), 2, FIRST_ATTEMPT, sent=1)), Denied)
    assert messages(receive(machine, UP, forward(0, 2), (INPUT, TARGETS)), Accepted)


def test_no_room_is_left_for_what_has_arrived_since_the_question_was_asked() -> None:
    """The peer holds nothing by then: it would have no slot to free, and nobody would ask again for a long time."""
    machine = hops(capacity=1, without_graph=0)
    assert messages(receive(machine, UP, forward(0), (INPUT, TARGETS)), Accepted)
    computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0)
    gradient(machine, 0)
    computed(machine, BackwardComputed(microbatch(0), OWN))
    assert messages(receive(machine, UP, ReserveSlot(microbatch(1), 1, FIRST_ATTEMPT, sent=1)), SlotReserved)
    assert messages(receive(machine, UP, forward(1), (INPUT, TARGETS)), Accepted)
    assert messages(receive(machine, UP, ReserveSlot(microbatch(2), 1, FIRST_ATTEMPT, sent=1)), Denied), (
        "the slot is taken"
    )


def test_room_that_is_not_used_is_offered_to_who_was_denied() -> None:
    machine = hops(stage=2, capacity=1, stages=4, without_graph=0)
    receive(machine, UP, reserve(0))
    receive(machine, UP2, reserve(1))
    assert messages(receive(machine, UP, Cancel(microbatch(0), 2, FIRST_ATTEMPT)), CreditAvailable) == [
        (UP2, CreditAvailable(2))
    ]
    receive(machine, UP2, reserve(1))
    machine.gone(UP2, 1.0)
    assert machine.admission.reserved == {}
    assert messages(receive(machine, UP, reserve(2)), SlotReserved)


def test_room_that_one_does_not_need_is_offered_to_the_next() -> None:
    machine = hops(stage=2, capacity=1, stages=4, without_graph=0)
    receive(machine, UP, reserve(0))
    for index, other in enumerate((UP2, DOWN), start=1):
        receive(machine, other, reserve(index))
    assert messages(receive(machine, UP, Cancel(microbatch(0), 2, FIRST_ATTEMPT)), CreditAvailable) == [
        (UP2, CreditAvailable(2))
    ]
    assert messages(receive(machine, UP2, CreditReturned(2), (), 1.0), CreditAvailable) == [(DOWN, CreditAvailable(2))]
    receive(machine, DOWN, reserve(3))
    receive(machine, UP, reserve(4))
    assert receive(machine, UP2, CreditReturned(2), (), 2.0) == [], "there is none any more"


def test_who_has_the_hop_already_keeps_no_room_for_it() -> None:
    machine, _ = finished()
    assert messages(receive(machine, UP2, reserve(0, REPAIR, 1)), SlotReserved), "the bytes say how it came to UP2"
    assert machine.admission.reserved == {}
    answers = messages(receive(machine, UP2, forward(0, 1, REPAIR), (INPUT, TARGETS)), Accepted)
    assert answers == [(UP2, Accepted(microbatch(0), 1, REPAIR))]


def test_who_gives_a_slot_says_how_many_are_left_and_sends_a_credit_where_none_is() -> None:
    machine = hops(stage=2, capacity=3)
    answers = [messages(receive(machine, UP, reserve(index)), SlotReserved) for index in range(3)]
    assert [message.free for [(_, message)] in answers] == [2, 1, 0]
    assert messages(receive(machine, UP2, reserve(3)), Denied)
    freed = [receive(machine, UP, Cancel(microbatch(index), 2, FIRST_ATTEMPT)) for index in range(2)]
    credits = [to for actions in freed for to, _ in messages(actions, CreditAvailable)]
    assert credits == [UP2, UP], "first who was denied"


def test_a_later_attempt_of_a_microbatch_uses_the_slot_that_an_earlier_one_reserved() -> None:
    machine = hops(stage=2, capacity=1, stages=4, without_graph=0)
    receive(machine, UP, reserve(0))
    assert messages(receive(machine, UP, reserve(0, attempt=Attempt(denials=1))), SlotReserved)
    assert messages(receive(machine, UP2, forward(0, 2, attempt=FIRST_ATTEMPT), (INPUT, TARGETS)), Denied), (
        "an earlier one"
    )
    assert messages(receive(machine, UP2, forward(0, 2, attempt=Attempt(denials=2)), (INPUT, TARGETS)), Accepted)
    assert machine.admission.reserved == {}


def test_a_later_attempt_that_finds_the_microbatch_computed_frees_the_slot() -> None:
    machine = hops(stage=2, capacity=2)
    receive(machine, UP, reserve(0, attempt=Attempt(denials=1)))
    assert messages(receive(machine, UP2, forward(0, 2, attempt=FIRST_ATTEMPT), (INPUT, TARGETS)), Accepted)
    assert messages(receive(machine, UP, forward(0, 2, attempt=Attempt(denials=1)), (INPUT, TARGETS)), Accepted)
    assert machine.admission.reserved == {}


def test_a_slot_reserved_over_a_connection_that_broke_is_offered_to_the_next() -> None:
    machine = hops(stage=2, capacity=1, stages=4, without_graph=0)
    receive(machine, UP, reserve(0))
    receive(machine, UP2, reserve(1))
    assert messages(machine.unreachable(UP2, 1.0), CreditAvailable) == []
    assert messages(machine.unreachable(UP, 1.0), CreditAvailable) == [(UP2, CreditAvailable(2))]
    assert machine.admission.reserved == {}


def test_a_slot_whose_bytes_do_not_come_is_offered_to_the_next() -> None:
    machine = hops(stage=2, capacity=1, stages=4, without_graph=0)
    receive(machine, UP, reserve(0))
    receive(machine, UP2, reserve(1))
    machine.dispatcher.due_s = math.inf
    late_s = machine.next_deadline()
    assert late_s == machine.due_s == RESERVED_FACTOR * machine.dispatcher.late_min_s
    receive(machine, UP, reserve(0, attempt=Attempt(denials=1)), now=late_s - 1.0)  # which does not make it longer
    assert machine.tick(late_s - 0.1) == []
    assert messages(machine.tick(late_s), CreditAvailable) == [(UP2, CreditAvailable(2))]
    assert machine.next_deadline() is None
    receive(machine, UP2, reserve(1), now=late_s)
    assert messages(receive(machine, UP, forward(0, 2), (INPUT, TARGETS), late_s), Denied), "too late"


def test_a_ballot_ends_what_was_reserved() -> None:
    machine = hops()
    receive(machine, UP, reserve(0, stage=1))
    reconciling.reconcile(machine, 1, ())
    assert machine.admission.reserved == {}
    assert messages(receive(machine, UP, forward(0), (INPUT, TARGETS)), Denied) == [
        (UP, Denied(microbatch(0), 1, FIRST_ATTEMPT, "full"))
    ]


def gradient(machine: HopTable, index: int) -> list[Action]:
    """The gradient of a microbatch comes from whoever has it."""
    holder = machine.dispatcher.flights.holder(microbatch(index))
    assert holder is not None
    return receive(machine, holder, Backward(microbatch(index), 1, FIRST_ATTEMPT), (GRADIENT,), 3.0)


def test_a_peer_that_would_be_idle_takes_what_it_has_no_memory_for_and_does_the_forward_pass_twice() -> None:
    machine = hops(capacity=1)
    receive(machine, UP, forward(0), (INPUT, TARGETS))
    assert messages(receive(machine, UP, forward(1), (INPUT, TARGETS)), Denied), "it has something to compute"
    assert messages(computed(machine, ForwardComputed(microbatch(0), OUTPUT), 1.0), CreditAvailable) == [
        (UP, CreditAvailable(1))
    ]
    actions = receive(machine, UP, forward(1), (INPUT, TARGETS))
    assert of_type(actions, RunForward) == [RunForward(microbatch(1), INPUT, TARGETS, keep=False)]
    assert machine.held == 1
    actions = computed(machine, ForwardComputed(microbatch(1), OUTPUT), 2.0)
    [(to, _)] = messages(actions, Forward)
    assert gradient(machine, 0) == [RunBackward(microbatch(0), GRADIENT)]
    assert receive(machine, to, Backward(microbatch(1), 1, FIRST_ATTEMPT), (GRADIENT,), 3.0) == [], (
        "one graph is in memory"
    )
    actions = computed(machine, BackwardComputed(microbatch(0), OWN))
    assert of_type(actions, RunReplay) == [RunReplay(microbatch(1), INPUT, TARGETS, GRADIENT, 1)]
    assert machine.held == 1
    actions = computed(machine, Replayed(microbatch(1), 1, OWN))
    assert Send(UP, Backward(microbatch(1), 0, FIRST_ATTEMPT), (OWN,)) in actions
    assert messages(actions, Done) == [(LEADER, Done(microbatch(1), 1, FIRST_ATTEMPT))]


def test_without_memory_for_graphs_only_so_many_are_taken() -> None:
    machine = hops(capacity=1)
    for index in range(1 + WITHOUT_GRAPH):
        assert messages(receive(machine, UP, forward(index), (INPUT, TARGETS)), Accepted)
        computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
    assert messages(receive(machine, UP, forward(1 + WITHOUT_GRAPH), (INPUT, TARGETS)), Denied)


def test_at_the_last_stage_inputs_wait_however_small_its_memory_is() -> None:
    machine = hops(stage=2, capacity=1)
    for index in range(LAST_STAGE_MIN - 1):
        assert messages(receive(machine, UP, forward(index, 2), (INPUT, TARGETS)), Accepted)
    assert messages(receive(machine, UP2, reserve(LAST_STAGE_MIN - 1)), Denied), "of those that ask three are queued"
    assert messages(receive(machine, UP, forward(LAST_STAGE_MIN, 2), (INPUT, TARGETS)), Accepted)
    assert messages(receive(machine, UP, forward(LAST_STAGE_MIN + 1, 2), (INPUT, TARGETS)), Denied)
    assert machine.held == 1, "only what is computed has a graph"
    computed(machine, LossComputed(microbatch(0), 1.0, 1, OWN))
    assert messages(receive(machine, UP, forward(LAST_STAGE_MIN + 1, 2), (INPUT, TARGETS)), Accepted)


def test_the_gradient_of_a_relieved_hop_without_a_graph_is_not_dropped_while_it_is_added() -> None:
    machine = hops(capacity=1)
    for index in range(2):
        receive(machine, UP, forward(index), (INPUT, TARGETS))
        actions = computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
    [(to, _)] = messages(actions, Forward)
    gradient(machine, 0)
    receive(machine, to, Backward(microbatch(1), 1, FIRST_ATTEMPT), (GRADIENT,), 2.0)
    actions = computed(machine, BackwardComputed(microbatch(0), OWN))
    assert [replay.weight for replay in of_type(actions, RunReplay)] == [1]
    assert receive(machine, UP, Cancel(microbatch(1), 1, FIRST_ATTEMPT)) == []
    reconciling.reconcile(machine, 1, ())
    undo = computed(machine, Replayed(microbatch(1), 1, OWN))
    assert [replay.weight for replay in of_type(undo, RunReplay)] == [-1]


@pytest.mark.parametrize("how", ["done", "relieved", "taken away", "failed"])
def test_what_waits_for_the_memory_of_a_graph_goes_on_however_that_is_freed(how: str) -> None:
    machine = hops(capacity=1)
    for index in range(2):
        receive(machine, UP, forward(index), (INPUT, TARGETS))
        computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
    receive(machine, UP, forward(2), (INPUT, TARGETS))  # there is something to compute
    assert gradient(machine, 1) == []
    match how:
        case "done":
            gradient(machine, 0)
            actions = computed(machine, BackwardComputed(microbatch(0), OWN))
        case "relieved":
            actions = receive(machine, UP, Cancel(microbatch(0), 1, FIRST_ATTEMPT))
        case "taken away":
            actions = reconciling.reconcile(machine, 1, ())[0]
            assert machine.admission.waiting == {}, "nobody counts it, and nothing of it was added"
        case "failed":
            actions = passes.failed(machine, microbatch(0))[1]
    begun = [] if how == "taken away" else [RunReplay(microbatch(1), INPUT, TARGETS, GRADIENT, 1)]
    assert of_type(actions, RunReplay) == begun
    assert machine.held == len(begun)


def work(actions: list[Action]) -> list[Action]:
    return [action for action in actions if isinstance(action, Discard | RunBackward | RunReplay)]


def test_a_graph_whose_gradient_is_awaited_yields_to_a_gradient_that_is_here() -> None:
    """A gradient takes long to the end of a pipeline and back, and until then there would be nothing to compute."""
    machine = hops(capacity=2)
    for index in range(5):
        receive(machine, UP, forward(index), (INPUT, TARGETS))
        computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
    replay = {index: RunReplay(microbatch(index), INPUT, TARGETS, GRADIENT, 1) for index in range(5)}
    assert gradient(machine, 2) == [Discard(microbatch(1)), replay[2]], "of two the one that was sent on last"
    assert gradient(machine, 3) == [], "while that is computed"
    assert of_type(computed(machine, Replayed(microbatch(2), 1, OWN)), RunReplay) == [replay[3]]
    receive(machine, UP, forward(5), (INPUT, TARGETS))
    assert gradient(machine, 1) == []
    assert work(computed(machine, Replayed(microbatch(3), 1, OWN))) == [replay[1]]
    assert gradient(machine, 4) == []
    assert of_type(gradient(machine, 0), RunBackward) == [RunBackward(microbatch(0), GRADIENT)], "it was kept"


def test_a_graph_yields_as_soon_as_there_is_nothing_else_to_compute() -> None:
    machine = hops(capacity=1)
    for index in range(2):
        receive(machine, UP, forward(index), (INPUT, TARGETS))
        computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
    receive(machine, UP, forward(2), (INPUT, TARGETS))
    assert gradient(machine, 1) == []
    begun = work(computed(machine, ForwardComputed(microbatch(2), OUTPUT), 2.0))
    assert begun == [Discard(microbatch(0)), RunReplay(microbatch(1), INPUT, TARGETS, GRADIENT, 1)]


def test_never_more_graphs_are_in_memory_than_there_is_memory_for() -> None:
    """Gradients come in any order; those without a graph wait for one that is freed."""
    capacity = 2
    for order in itertools.permutations(range(capacity + 3)):
        machine = hops(capacity=capacity)
        kept: set[int] = set()
        for index in order:
            work = of_type(receive(machine, UP, forward(index), (INPUT, TARGETS)), RunForward)
            kept |= {action.microbatch.index for action in work if action.keep}
            computed(machine, ForwardComputed(microbatch(index), OUTPUT), 1.0)
        computing: list[Action] = []
        done: list[int] = []
        for index in sorted(order):
            computing += gradient(machine, index)
            while computing:
                action = computing.pop(0)
                if isinstance(action, Discard):
                    kept.remove(action.microbatch.index)
                if not isinstance(action, RunBackward | RunReplay):
                    continue
                kept.add(action.microbatch.index)
                assert len(kept) <= capacity
                kept.remove(action.microbatch.index)
                done.append(action.microbatch.index)
                computing += (
                    computed(machine, BackwardComputed(action.microbatch, OWN))
                    if isinstance(action, RunBackward)
                    else computed(machine, Replayed(action.microbatch, 1, OWN))
                )
        assert sorted(done) == sorted(order)


def measured(admission: Admission, microbatch: Microbatch) -> None:
    """Let a microbatch with a slot arrive after 2 s, and be computed in 0.4 s."""
    admission.now_s = 2.0
    slot = admission.give_up(microbatch, FIRST_ATTEMPT)
    assert slot is not None
    admission.arrive(slot)
    admission.timer.watch(Tick(), [RunForward(microbatch, INPUT, TARGETS)], 2.0)
    admission.timer.watch(ForwardComputed(microbatch, INPUT), [], 2.4)


@pytest.mark.parametrize(("others", "reserved_max"), [((OTHER, OTHER2), 2), ((OTHER,), 6)])
def test_a_slow_computer_takes_no_more_without_graphs_than_it_can_compute_while_they_come(
    others: tuple[ProcessId, ...], reserved_max: int
) -> None:
    """Else its queue would grow by what others could compute with a graph; of those a narrow stage has none."""
    admission = Admission(1, extra=9)
    hop = Hop(microbatch(0), FIRST_ATTEMPT, UP, False, None, INPUT, TARGETS)
    hop.move(HopState.DISPATCHED)
    admission.note(hop)
    admission.open(microbatch(2).epoch)
    admission.mates.update(others)
    assert admission.free(insist=False)
    admission.reserve(microbatch(2), UP, FIRST_ATTEMPT)
    assert not admission.free(insist=False), "nothing is known yet of its time, nor of those that come"
    measured(admission, microbatch(2))
    for index in range(reserved_max):
        assert admission.free(insist=False), "0.4 s a pass, four passes or one, and 2 s on the way"
        admission.reserve(microbatch(3 + index), UP, FIRST_ATTEMPT)
    assert not admission.free(insist=False)


@pytest.mark.parametrize(("capacity", "beyond_s", "takes"), [(2, 20.0, True), (2, 1.0, False), (4, 20.0, False)])
def test_a_peer_that_few_graphs_leave_idle_takes_more_while_some_are_queued(
    capacity: int, beyond_s: float, takes: bool
) -> None:
    """Two graphs of four passes each are computed in 3.2 s, and a gradient comes back after 20."""
    machine = HopTable(1, 3, capacity, Dispatcher(2, Shortest()), LEADER)
    machine.open(EPOCH, (DOWN,), mates=(OTHER, OTHER2))
    transferred(machine.dispatcher.router, DOWN, 0.1)
    machine.dispatcher.router.record_downstream(DOWN, beyond_s)
    admission = machine.admission
    admission.reserve(microbatch(9), UP, FIRST_ATTEMPT)
    measured(admission, microbatch(9))
    for index in range(capacity):
        admission.note(Hop(microbatch(index), FIRST_ATTEMPT, UP, False, None, INPUT, TARGETS))
    assert admission.queued
    assert bool(admission.free(insist=False)) == takes


def test_a_stage_whose_peers_die_is_narrow() -> None:
    machine = hops()
    machine.open(EPOCH, (DOWN, DOWN2), mates=(OTHER, OTHER2))
    assert machine.admission.mates == {OTHER, OTHER2}
    machine.gone(OTHER, 1.0)
    assert machine.admission.mates == {OTHER2}


def test_the_gradients_of_parameters_wait_as_long_as_memory_has_room_for_what_they_keep() -> None:
    """Each free slot lets one more wait than the two for which memory is kept at any time."""
    admission = Admission(4)
    admission.open(microbatch(0).epoch)
    found = [admission.deferred_max]
    for index in range(5):
        admission.note(Hop(microbatch(index), FIRST_ATTEMPT, UP, False, None, INPUT, TARGETS))
        found.append(admission.deferred_max)
    assert found == [DEFERRED_MIN + room for room in (4, 3, 2, 1, 0, 0)]


@pytest.mark.parametrize(("capacity", "queued"), [(1, 1), (8, 3), (9, 3), (12, 4), (64, 21)])
def test_a_peer_offers_what_it_will_soon_compute_or_a_third_of_what_memory_holds(capacity: int, queued: int) -> None:
    admission = Admission(capacity)
    admission.open(microbatch(0).epoch)
    assert admission.offered(insist=False) == queued
