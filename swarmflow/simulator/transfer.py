"""Pretended transfers of states from process to process, in the chunks that the runtime requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.background import Background
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import Network
from swarmflow.simulator.sizes import FRAME, HEADER

# The runtime asks each donor for many small pieces (runtime/execution/piece_loading.py) or chunks (state_transfer.py)
# ahead; a few larger ones give the same rate in fewer events. But it sends them between the parts of a tensor, and here
# a tensor is sent as a whole, between two of which there have to be as many as the background's share allows.
LOAD_BYTES = 2 << 20
LOADS_AHEAD = 8  # of each donor: with 2, copies of Llama-3-8B took half as long again, whatever their share was
LOADS_AHEAD_SHARED = 32  # of one that gives a share of its link to those who load
HELD_POLL_S = 0.25  # as in the runtime's state_transfer.py


def never() -> bool:
    """Hold nothing up."""
    return False


class Carrier(Protocol):
    """What a transfer needs of a swarm."""

    clock: Clock
    network: Network
    meter: Meter

    def alive(self, process: ProcessId) -> bool:
        """Return whether a process is alive."""
        ...

    @property
    def noticed_s(self) -> Callable[[], float]:
        """Return the seconds until a process notices that another one that it asked is dead."""
        ...


@dataclass(slots=True)
class Transfer:
    """Fetches states one after the other, beside all other traffic."""

    world: Carrier
    to: ProcessId
    wanted: list[tuple[list[ProcessId], int]]  # (donors, bytes) of each state
    done: Callable[[], None]  # called at the end: the receiver checks what had no donor that was alive
    part: Callable[[], None] | None = None  # called with each piece that has arrived
    together: bool = False  # each state from all its donors at a time, and not from the first that is alive
    hold: Callable[[], bool] = never  # whether nothing may be asked for at the moment

    def begin(self) -> None:
        """Fetch the next state."""
        if not self.wanted:
            self.world.clock.after(0.0, self._finish)
            return
        named, size_bytes = self.wanted.pop(0)
        what = size_bytes, self.begin, self.part, self.hold, self.together
        StageTransfer(self.world, self.to, lambda: named, lambda _: None, *what).begin()

    def _finish(self) -> None:
        if self.world.alive(self.to):
            self.done()


@dataclass(slots=True)
class StageTransfer:
    """Loads a stage from all its donors, from each as fast as it can give, beside all other traffic.

    That a donor is dead shows when what was asked of it does not come.
    """

    world: Carrier
    to: ProcessId
    donors: Callable[[], list[ProcessId]]  # as they are named now
    share: Callable[[ProcessId], float | None]  # of its uplink, that a donor gives a load however busy it is
    left_bytes: int
    done: Callable[[], None]  # called at the end, or when no donor is left: the receiver checks
    part: Callable[[], None] | None = None  # called with each piece that has arrived
    hold: Callable[[], bool] = never  # whether nothing may be asked for at the moment
    together: bool = True  # from all donors at a time, and not from the first one that answers
    _gone: set[ProcessId] = field(init=False, default_factory=set)  # donors that were noticed to be dead
    _looks: bool = field(init=False, default=False)  # whether it still is, soon
    _asked: Counter[ProcessId] = field(init=False, default_factory=Counter)  # pieces on their way, by donor

    def begin(self) -> None:
        """Ask every donor for the next pieces. At the end, what one owes another is asked for too."""
        answering = [donor for donor in self.donors() if donor not in self._gone]
        if self.left_bytes <= 0 or not answering:
            self.left_bytes, self.donors = 0, list
            self.world.clock.after(0.0, self._finish)
            return
        if self.hold():
            if not self._looks:
                self._looks = True
                self.world.clock.after(HELD_POLL_S, self._look)
            return
        for donor in answering if self.together else answering[:1]:
            ahead = LOADS_AHEAD_SHARED if self.share(donor) else LOADS_AHEAD
            while self._asked[donor] < ahead:
                self._asked[donor] += 1
                asked = self.world.network.path(self.to, donor).send(FRAME + HEADER, False, self.world.clock.now_s)
                self.world.clock.at(asked.due_s, partial(self._answer, donor))

    def _look(self) -> None:
        self._looks = False
        if self.left_bytes > 0 and self.world.alive(self.to):
            self.begin()

    def _answer(self, donor: ProcessId) -> None:
        if not self.world.alive(donor):
            self.world.clock.after(self.world.noticed_s(), partial(self._lost, donor))
            return
        if self.left_bytes <= 0:
            self._arrived(donor)
            return
        size_bytes = min(LOAD_BYTES, self.left_bytes)
        path, now_s = self.world.network.path(donor, self.to), self.world.clock.now_s
        piece = path.background(size_bytes, now_s, self.share(donor))
        self.world.meter.messages["state"] += 1
        self.world.meter.wire_bytes["state"] += size_bytes
        self._wait(donor, piece, size_bytes)

    def _wait(self, donor: ProcessId, piece: Background, size_bytes: int) -> None:
        due_s = piece.next_s(self.world.clock.now_s)
        if due_s is not None:
            self.world.clock.at(due_s, partial(self._wait, donor, piece, size_bytes))
        elif self.world.alive(donor):
            self._arrived(donor, size_bytes)
        else:
            self.world.clock.after(self.world.noticed_s(), partial(self._lost, donor))

    def _lost(self, donor: ProcessId) -> None:
        """Ask others for what a donor did not give: it is dead."""
        self._gone.add(donor)
        self._arrived(donor)

    def _arrived(self, donor: ProcessId, size_bytes: int = 0) -> None:
        """Count a piece that is here, and ask for the next one. 0: it did not come."""
        self._asked[donor] -= 1
        if self.left_bytes <= 0 or not self.world.alive(self.to):
            return
        self.left_bytes -= size_bytes
        if size_bytes and self.part is not None:
            self.part()
        self.begin()

    def _finish(self) -> None:
        if self.world.alive(self.to):
            self.done()
