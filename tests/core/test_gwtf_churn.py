"""GWTF's negotiation when nodes die and enter: flows are repaired, denied upstream, or redirected to newcomers."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.core.protocol.messages.gwtf import (
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowId,
    FlowReport,
    RedirectAccepted,
    ReportedFlow,
    RequestFlow,
    RequestRedirect,
    SwapRefused,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_source import GwtfSource
from swarmflow.core.routing.flow.gwtf_swaps import ANSWER_TIMEOUT_ROUNDS, GWTF_SWAP_STATES, GwtfSwapState
from swarmflow.core.routing.flow.node_types import INFINITE, View
from swarmflow.core.transitions import IllegalTransition
from swarmflow.simulator.flow.paths import find_paths
from swarmflow.simulator.flow.rounds import Rounds

SOURCE = ProcessId("source", 0)
STAGES = [[ProcessId(f"{stage}{number}", 0) for number in range(2)] for stage in "abc"]
ROUNDS = 30


def view(node: ProcessId, stages: list[list[ProcessId]], capacity: int, wanted: int) -> View:
    """Links cost 10, and 1 between nodes whose names both end with 0."""
    ring = [[SOURCE], *stages]
    number = next(number for number, layer in enumerate(ring) if node in layer)
    before, beside, after = ring[number - 1], ring[number], ring[(number + 1) % len(ring)]
    cost = {other: 1.0 if node.name[-1] == other.name[-1] == "0" else 10.0 for other in (*before, *after)}
    others = tuple(other for other in beside if other != node)
    units = capacity if number else wanted
    return View(node, number - 1, len(stages), units, tuple(before), others, tuple(after), cost)


def negotiated(capacity: int, wanted: int) -> tuple[Rounds, dict[ProcessId, GwtfRelay | GwtfSource]]:
    nodes: dict[ProcessId, GwtfRelay | GwtfSource] = {SOURCE: GwtfSource(view(SOURCE, STAGES, capacity, wanted))}
    for node in [node for stage in STAGES for node in stage]:
        nodes[node] = GwtfRelay(view(node, STAGES, capacity, wanted), Random(node.name))
    rounds = Rounds(nodes)
    rounds.run(ROUNDS)
    rounds.settle()
    return rounds, nodes


def die(rounds: Rounds, nodes: dict[ProcessId, GwtfRelay | GwtfSource], dead: ProcessId) -> None:
    del nodes[dead]
    for name, node in nodes.items():
        rounds.send(name, node.gone(dead, float(rounds.round)))
    rounds.run(ROUNDS)
    rounds.settle()


@pytest.mark.parametrize("dead", [node for stage in STAGES for node in stage])
@pytest.mark.parametrize(("capacity", "wanted", "left"), [(2, 2, 2), (1, 2, 1), (2, 4, 2)])
def test_as_many_flows_are_left_as_the_narrowest_stage_holds(
    dead: ProcessId, capacity: int, wanted: int, left: int
) -> None:
    rounds, nodes = negotiated(capacity, wanted)
    assert len(find_paths(nodes, len(STAGES)).paths) == wanted
    die(rounds, nodes, dead)
    found = find_paths(nodes, len(STAGES))
    assert (len(found.paths), found.torn) == (left, 0)
    assert nodes[SOURCE].held == left, "flows that no node can take have been denied up to the data node"
    assert all(dead not in path for path in found.paths)
    assert all(node.held <= capacity for name, node in nodes.items() if name != SOURCE)


def test_flows_are_redirected_to_a_cheaper_newcomer() -> None:
    rounds, nodes = negotiated(2, 2)
    die(rounds, nodes, STAGES[1][0])
    newcomer = ProcessId("b0", 1)
    stages = [STAGES[0], [STAGES[1][1], newcomer], STAGES[2]]
    nodes[newcomer] = GwtfRelay(view(newcomer, stages, 2, 2), Random(0))
    for name, node in nodes.items():
        if name != newcomer:
            rounds.send(name, node.met(view(name, stages, 2, 2)))
    rounds.run(ROUNDS)
    rounds.settle()
    found = find_paths(nodes, len(STAGES))
    assert [path[2] for path in found.paths] == [newcomer, newcomer]
    assert found.torn == 0


def connected() -> tuple[GwtfRelay, FlowId]:
    """Return a relay of stage b, and its flow from a0 to c0."""
    relay = GwtfRelay(view(STAGES[1][0], STAGES, 2, 2), Random(0))
    [a0, c0] = STAGES[0][0], STAGES[2][0]
    relay.handle(c0, CheapestOutflow(SOURCE, 1.0), 0.0)
    [asked] = [send.message for send in relay.tick(0.0)]
    below = FlowId(c0, 1)
    relay.handle(c0, FlowApproved(SOURCE, 1.0, asked.flow, below, 1, 0), 0.0)
    relay.handle(a0, RequestFlow(SOURCE, 2.0, FlowId(a0, 1)), 0.0)
    return relay, asked.flow


def redirected() -> tuple[GwtfRelay, RedirectAccepted]:
    """Return a relay of stage b whose flow from a0 to c0 has just been redirected through b1."""
    relay, flow = connected()
    [a0, b1, c0] = STAGES[0][0], STAGES[1][1], STAGES[2][0]
    sends = relay.handle(b1, RequestRedirect(flow, a0, c0, 0.5, False), 0.0)
    [accepted] = [send.message for send in sends if isinstance(send.message, RedirectAccepted)]
    return relay, accepted


def test_a_flow_that_was_redirected_to_a_node_that_dies_is_unpaired_at_both_ends() -> None:
    relay, accepted = redirected()
    sends = relay.gone(STAGES[1][1], 1.0)
    assert [(send.to, send.message) for send in sends] == [
        (accepted.downstream, FlowDropped(accepted.downstream_flow, relay.view.me, accepted.flow)),
        (accepted.upstream, FlowDenied(accepted.upstream_flow, accepted.flow, relay.view.me)),
    ]


def test_an_inflow_without_an_outflow_that_the_stage_before_drops_is_removed() -> None:
    relay, flow = connected()
    [a0, c0] = STAGES[0][0], STAGES[2][0]
    relay.handle(c0, FlowDenied(flow, FlowId(c0, 1), c0), 1.0)
    assert [unit.flow for unit in relay.flows.loose] == [flow]
    relay.handle(a0, FlowDropped(flow, a0, FlowId(a0, 1)), 1.0)
    assert relay.held == 0


def test_a_message_that_a_newer_one_has_overtaken_changes_nothing() -> None:
    taker = GwtfRelay(view(STAGES[1][1], STAGES, 2, 2), Random(0))
    giver, accepted = redirected()
    taker.tick(0.0)
    offered = ReportedFlow(accepted.flow, SOURCE, accepted.upstream, accepted.downstream, 30.0, 30.0)
    taker.handle(giver.view.me, FlowReport((offered,), ()), 0.0)
    taker.handle(giver.view.me, accepted, 0.0)
    [newer, older] = ProcessId("a1", 0), STAGES[0][0]
    sender_changes = accepted.own_sender_changes
    taker.handle(newer, UpstreamChanged(accepted.flow, newer, FlowId(newer, 1), sender_changes + 2), 1.0)
    taker.handle(older, UpstreamChanged(accepted.flow, older, FlowId(older, 9), sender_changes + 1), 2.0)
    assert taker.inflow == {(newer, SOURCE): 1}
    taker.handle(
        STAGES[2][1],
        DownstreamChanged(accepted.flow, STAGES[2][1], accepted.downstream_flow, accepted.holder_changes + 2),
        3.0,
    )
    taker.handle(
        STAGES[2][0],
        DownstreamChanged(accepted.flow, STAGES[2][0], accepted.downstream_flow, accepted.holder_changes + 1),
        4.0,
    )
    assert taker.outflow == {(STAGES[2][1], SOURCE): 1}


def test_a_message_for_a_flow_that_two_nodes_have_redirected_to_each_other_is_not_forwarded_forever() -> None:
    relay, accepted = redirected()
    stale = DownstreamChanged(accepted.flow, STAGES[2][1], accepted.downstream_flow, accepted.holder_changes)
    sent = 0
    while sends := relay.handle(STAGES[1][1], stale, 1.0):
        [(sent, stale)] = [(sent + 1, send.message) for send in sends]
    assert 0 < sent <= len(STAGES[1])


def test_a_relay_asks_for_one_swap_at_a_time_and_gives_up_what_is_not_answered() -> None:
    relay, _ = connected()
    [a0, b1, c0] = STAGES[0][0], STAGES[1][1], STAGES[2][0]
    relay.handle(c0, CheapestOutflow(SOURCE, INFINITE), 0.0)  # there is no other flow to request
    answer = FlowReport((ReportedFlow(FlowId(b1, 1), SOURCE, a0, c0, 10.0, 10.0),), ())
    states = [relay.swaps.state]
    for now, message in ((0.0, answer), (1.0, SwapRefused(FlowId(b1, 1))), (2.0, FlowReport((), ())), (3.0, answer)):
        relay.tick(now)
        states.append(relay.swaps.state)
        relay.handle(b1, message, now)
        states.append(relay.swaps.state)
    relay.tick(3.0 + ANSWER_TIMEOUT_ROUNDS)
    idle, querying, requesting = GwtfSwapState
    assert states == [idle, querying, requesting, requesting, idle, querying, idle, querying, requesting]
    assert relay.swaps.state is querying
    assert relay.held == 1


def test_a_swap_is_requested_only_after_a_query() -> None:
    relay, flow = connected()
    with pytest.raises(IllegalTransition, match="requesting cannot follow idle, only querying"):
        GWTF_SWAP_STATES.move(relay.swaps.state, GwtfSwapState.REQUESTING)
    relay.handle(STAGES[1][1], FlowReport((ReportedFlow(flow, SOURCE, STAGES[0][0], STAGES[2][0], 9.0, 9.0),), ()), 0.0)
    assert relay.swaps.state is GwtfSwapState.IDLE
