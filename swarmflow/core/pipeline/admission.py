"""Decides which microbatches a peer admits: capacity, reserved slots, and the senders that wait for a credit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from swarmflow.core.pipeline.hop import COMPUTING, ORPHANED, UNFINISHED, Hop, HopState
from swarmflow.core.pipeline.next_stage import NextStage
from swarmflow.core.protocol.actions import DEFERRED_MIN, Discard, RunReplay
from swarmflow.core.protocol.types import GRAPHS_FEW, Attempt, Epoch, Microbatch, ProcessId
from swarmflow.core.routing.compute_timer import UNKNOWN_S, ComputeTimer
from swarmflow.core.routing.smoothing import smoothed

QUEUED_MIN = 3  # passes: one is computed, one is ready, and one arrives
QUEUED_SHARE = 3  # of what memory holds a third may be queued
PASSES = 4  # times a forward pass: what a microbatch without a graph costs (forward, forward again, backward of two)
# Slots of a peer of the last stage: for what it computes, and for inputs that wait meanwhile. Without these it is idle
# until its denial of the next one, a credit, a question and a tensor have gone to and fro.
LAST_STAGE_MIN = 4
NARROW_MATES = 1  # with so many others at most there is nobody who could compute it at less cost


class Reservation(NamedTuple):
    """A slot that is kept for a microbatch whose bytes are to follow."""

    sender: ProcessId
    attempt: Attempt
    since_s: float


@dataclass(slots=True)
class Admission:
    """The slots of one peer.

    A peer admits as many microbatches as have room for their graphs in memory. Beyond that it denies, unless it would
    be idle: then it admits more without a graph and repeats their forward pass when the gradient arrives, as activation
    checkpointing does (the input, which is kept, is a hundredth of a graph). The last stage has a graph only while it
    computes it, so it has no such extra slots; but with memory for one graph or two, inputs wait there all the same.
    """

    capacity: int  # microbatches whose graphs fit in memory
    extra: int = 0  # extra slots without a graph, as a multiple of capacity
    timer: ComputeTimer = field(default_factory=ComputeTimer)
    next_stage: NextStage | None = None  # which the computed ones go to
    last: bool = False  # whether this is the last stage
    steps: set[Epoch] = field(default_factory=set, init=False)  # that take microbatches: none whose ballot is under way
    mates: set[ProcessId] = field(default_factory=set, init=False)  # the stage's other peers, since the epoch began
    draining: bool = field(default=False, init=False)
    reserved: dict[Microbatch, Reservation] = field(default_factory=dict, init=False)  # in the order of their times
    # Microbatches by the state of their hops. Kept up to date, because every event asks for their sizes.
    held: set[Microbatch] = field(default_factory=set, init=False)  # with a graph, gradient not accumulated yet
    without_graph: set[Microbatch] = field(default_factory=set, init=False)  # the same without a graph
    queued: set[Microbatch] = field(default_factory=set, init=False)  # waiting for, or in, computation
    orphans: set[Microbatch] = field(default_factory=set, init=False)  # to be subtracted, or being subtracted
    waiting: dict[Microbatch, Hop] = field(default_factory=dict, init=False)  # those in NO_MEMORY, in order
    dispatched: dict[Microbatch, Hop] = field(default_factory=dict, init=False)  # whose graph awaits a gradient
    now_s: float = field(default=0.0, init=False)
    _transfer_s: float = field(default=0.0, init=False)  # smoothed time from a reservation to the tensor's arrival
    _denied: dict[ProcessId, None] = field(default_factory=dict, init=False)  # senders to notify of a free slot
    _served_last: dict[ProcessId, None] = field(default_factory=dict, init=False)  # notified after them: see serve_last
    _unasked: Counter[ProcessId] = field(default_factory=Counter, init=False)  # arrived without asking, by sender

    def open(self, epoch: Epoch) -> None:
        """Begin an epoch: no slot is taken and no sender waits."""
        self.steps = {epoch}
        self._denied.clear()
        self._served_last.clear()
        self._unasked.clear()
        self.clear()

    def finish(self, epoch: Epoch) -> None:
        """Free the slots that were reserved for microbatches of a step that is committed, or of earlier ones."""
        self.reserved = {microbatch: slot for microbatch, slot in self.reserved.items() if microbatch.epoch > epoch}

    def close(self, epoch: Epoch) -> None:
        """Admit nothing more of a step, whose ballot begins: what would still arrive has been overtaken, and is denied.

        Nor is a slot kept for it.
        """
        self.steps.discard(epoch)
        self.reserved = {microbatch: slot for microbatch, slot in self.reserved.items() if microbatch.epoch != epoch}

    def clear(self) -> None:
        """Free all slots."""
        self.reserved.clear()
        self.waiting.clear()
        self.dispatched.clear()
        for microbatches in (self.held, self.without_graph, self.queued, self.orphans):
            microbatches.clear()

    def note(self, hop: Hop) -> None:
        """Record the state of a hop."""
        microbatch, unfinished = hop.microbatch, hop.state in UNFINISHED
        (self.held.add if unfinished and hop.graph else self.held.discard)(microbatch)
        (self.without_graph.add if unfinished and not hop.graph else self.without_graph.discard)(microbatch)
        waits = hop.state in COMPUTING and hop.gradient is None  # else only its parameters' gradients are left
        (self.queued.add if waits else self.queued.discard)(microbatch)
        (self.orphans.add if hop.state in ORPHANED else self.orphans.discard)(microbatch)
        if hop.state is HopState.DISPATCHED and hop.graph:
            self.dispatched[microbatch] = hop
        else:
            self.dispatched.pop(microbatch, None)

    def forget(self, microbatch: Microbatch) -> None:
        """Free the slot of a hop that was dropped."""
        self.waiting.pop(microbatch, None)
        self.dispatched.pop(microbatch, None)
        for microbatches in (self.held, self.without_graph, self.queued, self.orphans):
            microbatches.discard(microbatch)

    @property
    def deferred_max(self) -> int:
        """Passes whose parameters' gradients may wait: those for which memory is kept, and one for each free slot.

        What such a pass keeps beyond its graph is about half as large as that.
        """
        return DEFERRED_MIN + max(0, self.capacity - len(self.held))

    @property
    def unfinished(self) -> int:
        """Microbatches whose gradient is not accumulated yet, with or without a graph."""
        return len(self.held) + len(self.without_graph)

    @property
    def graph(self) -> bool:
        """Whether the next microbatch gets a graph."""
        return len(self.held) < self.capacity or not (self.extra or self.last)

    def replays(self) -> list[RunReplay | Discard]:
        """Pop the backward passes without a graph that memory allows now; their slots count as held from now on.

        Where all memory is taken by graphs whose gradients are awaited, and there is nothing to compute, the graph
        whose gradient is expected last gives way, and is computed again when that comes. Else a peer at the beginning
        of a long pipeline, with its gradients here, would wait for as long as a microbatch takes to the end and back.
        """
        begun: list[RunReplay | Discard] = []
        while (first := self._first_waiting()) is not None:
            if not self.graph:
                spared = self._spared() if len(self.queued) == len(self.waiting) and not begun else None
                if spared is None:
                    break
                spared.graph = False
                self.note(spared)
                begun.append(Discard(spared.microbatch))
            hop = self.waiting.pop(first)
            assert hop.input is not None, "only what is done is evicted"
            hop.graph = True
            hop.move(HopState.ACCUMULATING)
            self.note(hop)
            tensors = hop.input, hop.targets, hop.gradient_in
            begun.append(RunReplay(hop.microbatch, *tensors, 1, self.deferred_max))
        return begun

    def _first_waiting(self) -> Microbatch | None:
        """Return what waits for memory and goes first: the present step goes before the one that was begun ahead."""
        open_ = (microbatch for microbatch in self.waiting if microbatch.epoch in self.steps)
        return min(open_, key=lambda microbatch: microbatch.epoch, default=None)

    def _spared(self) -> Hop | None:
        """Return the hop whose graph gives way to a gradient that is here: the last that was sent on."""
        return next((hop for hop in reversed(self.dispatched.values()) if hop.wanted is None), None)

    def free(self, insist: bool, epoch: Epoch | None = None, unarrived: int = 0) -> int:
        """Return how many more microbatches of a step are admitted now. None: of any.

        insist: no other peer can take it, so a draining peer does. unarrived: slots that others will take first.
        """
        is_open = bool(self.steps) if epoch is None else epoch in self.steps
        if not is_open or (self.draining and not insist):
            return 0
        taken = len(self.held) + len(self.without_graph) + len(self.reserved) + unarrived
        at_any_time = slots_max(self) if self.last else self.capacity
        if taken < at_any_time:
            return at_any_time - taken
        return int(taken < slots_max(self) and self._idle)

    def offered(self, insist: bool, epoch: Epoch | None = None, unarrived: int = 0) -> int:
        """Return how many slots there are for those that ask: as in `free`, but no more than will soon be computed.

        Whoever asks keeps its microbatch meanwhile, and gives it to a peer that comes to it sooner. What is on its way
        while others are computed is queued all the same. Much memory allows more: a peer of many microbatches, of whose
        gradients some happen to come together, would else leave all new ones to its mates, and the work that is left at
        the end of a step would be unequal (case 1 of experiments/dtfm_cases, 64 held: 7.3 s with 8, 6.5 s with 16).
        """
        room = self.free(insist, epoch, unarrived)
        coming = len(self.queued) + len(self.reserved) + unarrived
        arriving = int(self._transfer_s / (self.timer.forward_s or UNKNOWN_S))
        queued_max = max(QUEUED_MIN, self.capacity // QUEUED_SHARE)
        return max(0, min(room, queued_max + arriving - coming))

    @property
    def _idle(self) -> bool:
        """Whether nothing is queued, and the reserved microbatches will not take longer to compute than one transfer.

        Where the computer is slower than the network, admitting more would only repeat forward passes here that other
        peers could do once. In a narrow stage there are none that are not full too: it admits as many as it computes
        forth during a transfer (experiments/held_out --seed 1, scenario 19: 4.19 s, and 3.65 s with it). Nor where the
        next stage has enough to compute until another tensor can be there: what it gets sooner it computes no sooner.
        """
        forward_s = self.timer.forward_s or UNKNOWN_S
        if self.next_stage is not None and not self.next_stage.hungry(self._transfer_s / forward_s):
            return False
        if _lacks_memory(self, forward_s):
            return (len(self.queued) + len(self.reserved)) * forward_s <= self._transfer_s
        passes = 1 if len(self.mates) <= NARROW_MATES else PASSES
        return not self.queued and len(self.reserved) * passes * forward_s <= self._transfer_s

    def deny(self, sender: ProcessId, insist: bool) -> str:
        """Put a sender on the list for the next credit; return the reason of the denial."""
        self._denied[sender] = None
        return "draining" if self.draining and not insist else "full"

    def serve_last(self, sender: ProcessId) -> None:
        """Put a sender that has got the last slot on the list for a credit: it asks for no more until then."""
        self._served_last[sender] = None

    def landed(self, sender: ProcessId, microbatch: Microbatch) -> None:
        """Record that a tensor has arrived, whether it is admitted or not."""
        slot = self.reserved.get(microbatch)
        self._unasked[sender] += slot is None or slot.sender != sender

    def unarrived(self, sender: ProcessId, sent: int) -> int:
        """Return how many of those that a sender has sent without asking are on their way: a question overtakes them.

        Only those: a peer that denies, and holds nothing, has no slot to free and so never a credit to send.
        """
        return max(0, sent - self._unasked[sender])

    def reserve(self, microbatch: Microbatch, sender: ProcessId, attempt: Attempt) -> None:
        """Reserve a slot for a microbatch that a sender is about to send. Asking again does not prolong it."""
        slot = self.reserved.get(microbatch)
        if slot is not None and slot.sender == sender:
            self.reserved[microbatch] = slot._replace(attempt=attempt)
            return
        self.reserved.pop(microbatch, None)
        self.reserved[microbatch] = Reservation(sender, attempt, self.now_s)

    def arrive(self, slot: Reservation) -> None:
        """Record that the tensor has arrived for which a slot was reserved, which times the transfer."""
        self._transfer_s = smoothed(self._transfer_s or None, self.now_s - slot.since_s)

    def give_up(self, microbatch: Microbatch, attempt: Attempt) -> Reservation | None:
        """Free the slot that this or an earlier attempt of a microbatch reserved; return it, if there was one.

        A microbatch is with one peer at a time, so a later attempt shows that the earlier one is over. The Cancel that
        should have said so may be lost.
        """
        slot = self.reserved.get(microbatch)
        return None if slot is None or slot.attempt > attempt else self.reserved.pop(microbatch)

    def free_reserved(self, is_over: Callable[[Reservation], bool]) -> bool:
        """Free the slots whose reservation is over. Return whether there was one."""
        kept = {microbatch: slot for microbatch, slot in self.reserved.items() if not is_over(slot)}
        freed, self.reserved = len(kept) < len(self.reserved), kept
        return freed

    def gone(self, sender: ProcessId) -> None:
        """Forget a dead sender and the slots reserved for it."""
        self.mates.discard(sender)
        self._denied.pop(sender, None)
        self._served_last.pop(sender, None)
        self._unasked.pop(sender, None)
        self.free_reserved(lambda slot: slot.sender == sender)

    def next_credits(self) -> list[ProcessId]:
        """Pop the denied senders to notify, as many as there are free slots: of others each question is in vain."""
        waiting = self._denied | self._served_last
        notified = list(waiting)[: self.offered(insist=True)] if waiting else []
        for process in notified:
            self._denied.pop(process, None)
            self._served_last.pop(process, None)
        return notified


def slots_max(peer: Admission) -> int:
    """Return how many microbatches are here at a time at most, with or without a graph."""
    return max(peer.capacity, LAST_STAGE_MIN) if peer.last else peer.capacity * (1 + peer.extra)


def _lacks_memory(peer: Admission, forward_s: float) -> bool:
    """Return whether all the graphs for which it has memory leave it idle until the gradient of one is back.

    So it is with its mates, where that is for lack of memory and not since it alone is fast. Then it admits as many as
    it computes forth during a transfer, queued ones too (experiments/held_out --seed 6, 4: 13.0 s and 10.6 s; with
    memory for four graphs and unlike devices, --seed 6, 6: 3.47 and 3.87 s).
    """
    after_s = peer.next_stage.router.downstream_s if peer.next_stage is not None else 0.0
    return peer.capacity <= GRAPHS_FEW and peer.capacity * PASSES * forward_s < after_s
