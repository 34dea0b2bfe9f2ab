"""Detours: around slow ways and no others, several tensors on several ways, and nothing lost with who carries it."""

from __future__ import annotations

import pytest

from swarmflow.core.protocol.actions import Action, Send
from swarmflow.core.protocol.messages import Accepted, Backward, Forward, LinkRateReport, RelayTensor
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Ref
from swarmflow.core.routing.link_rates import LinkRates
from swarmflow.core.routing.relays import NOTICED_S, Relays
from tests.core.samples import messages, microbatch, process

ME, TO, VIA, OTHER = process("me"), process("to"), process("via"), process("other")
FAST, SLOW = 50e6, 5e6
TENSOR = Ref(1, 50_000_000)  # 1 s on a fast way, 10 s on a slow one


def detours(direct: float = SLOW, via: float = FAST, other: float = 0.0) -> Relays:
    """Ways to TO: directly, through VIA, and through OTHER; both ways of a detour have its rate."""
    link_rates = LinkRates()
    link_rates.open((VIA, OTHER), (TO,))
    for process_, rate in ((TO, direct), (VIA, via), (OTHER, other)):
        if rate:
            link_rates.links.record_probe(process_, 1000, 1000 / rate, 0.0)
    made = Relays(ME, TENSOR.size_bytes)
    made.open(link_rates, {0: (VIA, OTHER), 1: (TO,)})
    made.learn(VIA, LinkRateReport((), ((TO, via),)))
    made.learn(OTHER, LinkRateReport((), ((TO, other),)))
    return made


def forward(index: int = 0) -> Send:
    return Send(TO, Forward(microbatch(index), 1, FIRST_ATTEMPT), (TENSOR,))


def took(actions: list[Action]) -> list[str]:
    """Through whom each tensor went."""
    return [action.to.name for action in actions if isinstance(action, Send)]


def test_a_slow_way_is_gone_around_and_the_router_hears_how_long_it_takes_then() -> None:
    made = detours()
    assert made.changed[TO] == pytest.approx(FAST / 2), "a tensor is handed on when all of it is there"
    [(to, carry)] = messages(made.around([forward()], 0.0), RelayTensor)
    assert (to, carry) == (VIA, RelayTensor(TO, forward=Forward(microbatch(0), 1, FIRST_ATTEMPT)))
    back = Send(TO, Backward(microbatch(0), 0, FIRST_ATTEMPT), (TENSOR,))
    assert messages(made.around([back], 9.0), RelayTensor) == [
        (VIA, RelayTensor(TO, backward=Backward(microbatch(0), 0, FIRST_ATTEMPT)))
    ]


def test_what_is_no_tensor_or_goes_elsewhere_is_left_alone() -> None:
    made = detours()
    others = [
        Send(TO, Accepted(microbatch(0), 1, FIRST_ATTEMPT)),
        Send(TO, Backward(microbatch(0), 0, FIRST_ATTEMPT)),
        Send(process("unknown"), Forward(microbatch(0), 1, FIRST_ATTEMPT), (TENSOR,)),
    ]
    assert made.around(list(others), 0.0) == others


@pytest.mark.parametrize("via", [FAST / 3, 2 * FAST])
def test_a_detour_that_gains_little_is_not_taken(via: float) -> None:
    made = detours(direct=FAST, via=via)
    assert took(made.around([forward()], 0.0)) == ["to"]


def test_small_tensors_take_none() -> None:
    made = Relays(ME, 1 << 20)
    made.open(detours().link_rates, {0: (VIA, OTHER), 1: (TO,)})
    made.learn(VIA, LinkRateReport((), ((TO, FAST),)))
    assert took(made.around([forward()], 0.0)) == ["to"]
    assert not made.changed


@pytest.mark.parametrize(("mates", "after", "ways"), [(1, 3, ["via"]), (3, 1, ["via"]), (3, 3, ["to"])])
def test_between_stages_of_many_peers_there_are_none(mates: int, after: int, ways: list[str]) -> None:
    made = detours()
    beside, beyond = ([process(f"{stage}{number}") for number in range(4)] for stage in ("beside", "beyond"))
    made.open(made.link_rates, {0: (VIA, *beside[: mates - 1]), 1: (TO, *beyond[: after - 1])})
    assert took(made.around([forward()], 0.0)) == ways


