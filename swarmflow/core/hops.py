"""The microbatches of one step that pass through one peer: accepted, computed, passed on, repaired."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Count, Release, RunBackward, RunForward, RunLoss, Send
from swarmflow.core.events import BackwardComputed, ForwardComputed, LossComputed
from swarmflow.core.messages import Accepted, Adopt, Backward, Denied, Done, Forward, Room, Routed, Unrepairable
from swarmflow.core.outbox import Outbox
from swarmflow.core.types import BEFORE_ALL, Epoch, Microbatch, ProcessId, Ref


@dataclass(slots=True)
class Hop:
    """One microbatch at this stage. gradient: of its input, kept so that a replaced predecessor can have it.

    repair, held_by: as the predecessor said. told: which successor the predecessor was told of. done: as the leader was
    told, once its gradient is accumulated. evicted: its bytes are kept no more.
    """

    microbatch: Microbatch
    attempt: int
    upstream: ProcessId
    repair: bool
    held_by: ProcessId | None
    input: Ref | None
    targets: Ref
    told: ProcessId | None = None
    computing: bool = True
    done: Done | None = None
    gradient: Ref | None = None
    gradient_in: Ref | None = None
    evicted: bool = False


@dataclass(slots=True)
class Hops:
    """A peer's part in the forward and backward work of an epoch.

    me: the own process. stage, stages: which slice this peer serves, of how many. capacity: microbatches held at a
    time; beyond it a peer denies. leader: where `Done` goes. journal_bytes_max: of what is kept for repairs; above it
    the bytes of the microbatches that were finished first are given up, and a repair that needs them starts the step
    over.
    """

    me: ProcessId
    stage: int
    stages: int
    capacity: int
    outbox: Outbox
    leader: ProcessId
    journal_bytes_max: int = 1 << 30
    epoch: Epoch = BEFORE_ALL
    draining: bool = False
    hops: dict[int, Hop] = field(default_factory=dict)
    _denied: dict[ProcessId, None] = field(default_factory=dict)
    _dead: set[ProcessId] = field(default_factory=set)
    _floor: dict[int, int] = field(default_factory=dict)

    def open(self, epoch: Epoch, next_stage: tuple[ProcessId, ...]) -> list[Action]:
        """A new epoch: what was held for another is void."""
        self.epoch = epoch
        self._denied.clear()
        self._dead.clear()
        return [*self.clear(), *self.outbox.open(next_stage)]

    def clear(self) -> list[Action]:
        """The step is committed, or void: drop the journal."""
        refs: list[Ref] = []
        for hop in self.hops.values():
            refs += [ref for ref in (hop.input, hop.gradient, hop.gradient_in) if ref is not None]
            if hop.microbatch.index not in self.outbox.entries:
                refs.append(hop.targets)  # else the outbox releases them
        self.hops.clear()
        self._floor.clear()
        actions = self.outbox.clear()
        return [*actions, Release(tuple(refs))] if refs else actions

    @property
    def held(self) -> int:
        """Microbatches whose graph is, or will be, in memory."""
        return sum(hop.done is None for hop in self.hops.values())

    @property
    def queued(self) -> int:
        """Microbatches that wait for, or are in, computation."""
        return sum(hop.computing for hop in self.hops.values())

    @property
    def last(self) -> bool:
        """Whether this is the stage that computes the loss."""
        return self.stage == self.stages - 1

    @property
    def journal_bytes(self) -> int:
        """Bytes kept for repairs until the step is committed."""
        own = sum(hop.gradient.size_bytes for hop in self.hops.values() if hop.gradient is not None)
        return own + self.outbox.size_bytes

    def entries(self) -> tuple[tuple[int, int], ...]:
        """(index, attempt) of everything accumulated here."""
        return tuple((done.microbatch.index, done.attempt) for done in self.done())

    def done(self) -> tuple[Done, ...]:
        """What the leader was told of everything accumulated here, by index."""
        return tuple(hop.done for _, hop in sorted(self.hops.items()) if hop.done is not None)

    def forward(self, sender: ProcessId, message: Forward, bodies: tuple[Ref, ...]) -> list[Action]:
        """A predecessor hands over a microbatch."""
        refuse = self._refusal(message)
        hop = self.hops.get(message.microbatch.index)
        if refuse is not None or hop is not None or len(bodies) != 2:
            drop: list[Action] = [Release(bodies)] if bodies else []
            if hop is not None and refuse is None:
                return [*drop, *self._take_over(hop, sender, message.attempt)]
            return [*drop, *self._deny(sender, message, refuse or "invalid")]
        leaving = self.draining and not message.insist
        if self.held >= self.capacity or leaving:
            self._denied[sender] = None
            return [Release(bodies), *self._deny(sender, message, "draining" if leaving else "full")]
        hop = Hop(message.microbatch, message.attempt, sender, message.repair, message.held_by, *bodies)
        self.hops[message.microbatch.index] = hop
        work: Action = (
            RunLoss(hop.microbatch, bodies[0], bodies[1]) if self.last else RunForward(hop.microbatch, bodies[0])
        )
        return [Send(sender, Accepted(message.microbatch, self.stage, message.attempt)), work]

    def adopt(self, sender: ProcessId, message: Adopt) -> list[Action]:
        """A replaced predecessor asks for what this peer may hold already."""
        hop = self.hops.get(message.microbatch.index)
        if hop is None:
            self._floor[message.microbatch.index] = message.attempt
            return [Send(sender, Denied(message.microbatch, self.stage, message.attempt, "unknown"))]
        return self._take_over(hop, sender, message.attempt)

    def forward_computed(self, event: ForwardComputed, now: float) -> list[Action]:
        """Pass the activation on; the input is not needed any more (the predecessor keeps its bytes)."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.output,))]
        hop.computing = False
        actions: list[Action] = self._release_input(hop)
        bodies = (event.output, hop.targets)
        actions += self.outbox.offer(hop.microbatch, bodies, now, hop.attempt, hop.repair, hop.held_by)
        return actions + self._tell_successor(hop)

    def loss_computed(self, event: LossComputed) -> list[Action]:
        """The last stage is done with a microbatch."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.gradient,))] if event.gradient is not None else []
        done = Done(hop.microbatch, self.stage, hop.attempt, event.loss_sum, event.tokens)
        return self._finish(hop, event.gradient, done)

    def backward(self, sender: ProcessId, message: Backward, bodies: tuple[Ref, ...], now: float) -> list[Action]:
        """The gradient of this hop's output came from downstream."""
        hop = self._hop(message.microbatch)
        wanted = hop is not None and len(bodies) == 1 and hop.done is None and hop.gradient_in is None
        if hop is None or not wanted or not self.outbox.returned(sender, message.microbatch, message.attempt, now):
            return [Release(bodies)] if bodies else []
        hop.gradient_in = bodies[0]
        hop.computing = True
        return [RunBackward(hop.microbatch, bodies[0])]

    def backward_computed(self, event: BackwardComputed) -> list[Action]:
        """The gradient is accumulated: tell the leader, and pass the input's gradient upstream."""
        hop = self._hop(event.microbatch)
        if hop is None:
            return [Release((event.gradient,))] if event.gradient is not None else []
        return self._finish(hop, event.gradient, Done(hop.microbatch, self.stage, hop.attempt))

    def failed(self, microbatch: Microbatch) -> tuple[ProcessId | None, list[Action]]:
        """The bytes of a hop were not what they should be. Returns who sent them, for the leader."""
        hop = self._hop(microbatch)
        if hop is None:
            return None, []
        del self.hops[microbatch.index]
        sent = self.outbox.entries.pop(microbatch.index, None)
        culprit = hop.upstream if sent is None else sent.holder
        kept = (hop.input, hop.gradient_in, *(sent.bodies if sent is not None else (hop.targets,)))
        refs = tuple(ref for ref in kept if ref is not None)
        return culprit, [Release(refs), Send(hop.upstream, Denied(microbatch, self.stage, hop.attempt, "invalid"))]

    def accepted(self, sender: ProcessId, message: Accepted) -> list[Action]:
        """The successor has it."""
        self.outbox.accepted(sender, message.microbatch, message.attempt)
        return self._tell_successor(self._hop(message.microbatch))

    def denied(self, sender: ProcessId, message: Denied, now: float) -> list[Action]:
        """The successor does not take a microbatch, or does not hold it: it goes to another."""
        actions = self.outbox.denied(sender, message.microbatch, message.attempt, message.reason, now)
        return actions + self._tell_successor(self._hop(message.microbatch))

    def room(self, sender: ProcessId, now: float) -> list[Action]:
        """A peer of the next stage has room."""
        return self._tell_all(self.outbox.room(sender, now))

    def tick(self, now: float) -> list[Action]:
        """Time has passed."""
        return self._tell_all(self.outbox.tick(now))

    def gone(self, process: ProcessId, now: float) -> list[Action]:
        """A process died: what it held downstream is sent to others."""
        self._denied.pop(process, None)
        self._dead.add(process)
        actions = self._tell_all(self.outbox.gone(process, now))
        if self.outbox.unrepairable:
            actions.append(self._unrepairable(self.outbox.unrepairable))
        return actions

    def _refusal(self, message: Forward) -> str | None:
        if message.stage != self.stage:
            return "stage"
        if message.attempt < self._floor.get(message.microbatch.index, 0):
            return "stale"
        return None

    def _deny(self, sender: ProcessId, message: Forward, reason: str) -> list[Action]:
        denied = Denied(message.microbatch, self.stage, message.attempt, reason)
        return [Count("denials", reason), Send(sender, denied)]

    def _hop(self, microbatch: Microbatch) -> Hop | None:
        hop = self.hops.get(microbatch.index)
        return hop if hop is not None and hop.microbatch == microbatch else None

    def _take_over(self, hop: Hop, sender: ProcessId, attempt: int) -> list[Action]:
        """Work that is here already serves a newer attempt: nothing is computed twice."""
        if attempt < hop.attempt and hop.upstream not in self._dead:
            return [Send(sender, Denied(hop.microbatch, self.stage, attempt, "stale"))]
        hop.upstream, hop.attempt, hop.told = sender, attempt, None
        actions: list[Action] = [
            Count("adoptions"),
            Send(sender, Accepted(hop.microbatch, self.stage, attempt)),
            *self._tell_successor(hop),
        ]
        if hop.done is not None and hop.evicted:
            actions.append(self._unrepairable([hop.microbatch.index]))
        elif hop.done is not None:
            actions.append(self._return(hop))
        return actions

    def _unrepairable(self, indices: list[int]) -> Send:
        reason = f"its journal has given up {len(indices)} microbatches: --journal-bytes-max is too small for a step"
        return Send(self.leader, Unrepairable(self.epoch, reason))

    def _evict(self) -> list[Action]:
        """Keep the journal within its bound, at the cost of those that were finished first."""
        actions: list[Action] = []
        for hop in self.hops.values():
            if self.journal_bytes <= self.journal_bytes_max:
                break
            if hop.done is None or hop.evicted:
                continue
            hop.evicted = True
            actions.append(Count("evictions"))
            if hop.gradient is not None:
                actions.append(Release((hop.gradient,)))
                hop.gradient = None
            actions += self.outbox.evict(hop.microbatch.index)
        return actions

    def _finish(self, hop: Hop, gradient: Ref | None, done: Done) -> list[Action]:
        hop.computing = False
        hop.done = done
        hop.gradient = gradient
        actions: list[Action] = self._release_input(hop)
        if hop.gradient_in is not None:
            actions.append(Release((hop.gradient_in,)))
            hop.gradient_in = None
        actions += [self._return(hop), Send(self.leader, done), *self._evict()]
        for waiting in list(self._denied)[: max(1, self.capacity - self.held)]:
            del self._denied[waiting]
            actions.append(Send(waiting, Room(self.stage)))
        return actions

    def _return(self, hop: Hop) -> Send:
        bodies = () if hop.gradient is None else (hop.gradient,)
        return Send(hop.upstream, Backward(hop.microbatch, self.stage - 1, hop.attempt), bodies)

    def _release_input(self, hop: Hop) -> list[Action]:
        if hop.input is None:
            return []
        released: list[Action] = [Release((hop.input,))]
        hop.input = None
        return released

    def _tell_successor(self, hop: Hop | None) -> list[Action]:
        """The predecessor has to know to whom a microbatch went, should this process die."""
        if hop is None:
            return []
        successor = self.outbox.holder(hop.microbatch.index)
        if successor is None or successor == hop.told:
            return []
        hop.told = successor
        return [Send(hop.upstream, Routed(hop.microbatch, self.stage, hop.attempt, successor))]

    def _tell_all(self, actions: list[Action]) -> list[Action]:
        """After something that may have moved several microbatches."""
        if not actions:
            return actions
        return actions + [told for hop in self.hops.values() for told in self._tell_successor(hop)]
