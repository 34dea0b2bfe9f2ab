"""GWTF's negotiation among processes: over links that lose messages, through deaths, and with hostile neighbours."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from random import Random
from typing import get_args

import pytest

from swarmflow.core.protocol.actions import Action, Count, Send
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.messages.gwtf import (
    ChangeAccepted,
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowId,
    FlowQuery,
    FlowReport,
    Greeting,
    GwtfMessage,
    InOrder,
    InOrderAck,
    OrderedGwtfMessage,
    RedirectAccepted,
    ReportedFlow,
    RequestChange,
    RequestFlow,
    RequestRedirect,
    UpstreamChanged,
)
from swarmflow.core.protocol.messages.negotiation import ExchangeTurn, FlowMessage, Label, Times
from swarmflow.core.protocol.types import Member, ProcessId, Roster
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_flows import FlowEnd, FlowTransfer, Outflow
from swarmflow.core.routing.flow.gwtf_live import REQUEST_TIMEOUT_S, ROUND_S, TRANSFERS_MAX, UNKNOWN_S, LiveGwtf
from swarmflow.core.routing.flow.gwtf_plausibility import ends
from swarmflow.core.routing.flow.gwtf_source import GwtfSource
from swarmflow.core.routing.flow.negotiations import Negotiation
from swarmflow.core.routing.flow.node_types import FlowSend
from swarmflow.simulator.flow.paths import FlowPaths, find_paths
from tests.core import negotiating
from tests.core.negotiating import MEMBERS, ROSTER, STAGES, Swarm, generated, place
from tests.core.samples import member, process

WANTED = 8  # microbatches of a step
SOURCE = process("t0")
TRAINERS = {SOURCE, process("t1")}
BYTES = 1000
IGNORED = [Count("messages_ignored", "Negotiate")]


def negotiation(name: str) -> LiveGwtf:
    made = negotiating.negotiation(name, "gwtf")
    assert isinstance(made, LiveGwtf)
    return made


def relay(part: LiveGwtf) -> GwtfRelay:
    assert isinstance(part.node, GwtfRelay)
    return part.node


def node(part: Negotiation) -> GwtfRelay | GwtfSource:
    assert isinstance(part.node, GwtfRelay | GwtfSource)
    return part.node


def found(swarm: Swarm) -> FlowPaths:
    return find_paths({name: node(part) for name, part in swarm.all.items()}, STAGES)


def measured(swarm: Swarm) -> None:
    """Have each process measure its links: slow ones between peers whose names end alike."""
    for name, part in swarm.all.items():
        for other in swarm.all:
            if place(other) == place(name) + 1 > 0:
                seconds = 4.0 if name.name[-1] == other.name[-1] else 1.0
                part.router.links.record_transfer(other, BYTES, seconds, swarm.now, direct=True)


@pytest.mark.parametrize("router", ["gwtf", "gwtf-sum"])
@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_both_ends_of_each_link_agree_on_flows_for_all_microbatches(router: str, lost: float) -> None:
    swarm = Swarm(ROSTER, router, lost)
    swarm.run(60.0)
    flows = found(swarm)
    assert (len(flows.paths), flows.torn) == (WANTED, 0)
    assert all(part.router.outflow == part.node.outflow for part in swarm.all.values() if part.node is not None)
    assert all(node(part).held <= node(part).view.capacity for part in swarm.all.values())


def test_flows_move_to_the_cheaper_links_once_these_are_measured() -> None:
    swarm = Swarm(ROSTER, "gwtf-sum")
    measured(swarm)
    swarm.run(300.0)
    flows = found(swarm)
    assert (len(flows.paths), flows.torn) == (WANTED, 0)
    hops = [(one.name[-1], other.name[-1]) for path in flows.paths for one, other in pairwise(path[1:])]
    cheap = sum(one != other for one, other in hops)
    assert cheap >= 0.9 * len(hops)


def test_a_death_is_repaired_and_a_newcomer_gets_flows() -> None:
    swarm = Swarm(ROSTER, "gwtf", lost=0.1)
    swarm.run(30.0)
    swarm.die("p20")
    swarm.run(60.0)
    assert (len(found(swarm).paths), found(swarm).torn) == (WANTED, 0)
    swarm.enter("p25", ROSTER.without(process("p20")).changed((), (member("p25", 2),)))
    swarm.run(30.0)
    swarm.die("p21")
    swarm.run(60.0)
    assert (len(found(swarm).paths), found(swarm).torn) == (WANTED, 0)
    assert {path[3] for path in found(swarm).paths} == {process("p25")}


def test_the_flows_of_a_trainer_that_is_dead_are_denied_and_another_one_gets_them() -> None:
    swarm = Swarm(ROSTER, "gwtf")
    swarm.run(30.0)
    swarm.die("t1")
    alone = ROSTER.without(process("t1"))
    for name, part in swarm.all.items():
        swarm.perform(name, part.open(alone, swarm.now))
    swarm.run(60.0)
    flows = found(swarm)
    assert ([path[0] for path in flows.paths], flows.torn) == ([SOURCE] * WANTED, 0)


def test_a_process_that_forgets_all_begins_anew_with_neighbours_that_did_not_notice() -> None:
    swarm = Swarm(ROSTER, "gwtf")
    swarm.run(30.0)
    swarm.all[process("p20")] = negotiating.negotiation("p20", "gwtf", ROSTER, swarm.now)
    swarm.run(60.0)
    assert (len(found(swarm).paths), found(swarm).torn) == (WANTED, 0)


@pytest.mark.parametrize("seconds", [0.0, 3.0, 10.0, 30.0])
def test_both_ends_begin_anew_where_too_many_messages_were_not_acknowledged(seconds: float) -> None:
    swarm = Swarm(ROSTER, "gwtf")
    swarm.run(seconds)
    for sender, receiver in ((process("p20"), AFTER.node), (process("p20"), BEFORE.node)):
        part = swarm.all[sender]
        assert isinstance(part, LiveGwtf)
        while not part.delivery.is_full(receiver):  # none of these arrives
            part.delivery.wrap(FlowSend(receiver, Greeting()), swarm.now)
    swarm.die("p21")
    swarm.run(60.0)
    assert (len(found(swarm).paths), found(swarm).torn) == (WANTED, 0)


def test_at_rest_hardly_anything_is_sent() -> None:
    swarm = Swarm(ROSTER, "gwtf")
    measured(swarm)
    swarm.run(900.0)
    before = swarm.sent
    swarm.run(600.0)
    assert (swarm.sent - before) / 600.0 / len(swarm.all) < 0.1  # messages a second of each process


def test_large_stages_are_linked_in_part_and_both_ends_agree_which() -> None:
    roster = Roster(
        tuple(tuple(member(f"p{stage}-{n}", stage, 1) for n in range(120)) for stage in range(2)), (Member(SOURCE, -1),)
    )
    parts = {m.process: negotiating.negotiation(m.process.name, "gwtf", roster) for m in roster.members}
    views = {name: node(part).view for name, part in parts.items()}
    for name, view in views.items():
        assert all(name in views[other].beside for other in view.beside)
        if view.stage == 0:
            assert 24 < len(view.after) < 96
            assert 8 < len(view.beside) < 60
            assert all(name in views[other].before for other in view.after)


def test_a_message_that_names_a_process_of_a_later_roster_waits_for_it() -> None:
    made, newcomer, never = negotiation("p20"), process("p35"), process("p15")
    changed = UpstreamChanged(FlowId(made.me, 1), never, FlowId(never, 1), 1)
    down = DownstreamChanged(FlowId(made.me, 1), newcomer, FlowId(newcomer, 1), 1)
    acknowledged = Negotiate(2, InOrderAck(1, 1))
    for message in (changed, down):
        sender = process("p10") if message is changed else process("p30")
        ordered = Negotiate(place(sender), InOrder(1, 1, 0, message))
        assert made.received(sender, ordered, 0.0) == []
        sent = made.tick(1.0)
        assert [each for each in sent if isinstance(each, Send) and each.message == acknowledged] == []
    made.open(ROSTER.changed((), (member("p35", 3),)), 1.0)
    sender = process("p30")
    ordered = Negotiate(3, InOrder(1, 1, 0, down))
    assert made.received(sender, ordered, 1.0) == []
    assert Send(sender, acknowledged) in made.tick(2.0)
    # A process that no roster ever has counts as dead.
    sender = process("p10")
    assert made.received(sender, Negotiate(1, InOrder(1, 1, 0, changed)), UNKNOWN_S) == []
    assert Send(sender, acknowledged) in made.tick(UNKNOWN_S + ROUND_S)


def test_an_unknown_trainer_is_waited_for_once_and_another_unknown_process_anew() -> None:
    made, sender = negotiation("p20"), AFTER.node
    offers = [CheapestOutflow(process("t9"), cost) for cost in (1.0, 2.0)]
    changed = DownstreamChanged(FlowId(made.me, 1), process("p35"), FlowId(process("p35"), 1), 1)

    def received(number: int, message: GwtfMessage, now: float) -> list[Action]:
        return made.received(sender, Negotiate(3, InOrder(1, number, 0, message)), now)

    assert received(1, offers[0], 0.0) == []
    assert received(1, offers[0], UNKNOWN_S) == IGNORED
    assert received(2, offers[1], UNKNOWN_S + 1.0) == IGNORED, "it counts as dead"
    assert received(3, changed, 3 * UNKNOWN_S) == []
    assert received(3, changed, 4 * UNKNOWN_S - 1.0) == []
    assert Send(sender, Negotiate(2, InOrderAck(1, 3))) not in made.tick(4 * UNKNOWN_S)


def ordered(message: GwtfMessage) -> InOrder:
    return InOrder(1, 1, 0, message)


FLOW = FlowId(process("p20"), 1)
OTHER, BEFORE, AFTER = (FlowId(process(name), 1) for name in ("p21", "p10", "p30"))
IMPLAUSIBLE: dict[str, tuple[str, FlowMessage]] = {
    "an outflow of the stage before": ("p10", ordered(CheapestOutflow(SOURCE, 1.0))),
    "an outflow to a process that is no trainer": ("p30", ordered(CheapestOutflow(process("p00"), 1.0))),
    "a cost that is no number": ("p30", ordered(CheapestOutflow(SOURCE, math.nan))),
    "a link that costs less than nothing": ("p21", FlowReport((), ((AFTER.node, -1.0),))),
    "a request from after": ("p30", ordered(RequestFlow(SOURCE, 1.0, AFTER))),
    "a request at an infinite cost": ("p10", ordered(RequestFlow(SOURCE, math.inf, BEFORE))),
    "a flow below the first": ("p10", ordered(RequestFlow(SOURCE, 1.0, FlowId(BEFORE.node, -1)))),
    "a report of a flow beyond all": (
        "p21",
        FlowReport((ReportedFlow(FlowId(OTHER.node, 1 << 54), SOURCE, None, AFTER.node, 1.0, 1.0),), ()),
    ),
    "an approval at an infinite cost": ("p30", ordered(FlowApproved(SOURCE, math.inf, FLOW, AFTER, 1, 0))),
    "a counter below nothing": ("p30", ordered(FlowApproved(SOURCE, 1.0, FLOW, AFTER, -1, 0))),
    "a query of another stage": ("p10", FlowQuery()),
    "a report of another stage": ("p30", FlowReport((), ())),
    "a report at no cost": ("p21", FlowReport((ReportedFlow(OTHER, SOURCE, None, AFTER.node, 1.0, math.nan),), ())),
    "a report of links at no cost": ("p21", FlowReport((), ((AFTER.node, math.inf),))),
    "a change of another stage": (
        "p10",
        ordered(RequestChange(OTHER, AFTER.node, AFTER, 1, 0, FLOW, AFTER.node, (1.0, 1.0), True)),
    ),
    "a change to a process of the own stage": (
        "p21",
        ordered(RequestChange(OTHER, OTHER.node, AFTER, 1, 0, FLOW, AFTER.node, (1.0, 1.0), True)),
    ),
    "a change that was accepted, to the stage before": (
        "p21",
        ordered(ChangeAccepted(FLOW, OTHER, BEFORE.node, BEFORE, 1, 0)),
    ),
    "a redirect at no cost": ("p21", ordered(RequestRedirect(FLOW, BEFORE.node, AFTER.node, math.nan, True))),
    "a redirect backwards": (
        "p21",
        ordered(RedirectAccepted(OTHER, SOURCE, AFTER.node, BEFORE.node, AFTER, BEFORE, 1.0, 1, 0, 1, 0)),
    ),
    "an upstream end after": ("p10", ordered(UpstreamChanged(FLOW, AFTER.node, AFTER, 1))),
    "a downstream end before": ("p30", ordered(DownstreamChanged(FLOW, BEFORE.node, BEFORE, 1))),
    "a downstream change from before": ("p10", ordered(DownstreamChanged(FLOW, AFTER.node, AFTER, 1))),
    "a denial from before": ("p10", ordered(FlowDenied(FLOW, AFTER, AFTER.node))),
    "a denial that was forwarded forever": ("p30", ordered(FlowDenied(FLOW, AFTER, AFTER.node, 1 << 60))),
    "a drop from after": ("p30", ordered(FlowDropped(FLOW, BEFORE.node, BEFORE))),
    "a number below the first": ("p30", InOrder(1, 0, 0, CheapestOutflow(SOURCE, 1.0))),
    "a session beyond all": ("p30", InOrder(1 << 60, 1, 0, CheapestOutflow(SOURCE, 1.0))),
    "an acknowledgement below nothing": ("p30", InOrderAck(1, -1)),
    "a change out of order": ("p30", CheapestOutflow(SOURCE, 1.0)),
    "times below nothing": ("p10", Times(-9.0, 0.0)),
    "messages of the other negotiation": ("p30", Label(4, ((SOURCE, 1.0, 0),), 4, 4)),
    "one of these in order": ("p30", InOrder(1, 1, 0, ExchangeTurn(0))),
}


@pytest.mark.parametrize("case", IMPLAUSIBLE)
def test_an_implausible_message_is_counted_and_changes_nothing(case: str) -> None:
    sender, payload = IMPLAUSIBLE[case]
    made = negotiation("p20")
    negotiate = Negotiate(int(sender[1]), payload)
    # A message that names an unknown process is looked at when no roster has had it for so long.
    actions = [action for now in (0.0, UNKNOWN_S) for action in made.received(process(sender), negotiate, now)]
    assert set(actions) == set(IGNORED)
    assert relay(made).flows.table == {}


def test_a_message_that_another_process_passes_on_is_ignored() -> None:
    made = negotiation("p20")
    offer = ordered(CheapestOutflow(SOURCE, 1.0))
    assert made.received(AFTER.node, Negotiate(3, offer, origin=process("p31")), 0.0) == IGNORED
    assert made.received(AFTER.node, Negotiate(3, offer, to=process("p21")), 0.0) == IGNORED
    assert made.received(AFTER.node, Negotiate(2, offer), 0.0) == IGNORED, "it serves another stage"
    assert made.received(process("stranger"), Negotiate(3, offer), 0.0) == []


def answers(made: LiveGwtf, sender: ProcessId, *messages: GwtfMessage) -> list[tuple[ProcessId, FlowMessage]]:
    """Return what a process sends when it gets these messages in order, without the numbers."""
    actions = [
        action
        for number, message in enumerate(messages, 1)
        for action in made.received(sender, Negotiate(place(sender), InOrder(1, number, 0, message)), 0.0)
    ]
    sends = [action for action in actions if isinstance(action, Send) and isinstance(action.message, Negotiate)]
    payloads = [(send.to, send.message.flow) for send in sends if isinstance(send.message, Negotiate)]
    return [(to, payload.message) for to, payload in payloads if isinstance(payload, InOrder)]


def test_an_approval_that_was_not_asked_for_is_dropped() -> None:
    made = negotiation("p20")
    approved = FlowApproved(SOURCE, 1.0, FLOW, AFTER, 1, 0)
    assert answers(made, AFTER.node, approved) == [(AFTER.node, FlowDropped(AFTER, made.me, FLOW))]
    assert made.router.outflow == {}


def test_a_request_that_is_never_answered_is_given_up() -> None:
    made = negotiation("p20")
    offers = [InOrder(1, number, 0, CheapestOutflow(SOURCE, cost)) for number, cost in ((1, 1.0), (2, 3.0))]
    made.received(AFTER.node, Negotiate(3, offers[0]), 0.0)
    made.tick(1.0)
    assert relay(made).held == 1
    made.tick(30.0)
    assert relay(made).held == 1
    made.tick(1.0 + REQUEST_TIMEOUT_S)
    assert relay(made).held == 0
    made.received(AFTER.node, Negotiate(3, offers[1]), 62.0)
    made.tick(63.0)
    assert relay(made).held == 1, "its next offer is asked for again"


def test_redirected_flows_that_were_not_asked_for_are_ended_at_both_sides() -> None:
    made = negotiation("p20")
    flows = [FlowId(OTHER.node, number) for number in range(3)]
    accepted = [
        RedirectAccepted(flow, SOURCE, BEFORE.node, AFTER.node, BEFORE, AFTER, 1.0, 1, 0, 1, 0) for flow in flows
    ]
    sent = answers(made, OTHER.node, *accepted)
    assert relay(made).held == 0
    ended = [(BEFORE.node, FlowDenied(BEFORE, flow, OTHER.node)) for flow in flows]
    dropped = [(AFTER.node, FlowDropped(AFTER, OTHER.node, flow)) for flow in flows]
    assert sent == [each for pair in zip(ended, dropped, strict=True) for each in pair]


@pytest.mark.parametrize(
    ("receiver", "loss", "accepted"), [("p31", 1.0, True), ("p31", 7.9, True), ("p31", 8.1, False), ("p40", 0.0, False)]
)
def test_a_change_that_anothers_annealing_wants_is_refused_if_it_costs_too_much(
    receiver: str, loss: float, accepted: bool
) -> None:
    """loss: times the own temperature; infinite where this node has no link to the receiver."""
    made = negotiation("p20")
    node, to = relay(made), process(receiver)
    node.flows.table[FLOW] = Outflow(FLOW, SOURCE, 1.0, FlowEnd(AFTER.node, AFTER), FlowEnd(BEFORE.node, BEFORE))
    cost = node.view.cost[AFTER.node]
    costs = cost, cost + loss * node.swaps.annealing.temperature
    asked = RequestChange(OTHER, to, FlowId(to, 1), 1, 0, FLOW, AFTER.node, costs, True)
    answer = node.handle(OTHER.node, asked, 0.0)
    assert any(isinstance(send.message, ChangeAccepted) for send in answer) == accepted


def test_only_the_last_transfers_are_remembered_though_no_cost_changes() -> None:
    made = negotiation("p20")
    flows = relay(made).flows
    for number in range(2 * TRANSFERS_MAX):
        flow = FlowId(made.me, number)
        flows.redirected[flow] = flows.swapped[flow] = FlowTransfer(OTHER.node, flow, flow, FlowEnd(AFTER.node, AFTER))
    made.tick(1.0)
    assert [*flows.redirected] == [*flows.swapped]
    assert [flow.number for flow in flows.swapped] == [*range(TRANSFERS_MAX, 2 * TRANSFERS_MAX)]


@pytest.mark.parametrize("seed", range(3))
def test_no_ordered_message_stops_a_process_or_fills_it(seed: int) -> None:
    random = Random(seed)
    swarm = Swarm(ROSTER, random.choice(("gwtf", "gwtf-sum")))
    measured(swarm)
    swarm.run(random.uniform(1.0, 8.0))
    hostile = random.sample(MEMBERS, 3)
    numbers: Counter[tuple[ProcessId, ProcessId]] = Counter()
    sessions = Counter({(sender, name): 1 << 50 for sender in hostile for name in MEMBERS})
    for _ in range(4000):
        sender, name = random.choice(hostile), random.choice(MEMBERS)
        payload = generated(random.choice(get_args(OrderedGwtfMessage)), random)
        to, of, sources = ends(payload)
        if not {*to, *of} <= {*MEMBERS} or not {*sources} <= TRAINERS:
            continue  # it would wait for a roster that has these
        numbers[sender, name] += 1
        if random.random() < 0.1:  # it begins anew
            sessions[sender, name] += 1
            numbers[sender, name] = 1
        negotiate = Negotiate(place(sender), InOrder(sessions[sender, name], numbers[sender, name], 0, payload))
        swarm.perform(name, swarm.all[name].received(sender, negotiate, swarm.now))
        if random.random() < 0.3:
            swarm.perform(name, swarm.all[name].tick(swarm.now))
            swarm.now += 0.1
    swarm.run(20.0)
    parts = [node(part) for name, part in swarm.all.items() if name not in hostile]
    assert [part.view.me for part in parts if part.held > part.view.capacity] == []
