"""The peers of the next stage as one sender sees them: what each holds of its work, and which one is asked first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmflow.core.pipeline.availability import Availability
from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.protocol.messages import ReserveSlot
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.router import Choice, Router
from swarmflow.core.routing.smoothing import smoothed

ASK_S = 1.0  # what peers take to pass a microbatch on, from where on all are asked first: beside it a question is cheap
# What they take, from where on four are asked: of a few microbatches a peer, one that goes to the wrong one counts.
ASK_MORE_S = 10.0
MORE = 3  # peers that are asked beside the first one, where more than one is


@dataclass(slots=True)
class NextStage:
    """The peers of the next stage, and how much of this sender's work each holds.

    A peer that many senders share is often full, and can say so only after a tensor was sent in vain: 31 of 223
    transfers in four iterations of experiments/gwtf_churn. So a sender that has used up its share of a peer's slots
    asks first, which costs one round trip. It asks always where that is little beside what a peer takes: what else the
    peer has to do, others' work, it learns in no other way before it is too late. Without shares nobody asks.
    """

    router: Router
    availability: Availability = field(default_factory=Availability, init=False)
    held: Counter[ProcessId] = field(default_factory=Counter, init=False)  # this sender's microbatches there
    unasked: Counter[ProcessId] = field(default_factory=Counter, init=False)  # sent to it without asking
    _awaited: Counter[ProcessId] = field(default_factory=Counter, init=False)  # not passed on yet
    _shares: Mapping[ProcessId, int] | None = field(default=None, init=False)  # of each peer's slots
    _queued: float | None = field(default=None, init=False)  # smoothed: passes that a peer had queued when asked

    def open(self, peers: tuple[ProcessId, ...], shares: Mapping[ProcessId, int] | None) -> None:
        """Begin an epoch with these peers, which hold nothing."""
        self.clear()
        self.availability.open(peers)
        self._shares = shares
        self.router.begin_epoch(peers)

    def clear(self) -> None:
        """Forget what the peers hold."""
        self.held.clear()
        self.unasked.clear()
        self.availability.clear()
        for process in self._awaited:
            self.router.set_pending(process, 0)
        self._awaited.clear()

    def enter(self, process: ProcessId, share: int) -> None:
        """Add a peer. share: its slots for this sender."""
        if self.availability.enter(process):
            self.router.add_peer(process)
        if self._shares is not None:
            self._shares = {**self._shares, process: share}

    def gone(self, process: ProcessId) -> bool:
        """Remove a dead process; return whether it served the stage."""
        served = self.availability.gone(process)
        if served:
            self.router.remove_peer(process)
        return served

    def forget(self, process: ProcessId) -> None:
        """Forget the counts of a dead process, after its microbatches were taken from it."""
        for counts in (self.held, self.unasked, self._awaited):
            counts.pop(process, None)

    def measure(self, entry: InFlight, now: float) -> None:
        """Record the time from sending a microbatch until its holder passed it on, unless that is known already."""
        process = entry.holder
        if entry.measured or process is None:
            return
        seconds, entry.measured = now - entry.sent_at_s, True
        self.availability.answers(process)
        self._awaited[process] -= 1
        self.router.set_pending(process, self._awaited[process])
        self.router.links.record_response(process, seconds, now)
        if entry.arrived_s is not None:
            self.router.links.record_pass(process, (now - entry.arrived_s) / max(1, entry.queued), now)
        self.router.refresh(process)

    def choose(self, but: Collection[ProcessId] = (), source: ProcessId | None = None) -> Choice | None:
        """Return the peer for the next microbatch of this trainer, but none of `but`.

        None: all are paused, or enough were asked; a full peer sends a credit when it has a free slot.
        """
        if self.availability.enough:
            return None
        asked_out = filter(self.asks, self.availability.asked_out())
        return self.router.choose({*self.availability.refused(), *asked_out, *but}, source)

    def candidates(self, hint: ProcessId | None) -> set[ProcessId]:
        """Return the peers that may hold the microbatch of a repair: the peer of the hint, or the whole stage."""
        alive = self.availability.alive
        return {hint} if hint is not None and hint in alive else set(alive)

    def assign(self, entry: InFlight, holder: ProcessId, state: FlightState) -> None:
        """Make a peer the holder of a microbatch, and count the slot that it takes there."""
        entry.holder = holder
        entry.move(state)
        self._count(entry, 1)
        if state is FlightState.UNREQUESTED:
            self.unasked[holder] += 1
        elif state is FlightState.RESERVING:
            self.availability.ask(holder)

    def answered(self, entry: InFlight) -> None:
        """Note that the holder has the microbatch, or a slot for it."""
        self._end_question(entry)
        if entry.state in (FlightState.RESERVING, FlightState.UNREQUESTED):
            entry.move(FlightState.HELD)

    def returned(self, entry: InFlight) -> None:
        """Note that the gradient has returned, and free the slot."""
        self._count(entry, -1)
        entry.move(FlightState.RETURNED)
        entry.settled, entry.restored = True, False

    def withdraw(self, entry: InFlight, to: FlightState | None = None, *, arrived: bool = False) -> None:
        """Take a microbatch from its holder, with the slot that it takes there.

        to: the next state; None: dropped. arrived: at the holder, which denies it; else unrequested bytes may be lost.
        """
        if entry.state is FlightState.UNREQUESTED and entry.holder is not None and not arrived:
            self.unasked[entry.holder] -= 1
        self._end_question(entry)
        if entry.held:
            self._count(entry, -1)
        entry.holder = None
        if to is not None:
            entry.move(to)

    def _end_question(self, entry: InFlight) -> None:
        for process in list(entry.alternatives):
            self.end_alternative(entry, process)
        entry.offers.clear()
        if entry.state is FlightState.RESERVING and entry.holder is not None:
            self.availability.end_question(entry.holder)

    def ask_alternative(self, entry: InFlight, process: ProcessId) -> None:
        """Note that another peer is asked for a slot."""
        entry.alternatives[process] = None
        self.availability.ask(process)

    def end_alternative(self, entry: InFlight, process: ProcessId) -> None:
        """Note that another peer is not asked any more."""
        del entry.alternatives[process]
        self.availability.end_question(process)
        entry.offers.pop(process, None)

    def swap(self, entry: InFlight, process: ProcessId) -> None:
        """Make another peer that was asked the holder, and the holder one of the others."""
        assert entry.holder is not None, "who is asked is the holder"
        self._count(entry, -1)
        del entry.alternatives[process]
        entry.alternatives[entry.holder], entry.holder = None, process
        self._count(entry, 1)

    def record_queued(self, passes: int) -> None:
        """Record how much was queued at a peer of the stage when it was asked."""
        self._queued = smoothed(self._queued, passes)

    def hungry(self, passes: float) -> bool:
        """Whether the stage has fewer passes queued at a peer than this, or than one, as far as answers tell."""
        return self._queued is None or self._queued < max(1.0, passes)

    def _count(self, entry: InFlight, more: int) -> None:
        """Count a microbatch as held by its holder (1), or not any more (-1)."""
        assert entry.holder is not None, "only what has a holder is counted"
        self.held[entry.holder] += more
        self.router.add_held(entry.holder, entry.source, more)
        if entry.awaited:
            self._awaited[entry.holder] += more
            self.router.set_pending(entry.holder, self._awaited[entry.holder])

    def question(self, entry: InFlight, stage: int, process: ProcessId) -> ReserveSlot:
        """Return the question whether a peer has a slot for a microbatch."""
        about = entry.microbatch, stage, entry.attempt
        return ReserveSlot(*about, self.availability.insist, self.unasked[process], entry.gradient_at)

    def alternatives(self, entry: InFlight, choice: Choice, but: Collection[ProcessId]) -> list[ProcessId]:
        """Return who is asked for a slot beside the chosen peer: a question costs little beside what they take.

        In a repair these are not only those near to this sender: most of the time goes to the gradient of a hop that
        had been passed on, and what that takes to a peer, the peer alone knows.
        """
        asked = {choice.process: None, **dict.fromkeys(choice.alternatives)}
        repair = entry.gradient_at is not None
        more = MORE if repair or (self.router.links.any_response_s or 0.0) >= ASK_MORE_S else 1
        if repair and len(asked) <= more:
            closed = {*self.availability.refused(), *self.availability.asked_out(), *but}
            asked |= dict.fromkeys(peer for peer in sorted(self.availability.alive) if peer not in closed)
        return [process for process in list(asked)[1 : 1 + more] if self.asks(process)]

    def asks(self, process: ProcessId) -> bool:
        """Return whether a peer is asked before it gets a microbatch: its share is used up, or an answer pays."""
        if self._shares is None:
            return False
        pays = self.availability.several and (self.router.links.any_response_s or 0.0) >= ASK_S
        return pays or self.held[process] >= self._shares.get(process, 0)
