"""The microbatches that a peer of a baseline holds: accepted, computed, passed on, and the same way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from swarmflow.baselines.machine import BaselineRuntime
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
from swarmflow.baselines.sender import Repair, Sender
from swarmflow.core.types import ProcessId

ORPHAN_S = 30.0  # how long work whose predecessor has died waits to be claimed


@dataclass(slots=True)
class BaselineHop:
    """One microbatch here. input: its tensors are. computed: its forward pass is. gradient: of its output, is.

    orphan: who sent it is dead, and nobody else has asked for it. path: who computed the gradients after it. repair:
    how often each sender from the trainer on had sent it again.
    """

    trip: Trip
    source: ProcessId
    upstream: ProcessId
    attempt: int
    repair: tuple[int, ...]
    input: bool = False
    computed: bool = False
    gradient: bool = False
    running: bool = False
    done: bool = False
    orphan: bool = False
    path: Path = ()


@dataclass(slots=True)
class BaselineHops:
    """A peer's part in one iteration. stages: how many there are. A slot is held until the backward pass is done."""

    hands: BaselineRuntime
    stage: int
    stages: int
    next_hop: NextHop
    repair: Repair
    hops: dict[Trip, BaselineHop] = field(default_factory=dict)
    sender: Sender = field(init=False)
    _capacity: int = 0
    _denied: dict[ProcessId, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._capacity = self.hands.capacity(self.stage)
        tell = (self._routed, self._broken, self.drop)
        self.sender = Sender(self.hands, self.stage + 1, self.next_hop, self.repair, *tell)

    @property
    def last(self) -> bool:
        """Whether this is the stage that computes the loss."""
        return self.stage == self.stages - 1

    @property
    def slots(self) -> int:
        """Microbatches that are held."""
        return sum(not hop.done for hop in self.hops.values())

    def open(self, said: BaselineOpen) -> None:
        """A new iteration."""
        self.hops.clear()
        self._denied.clear()
        if not self.last:
            self.sender.open(said)

    def revise(self, said: BaselineOpen) -> None:
        """The same iteration with others."""
        if not self.last:
            self.sender.revise(said)

    def ask(self, sender: ProcessId, word: BaselineAsk) -> None:
        """A predecessor has a microbatch for this stage."""
        hop, index, turn = self.hops.get(word.trip), word.trip.index, word.trip.turn
        if word.stage != self.stage:  # it was moved since
            self._deny(sender, word, "unknown" if word.claim else "full")
            return
        if hop is not None and sender != hop.upstream and word.repair <= hop.repair:
            self._deny(sender, word, "stale")
            return
        if hop is not None and hop.input:
            self._take_over(hop, sender, word)
            return
        if hop is not None:  # nobody knows whether the dead one had sent the tensors
            self.drop(word.trip)
        for older in [trip for trip in self.hops if trip.index == index and trip.turn < turn]:
            self.drop(older)
        if word.claim or self.slots >= self._capacity:
            self._deny(sender, word, "unknown" if word.claim else "full")
            return
        self.hops[word.trip] = BaselineHop(word.trip, word.source, sender, word.attempt, word.repair)
        self.hands.send(sender, BaselineAccepted(word.trip, word.attempt))
        if not self.last:
            rest = () if self.hands.me in word.path else word.path  # it may have served another stage before
            self.sender.offer(word.trip, word.source, self._output_bytes(), word.repair, rest)

    def forward(self, sender: ProcessId, word: BaselineForward) -> None:
        """The tensors of a microbatch that was accepted."""
        hop = self.hops.get(word.trip)
        if hop is None or hop.input or (hop.upstream, hop.attempt) != (sender, word.attempt):
            return
        hop.input = True
        self.hands.compute("loss" if self.last else "forward", hop.trip, partial(self._computed, hop))

    def backward(self, sender: ProcessId, word: BaselineBackward) -> None:
        """The gradient of a hop's output."""
        hop = self.hops.get(word.trip)
        if hop is not None and self.sender.returned(sender, word.trip):
            hop.gradient, hop.path = True, word.path
            self._run_backward(hop)

    def abandon(self, sender: ProcessId, word: BaselineAbandon) -> None:
        """Nobody waits for it any more."""
        hop = self.hops.get(word.trip)
        if hop is not None and sender in (hop.upstream, hop.source):
            self.drop(word.trip)

    def lost(self, process: ProcessId) -> None:
        """A process is dead."""
        self._denied.pop(process, None)
        if not self.last:
            self.sender.lost(process)
        for hop in list(self.hops.values()):
            if hop.upstream == process and not hop.orphan:
                hop.orphan = True
                claimed = self.repair is not Repair.RESTART  # else it is started over, and nobody will ask for it
                self.hands.after(ORPHAN_S if claimed else 0.0, partial(self._expire, hop, hop.attempt))

    def drop(self, trip: Trip) -> None:
        """Give a microbatch up."""
        hop = self.hops.pop(trip)
        self.hands.drop(trip)
        self.sender.drop(trip)
        if not hop.done:
            self._make_room()

    def _deny(self, sender: ProcessId, word: BaselineAsk, reason: str) -> None:
        if reason == "full":
            self._denied[sender] = None
        self.hands.send(sender, BaselineDenied(word.trip, word.attempt, reason))

    def _take_over(self, hop: BaselineHop, sender: ProcessId, word: BaselineAsk) -> None:
        """It is here already: whoever asks now is the one to have the gradient."""
        hop.upstream, hop.attempt, hop.repair, hop.orphan = sender, word.attempt, word.repair, False
        self.sender.repaired(hop.trip, word.repair)
        self.hands.count("adoptions")
        self.hands.send(sender, BaselineAccepted(hop.trip, word.attempt, held=True, path=self.sender.path(hop.trip)))
        if hop.done:
            self._give_back(hop)

    def _computed(self, hop: BaselineHop) -> None:
        if self.hops.get(hop.trip) is not hop:
            return
        hop.computed = True
        if self.last:
            self._finished(hop)
            return
        self.hands.send(hop.upstream, Computed(hop.trip, hop.attempt))
        self.sender.ready(hop.trip)
        self._run_backward(hop)

    def _run_backward(self, hop: BaselineHop) -> None:
        if hop.computed and hop.gradient and not hop.running:
            hop.running = True
            self.hands.compute("backward", hop.trip, partial(self._finished, hop))

    def _finished(self, hop: BaselineHop) -> None:
        if self.hops.get(hop.trip) is not hop:
            return
        hop.done = True
        self._give_back(hop)
        self._make_room()

    def _give_back(self, hop: BaselineHop) -> None:
        if not hop.orphan:
            size = self.hands.tensor_bytes(self.stage, "gradient") if self.stage > 0 else 0
            self.hands.send(hop.upstream, BaselineBackward(hop.trip, (self.hands.me, *hop.path)), size)

    def _make_room(self) -> None:
        denied, self._denied = self._denied, {}
        for process in denied:
            self.hands.send(process, BaselineRoom())

    def _routed(self, trip: Trip, path: Path) -> None:
        hop = self.hops[trip]
        self.hands.send(hop.upstream, BaselineRouted(trip, path))

    def _broken(self, trip: Trip) -> None:
        self.hands.send(self.hops[trip].source, Broken(trip))

    def _expire(self, hop: BaselineHop, attempt: int) -> None:
        still = self.hops.get(hop.trip) is hop and hop.orphan and hop.attempt == attempt
        if still and not hop.done:
            self.drop(hop.trip)

    def _output_bytes(self) -> int:
        return self.hands.tensor_bytes(self.stage, "activation") + self.hands.tensor_bytes(self.stage, "targets")
