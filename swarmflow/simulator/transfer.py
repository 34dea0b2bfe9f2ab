"""Pretended transfers of states from process to process, in the chunks that the runtime requests."""

from __future__ import annotations

import math
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
LOAD_BYTES = 2 << 20  # of a piece of a large state
PIECE_BYTES = 3 << 16  # of the smallest one: 16,384 parameters with AdamW's state, as in the runtime
PIECES = 64  # of a state between the two: the slowest donor owes the last one
LOADS_AHEAD = 8  # of each donor: with 2, copies of Llama-3-8B took half as long again, whatever their share was
LOADS_AHEAD_SHARED = 32  # of one that gives a share of its link to those who load
AHEAD_MAX = 1 / 8  # of a state, that one donor is asked for at a time: fast donors get what slow ones would owe
AHEAD_MIN = 4  # pieces all the same, as in the runtime (piece_requests.py)
STEAL_S = 1.0  # as in the runtime's piece_table.py
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


@dataclass(slots=True, eq=False)
class _StatePart:
    """A part of a state."""

    size_bytes: int
    asked: int = 0  # donors that owe it
    here: bool = False


@dataclass(slots=True, eq=False)
class _PartRequest:
    """A piece that a donor was asked for."""

    piece: _StatePart
    donor: ProcessId
    asked_s: float
    stolen: bool = False  # it was asked of two donors


@dataclass(slots=True)
class StageTransfer:
    """Loads a stage from all its donors, from each as fast as it can give, beside all other traffic.

    Each piece is asked of one donor; at the end, what one owes for long is asked of another one too. That a donor is
    dead shows when what was asked of it does not come.
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
    _piece_bytes: int = field(init=False)
    _ahead_bytes: float = field(init=False)  # that one donor is asked for at most
    _unasked_bytes: int = field(init=False)  # that no donor owes
    _gone: set[ProcessId] = field(init=False, default_factory=set)  # donors that were noticed to be dead
    _look_s: float = field(init=False, default=math.inf)  # when it looks again
    _requests: dict[_PartRequest, None] = field(init=False, default_factory=dict)  # those made first come first
    _asked: Counter[ProcessId] = field(init=False, default_factory=Counter)  # requests by donor

    def __post_init__(self) -> None:
        self._piece_bytes = min(max(self.left_bytes // PIECES, PIECE_BYTES), LOAD_BYTES)
        self._ahead_bytes = max(AHEAD_MIN * self._piece_bytes, AHEAD_MAX * self.left_bytes)
        self._unasked_bytes = self.left_bytes

    def begin(self) -> None:
        """Ask every donor for the next pieces."""
        answering = [donor for donor in self.donors() if donor not in self._gone]
        if self.left_bytes <= 0 or not answering:
            self.left_bytes, self.donors = 0, list
            self.world.clock.after(0.0, self._finish)
            return
        if self.hold():
            self._look_at(self.world.clock.now_s + HELD_POLL_S)
            return
        asked = answering if self.together else answering[:1]
        while asked:  # one piece of each at a time: there may be more donors than pieces
            asked = [donor for donor in asked if self._ask(donor)]
        if self._unasked_bytes <= 0 and len(answering) > 1:
            now_s = self.world.clock.now_s
            late_s = next((each.asked_s + STEAL_S for each in self._requests if not each.stolen), math.inf)
            self._look_at(late_s if late_s > now_s else now_s + STEAL_S)

    def _ask(self, donor: ProcessId) -> bool:
        """Ask a donor for one piece more, unless it owes enough or none is left; return whether it was asked."""
        ahead = LOADS_AHEAD_SHARED if self.share(donor) else LOADS_AHEAD
        most = min(ahead * LOAD_BYTES, self._ahead_bytes) // self._piece_bytes
        if self._asked[donor] >= most or (request := self._next(donor)) is None:
            return False
        request.piece.asked += 1
        self._requests[request] = None
        self._asked[donor] += 1
        asked = self.world.network.path(self.to, donor).send(FRAME + HEADER, False, self.world.clock.now_s)
        self.world.clock.at(asked.due_s, partial(self._answer, request))
        return True

    def _next(self, donor: ProcessId) -> _PartRequest | None:
        """Return what to ask a donor for: what nobody owes, then what another one has owed for long."""
        now_s = self.world.clock.now_s
        if self._unasked_bytes > 0:
            piece = _StatePart(min(self._piece_bytes, self._unasked_bytes))
            self._unasked_bytes -= piece.size_bytes
            return _PartRequest(piece, donor, now_s)
        for request in self._requests:
            if request.donor != donor and not request.stolen and now_s - request.asked_s >= STEAL_S:
                request.stolen = True
                return _PartRequest(request.piece, donor, now_s, stolen=True)
        return None

    def _look_at(self, at_s: float) -> None:
        """Look again at this moment, unless it does so earlier."""
        if at_s < self._look_s:
            self._look_s = at_s
            self.world.clock.at(at_s, partial(self._look, at_s))

    def _look(self, at_s: float) -> None:
        if at_s == self._look_s:
            self._look_s = math.inf
            if self.left_bytes > 0 and self.world.alive(self.to):
                self.begin()

    def _answer(self, request: _PartRequest) -> None:
        donor, size_bytes = request.donor, request.piece.size_bytes
        if not self.world.alive(donor):
            self.world.clock.after(self.world.noticed_s(), partial(self._lost, request))
            return
        if self.left_bytes <= 0 or not self.world.alive(self.to):
            return
        path, now_s = self.world.network.path(donor, self.to), self.world.clock.now_s
        sent = path.background(size_bytes, now_s, self.share(donor))
        self.world.meter.messages["state"] += 1
        self.world.meter.wire_bytes["state"] += size_bytes
        self._wait(request, sent)

    def _wait(self, request: _PartRequest, sent: Background) -> None:
        due_s = sent.next_s(self.world.clock.now_s)
        if not self.world.alive(request.donor):
            self.world.clock.after(self.world.noticed_s(), partial(self._lost, request))
        elif due_s is not None:
            self.world.clock.at(due_s, partial(self._wait, request, sent))
        else:
            self._ended(request, arrived=True)

    def _lost(self, request: _PartRequest) -> None:
        """Ask others for what a donor did not give: it is dead."""
        self._gone.add(request.donor)
        self._ended(request, arrived=False)

    def _ended(self, request: _PartRequest, arrived: bool) -> None:
        """Count a piece that is here, and ask for the next one. One that did not come, nobody owes any more."""
        piece = request.piece
        piece.asked -= 1
        del self._requests[request]
        self._asked[request.donor] -= 1
        if self.left_bytes <= 0 or not self.world.alive(self.to):
            return
        if arrived and not piece.here:
            piece.here = True
            self.left_bytes -= piece.size_bytes
            if self.part is not None:
                self.part()
        elif not piece.here and not piece.asked:
            self._unasked_bytes += piece.size_bytes
        self.begin()

    def _finish(self) -> None:
        if self.world.alive(self.to):
            self.done()
