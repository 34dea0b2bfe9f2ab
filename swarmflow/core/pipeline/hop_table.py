"""The hops of one peer in an epoch: the table of them, and what all exchanges about a hop share."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmflow.core.pipeline import lateness
from swarmflow.core.pipeline.admission import Admission
from swarmflow.core.pipeline.dispatcher import SLOWEST_BYTES_S, Dispatcher
from swarmflow.core.pipeline.early_gradients import EarlyGradients
from swarmflow.core.pipeline.hop import Hop
from swarmflow.core.pipeline.journal import Journal
from swarmflow.core.pipeline.restorer import Restorer
from swarmflow.core.pipeline.workload import Workload
from swarmflow.core.protocol.actions import Action, Count, Discard, Send
from swarmflow.core.protocol.messages import (
    Adopt,
    CreditAvailable,
    Denied,
    Done,
    DownstreamCost,
    Forward,
    ReserveSlot,
    Routed,
)
from swarmflow.core.protocol.types import NO_EPOCH, WITHOUT_GRAPH, Attempt, Epoch, Microbatch, ProcessId
from swarmflow.core.routing.compute_timer import ComputeTimer

# Times the least deadline of a sender that has sent its bytes: so long a slot is reserved for them. What arrives later
# is admitted as unrequested bytes are, or denied.
RESERVED_FACTOR = 4.0
COST_CHANGED = 0.1  # of the announced downstream cost, before it is announced again


@dataclass(slots=True)
class HopTable:
    """A peer's part in the forward and backward work of an epoch.

    What a message does to a hop stands by its exchange: `intake` (with the stage before), `downstream` (with the stage
    after), `passes` (what was computed), `reconciling` (with a ballot), `restorer` (evicted tensors).
    """

    stage: int  # this peer's slice of the model
    stages: int
    capacity: int  # microbatches whose graphs fit in memory
    dispatcher: Dispatcher
    leader: ProcessId  # receives Done
    journal_bytes_max: int = 1 << 30  # kept for repairs
    without_graph: int = WITHOUT_GRAPH  # microbatches that are admitted without a graph, for each one with a graph
    epoch: Epoch = field(default=NO_EPOCH, init=False)
    ahead: Epoch | None = field(default=None, init=False)  # the next step, begun while this one is reduced
    ballot: int = field(default=0, init=False)  # of this epoch: the last one with which the sum was reconciled
    hops: dict[Microbatch, Hop] = field(default_factory=dict, init=False)
    # Orphans that were subtracted: from whom each came last, and in which attempt.
    dropped: dict[Microbatch, tuple[ProcessId, Attempt]] = field(default_factory=dict, init=False)
    dead: set[ProcessId] = field(default_factory=set, init=False)  # in this epoch, or who has handed a hop of it on
    # The lowest attempt admitted from who was told that a hop is not here, and from the dead.
    floor: dict[Microbatch, tuple[Attempt, ProcessId]] = field(default_factory=dict, init=False)
    journal: Journal = field(init=False)
    restorer: Restorer = field(init=False)
    timer: ComputeTimer = field(init=False, default_factory=ComputeTimer)  # of the passes of this stage
    admission: Admission = field(init=False)
    workload: Workload = field(init=False)
    early: EarlyGradients = field(init=False)
    probers: dict[ProcessId, None] = field(default_factory=dict, init=False)  # of the stage before, in this epoch
    _announced_s: float = field(default=0.0, init=False)  # downstream cost, as the stage before knows it
    _reserved_max_s: float = field(init=False)  # for so long a slot is reserved

    def __post_init__(self) -> None:
        extra = 0 if self.last else self.without_graph
        self.admission = Admission(self.capacity, extra, self.timer, self.dispatcher.next_stage, self.last)
        least_s = self.dispatcher.late_min_s + self.dispatcher.prober.boundary_bytes / SLOWEST_BYTES_S
        self._reserved_max_s = RESERVED_FACTOR * least_s
        self.workload = Workload(self.stage == 0, self.last, self.dispatcher, self.admission, self.hops)
        self.early = EarlyGradients(self.stage, self.last, self.admission, self.dispatcher.next_stage)
        self.journal = Journal(self.dispatcher, self.journal_bytes_max, self.hops)
        self.restorer = Restorer(self.stage, self.last, self.capacity, self.dispatcher, self.journal, self.hops)

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
        self.epoch, self.ahead, self.ballot = epoch, None, 0
        self.dead.clear()
        actions = self.clear()
        self.admission.open(epoch)
        self.admission.mates, self.dispatcher.senders = set(mates), 1 + len(mates)
        self.probers.clear()
        self.restorer.before = dict.fromkeys(before)
        return [*actions, *self.dispatcher.open(epoch, next_stage, shares, mates)]

    def clear(self) -> list[Action]:
        """Drop all hops and the journal: they are void."""
        self.dropped.clear()
        self.floor.clear()
        self.admission.clear()
        self.restorer.clear()
        return self.early.finish() + self.journal.clear()

    # --- what is here -------------------------------------------------------------------------------------------------

    @property
    def last(self) -> bool:
        """Whether this is the stage that computes the loss."""
        return self.stage == self.stages - 1

    @property
    def held(self) -> int:
        """Microbatches whose graph is, or will be, in memory."""
        return len(self.admission.held)

    @property
    def queued(self) -> int:
        """Microbatches that wait for, or are in, computation."""
        return len(self.admission.queued)

    @property
    def settling(self) -> bool:
        """Whether orphans are still being subtracted."""
        return bool(self.admission.orphans)

    def find(self, microbatch: Microbatch) -> Hop | None:
        """Return the hop of a microbatch."""
        return self.hops.get(microbatch)

    def entries(self, epoch: Epoch) -> tuple[tuple[int, Attempt], ...]:
        """Return (index, attempt) of every accumulated hop of a step."""
        return tuple((done.microbatch.index, done.attempt) for done in self.done() if done.microbatch.epoch == epoch)

    def done(self) -> tuple[Done, ...]:
        """Return the Done of every accumulated hop, in order."""
        return tuple(hop.done for _, hop in sorted(self.hops.items()) if hop.done is not None)

    # --- members and time ---------------------------------------------------------------------------------------------

    def enter(self, process: ProcessId, share: int, now: float) -> list[Action]:
        """Add a peer of the next stage. share: its slots for this peer."""
        return self.report_successors(self.dispatcher.enter(process, share, now))

    def gone(self, process: ProcessId, now: float, lost: Collection[Microbatch] = ()) -> list[Action]:
        """Re-send what a dead process held downstream. lost: microbatches without a holder on the next stage."""
        self.admission.gone(process)
        self.probers.pop(process, None)
        self.dead.add(process)
        for hop in self.hops.values():
            if hop.former is not None and hop.former[0] == process:
                hop.former = None
        after, early = self.hops.keys() & set(lost), self.early.gone(process)
        repairs = lateness.gone(self.dispatcher, process, now, after)
        return [*early, *self.report_successors(repairs), *self.restorer.gone(process)]

    def unreachable(self, process: ProcessId, now: float) -> list[Action]:
        """Handle a broken connection to a process that may be alive, of the stage before or the next one."""
        # The bytes, or the Cancel, may be lost.
        freed = self.grant_credits() if self.admission.free_reserved(lambda slot: slot.sender == process) else []
        return freed + self.report_successors(lateness.on_connection_lost(self.dispatcher, process, now))

    def tick(self, now: float) -> list[Action]:
        """Handle what is due."""
        freed: list[Action] = []
        if self._reserved_until_s <= now:
            self.admission.free_reserved(lambda slot: slot.since_s + self._reserved_max_s <= now)
            freed = self.grant_credits()
        return freed + self.report_successors(lateness.tick(self.dispatcher, now)) + self.restorer.tick(now)

    @property
    def due_s(self) -> float:
        """A tick before this time does nothing."""
        return 0.0 if self.restorer.busy else min(self.dispatcher.due_s, self._reserved_until_s)

    def next_deadline(self) -> float | None:
        """Return when tick is due."""
        times = (lateness.next_deadline(self.dispatcher), self.restorer.next_deadline())
        first_s = min((time for time in times if time is not None), default=math.inf)
        first_s = min(first_s, self._reserved_until_s)
        return first_s if first_s < math.inf else None

    @property
    def _reserved_until_s(self) -> float:
        first = next(iter(self.admission.reserved.values()), None)
        return math.inf if first is None else first.since_s + self._reserved_max_s

    # --- what the exchanges share -------------------------------------------------------------------------------------

    def deny(self, sender: ProcessId, message: Forward | ReserveSlot | Adopt, reason: str) -> list[Action]:
        """Deny a microbatch to its sender."""
        denied = Denied(
            message.microbatch, self.stage, message.attempt, reason, self.workload.work_s, self.workload.each_s
        )
        return [Count("denials", reason), Send(sender, denied)]

    def is_over(self, sender: ProcessId, microbatch: Microbatch, attempt: Attempt) -> bool:
        """Return whether an attempt has been given up by its sender, or by others after its death."""
        lowest, asker = self.floor.get(microbatch, (attempt, sender))
        return attempt < lowest and (sender == asker or sender in self.dead)

    def drop(self, hop: Hop) -> list[Action]:
        """Drop a hop with its tensors and its computation, and give its slot to others."""
        self.delete(hop)
        early = self.early.drop(hop.microbatch)
        return [Discard(hop.microbatch), *early, *self.restorer.drop(hop), *self.grant_credits()]

    def delete(self, hop: Hop) -> None:
        """Remove a hop from the table, and free its slot."""
        del self.hops[hop.microbatch]
        self.admission.forget(hop.microbatch)

    def grant_credits(self) -> list[Action]:
        """Begin backward passes that waited for memory, then give the slots that are free to denied senders."""
        return [
            *self.admission.replays(),
            *(Send(waiting, CreditAvailable(self.stage)) for waiting in self.admission.next_credits()),
        ]

    def announce_cost(self) -> list[Action]:
        """Announce a changed downstream cost, in time for the first microbatches of the stage before."""
        downstream_s = self.dispatcher.router.downstream_s
        if abs(downstream_s - self._announced_s) <= COST_CHANGED * self._announced_s:
            return []
        self._announced_s = downstream_s
        return [Send(peer, DownstreamCost(self.epoch, downstream_s)) for peer in self.probers]

    def report_successor(self, hop: Hop | None) -> list[Action]:
        """Tell the predecessor which peer holds the next hop, in case this process dies."""
        if hop is None:
            return []
        successor = self.dispatcher.flights.holder(hop.microbatch)
        if successor is None or successor == hop.reported:
            return []
        hop.reported = successor
        return [Send(hop.upstream, Routed(hop.microbatch, self.stage, hop.attempt, successor))]

    def report_successors(self, actions: list[Action]) -> list[Action]:
        """Append the Routed messages of the microbatches that the actions send to another peer."""
        moved = (
            self.hops.get(action.message.microbatch)
            for action in actions
            if isinstance(action, Send) and isinstance(action.message, Forward)
        )
        return [*actions, *(report for hop in moved for report in self.report_successor(hop))]
