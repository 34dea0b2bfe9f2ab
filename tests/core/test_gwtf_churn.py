"""GWTF's negotiation when nodes die and come: flows are mended, denied upstream, or led through newcomers."""

from __future__ import annotations

from random import Random

import pytest

from swarmflow.core.flow.gwtf import GwtfRelay
from swarmflow.core.flow.gwtf_messages import (
    CostIs,
    Deny,
    Dropped,
    FlowApproved,
    FlowId,
    NewAfter,
    NewBefore,
    RedirectAccepted,
    RequestFlow,
    RequestRedirect,
)
from swarmflow.core.flow.gwtf_source import GwtfSource
from swarmflow.core.flow.node_types import View
from swarmflow.core.types import ProcessId
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
        rounds.say(name, node.gone(dead, float(rounds.round)))
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
    assert nodes[SOURCE].held == left, "what nobody can take has been denied back to the data node"
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
            rounds.say(name, node.met(view(name, stages, 2, 2)))
    rounds.run(ROUNDS)
    rounds.settle()
    found = find_paths(nodes, len(STAGES))
    assert [path[2] for path in found.paths] == [newcomer, newcomer]
    assert found.torn == 0


def given_away() -> tuple[GwtfRelay, RedirectAccepted]:
    """A relay of stage b that has a flow from a0 to c0, and has just given it to b1."""
    relay = GwtfRelay(view(STAGES[1][0], STAGES, 2, 2), Random(0))
    [a0, b1, c0] = STAGES[0][0], STAGES[1][1], STAGES[2][0]
    relay.handle(c0, CostIs(SOURCE, 1.0), 0.0)
    [asked] = [send.message for send in relay.tick(0.0)]
    below = FlowId(c0, 1)
    relay.handle(c0, FlowApproved(SOURCE, 1.0, asked.flow, below, 1, 0), 0.0)
    relay.handle(a0, RequestFlow(SOURCE, 2.0, FlowId(a0, 1)), 0.0)
    sends = relay.handle(b1, RequestRedirect(asked.flow, a0, c0, 0.5, False), 0.0)
    [accepted] = [send.message for send in sends if isinstance(send.message, RedirectAccepted)]
    return relay, accepted


def test_what_was_given_to_one_that_dies_is_nobody_s() -> None:
    relay, accepted = given_away()
    sends = relay.gone(STAGES[1][1], 1.0)
    assert [(send.to, send.message) for send in sends] == [
        (accepted.after, Dropped(accepted.below, relay.view.me, accepted.flow)),
        (accepted.before, Deny(accepted.above, accepted.flow, relay.view.me)),
    ]


def test_what_is_older_than_what_was_heard_changes_nothing() -> None:
    taker = GwtfRelay(view(STAGES[1][1], STAGES, 2, 2), Random(0))
    _, accepted = given_away()
    taker.handle(STAGES[1][0], accepted, 0.0)
    [newer, older] = ProcessId("a1", 0), STAGES[0][0]
    turn = accepted.own_turn
    taker.handle(newer, NewBefore(accepted.flow, newer, FlowId(newer, 1), turn + 2), 1.0)
    taker.handle(older, NewBefore(accepted.flow, older, FlowId(older, 9), turn + 1), 2.0)
    assert taker.inflow == {(newer, SOURCE): 1}
    taker.handle(STAGES[2][1], NewAfter(accepted.flow, STAGES[2][1], accepted.below, accepted.moves + 2), 3.0)
    taker.handle(STAGES[2][0], NewAfter(accepted.flow, STAGES[2][0], accepted.below, accepted.moves + 1), 4.0)
    assert taker.outflow == {(STAGES[2][1], SOURCE): 1}


def test_word_of_a_flow_that_two_have_given_to_each_other_does_not_go_round_for_ever() -> None:
    relay, accepted = given_away()
    stale = NewAfter(accepted.flow, STAGES[2][1], accepted.below, accepted.moves)
    sent = 0
    while sends := relay.handle(STAGES[1][1], stale, 1.0):
        [(sent, stale)] = [(sent + 1, send.message) for send in sends]
    assert 0 < sent <= len(STAGES[1])
