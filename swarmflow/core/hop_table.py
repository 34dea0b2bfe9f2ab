"""The hops of one peer in an epoch: accepted, computed, passed on, repaired."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Count, Discard, Release, RunBackward, RunForward, RunLoss, Send
from swarmflow.core.admission import WITHOUT_GRAPH, Admission
from swarmflow.core.advertising import Advertising
from swarmflow.core.dispatcher import Dispatcher
from swarmflow.core.events import BackwardComputed, ForwardComputed, LossComputed, Replayed
from swarmflow.core.hop import Hop
from swarmflow.core.journal import Journal
from swarmflow.core.messages import (
    Accepted,
    Adopt,
    Backward,
    Cancel,
    CreditAvailable,
    CreditReturned,
    Denied,
    Done,
    DownstreamCost,
    Forward,
    Message,
    Probe,
    Probed,
    Recall,
    Recalled,
    ReserveSlot,
    Routed,
    SlotReserved,
    Unrepairable,
)
from swarmflow.core.types import BEFORE_ALL, Epoch, Microbatch, ProcessId, Ref


@dataclass(slots=True)
class HopTable:
    """A peer's part in the forward and backward work of an epoch."""

    me: ProcessId
    stage: int  # this peer's slice of the model
    stages: int
    capacity: int  # microbatches whose graphs fit in memory
    dispatcher: Dispatcher
    leader: ProcessId  # receives Done
    journal_bytes_max: int = 1 << 30  # kept for repairs
    recompute: bool = True  # microbatches without a graph are admitted too
    epoch: Epoch = BEFORE_ALL
    hops: dict[int, Hop] = field(default_factory=dict)  # by index
    dropped: dict[int, None] = field(default_factory=dict)  # orphans that were taken away
    journal: Journal = field(init=False)
    admission: Admission = field(init=False)
    advertising: Advertising = field(init=False)
    _dead: set[ProcessId] = field(default_factory=set)
    _floor: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        bytes_max = self.journal_bytes_max
        self.advertising = Advertising(self.dispatcher)
        self.admission = Admission(self.capacity, WITHOUT_GRAPH if self.recompute and not self.last else 0)
        self.journal = Journal(self.stage, self.stages, self.capacity, self.dispatcher, bytes_max, self.hops)

    def open(
        self,
        epoch: Epoch,
        next_stage: tuple[ProcessId, ...],
        before: tuple[ProcessId, ...] = (),
        shares: Mapping[ProcessId, int] | None = None,
        mates: tuple[ProcessId, ...] = (),
    ) -> list[Action]:
        """Begin an epoch; what was held for another one is void.

        before: the peers of the stage before, or the trainers. shares: slots of each peer of the next stage for this
        peer. mates: the other peers of the own stage.
        """
        self.epoch = epoch
        self._dead.clear()
        actions = self.clear()
        self.admission.open()
        self.journal.open(before)
        self.advertising.open(epoch, self.journal.before if self.stage > 0 else {})
        return [*actions, *self.dispatcher.open(epoch, next_stage, shares, mates)]

    def clear(self) -> list[Action]:
        """Drop all hops and the journal, once the step is committed or void."""
        self.dropped.clear()
        self._floor.clear()
        self.admission.clear()
        return self.journal.clear()

    @property
    def held(self) -> int:
        """Microbatches whose graph is, or will be, in memory."""
        return len(self.admission.held)

    @property
    def queued(self) -> int:
        """Microbatches that wait for, or are in, computation."""
        return len(self.admission.queued)

    @property
    def last(self) -> bool:
        """Whether this is the stage that computes the loss."""
        return self.stage == self.stages - 1

    @property
    def journal_bytes(self) -> int:
        """Bytes kept for repairs until the step is committed."""
        return self.journal.size_bytes

    @property
    def settling(self) -> bool:
        """Whether orphans are still being taken away."""
        return bool(self.admission.orphans)

    def entries(self) -> tuple[tuple[int, int], ...]:
        """Return (index, attempt) of every accumulated hop."""
        return tuple((done.microbatch.index, done.attempt) for done in self.done())

    def done(self) -> tuple[Done, ...]:
        """Return the Done of every accumulated hop, by index."""
        return tuple(hop.done for _, hop in sorted(self.hops.items()) if hop.done is not None)

    def message(self, sender: ProcessId, message: Message, bodies: tuple[Ref, ...], now: float) -> list[Action]:
        """Handle a message about a hop of this epoch from a member."""
        self.admission.now_s = now
        match message:
            case Forward():
                return self.forward(sender, message, bodies)
            case Adopt():
                return self.adopt(sender, message)
            case Backward():
                return self.backward(sender, message, bodies, now)
            case ReserveSlot():
                return self.reserve(sender, message)
            case SlotReserved():
                return self.slot_reserved(sender, message, now)
            case Accepted():
                return self.accepted(sender, message, now)
            case Denied():
                return self.denied(sender, message, now)
            case Routed():
                self.dispatcher.routed(sender, message.microbatch, message.attempt, message.successor, now)
                return []
            case CreditAvailable():
                return self.credit(sender, now)
            case CreditReturned():
                return self._grant_credits() if self.admission.admits(insist=False) else []
            case Cancel():
                return self.cancel(sender, message)
            case Probe() | Probed() | DownstreamCost():
                return self.advertising.message(sender, message, bodies, now)
            case Recall():
                return self.journal.recall(sender, message)
            case Recalled():
                return self.journal.recalled(sender, message, bodies)
        raise TypeError(f"not about a hop: {type(message).__name__}")

    def forward(self, sender: ProcessId, message: Forward, bodies: tuple[Ref, ...]) -> list[Action]:
        """Admit a microbatch from a predecessor and compute it, or deny it."""
        refuse = self._refusal(message) or (None if len(bodies) == 2 else "invalid")
        hop = self.hops.get(message.microbatch.index)
        drop: list[Action] = [Release(bodies)] if bodies else []
        if refuse is not None:
            return [*drop, *self._deny(sender, message, refuse)]
        if hop is not None and not hop.orphan:
            return [*self.journal.offered(hop, bodies), *self._take_over(hop, sender, message)]
        index = message.microbatch.index
        kept = self.admission.give_up(index, sender, message.attempt)
        if hop is not None or not (kept or self.admission.admits(message.insist)):
            return [*drop, *self._deny(sender, message, self.admission.deny(sender, message.insist))]
        data, targets = bodies
        graph = self.admission.graph
        self.admission.arrive(index, kept)
        hop = Hop(message.microbatch, message.attempt, sender, message.repair, message.held_by, data, targets, graph)
        hop.settled = message.settled
        self.hops[message.microbatch.index] = hop
        self.admission.note(hop)
        self.journal.weigh(hop)
        work: Action = RunLoss(hop.microbatch, data, targets) if self.last else RunForward(hop.microbatch, data, graph)
        return [Send(sender, self._accepted(hop)), work]

    def reserve(self, sender: ProcessId, message: ReserveSlot) -> list[Action]:
        """Reserve a slot for a microbatch before its bytes are sent, or deny it."""
        refuse, index = self._refusal(message), message.microbatch.index
        if refuse is not None:
            return self._deny(sender, message, refuse)
        hop = self.hops.get(index)
        if hop is not None and not hop.orphan:
            return self._take_over(hop, sender, message)
        kept = index in self.admission.reserved
        if hop is not None or not (kept or self.admission.admits(message.insist, message.ahead)):
            return self._deny(sender, message, self.admission.deny(sender, message.insist))
        self.admission.reserve(index, sender, message.attempt)
        downstream_s = self.dispatcher.router.downstream_s
        return [Send(sender, SlotReserved(message.microbatch, self.stage, message.attempt, downstream_s))]

    def adopt(self, sender: ProcessId, message: Adopt) -> list[Action]:
        """Take a new predecessor for a hop that is here already, or answer that it is not."""
        hop = self.hops.get(message.microbatch.index)
        if hop is None or hop.orphan:
            self._floor[message.microbatch.index] = message.attempt
            self.admission.reserved.pop(message.microbatch.index, None)
            return [Send(sender, Denied(message.microbatch, self.stage, message.attempt, "unknown"))]
        return self._take_over(hop, sender, message)

    def forward_computed(self, event: ForwardComputed, now: float) -> list[Action]:
        """Dispatch the activation to the next stage."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.output,))]
        self.admission.now_s = now
        self.admission.computed(hop.microbatch.index)
        if not hop.computing:
            return self.journal.recomputed(hop, event.output, now) + self._tell_successor(hop)
        hop.computing = False
        self.admission.note(hop)
        bodies = (event.output, hop.targets)
        actions = self.dispatcher.offer(hop.microbatch, bodies, now, hop.attempt, hop.repair, hop.held_by)
        actions += self._tell_successor(hop) + self.journal.advance(hop)
        return actions + (self._grant_credits() if self.admission.admits(insist=False) else [])

    def loss_computed(self, event: LossComputed) -> list[Action]:
        """Finish a hop of the last stage."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.gradient,))] if event.gradient is not None else []
        done = Done(hop.microbatch, self.stage, hop.attempt, event.loss_sum, event.tokens)
        return self._finish(hop, event.gradient, done)

    def backward(self, sender: ProcessId, message: Backward, bodies: tuple[Ref, ...], now: float) -> list[Action]:
        """Run the backward pass with the gradient of this hop's output, from downstream."""
        hop = self._hop(message.microbatch)
        if hop is not None and not bodies and self._wants_gradient(hop):
            return []  # a bare acknowledgement cannot replace the gradient: this hop never received it, so it will ask
        fresh = self.dispatcher.returned(sender, message.microbatch, message.attempt, now)
        if hop is None or not fresh or len(bodies) > 1:
            return [Release(bodies)] if bodies else []
        if not bodies:
            return self.journal.settled(hop) + self.journal.resend()
        if not self._wants_gradient(hop):
            return self.journal.returned(hop, bodies[0]) + self.journal.resend()
        hop.gradient_in = bodies[0]
        hop.computing = True
        self.admission.note(hop)
        self.journal.weigh(hop)
        if hop.graph:
            return [RunBackward(hop.microbatch, bodies[0])]
        self.admission.waiting[hop.microbatch.index] = hop
        return [*self.admission.replays()]

    def backward_computed(self, event: BackwardComputed) -> list[Action]:
        """Report the accumulated gradient to the leader, and send the input's gradient upstream."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.gradient,))] if event.gradient is not None else []
        return self._finish(hop, event.gradient, Done(hop.microbatch, self.stage, hop.attempt))

    def cancel(self, sender: ProcessId, message: Cancel) -> list[Action]:
        """Drop a hop or a reservation that was cancelled, unless its gradient is being accumulated already."""
        if self.admission.give_up(message.microbatch.index, sender, message.attempt):
            return self._grant_credits()
        hop = self._hop(message.microbatch)
        if hop is None or hop.orphan or (hop.upstream, hop.attempt) != (sender, message.attempt):
            return []  # an orphan's gradient is in the sum, and is being taken away
        return self._drop(hop) if hop.done is None and not self._accumulates(hop) else []

    def reconcile(self, entries: tuple[tuple[int, int], ...]) -> tuple[list[Action], str]:
        """Hold exactly the entries of a ballot: begin to take away everything else that was accumulated.

        Return the actions, and a reason if one of the entries is not here.
        """
        here = dict(self.entries())
        if any(here.get(index) != attempt for index, attempt in entries):
            return [], f"{len(here)} accumulated, {len(entries)} listed"
        self.admission.closed = True
        self.admission.reserved.clear()  # all is done: what would still arrive has been overtaken, and is denied then
        listed = {index for index, _ in entries}
        orphans = [hop for index, hop in sorted(self.hops.items()) if index not in listed and not hop.orphan]
        return [action for hop in orphans for action in self._disown(hop)], ""

    def reopen(self) -> list[Action]:
        """Admit microbatches again after a ballot was revoked."""
        self.admission.closed = False
        return self._grant_credits()

    def replayed(self, event: Replayed) -> list[Action]:
        """Continue after a replay: of a hop without a graph, of an orphan, or for a gradient that a neighbour needs."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.gradient,))] if event.gradient is not None else []
        if event.weight == 0:
            return self.journal.replayed(hop, event)
        if event.weight > 0:
            return self._finish(hop, event.gradient, Done(hop.microbatch, self.stage, hop.attempt))
        self.dropped[event.microbatch.index] = None
        return self._drop(hop)

    def _wants_gradient(self, hop: Hop) -> bool:
        return hop.done is None and hop.gradient_in is None and not hop.orphan

    def _accumulates(self, hop: Hop) -> bool:
        """Return whether an unfinished hop's gradient is being accumulated."""
        comes = hop.gradient_in is not None and hop.microbatch.index not in self.admission.waiting
        return comes or (self.last and hop.computing)

    def _disown(self, hop: Hop) -> list[Action]:
        if hop.done is None and not self._accumulates(hop):
            # It may belong to a repair that arrived before the MemberFailed; its sender must learn that it is not here.
            actions = self._drop(hop)
            reason = self.admission.deny(hop.upstream, insist=True)
            return [*actions, Send(hop.upstream, Denied(hop.microbatch, self.stage, hop.attempt, reason))]
        finished, hop.orphan, hop.done = hop.done is not None, True, None
        self.admission.note(hop)
        return self.journal.undo(hop) if finished else []  # else it is taken away once it is accumulated

    def _drop(self, hop: Hop) -> list[Action]:
        self._delete(hop)
        return [Discard(hop.microbatch), *self.journal.drop(hop), *self._grant_credits()]

    def _delete(self, hop: Hop) -> None:
        del self.hops[hop.microbatch.index]
        self.admission.forget(hop.microbatch.index)

    def failed(self, microbatch: Microbatch) -> tuple[ProcessId | None, list[Action]]:
        """Drop a hop whose bytes were invalid; return who sent them, for the leader."""
        hop = self._hop(microbatch)
        if hop is None:
            return None, []
        if hop.done is not None or hop.orphan:  # its gradient is in the sum and cannot be taken away without the bytes
            reason = f"the bytes of microbatch {microbatch.index} that were brought back cannot be used"
            return None, [Send(self.leader, Unrepairable(self.epoch, reason))]
        self._delete(hop)
        sent = self.dispatcher.entries.get(microbatch.index)
        culprit = hop.upstream if sent is None else sent.holder
        denied = Send(hop.upstream, Denied(microbatch, self.stage, hop.attempt, "invalid"))
        return culprit, [*self.journal.drop(hop), denied, *self.admission.replays()]

    def accepted(self, sender: ProcessId, message: Accepted, now: float) -> list[Action]:
        """Record that the successor holds a microbatch."""
        self.dispatcher.accepted(sender, message, now)
        return self._tell_successor(self._hop(message.microbatch))

    def denied(self, sender: ProcessId, message: Denied, now: float) -> list[Action]:
        """Dispatch a microbatch to another peer after a denial."""
        actions = self.dispatcher.denied(sender, message.microbatch, message.attempt, message.reason, now)
        return actions + self._tell_successor(self._hop(message.microbatch))

    def slot_reserved(self, sender: ProcessId, message: SlotReserved, now: float) -> list[Action]:
        """Send the bytes for a reserved slot."""
        actions = self.dispatcher.reserved(sender, message, now)
        return actions + self._tell_successor(self._hop(message.microbatch))

    def credit(self, sender: ProcessId, now: float) -> list[Action]:
        """Use a credit of a peer of the next stage."""
        return self.tell_all(self.dispatcher.credit(sender, now))

    def tick(self, now: float) -> list[Action]:
        """Handle what is due."""
        return self.tell_all(self.dispatcher.tick(now)) + self.journal.tick(now)

    def next_deadline(self) -> float | None:
        """Return when tick is due."""
        times = (self.dispatcher.next_deadline(), self.journal.next_deadline())
        return min((time for time in times if time is not None), default=None)

    def enter(self, process: ProcessId, share: int, now: float) -> list[Action]:
        """Add a peer of the next stage. share: its slots for this peer."""
        return self.tell_all(self.dispatcher.enter(process, share, now))

    def gone(self, process: ProcessId, now: float, lost: tuple[tuple[int, int], ...] = ()) -> list[Action]:
        """Re-send what a dead process held downstream. lost: hops (stage, index) without a holder."""
        self.admission.gone(process)
        self._dead.add(process)
        after = {index for stage, index in lost if stage == self.stage + 1 and index in self.hops}
        return self.tell_all(self.dispatcher.gone(process, now, after)) + self.journal.gone(process)

    def again(self, to: ProcessId, message: Forward | Backward, now: float) -> list[Action]:
        """Re-send what was lost with the peer that relayed it."""
        if to in self._dead:
            return []
        if isinstance(message, Forward):
            return self.dispatcher.again(message.microbatch.index, to, now)
        hop = self._hop(message.microbatch)
        due = hop is not None and hop.done is not None and hop.upstream == to
        return self.journal.give_back(hop) if hop is not None and due else []

    def _refusal(self, message: Forward | ReserveSlot) -> str | None:
        if message.stage != self.stage:
            return "stage"
        if message.attempt < self._floor.get(message.microbatch.index, 0):
            return "stale"
        return None

    def _deny(self, sender: ProcessId, message: Forward | ReserveSlot, reason: str) -> list[Action]:
        denied = Denied(message.microbatch, self.stage, message.attempt, reason)
        return [Count("denials", reason), Send(sender, denied)]

    def _accepted(self, hop: Hop) -> Accepted:
        return Accepted(hop.microbatch, self.stage, hop.attempt, self.dispatcher.router.downstream_s)

    def _hop(self, microbatch: Microbatch) -> Hop | None:
        hop = self.hops.get(microbatch.index)
        return hop if hop is not None and hop.microbatch == microbatch else None

    def _take_over(self, hop: Hop, sender: ProcessId, message: Forward | ReserveSlot | Adopt) -> list[Action]:
        """Serve a newer attempt with a hop that is here already, so that nothing is computed twice."""
        attempt = message.attempt
        if attempt < hop.attempt and hop.upstream not in self._dead:
            return [Send(sender, Denied(hop.microbatch, self.stage, attempt, "stale"))]
        again = (hop.upstream, hop.attempt) == (sender, attempt)  # the same predecessor asks again
        hop.upstream, hop.attempt, hop.told, hop.settled = sender, attempt, None, message.settled
        counted: list[Action] = [] if again else [Count("adoptions")]
        actions = [*counted, Send(sender, self._accepted(hop)), *self._tell_successor(hop)]
        return actions + (self.journal.give_back(hop) if hop.done is not None else [])

    def _finish(self, hop: Hop, gradient: Ref | None, done: Done) -> list[Action]:
        hop.computing, hop.gradient = False, gradient
        hop.done = None if hop.orphan else done
        self.admission.note(hop)
        self.journal.weigh(hop)
        if hop.orphan:
            return self.journal.undo(hop)
        actions = [*self.journal.give_back(hop), Send(self.leader, done), *self.journal.evict()]
        return actions + self._grant_credits()

    def _grant_credits(self) -> list[Action]:
        return [
            *self.admission.replays(),
            *(Send(waiting, CreditAvailable(self.stage)) for waiting in self.admission.next_credits()),
        ]

    def _tell_successor(self, hop: Hop | None) -> list[Action]:
        """Tell the predecessor who holds the next hop, in case this process dies."""
        if hop is None:
            return []
        successor = self.dispatcher.holder(hop.microbatch.index)
        if successor is None or successor == hop.told:
            return []
        hop.told = successor
        return [Send(hop.upstream, Routed(hop.microbatch, self.stage, hop.attempt, successor))]

    def tell_all(self, actions: list[Action]) -> list[Action]:
        """Append the Routed messages of all microbatches that the actions may have moved."""
        return actions + [told for hop in self.hops.values() if actions for told in self._tell_successor(hop)]
