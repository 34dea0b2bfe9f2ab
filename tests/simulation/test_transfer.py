"""Pretended copies: at the rate of the links, and not while their receiver lets none come in."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import INFINITE, Network, Port, Shared, Spread
from swarmflow.simulator.transfer import LOAD_BYTES, LOADS_AHEAD, Transfer

DONORS, RECEIVER = [ProcessId("a", 1), ProcessId("b", 1)], ProcessId("c", 1)
MB = 1_000_000
STATE_BYTES = 400 * MB
AHEAD_BYTES = 2 * LOADS_AHEAD * LOAD_BYTES  # that are on their way at a time


@dataclass
class Machines:
    """Two donors and a receiver behind 10 MB/s each, all of them alive."""

    clock: Clock = field(default_factory=Clock)
    meter: Meter = field(default_factory=Meter)
    network: Network = field(default_factory=lambda: Shared(Spread(Constant(0.0), Constant(INFINITE), 0), ports()))

    def alive(self, process: ProcessId) -> bool:
        return True

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


def ports() -> dict[str, Port]:
    return {name: Port(place, 10 * MB, 10 * MB) for place, name in enumerate("abc")}


def test_a_copy_takes_its_bytes_over_the_receivers_link() -> None:
    assert Machines().copied_s((0.0, 0.0)) == pytest.approx(40.0, rel=0.01)


@pytest.mark.parametrize("held_s", [(0.0, 20.0), (12.0, 32.0), (36.0, 56.0)])
def test_a_copy_that_is_held_up_ends_as_much_later(held_s: tuple[float, float]) -> None:
    before_s = AHEAD_BYTES / (10 * MB)  # what was asked for before comes meanwhile
    assert 60.0 - before_s - 0.5 <= Machines().copied_s(held_s) <= 60.5
