"""The flow negotiation of a process: messages between neighbours, forwarded ones, and implausible ones."""

from __future__ import annotations

import math
from random import Random

import pytest

from swarmflow.core.protocol.actions import Count, Send
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.gwtf import CheapestOutflow
from swarmflow.core.protocol.messages.negotiation import (
    ApplyExchange,
    Exchange,
    ExchangeTurn,
    FlowMessage,
    Inquire,
    Label,
    Locked,
    Reliable,
    ReserveUnits,
    SideLocked,
    SideLockRequest,
    Times,
    TraceFlow,
)
from swarmflow.core.protocol.types import ProcessId, Roster
from swarmflow.core.routing.flow.live import EARLY_MAX, FlowNegotiation
from swarmflow.core.routing.flow.negotiation import LINKS
from swarmflow.core.routing.flow.node_types import FlowSend
from swarmflow.core.routing.flow.relay import FlowRelay
from tests.core import negotiating
from tests.core.negotiating import MEMBERS, ROSTER, STAGES, Swarm, generated, place
from tests.core.samples import member, process


def negotiation(name: str) -> FlowNegotiation:
    made = negotiating.negotiation(name, "flow")
    assert isinstance(made, FlowNegotiation)
    return made


def test_flows_for_all_microbatches_are_found_by_messages_between_neighbours() -> None:
    swarm = Swarm(ROSTER)
    swarm.run(20.0)
    assert [sum(swarm.units(stage).values()) for stage in range(-1, STAGES)] == [8] * (STAGES + 1)
    before_s, least_s = (swarm.counted["flow_cost", when] for when in ("before", "least"))
    assert before_s >= least_s > 0, "an exchange costs no more than what it replaces"


def test_a_death_is_repaired_and_a_newcomer_gets_its_part() -> None:
    swarm = Swarm(ROSTER)
    swarm.run(20.0)
    swarm.die("p20")
    swarm.run(30.0)
    assert [sum(swarm.units(stage).values()) for stage in range(-1, STAGES)] == [8] * (STAGES + 1)
    swarm.enter("p25", ROSTER.without(process("p20")).changed((), (member("p25", 2),)))
    swarm.run(40.0)
    shared = swarm.units(2)
    assert sum(shared.values()) == 8
    assert max(shared.values()) <= 6  # half as much again as half of them
    assert all(part.node is not None and part.node.held <= part.node.view.capacity for part in swarm.all.values())


def test_a_relay_forgets_neighbours_whose_links_end_because_its_stages_grow() -> None:
    def roster(peers: int) -> Roster:
        stages = (tuple(member(f"p{stage}-{n}", stage) for n in range(peers)) for stage in range(STAGES))
        return Roster(tuple(stages), ROSTER.trainers)

    part = negotiating.negotiation("p1-1", "flow", roster(LINKS))
    assert isinstance(part.node, FlowRelay)
    for peer in part.node.view.after:
        part.received(peer, Negotiate(2, Label(4, ((process("t0"), 1.0, 0),), 4, 4)), 0.0)
    part.open(roster(2 * LINKS), 1.0)
    assert 0 < len(part.node.labels.known) < LINKS
    assert part.node.labels.known.keys() <= set(part.node.view.after)
    part.tick(2.0)


def test_a_former_neighbour_unlocks_a_side_that_is_locked_for_its_exchange_on_another_stage() -> None:
    part, moved = negotiation("t0"), process("p40")
    part.open(ROSTER.without(moved).changed((), (member("p40", 3),)), 1.0)
    assert part.node is not None
    exchange = Exchange(moved, 1)
    part.received(process("p41"), Negotiate(4, SideLockRequest(exchange, outward=False)), 2.0)
    assert part.node.lock.exchanges == [exchange]
    part.received(moved, Negotiate(3, ApplyExchange(exchange)), 3.0)
    assert not part.node.lock.locked


def test_a_process_that_comes_back_to_its_stage_is_not_taken_for_repeating_what_it_asked_before() -> None:
    after, flow = negotiation("p10"), process("t0")
    for now in (0.0, 60.0):
        after.open(ROSTER.without(process("p00")), now)
        after.open(ROSTER, now)
        part = negotiating.negotiation("p00", "flow", ROSTER, now)
        part.received(process("p10"), Negotiate(1, Label(4, ((flow, 1.0, 0),), 4, 4)), now)
        part.received(flow, Negotiate(-1, ReserveUnits(flow, 1, 1)), now)
        for action in part.tick(now):
            if isinstance(action, Send) and isinstance(action.message, Negotiate) and action.to == after.me:
                after.received(part.me, action.message, now)
        assert after.node is not None
        assert after.node.inflow == {(part.me, flow): 1}


def test_messages_of_processes_that_are_not_known_yet_are_kept() -> None:
    new = process("p25")
    made = negotiation("p10")
    label = Label(4, ((process("t0"), 1.0, 0),), 4, 4)
    for _ in range(2 * EARLY_MAX):
        assert made.received(new, Negotiate(2, label), 0.0) == []
    assert made.node is not None
    assert new not in made.node.view.cost
    made.open(ROSTER.changed((), (member("p25", 2),)), 1.0)
    assert made.node.labels.known == {new: label}