def test_several_tensors_take_several_ways() -> None:
    made = detours(direct=FAST / 3, via=FAST, other=FAST)
    sent = made.around([forward(index) for index in range(6)], 0.0)
    assert took(sent) == ["via", "other", "to", "via", "other", "via"]
    assert took(made.around([forward(6)], 60.0)) == ["via"], "all ways are free again"


def test_what_was_on_its_way_through_a_dead_peer_is_known_for_a_while() -> None:
    made = detours()
    made.around([forward(1)], 0.0)
    assert made.gone(VIA, 3.0) == [(TO, Forward(microbatch(1), 1, FIRST_ATTEMPT))]
    assert made.gone(VIA, 3.0) == []
    assert took(made.around([forward(2)], 3.0)) == ["to"], "there is no other way left"
    late = detours()
    late.around([forward(1)], 0.0)
    assert late.gone(VIA, 60.0) == [], "it has long been there"


def test_what_a_relay_took_along_is_known_until_its_death_is_noticed() -> None:
    """On fast links a tensor takes a tenth of a second, and a broken connection is noticed after a second."""
    for noticed_s, lost in ((1.0, 1), (NOTICED_S + 0.1, 0)):
        made = detours(direct=10 * SLOW, via=100 * FAST)
        assert took(made.around([forward()], 0.0)) == ["via"]
        assert len(made.gone(VIA, noticed_s)) == lost


@pytest.mark.parametrize(("place", "ways"), [(-1, ["to"]), (0, ["via"]), (1, ["via"])])
def test_none_leads_through_who_has_not_heard_of_the_receiver(place: int, ways: list[str]) -> None:
    made = detours()
    made.open(made.link_rates, {place: (VIA,), 1: (TO,)} if place < 1 else {1: (TO, VIA)})
    assert took(made.around([forward()], 0.0)) == ways


def test_what_has_to_be_sent_again_goes_directly_until_the_next_epoch() -> None:
    made = detours()
    assert took(made.around([forward(1), forward(1)], 0.0)) == ["via", "to"]
    back = Send(TO, Backward(microbatch(1), 0, FIRST_ATTEMPT), (TENSOR,))
    assert took(made.around([back, back], 60.0)) == ["via", "to"]
    made.open(made.link_rates, {0: (VIA, OTHER), 1: (TO,)})
    assert took(made.around([forward(1)], 0.0)) == ["via"]


def test_what_takes_a_detour_tells_nothing_of_the_way_itself() -> None:
    made = detours()
    made.around([forward(3)], 0.0)
    assert made.link_rates.relayed == {microbatch(3)}
    made.gone(VIA, 0.0)
    made.around([forward(3)], 0.0)
    assert made.link_rates.relayed == set()


def test_nobody_can_fill_the_table_or_tell_of_impossible_ways() -> None:
    made = detours(via=0.0)
    for number in range(200):
        made.learn(process(f"x{number}"), LinkRateReport((), tuple((process(f"y{n}"), FAST) for n in range(200))))
    made.learn(VIA, LinkRateReport((), ((TO, float("nan")), (OTHER, -1.0), (ME, float("inf")), (TO, 1e-310))))
    assert took(made.around([forward()], 0.0)) == ["to"]
    assert len(made._reported) <= 64
    made.open(made.link_rates, {1: (TO,)})
    assert made._reported.keys() <= {TO}


def test_one_who_told_of_a_new_epoch_early_is_heard_once_it_is_opened_here() -> None:
    made = detours(via=0.0)
    new = process("new")
    made.learn(new, LinkRateReport((), ((TO, FAST), (ME, FAST))))
    assert took(made.around([forward()], 0.0)) == ["to"]
    made.open(made.link_rates, {0: (new,), 1: (TO,)})
    assert took(made.around([forward()], 0.0)) == ["new"]
