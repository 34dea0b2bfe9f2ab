"""Pretended copies: at the rate of the links, and not while their receiver lets none come in."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import INFINITE, Network, Port, Shared, Spread
from swarmflow.simulator.transfer import (
    AHEAD_MIN,
    LOAD_BYTES,
    LOADS_AHEAD,
    PIECE_BYTES,
    STEAL_S,
    StageTransfer,
    Transfer,
)

DONORS, RECEIVER, OTHER = [ProcessId("a", 1), ProcessId("b", 1)], ProcessId("c", 1), ProcessId("d", 1)
MB = 1_000_000
NOTICED_S = 5.0  # until it shows that a process is dead
STATE_BYTES, SMALL_BYTES = 400 * MB, 5 * MB
AHEAD_BYTES = 2 * LOADS_AHEAD * LOAD_BYTES  # that are on their way at a time


@dataclass
class Machines:
    """Two donors and two receivers behind 10 MB/s each."""

    clock: Clock = field(default_factory=Clock)
    meter: Meter = field(default_factory=Meter)
    network: Network = field(default_factory=lambda: behind(10 * MB))
    dead: set[ProcessId] = field(default_factory=set)

    def alive(self, process: ProcessId) -> bool:
        return process not in self.dead

    def noticed_s(self) -> float:
        return NOTICED_S

    def copied_s(self, held_s: tuple[float, float]) -> float:
        """When a state is copied; in the time held_s nothing may be asked for."""
        ended_s: list[float] = []

        def ended() -> None:
            ended_s.append(self.clock.now_s)

        def held() -> bool:
            return held_s[0] <= self.clock.now_s < held_s[1]

        Transfer(self, RECEIVER, [(DONORS, STATE_BYTES)], ended, together=True, hold=held).begin()
        assert not self.clock.run(lambda: False, 100.0), "everything that was planned has happened"
        [at_s] = ended_s
        return at_s

    def loaded_s(self, donors: list[ProcessId], *receivers: ProcessId) -> list[float]:
        """When these receivers have a small state, to which donors give a quarter of their links.

        Each one begins a tenth of a second after the one before it.
        """
        ended_s: list[float] = []
        for number, receiver in enumerate(receivers):
            self.clock.after(0.1 * number, partial(self._load, receiver, donors, ended_s))
        assert not self.clock.run(lambda: False, 100.0), "everything that was planned has happened"
        return ended_s

    def _load(self, receiver: ProcessId, donors: list[ProcessId], ended_s: list[float]) -> None:
        def ended() -> None:
            ended_s.append(self.clock.now_s)

        StageTransfer(self, receiver, lambda: donors, lambda _: 0.25, SMALL_BYTES, ended).begin()


def behind(of_b: float) -> Shared:
    """A network of links of 10 MB/s, except for b's."""
    rates = {"a": 10 * MB, "b": of_b, "c": 10 * MB, "d": 10 * MB}
    ports = {name: Port(place, rate, rate) for place, (name, rate) in enumerate(rates.items())}
    return Shared(Spread(Constant(0.0), Constant(INFINITE), 0), ports)


def test_a_copy_takes_its_bytes_over_the_receivers_link() -> None:
    assert Machines().copied_s((0.0, 0.0)) == pytest.approx(40.0, rel=0.01)


@pytest.mark.parametrize("held_s", [(0.0, 20.0), (12.0, 32.0), (36.0, 56.0)])
def test_a_copy_that_is_held_up_ends_as_much_later(held_s: tuple[float, float]) -> None:
    before_s = AHEAD_BYTES / (10 * MB)  # what was asked for before comes meanwhile
    assert 60.0 - before_s - 0.5 <= Machines().copied_s(held_s) <= 60.5


def test_a_dead_donor_is_asked_until_it_shows() -> None:
    machines = Machines(dead=set(DONORS))
    assert machines.copied_s((0.0, 0.0)) == pytest.approx(NOTICED_S, rel=0.01)


def test_the_rest_comes_from_the_donor_that_is_alive() -> None:
    machines = Machines()
    machines.clock.after(20.0, lambda: machines.dead.add(DONORS[0]))
    # The receiver's link is the limit: the other donor alone fills it, once what the dead one owed is asked of it.
    assert 40.0 <= machines.copied_s((0.0, 0.0)) <= 40.0 + NOTICED_S + 0.5


def test_a_load_from_one_donor_takes_its_bytes_alone() -> None:
    machines = Machines()
    assert machines.loaded_s(DONORS[:1], RECEIVER) == pytest.approx([0.5], rel=0.01)
    assert machines.meter.wire_bytes["state"] == SMALL_BYTES


def test_two_small_loads_from_one_donor_end_when_its_link_has_carried_both() -> None:
    assert max(Machines().loaded_s(DONORS[:1], RECEIVER, OTHER)) == pytest.approx(1.0, rel=0.01)


def test_what_a_slow_donor_owes_is_asked_of_another_one() -> None:
    machines = Machines(network=behind(MB / 100))
    [ended_s] = machines.loaded_s(DONORS, RECEIVER)
    assert STEAL_S < ended_s <= STEAL_S + 0.5, "it is late, and the other one gives as much again at most"
    assert machines.meter.wire_bytes["state"] <= SMALL_BYTES + AHEAD_MIN * PIECE_BYTES


def test_all_of_many_donors_give() -> None:
    donors = [ProcessId(f"donor-{number}", 1) for number in range(20)]
    ports = {donor.name: Port(place, MB, MB) for place, donor in enumerate(donors)}
    ports |= {"c": Port(len(donors), MB, INFINITE)}
    machines = Machines(network=Shared(Spread(Constant(0.0), Constant(INFINITE), 0), ports))
    [ended_s] = machines.loaded_s(donors, RECEIVER)
    assert ended_s <= 2 * SMALL_BYTES / (len(donors) * MB), "two pieces of each at most: there are 26"