def test_a_message_for_a_process_two_stages_away_is_forwarded_by_the_neighbour_that_has_named_it() -> None:
    solver, middle, far = negotiation("p20"), negotiation("p30"), negotiation("p40")
    assert solver.node is not None
    exchange = Exchange(solver.me, 1)
    far.received(middle.me, Negotiate(3, SideLockRequest(exchange, outward=False)), 0.0)
    solver.received(middle.me, Negotiate(3, SideLockRequest(Exchange(far.me, 1), outward=True)), 0.0)
    payload = Inquire(Exchange(far.me, 1))
    sent = solver.send([FlowSend(far.me, payload, "asked by the neighbour between them")])
    assert sent == [Send(middle.me, Negotiate(2, payload, to=far.me))]
    passed = middle.received(solver.me, Negotiate(2, payload, to=far.me), 0.0)
    assert passed == [Send(far.me, Negotiate(3, payload, origin=solver.me))]
    (answer,) = far.received(middle.me, Negotiate(3, payload, origin=solver.me), 0.0)
    assert isinstance(answer, Send)
    assert isinstance(answer.message, Negotiate)
    assert (answer.to, answer.message.to) == (middle.me, solver.me)


IMPLAUSIBLE: dict[str, tuple[str, FlowMessage]] = {
    "a label of the stage before": ("p10", Label(4, (), 4, 4)),
    "a label of a stranger's flows": ("p30", Label(4, ((process("x"), 1.0, 0),), 4, 4)),
    "a cost that is no number": ("p30", Label(4, ((process("t0"), math.nan, 0),), 4, 4)),
    "room below nothing": ("p30", Label(-1, (), 4, 4)),
    "a reservation from after": ("p30", ReserveUnits(process("t0"), 1, 1)),
    "a reservation of less than nothing": ("p10", ReserveUnits(process("t0"), -1, 1)),
    "times below nothing": ("p10", Times(-9.0, 0.0)),
    "a change by who solves nothing here": ("p10", ApplyExchange(Exchange(process("p11"), 1))),
    "a change of a stranger's link": (
        "p10",
        ApplyExchange(Exchange(process("p10"), 1), ((process("x"), process("t0"), 1),)),
    ),
    "an offer without its costs": (
        "p10",
        Locked(Exchange(process("p20"), 1), 4, ((process("p00"), process("t0"), 1),), (), ()),
    ),
    "a trace that has come too far": ("p10", Reliable(1, TraceFlow(process("t0"), 1, (process("p00"),)))),
    "a turn from the past": ("p10", ExchangeTurn(-1)),
    "a message of GWTF's negotiation": ("p30", CheapestOutflow(process("t0"), 1.0)),
}


@pytest.mark.parametrize("case", IMPLAUSIBLE)
def test_an_implausible_message_is_counted_and_changes_nothing(case: str) -> None:
    sender, payload = IMPLAUSIBLE[case]
    made = negotiation("p20")
    negotiate = Negotiate(int(sender[1]), payload)
    assert made.received(process(sender), negotiate, 0.0) == [Count("messages_ignored", "Negotiate")]


def test_a_message_for_another_stage_than_the_sender_s_is_ignored() -> None:
    made = negotiation("p20")
    side = SideLocked(Exchange(process("p20"), 1), outward=True, links=())
    assert made.received(process("p10"), Negotiate(3, side), 0.0) == [Count("messages_ignored", "Negotiate")]


@pytest.mark.parametrize("origin", ["p20", "p11", "t0"])
def test_nobody_passes_on_a_message_of_a_process_that_could_send_it_itself(origin: str) -> None:
    made = negotiation("p20")
    side = SideLocked(Exchange(made.me, 1), outward=True, links=())
    passed_on = Negotiate(1, side, origin=process(origin))
    assert made.received(process("p10"), passed_on, 0.0) == [Count("messages_ignored", "Negotiate")]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("router", ["flow", "gwtf"])
def test_no_message_stops_a_process_whoever_sends_it(seed: int, router: str) -> None:
    random = Random(seed)
    swarm = Swarm(ROSTER, router)
    swarm.run(random.uniform(0.0, 5.0))
    for _ in range(1500):
        name = random.choice(MEMBERS)
        part, sender = swarm.all[name], random.choice(MEMBERS)
        forged = random.random() < 0.2
        origin, to = (
            (generated(ProcessId | None, random), generated(ProcessId | None, random)) if forged else (None, None)
        )
        part.received(sender, Negotiate(place(sender), generated(FlowMessage, random), origin, to), swarm.now)
        if random.random() < 0.3:
            swarm.perform(name, part.tick(swarm.now))
            swarm.now += 0.02
    swarm.run(20.0)
    held = {name.name: (part.node.held, part.node.view.capacity) for name, part in swarm.all.items() if part.node}
    assert [name for name, (units, capacity) in held.items() if units > capacity] == []
