"""What a peer tells the leader of its ways: what it has measured, when it changes, and of few peers only."""

from __future__ import annotations

from swarmflow.core.protocol.messages import LinkRateReport
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.link_rates import AFTER_MAX, LinkRates
from tests.core.samples import process

MATE, AFTER, FAR = process("m"), process("a"), process("x")
ELEMENTS = {"stage-1": 100, "tied": 5}


def measured(made: LinkRates, process_: ProcessId, seconds: float) -> None:
    """A tensor of 1,000 bytes took so long."""
    made.links.record_transfer(process_, 1000, seconds, made.links.now_s + 100.0, direct=True)


def link_rates() -> LinkRates:
    made = LinkRates()
    assert made.open((MATE,), (AFTER,)) == [MATE]
    return made


def test_a_rate_is_told_once_and_again_when_it_has_changed() -> None:
    made = link_rates()
    assert made.report(ELEMENTS) is None, "nothing is known"
    measured(made, AFTER, 0.5)
    assert made.report(ELEMENTS) == LinkRateReport((("stage-1", 100), ("tied", 5)), ((AFTER, 2000.0),))
    measured(made, AFTER, 0.45)
    assert made.report(ELEMENTS) is None, "hardly another one"
    measured(made, MATE, 1.0)
    told = made.report(ELEMENTS)
    assert told is not None
    assert dict(told.rates).keys() == {AFTER, MATE}
    made.forget_reports()
    assert made.report(ELEMENTS) == told, "there is another leader"


def test_what_stays_slow_is_believed() -> None:
    made = link_rates()
    measured(made, AFTER, 1.0)
    made.report(ELEMENTS)
    measured(made, AFTER, 2.0)
    assert made.report(ELEMENTS) is None, "once is not enough"
    for _ in range(60):
        measured(made, AFTER, 2.0)
    told = made.report(ELEMENTS)
    assert told is not None
    assert abs(dict(told.rates)[AFTER] - 500.0) < 5.0


def test_nothing_is_told_of_others() -> None:
    made = link_rates()
    measured(made, FAR, 1.0)
    assert made.report(ELEMENTS) is None


def test_of_a_large_stage_nothing_is_told() -> None:
    made = LinkRates()
    many = tuple(process(f"p{number}") for number in range(AFTER_MAX + 1))
    assert made.open(many, many) == []
    measured(made, many[0], 1.0)
    assert made.report(ELEMENTS) is None


def test_who_is_gone_is_forgotten_and_who_stays_need_not_be_probed_again() -> None:
    made = link_rates()
    measured(made, MATE, 1.0)
    measured(made, AFTER, 1.0)
    assert made.open((MATE,), ()) == []
    told = made.report(ELEMENTS)
    assert told is not None
    assert dict(told.rates).keys() == {MATE}
