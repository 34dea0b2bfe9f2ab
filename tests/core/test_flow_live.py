"""The flow negotiation of a process: messages between neighbours, forwarded ones, and implausible ones."""

from __future__ import annotations

import math
import types
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Negotiate
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
from swarmflow.core.protocol.types import Member, ProcessId, Roster
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.live import EARLY_MAX, ROUND_S, TRAINER, FlowNegotiation, negotiation_of
from swarmflow.core.routing.flow.node_types import FlowSend
from swarmflow.core.routing.flow.router import FlowRouter
from swarmflow.core.routing.shortest import Shortest
from tests.core.samples import member, process

STAGES = 5
TRAINERS = ("t0", "t1")
ROSTER = Roster(
    tuple(tuple(member(f"p{stage}{n}", stage) for n in range(2)) for stage in range(STAGES)),
    tuple(Member(process(name), -1) for name in TRAINERS),
)
MEMBERS = [m.process for m in ROSTER.members]


def negotiation(name: str, roster: Roster = ROSTER) -> FlowNegotiation:
    stage = TRAINER if name.startswith("t") else int(name[1])
    made = negotiation_of(process(name), stage, STAGES, 8, FlowRouter(Shortest(name)), ComputeTimer(), 4)
    assert made is not None
    made.open(roster, 0.0)
    return made


class Swarm:
    """All processes of a roster, whose messages arrive at once."""

    def __init__(self, roster: Roster) -> None:
        self.all = {m.process: negotiation(m.process.name, roster) for m in roster.members}
        self.now = 0.0
        self.sent = 0
        self.counted: defaultdict[tuple[str, str], float] = defaultdict(float)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            for name in list(self.all):
                self.perform(name, self.all[name].tick(self.now))
            self.now += ROUND_S / 2

    def perform(self, sender: ProcessId, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, Count):
                self.counted[action.name, action.label] += action.amount
                continue
            assert isinstance(action, Send), action
            assert isinstance(action.message, Negotiate)
            if action.to in self.all:
                self.sent += 1
                assert abs(place(action.to) - place(sender)) in (0, 1) or "t" in action.to.name + sender.name
                self.perform(action.to, self.all[action.to].received(sender, action.message, self.now))

    def units(self, stage: int) -> dict[str, int]:
        """Return the units that go out from each peer of a stage."""
        peers = [p for p in self.all if place(p) == stage]
        return {p.name: sum(self.all[p].router.outflow.values()) for p in peers}


def place(name: ProcessId) -> int:
    return -1 if name.name.startswith("t") else int(name.name[1])


def test_flows_for_all_microbatches_are_found_by_messages_between_neighbours() -> None:
    swarm = Swarm(ROSTER)
    swarm.run(20.0)
    assert [sum(swarm.units(stage).values()) for stage in range(-1, STAGES)] == [8] * (STAGES + 1)
    before_s, least_s = (swarm.counted["flow_cost", when] for when in ("before", "least"))
    assert before_s >= least_s > 0, "an exchange costs no more than what it replaces"


def test_a_death_is_repaired_and_a_newcomer_gets_its_part() -> None:
    swarm = Swarm(ROSTER)
    swarm.run(20.0)
    dead = process("p20")
    del swarm.all[dead]
    for name, part in list(swarm.all.items()):
        swarm.perform(name, part.gone(dead, swarm.now))
    swarm.run(30.0)
    assert [sum(swarm.units(stage).values()) for stage in range(-1, STAGES)] == [8] * (STAGES + 1)
    late = ROSTER.without(dead).changed((), (member("p25", 2),))
    swarm.all[process("p25")] = negotiation("p25", late)
    for name, part in list(swarm.all.items()):
        swarm.perform(name, part.open(late, swarm.now))
    swarm.run(40.0)
    shared = swarm.units(2)
    assert sum(shared.values()) == 8
    assert max(shared.values()) <= 6  # half as much again as half of them
    assert all(part.node is not None and part.node.held <= part.node.view.capacity for part in swarm.all.values())


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


def generated(kind: Any, random: Random) -> Any:  # noqa: ANN401
    """Anything of a type; processes are mostly those of the roster."""
    origin, inside = get_origin(kind), get_args(kind)
    if kind is ProcessId:
        return random.choice([*MEMBERS, process("x")])
    if kind is int:
        return random.choice((-1, 0, 1, 1, 1, 2, 3, 4, 9, 1 << 40))
    if kind is float:
        return random.choice((0.0, 1.0, 2.5, 1e3, -1.0, math.inf, math.nan, 1e300))
    if kind is bool:
        return random.random() < 0.5
    if origin in (Union, types.UnionType):
        return generated(random.choice(inside), random)
    if kind is type(None):
        return None
    if origin is tuple and inside[1:] == (...,):
        return tuple(generated(inside[0], random) for _ in range(random.choice((0, 1, 1, 2, 5))))
    if origin is tuple:
        return tuple(generated(part, random) for part in inside)
    if kind is Any:
        return generated(FlowMessage, random)
    if kind is Exchange and random.random() < 0.7:
        return Exchange(random.choice(MEMBERS), random.choice((1, 2, 3)))
    hints = get_type_hints(kind)
    return kind(**{field.name: generated(hints[field.name], random) for field in fields(kind)})


@pytest.mark.parametrize("seed", range(6))
def test_no_message_stops_a_process_whoever_sends_it(seed: int) -> None:
    random = Random(seed)
    swarm = Swarm(ROSTER)
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
