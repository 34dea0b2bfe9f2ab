"""What a peer has room for: the microbatches that it holds, those that it keeps room for, and who waits for some."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import RunReplay
from swarmflow.core.hop import Hop
from swarmflow.core.smoothing import smoothed
from swarmflow.core.types import ProcessId

PASSES = 4  # a forward pass, another one with the gradient, and a backward pass of twice as long
LEAN = 4  # microbatches without a graph for each that fits with one, as long as there is nothing to compute


@dataclass(slots=True)
class Admission:
    """Says who is let in.

    capacity: microbatches whose graphs fit in memory. Beyond it a peer denies, unless it would be idle: then it takes
    `beyond` times as many more without a graph, and does their forward pass again when their gradient comes (as
    activation checkpointing does: the input, which is kept, is a hundredth of a graph). On the last stage, which
    has a microbatch only as long as it computes it, beyond is 0, and all count as with a graph. closed: a ballot is
    under way. reserved: for whom room is kept, and at which attempt. held, lean: microbatches with and without a
    graph whose gradient is not added yet. queued: those that wait for, or are in, computation; orphans: those that
    are being taken away. The sets are kept up to date, as each event asks how many there are. waiting: those without
    a graph whose gradient has come, until there is memory for the graph that they get for their backward pass.
    """

    capacity: int
    beyond: int = 0
    closed: bool = False
    draining: bool = False
    reserved: dict[int, tuple[ProcessId, int]] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    lean: set[int] = field(default_factory=set)
    queued: set[int] = field(default_factory=set)
    orphans: set[int] = field(default_factory=set)
    waiting: dict[int, Hop] = field(default_factory=dict)
    now_s: float = 0.0
    _pass_s: float = 0.0
    _way_s: float = 0.0
    _since_s: dict[int, float] = field(default_factory=dict)
    _denied: dict[ProcessId, None] = field(default_factory=dict)

    def open(self) -> None:
        """A new epoch: nobody waits."""
        self.closed = False
        self._denied.clear()
        self.clear()

    def clear(self) -> None:
        """Nothing is held any more."""
        self.reserved.clear()
        self._since_s.clear()
        self.waiting.clear()
        for indices in (self.held, self.lean, self.queued, self.orphans):
            indices.clear()

    def note(self, hop: Hop) -> None:
        """This is how far a hop is."""
        index, open_ = hop.microbatch.index, hop.done is None and not hop.orphan
        (self.held.add if open_ and hop.graph else self.held.discard)(index)
        (self.lean.add if open_ and not hop.graph else self.lean.discard)(index)
        (self.queued.add if hop.computing else self.queued.discard)(index)
        (self.orphans.add if hop.orphan else self.orphans.discard)(index)

    def forget(self, index: int) -> None:
        """A hop is not this peer's any more."""
        self.waiting.pop(index, None)
        for indices in (self.held, self.lean, self.queued, self.orphans):
            indices.discard(index)

    @property
    def unfinished(self) -> int:
        """Microbatches whose gradient is not added yet, with or without a graph."""
        return len(self.held) + len(self.lean)

    @property
    def graph(self) -> bool:
        """Whether there is memory for the graph of one more."""
        return self.beyond == 0 or len(self.held) < self.capacity

    def replays(self) -> list[RunReplay]:
        """Backward passes without a kept graph, as far as there is memory for them; they count as held from now on."""
        begun: list[RunReplay] = []
        while self.waiting and self.graph and not self.closed:
            hop = self.waiting.pop(next(iter(self.waiting)))
            assert hop.input is not None, "only what is done is evicted"
            hop.graph = True
            self.note(hop)
            begun.append(RunReplay(hop.microbatch, hop.input, hop.targets, hop.gradient_in, 1))
        return begun

    def admits(self, insist: bool, ahead: int = 0) -> bool:
        """Whether there is room for one more. insist: nobody else can take it. ahead: others that come before it."""
        if self.closed or (self.draining and not insist):
            return False
        taken = len(self.held) + len(self.lean) + len(self.reserved) + ahead
        return taken < self.capacity or (self._idle and taken < self.capacity * (1 + self.beyond))

    @property
    def _idle(self) -> bool:
        """Whether there is nothing to compute, nor, as far as is known yet, will be too much when all has come.

        Not too much is what can be computed in the time in which a tensor comes: where the computer is slower than the
        network, taking more would only have it do forward passes twice that others could do once.
        """
        return not self.queued and len(self.reserved) * PASSES * self._pass_s <= self._way_s

    def deny(self, sender: ProcessId, insist: bool) -> str:
        """Somebody is to be told when there is room. Returns why there is none now."""
        self._denied[sender] = None
        return "draining" if self.draining and not insist else "full"

    def keep(self, index: int, sender: ProcessId, attempt: int) -> None:
        """Room is kept for it from now on."""
        self.reserved[index] = (sender, attempt)
        self._since_s[index] = self.now_s

    def came(self, index: int, kept: bool) -> None:
        """Its bytes are here, and it will be computed next. kept: there was room for it, so that the way is known."""
        if kept:
            self._way_s = smoothed(self._way_s or None, self.now_s - self._since_s.pop(index, self.now_s))
        if not self.queued:
            self._since_s[index] = self.now_s

    def passed(self, index: int) -> None:
        """Its forward pass is done; how long that took is known if nothing else was computed."""
        if index in self._since_s:
            self._pass_s = smoothed(self._pass_s or None, self.now_s - self._since_s.pop(index))

    def give_up(self, index: int, sender: ProcessId, attempt: int) -> bool:
        """The room that was kept for it is needed no more, or is used now. Returns whether there was any."""
        if self.reserved.get(index) != (sender, attempt):
            return False
        del self.reserved[index]
        return True

    def gone(self, process: ProcessId) -> None:
        """A process is dead."""
        self._denied.pop(process, None)
        self.reserved = {index: kept for index, kept in self.reserved.items() if kept[0] != process}

    def offer(self) -> list[ProcessId]:
        """Who is to be told that there is room, of those that were denied; at least one of them."""
        free = self.capacity - len(self.held) - len(self.reserved)
        told = list(self._denied)[: max(1, free)]
        for process in told:
            del self._denied[process]
        return told
