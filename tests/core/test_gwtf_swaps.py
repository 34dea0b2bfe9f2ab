"""Swaps in GWTF's negotiation: what annealing takes, what gives way to a redirect, and answers that come too late."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from swarmflow.core.protocol.messages.gwtf import (
    ChangeAccepted,
    CheapestOutflow,
    DownstreamChanged,
    FlowApproved,
    FlowDenied,
    FlowDropped,
    FlowId,
    FlowQuery,
    FlowRejected,
    FlowReport,
    RedirectAccepted,
    ReportedFlow,
    RequestChange,
    RequestFlow,
    RequestRedirect,
    SwapRefused,
    UpstreamChanged,
)
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_swaps import ANSWER_TIMEOUT_ROUNDS, CONSIDERED_MAX, GwtfSwapState
from swarmflow.core.routing.flow.node_types import INFINITE, FlowSend, View

SOURCE, BEFORE, ME, OTHER, AFTER, FAR = (ProcessId(name, 0) for name in ("source", "a0", "b0", "b1", "c0", "c1"))
COST = {BEFORE: 1.0, AFTER: 1.0, FAR: 3.0}
THEIRS = FlowId(OTHER, 1)
REDIRECT = ReportedFlow(THEIRS, SOURCE, BEFORE, FAR, 10.0, 10.0)  # through this relay it costs 4


def sent(sends: list[FlowSend], kind: type) -> list[tuple[ProcessId, Any]]:
    return [(send.to, send.message) for send in sends if isinstance(send.message, kind)]


def with_outflow(capacity: int, paired: bool) -> tuple[GwtfRelay, FlowId]:
    """Return a relay with one outflow to AFTER, and the name of the outflow."""
    view = View(ME, 1, 3, capacity, (BEFORE,), (OTHER,), (AFTER, FAR), COST)
    relay = GwtfRelay(view, Random(0), "sum")
    relay.handle(AFTER, CheapestOutflow(SOURCE, 5.0), 0.0)
    [(_, asked)] = sent(relay.tick(0.0), RequestFlow)
    relay.handle(AFTER, FlowApproved(SOURCE, 5.0, asked.flow, FlowId(AFTER, 1), 1, 0), 0.0)
    relay.handle(AFTER, CheapestOutflow(SOURCE, INFINITE), 0.0)
    if paired:
        relay.handle(BEFORE, RequestFlow(SOURCE, 6.0, FlowId(BEFORE, 1)), 0.0)
    return relay, asked.flow


def reported(relay: GwtfRelay, flow: ReportedFlow, links: dict[ProcessId, float] | None = None) -> list[FlowSend]:
    """Have the relay query the other one, which reports one flow."""
    assert sent(relay.tick(0.0), FlowQuery) == [(OTHER, FlowQuery())]
    return relay.handle(OTHER, FlowReport((flow,), tuple((links or {}).items())), 0.0)


def accepted() -> RedirectAccepted:
    return RedirectAccepted(THEIRS, SOURCE, BEFORE, FAR, FlowId(BEFORE, 2), FlowId(FAR, 1), 5.0, 1, 0, 1, 0)


def test_an_unpaired_outflow_gives_way_to_a_redirect() -> None:
    relay, unpaired = with_outflow(1, paired=False)
    sends = reported(relay, REDIRECT)
    assert sent(sends, RequestRedirect) == [(OTHER, RequestRedirect(THEIRS, BEFORE, FAR, 4.0, False))]
    assert sent(sends, CheapestOutflow) == [(BEFORE, CheapestOutflow(SOURCE, INFINITE))]
    assert relay.held == 1
    asked = relay.handle(BEFORE, RequestFlow(SOURCE, 6.0, FlowId(BEFORE, 1)), 0.0)
    assert sent(asked, FlowRejected) == [(BEFORE, FlowRejected(SOURCE, INFINITE, FlowId(BEFORE, 1)))]
    sends = relay.handle(OTHER, accepted(), 1.0)
    assert sent(sends, FlowDropped) == [(AFTER, FlowDropped(FlowId(AFTER, 1), ME, unpaired))]
    assert (relay.held, relay.inflow, relay.outflow) == (1, {(BEFORE, SOURCE): 1}, {(FAR, SOURCE): 1})


@pytest.mark.parametrize("refused", [True, False], ids=["refused", "not answered"])
def test_an_outflow_that_need_not_give_way_is_offered_again(refused: bool) -> None:
    relay, _ = with_outflow(1, paired=False)
    reported(relay, REDIRECT)
    sends = relay.handle(OTHER, SwapRefused(THEIRS), 1.0) if refused else relay.tick(ANSWER_TIMEOUT_ROUNDS)
    assert sent(sends, CheapestOutflow) == [(BEFORE, CheapestOutflow(SOURCE, 6.0))]
    asked = relay.handle(BEFORE, RequestFlow(SOURCE, 6.0, FlowId(BEFORE, 1)), 2.0)
    assert len(sent(asked, FlowApproved)) == 1


def test_an_outflow_that_is_paired_gives_way_to_nothing() -> None:
    relay, _ = with_outflow(1, paired=True)
    assert sent(reported(relay, REDIRECT), RequestRedirect) == []
    assert relay.held == 1


def test_a_redirect_that_is_accepted_too_late_unpairs_both_ends_and_takes_no_room() -> None:
    relay, _ = with_outflow(1, paired=False)
    reported(relay, REDIRECT)
    relay.tick(ANSWER_TIMEOUT_ROUNDS)
    relay.handle(BEFORE, RequestFlow(SOURCE, 6.0, FlowId(BEFORE, 1)), 5.0)
    sends = relay.handle(OTHER, accepted(), 6.0)
    assert sent(sends, FlowDenied) == [(BEFORE, FlowDenied(FlowId(BEFORE, 2), THEIRS, OTHER))]
    assert sent(sends, FlowDropped) == [(FAR, FlowDropped(FlowId(FAR, 1), OTHER, THEIRS))]
    assert (relay.held, relay.outflow) == (1, {(AFTER, SOURCE): 1})


def test_a_flow_takes_part_in_no_other_swap_until_a_late_change_is_answered() -> None:
    relay, own = with_outflow(1, paired=True)
    change = ReportedFlow(THEIRS, SOURCE, BEFORE, FAR, 9.0, 9.0)
    assert len(sent(reported(relay, change, {AFTER: 1.0}), RequestChange)) == 1
    relay.tick(ANSWER_TIMEOUT_ROUNDS)
    assert relay.swaps.report().swappable == ()
    again = relay.handle(OTHER, FlowReport((change,), ((AFTER, 1.0),)), ANSWER_TIMEOUT_ROUNDS)
    assert sent(again, RequestChange) == []
    sends = relay.handle(OTHER, ChangeAccepted(own, THEIRS, FAR, FlowId(FAR, 1), 1, 0), 6.0)
    assert sent(sends, UpstreamChanged) == [(FAR, UpstreamChanged(FlowId(FAR, 1), ME, own, 2))]
    assert relay.outflow == {(FAR, SOURCE): 1}
    assert [flow.flow for flow in relay.swaps.report().swappable] == [own]


@pytest.mark.parametrize("late", [False, True])
def test_only_the_relay_that_was_asked_for_a_change_can_answer(late: bool) -> None:
    relay, own = with_outflow(1, paired=True)
    change = ReportedFlow(THEIRS, SOURCE, BEFORE, FAR, 9.0, 9.0)
    assert len(sent(reported(relay, change, {AFTER: 1.0}), RequestChange)) == 1
    if late:
        relay.tick(ANSWER_TIMEOUT_ROUNDS)
    liar = ProcessId("b2", 0)
    state = relay.swaps.state
    assert relay.handle(liar, ChangeAccepted(own, FlowId(liar, 1), FAR, FlowId(FAR, 9), 9, 9), 6.0) == []
    relay.handle(liar, SwapRefused(own), 6.0)
    assert (relay.outflow, relay.swaps.state) == ({(AFTER, SOURCE): 1}, state)
    assert relay.swaps.report().swappable == ()
    relay.handle(OTHER, ChangeAccepted(own, THEIRS, FAR, FlowId(FAR, 1), 1, 0), 6.0)
    assert relay.outflow == {(FAR, SOURCE): 1}


@pytest.mark.parametrize(
    ("sender", "message"),
    [
        (ProcessId("b2", 0), accepted()),
        (OTHER, replace(accepted(), upstream=ProcessId("x", 0))),
        (OTHER, replace(accepted(), downstream=ProcessId("x", 0))),
    ],
    ids=["by another relay", "with another sender", "with another receiver"],
)
def test_a_redirect_is_taken_only_as_it_was_asked_for(sender: ProcessId, message: RedirectAccepted) -> None:
    relay, _ = with_outflow(2, paired=True)
    assert len(sent(reported(relay, REDIRECT), RequestRedirect)) == 1
    sends = relay.handle(sender, message, 1.0)
    assert sent(sends, FlowDenied) == [(message.upstream, FlowDenied(message.upstream_flow, THEIRS, sender))]
    assert sent(sends, FlowDropped) == [(message.downstream, FlowDropped(message.downstream_flow, sender, THEIRS))]
    assert relay.outflow == {(AFTER, SOURCE): 1}


def test_a_late_redirect_is_taken_where_there_is_room_and_nothing_else_is_asked_of_who_owes_it() -> None:
    relay, _ = with_outflow(3, paired=True)
    reported(relay, REDIRECT)
    relay.tick(ANSWER_TIMEOUT_ROUNDS)
    another = replace(REDIRECT, flow=FlowId(OTHER, 2))
    assert sent(relay.handle(OTHER, FlowReport((another,), ()), 5.0), RequestRedirect) == []
    relay.handle(OTHER, accepted(), 6.0)
    assert relay.outflow == {(AFTER, SOURCE): 1, (FAR, SOURCE): 1}
    assert len(sent(reported(relay, another), RequestRedirect)) == 1


def test_a_request_ends_with_the_relay_that_was_asked() -> None:
    relay, own = with_outflow(1, paired=True)
    reported(relay, ReportedFlow(THEIRS, SOURCE, BEFORE, FAR, 9.0, 9.0), {AFTER: 1.0})
    relay.gone(OTHER, 1.0)
    assert relay.swaps.state is GwtfSwapState.IDLE
    assert [flow.flow for flow in relay.swaps.report().swappable] == [own]


@pytest.mark.parametrize(("temperature", "asked"), [(0.0, 0), (1e9, 1)])
def test_annealing_asks_for_a_swap_that_costs_more_while_it_is_hot(temperature: float, asked: int) -> None:
    relay, _ = with_outflow(1, paired=True)
    relay.swaps.annealing.temperature = temperature
    sends = reported(relay, ReportedFlow(THEIRS, SOURCE, BEFORE, FAR, 1.0, 1.0), {AFTER: 1.0})
    requests = sent(sends, RequestChange)
    assert [message.anneal for _, message in requests] == [True] * asked


class CountingRandom(Random):
    """Counts its floats."""

    drawn = 0

    def random(self) -> float:
        self.drawn += 1
        return super().random()


@pytest.mark.parametrize("paired", [True, False])
def test_no_more_swaps_are_considered_than_there_is_time_for(paired: bool) -> None:
    """Annealing is asked about each one that saves nothing, with a random number each."""
    relay, _ = with_outflow(1, paired=paired)
    relay.swaps.annealing.random = random = CountingRandom(0)
    relay.swaps.annealing.temperature = 1e-9
    sent(relay.tick(0.0), FlowQuery)
    worse = tuple(ReportedFlow(FlowId(OTHER, n), SOURCE, BEFORE, FAR, 1.0, 1.0) for n in range(2 * CONSIDERED_MAX))
    assert relay.handle(OTHER, FlowReport(worse, ((AFTER, 1.0),)), 0.0) == []
    assert random.drawn == CONSIDERED_MAX


def test_a_flow_without_an_inflow_is_not_reported() -> None:
    assert with_outflow(1, paired=False)[0].swaps.report().swappable == ()
    assert len(with_outflow(1, paired=True)[0].swaps.report().swappable) == 1


def test_who_sends_to_a_former_holder_is_notified_of_the_present_one() -> None:
    relay, _ = with_outflow(2, paired=True)
    reported(relay, REDIRECT)
    relay.handle(OTHER, accepted(), 1.0)
    direct = UpstreamChanged(THEIRS, BEFORE, FlowId(BEFORE, 3), 2)
    assert relay.handle(BEFORE, direct, 2.0) == []
    forwarded = UpstreamChanged(THEIRS, BEFORE, FlowId(BEFORE, 4), 3, forwards=1)
    moved = DownstreamChanged(FlowId(BEFORE, 4), ME, THEIRS, 1)
    assert sent(relay.handle(OTHER, forwarded, 3.0), DownstreamChanged) == [(BEFORE, moved)]
