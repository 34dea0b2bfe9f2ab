"""The microbatches that a peer of a baseline holds: accepted, computed, sent on, and their gradients sent back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from swarmflow.baselines.admission import BaselineAdmission
from swarmflow.baselines.dispatcher import BaselineDispatcher, Repair
from swarmflow.baselines.hop import BaselineHop, BaselineHopState
from swarmflow.baselines.machine import BaselineRuntime, BaselineTask
from swarmflow.baselines.messages import (
    BaselineAbandon,
    BaselineAccepted,
    BaselineAsk,
    BaselineBackward,
    BaselineDenied,
    BaselineForward,
    BaselineOpen,
    BaselineRoom,
    BaselineRouted,
    Broken,
    Computed,
    Path,
    Trip,
)
from swarmflow.baselines.next_hop import NextHop
from swarmflow.core.protocol.types import ProcessId

ORPHAN_S = 30.0  # how long a hop whose predecessor is dead waits for another one


@dataclass(slots=True)
class BaselineHopTable:
    """A peer's microbatches in one iteration. Each holds a slot until its backward pass is done."""

    runtime: BaselineRuntime
    stage: int
    stages: int  # how many there are
    next_hop: NextHop
    repair: Repair
    on_finished: Callable[[], None]  # called when all gradients of a microbatch are computed
    hops: dict[Trip, BaselineHop] = field(init=False, default_factory=dict)
    dispatcher: BaselineDispatcher = field(init=False)
    admission: BaselineAdmission = field(init=False)
    _denied: dict[ProcessId, None] = field(init=False, default_factory=dict)  # to notify when there is room

    def __post_init__(self) -> None:
        self.dispatcher = BaselineDispatcher(
            self.runtime,
            self.stage + 1,
            self.next_hop,
            self.repair,
            on_path=self._routed,
            on_broken=self._broken,
            on_stale=self.drop,
        )
        extra = 0 if self.last else self.runtime.without_graph  # there is a graph only while it is computed
        own = self.runtime.capacity(self.stage), extra, self.last
        self.admission = BaselineAdmission(self.runtime, self.dispatcher, *own)

    @property
    def last(self) -> bool:
        """Whether this is the stage that computes the loss."""
        return self.stage == self.stages - 1

    @property
    def unfinished(self) -> bool:
        """Whether gradients of parameters are left to compute of microbatches whose gradients were sent."""
        return self.admission.unfinished

    def open(self, opened: BaselineOpen) -> None:
        """Begin an iteration."""
        self.hops.clear()
        self.admission.clear()
        self._denied.clear()
        if not self.last:
            self.dispatcher.open(opened)

    def revise(self, opened: BaselineOpen) -> None:
        """Go on with the same iteration and other peers."""
        if not self.last:
            self.dispatcher.revise(opened)

    def ask(self, sender: ProcessId, message: BaselineAsk) -> None:
        """Answer a predecessor that has a microbatch for this stage."""
        hop, index, turn = self.hops.get(message.trip), message.trip.index, message.trip.turn
        if message.stage != self.stage:  # this peer was moved since
            self._deny(sender, message, "unknown" if message.claim else "full")
            return
        if hop is not None and sender != hop.upstream and message.repair <= hop.repair:
            self._deny(sender, message, "stale")
            return
        if hop is not None and hop.state is not BaselineHopState.RESERVED:
            self._take_over(hop, sender, message)
            return
        if hop is not None:  # its tensors may never have been sent: begin again
            self.drop(message.trip)
        if turn:
            for older in [trip for trip in self.hops if trip.index == index and trip.turn < turn]:
                self.drop(older)
        if message.claim or not self.admission.admits:
            self._deny(sender, message, "unknown" if message.claim else "full")
            return
        origin = message.source, sender, message.attempt, message.repair
        hop = self.hops[message.trip] = BaselineHop(message.trip, *origin, self.runtime.now_s)
        self.admission.reserve(hop)
        self.runtime.send(sender, BaselineAccepted(message.trip, message.attempt))
        if not self.last:
            # This peer stands in the path where it served another stage before.
            rest = () if self.runtime.me in message.path else message.path
            self.dispatcher.offer(message.trip, message.source, self._output_bytes(), message.repair, rest)

    def forward(self, sender: ProcessId, message: BaselineForward) -> None:
        """Compute an accepted microbatch whose tensors have arrived."""
        hop = self.hops.get(message.trip)
        if hop is None or (hop.upstream, hop.attempt) != (sender, message.attempt):
            return
        if hop.state is not BaselineHopState.RESERVED:
            return
        self.admission.arrived(hop)
        if self.last:
            self._compute_gradients("loss", hop)
        else:
            forward = BaselineTask("forward", hop.trip, partial(self._computed, hop), room=self.admission.room)
            self.runtime.compute(forward)

    def backward(self, sender: ProcessId, message: BaselineBackward) -> None:
        """Take the gradient of a hop's output."""
        hop = self.hops.get(message.trip)
        if hop is not None and self.dispatcher.returned(sender, message.trip):
            hop.gradient, hop.path = True, message.path
            self._run_backward(hop)

    def abandon(self, sender: ProcessId, message: BaselineAbandon) -> None:
        """Drop a microbatch that its sender or its trainer has given up."""
        hop = self.hops.get(message.trip)
        if hop is not None and sender in (hop.upstream, hop.source):
            self.drop(message.trip)

    def lost(self, process: ProcessId) -> None:
        """Stop waiting for a dead process; the hops that it sent are orphans."""
        self._denied.pop(process, None)
        if not self.last:
            self.dispatcher.lost(process)
        for hop in list(self.hops.values()):
            if hop.upstream == process and not hop.orphan:
                hop.orphan = True
                claimed = self.repair is not Repair.RESTART  # else the trainer starts it over
                self.runtime.after(ORPHAN_S if claimed else 0.0, partial(self._expire, hop, hop.attempt))

    def drop(self, trip: Trip) -> None:
        """Give a microbatch up, and free its slot."""
        hop = self.hops.pop(trip)
        self.admission.forget(hop)
        self.runtime.drop(trip)
        self.dispatcher.drop(trip)
        if hop.state is not BaselineHopState.DONE:
            self._go_on()
        if hop.state is BaselineHopState.GIVEN:  # the sums may have waited for it
            self.on_finished()

    def _deny(self, sender: ProcessId, message: BaselineAsk, reason: str) -> None:
        if reason == "full":
            self._denied[sender] = None
        self.runtime.send(sender, BaselineDenied(message.trip, message.attempt, reason))

    def _take_over(self, hop: BaselineHop, sender: ProcessId, message: BaselineAsk) -> None:
        """Adopt a hop that is here already: its gradient goes to the new sender."""
        hop.upstream, hop.attempt, hop.repair, hop.orphan = sender, message.attempt, message.repair, False
        self.dispatcher.repaired(hop.trip, message.repair)
        self.runtime.count("adoptions")
        self.runtime.send(
            sender, BaselineAccepted(hop.trip, message.attempt, held=True, path=self.dispatcher.path(hop.trip))
        )
        if hop.given:
            self._give_back(hop)

    def _computed(self, hop: BaselineHop) -> None:
        if self.hops.get(hop.trip) is not hop:
            return
        self.admission.enter(hop, BaselineHopState.COMPUTED)
        self.runtime.send(hop.upstream, Computed(hop.trip, hop.attempt))
        self.dispatcher.ready(hop.trip)
        self._run_backward(hop)
        self._go_on()

    def _run_backward(self, hop: BaselineHop) -> None:
        if hop.state is not BaselineHopState.COMPUTED or not hop.gradient:
            return
        if hop.graph:
            self.admission.enter(hop, BaselineHopState.BACKWARD)
            self._compute_gradients("backward", hop)
        else:
            self.admission.enter(hop, BaselineHopState.NO_MEMORY)
            self._replay()

    def _replay(self) -> None:
        for hop in self.admission.replays():
            self._compute_gradients("replay", hop)

    def _compute_gradients(self, work: str, hop: BaselineHop) -> None:
        finished, given = partial(self._finished, hop), partial(self._given, hop)
        self.runtime.compute(BaselineTask(work, hop.trip, finished, given, self.admission.room))

    def _given(self, hop: BaselineHop) -> None:
        """Send the gradient of the input, before those of the parameters are computed."""
        if self.hops.get(hop.trip) is hop:
            self.admission.enter(hop, BaselineHopState.GIVEN)
            self._give_back(hop)
            self._go_on()

    def _finished(self, hop: BaselineHop) -> None:
        if self.hops.get(hop.trip) is not hop:
            return
        given = hop.given
        self.admission.enter(hop, BaselineHopState.DONE)
        if not given:
            self._give_back(hop)
        self._go_on()
        self.on_finished()

    def _go_on(self) -> None:
        """Use what memory or time has become free."""
        self._replay()
        if self.admission.admits:
            denied, self._denied = self._denied, {}
            for process in denied:
                self.runtime.send(process, BaselineRoom())

    def _give_back(self, hop: BaselineHop) -> None:
        if not hop.orphan:
            size = self.runtime.tensor_bytes(self.stage, "gradient") if self.stage > 0 else 0
            self.runtime.send(hop.upstream, BaselineBackward(hop.trip, (self.runtime.me, *hop.path)), size)

    def _routed(self, trip: Trip, path: Path) -> None:
        hop = self.hops[trip]
        self.runtime.send(hop.upstream, BaselineRouted(trip, path))

    def _broken(self, trip: Trip) -> None:
        self.runtime.send(self.hops[trip].source, Broken(trip))

    def _expire(self, hop: BaselineHop, attempt: int) -> None:
        still = self.hops.get(hop.trip) is hop and hop.orphan and hop.attempt == attempt
        if still and not hop.given:
            self.drop(hop.trip)

    def _output_bytes(self) -> int:
        return self.runtime.tensor_bytes(self.stage, "activation") + self.runtime.tensor_bytes(self.stage, "targets")
