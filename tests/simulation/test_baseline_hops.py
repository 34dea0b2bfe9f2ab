"""The microbatches that a peer of a baseline holds, on a computer whose passes are done when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from swarmflow.baselines.dispatcher import Repair
from swarmflow.baselines.hop import BaselineHopState
from swarmflow.baselines.hop_table import BaselineHopTable
from swarmflow.baselines.machine import BaselineTask
from swarmflow.baselines.messages import BaselineAbandon, BaselineAsk, BaselineForward, BaselineMessage, Trip
from swarmflow.baselines.next_hop import StochasticWiring
from swarmflow.core.protocol.types import ProcessId

TRAINER, BEFORE, ME, TRIP = ProcessId("t0", 1), ProcessId("p0", 1), ProcessId("p1", 1), Trip(0, 0)


class Computer:
    """A process without a network, with memory for two graphs."""

    me, now_s, timeout_s, forward_s, without_graph = ME, 0.0, 0.0, None, 0

    def __init__(self) -> None:
        self.halves: list[Callable[[], None]] = []  # each ends the first part of a pass
        self.sent: list[BaselineMessage] = []
        self.receivers: list[ProcessId] = []  # of each
        self.waits: list[tuple[float, Callable[[], None]]] = []
        self.loads: list[tuple[int, Callable[[], None]]] = []
        self.lost: list[tuple[ProcessId, float]] = []  # shares of gradients that nobody has got

    def send(self, to: ProcessId, message: BaselineMessage, tensor_bytes: int = 0) -> None:
        self.sent.append(message)
        self.receivers.append(to)

    def compute(self, task: BaselineTask) -> None:
        assert task.given is not None
        self.halves.append(task.given)

    def drop(self, trip: Trip | None = None) -> None:
        self.halves.clear()

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.waits.append((delay_s, callback))

    def load(self, stage: int, donors: tuple[ProcessId, ...], done: Callable[[], None]) -> None:
        self.loads.append((stage, done))

    def capacity(self, stage: int) -> int:
        return 2

    def tensor_bytes(self, stage: int, kind: str) -> int:
        return 1

    def share_bytes(self, group: str, members: int) -> int:
        return 1

    def unsummed(self, process: ProcessId, group: str, share: float) -> None:
        self.lost.append((process, share))

    def count(self, name: str) -> None:
        return


def test_sums_that_waited_for_a_microbatch_do_not_wait_once_it_is_given_up() -> None:
    computer, unfinished = Computer(), list[bool]()
    table = BaselineHopTable(
        computer, 1, 2, StochasticWiring(), Repair.RESTART, lambda: unfinished.append(table.unfinished)
    )
    table.ask(BEFORE, BaselineAsk(TRIP, 1, 1, TRAINER))
    table.forward(BEFORE, BaselineForward(TRIP, 1))
    computer.halves[0]()
    assert table.hops[TRIP].state is BaselineHopState.GIVEN
    assert (table.unfinished, unfinished) == (True, [])
    table.abandon(TRAINER, BaselineAbandon(TRIP))
    assert unfinished == [False]
    assert (computer.waits, computer.loads) == ([], []), "it waits for nothing else"
