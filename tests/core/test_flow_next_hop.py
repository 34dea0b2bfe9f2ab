"""Microbatches go along free flows, and elsewhere only where there is none."""

from __future__ import annotations

from random import Random

from swarmflow.core.flow.next_hop import NextHop
from swarmflow.core.flow.relay import Relay
from swarmflow.core.flow.words import View
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.types import ProcessId

ME, SOURCE, OTHER, X, Y, Z = (ProcessId(name, 0) for name in ("me", "s", "t", "x", "y", "z"))


def hops() -> NextHop:
    view = View(ME, 0, 2, 4, (SOURCE, OTHER), (), (X, Y, Z), dict.fromkeys((SOURCE, OTHER, X, Y, Z), 1.0))
    relay = Relay(view, Random(0))
    relay.books.add(True, X, SOURCE, 2, 0.0)
    relay.books.add(True, Y, SOURCE, 1, 0.0)
    fallback = Iwrr()
    fallback.announce((X, Y, Z))
    return NextHop(relay, fallback)


def processes(router: NextHop, source: ProcessId, count: int) -> list[ProcessId]:
    chosen = [router.choose(source) for _ in range(count)]
    return [choice.process for choice in chosen if choice is not None]


def test_each_unit_of_flow_carries_one_microbatch_at_a_time() -> None:
    router = hops()
    assert sorted(processes(router, SOURCE, 3)) == [X, X, Y]
    router.finished(Y, SOURCE)
    assert processes(router, SOURCE, 1) == [Y]


def test_without_a_free_flow_iwrr_decides_among_all() -> None:
    router = hops()
    assert set(processes(router, OTHER, 3)) == {X, Y, Z}
    processes(router, SOURCE, 3)
    assert router.choose(SOURCE, (X, Y, Z)) is None
    choice = router.choose(SOURCE, (X, Y))
    assert choice is not None
    assert choice.process == Z


def test_who_is_excluded_or_dead_gets_nothing() -> None:
    router = hops()
    assert processes(router, SOURCE, 0) == []
    choice = router.choose(SOURCE, (X,))
    assert choice is not None
    assert choice.process == Y
    router.gone(Y)
    assert (Y, SOURCE) not in router.busy
    assert Y not in processes(router, OTHER, 2)
