"""The peers of the next stage as one sender sees them: which may take a microbatch now, and which are asked first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.protocol.messages import ReserveSlot
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.router import Router

LOST_S = 0.5  # half of the first pause after a broken connection
ASKED = 4  # times log2 of the stage's peers: so many are asked in vain before a microbatch waits


@dataclass(slots=True)
class NextStage:
    """The peers of the next stage: alive, paused, draining, and how much of this sender's work each holds.

    A peer that many senders share is often full, and can say so only after a tensor was sent in vain: 31 of 223
    transfers in four iterations of experiments/gwtf_churn. So a sender that has used up its share of a peer's slots
    asks first, which costs one round trip. Without shares nobody asks.

    A peer is asked for one slot at a time until it says with a slot how many more it has free: if all that waits were
    asked for at once, most questions of a step would be denied. One that has none left sends a credit, as after a
    denial.
    """

    router: Router
    pause_s: float = 15.0  # how long a full peer is left alone unless it sends a credit
    held: Counter[ProcessId] = field(default_factory=Counter, init=False)  # this sender's microbatches there
    unasked: Counter[ProcessId] = field(default_factory=Counter, init=False)  # sent to it without asking
    _awaited: Counter[ProcessId] = field(default_factory=Counter, init=False)  # not passed on yet
    _shares: Mapping[ProcessId, int] | None = field(default=None, init=False)  # of each peer's slots
    _alive: dict[ProcessId, None] = field(default_factory=dict, init=False)
    _paused_until_s: dict[ProcessId, float] = field(default_factory=dict, init=False)
    _full_until_s: dict[ProcessId, float] = field(default_factory=dict, init=False)  # paused for questions alone
    _draining: dict[ProcessId, None] = field(default_factory=dict, init=False)
    _losses: Counter[ProcessId] = field(default_factory=Counter, init=False)
    _asking: Counter[ProcessId] = field(default_factory=Counter, init=False)  # questions that are not answered yet
    _free: dict[ProcessId, int] = field(default_factory=dict, init=False)  # slots, as the peer has said; else 1
    _freed: bool = field(default=False, init=False)  # another question may be asked since the last look

    def open(self, peers: tuple[ProcessId, ...], shares: Mapping[ProcessId, int] | None) -> None:
        """Begin an epoch with these peers, which hold nothing."""
        self.clear()
        self._paused_until_s.clear()
        self._draining.clear()
        self._alive = dict.fromkeys(peers)
        self._shares = shares
        self.router.begin_epoch(peers)

    def clear(self) -> None:
        """Forget what the peers hold."""
        self.held.clear()
        self.unasked.clear()
        self._asking.clear()
        self._free.clear()
        self._full_until_s.clear()
        for process in self._awaited:
            self.router.set_pending(process, 0)
        self._awaited.clear()

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        """The peers of the stage."""
        return tuple(self._alive)

    def __contains__(self, process: object) -> bool:
        return process in self._alive

    def enter(self, process: ProcessId, share: int) -> None:
        """Add a peer. share: its slots for this sender."""
        if process not in self._alive:
            self._alive[process] = None
            self.router.add_peer(process)
        if self._shares is not None:
            self._shares = {**self._shares, process: share}

    def gone(self, process: ProcessId) -> bool:
        """Remove a dead process; return whether it served the stage."""
        if process not in self._alive:
            return False
        del self._alive[process]
        self._paused_until_s.pop(process, None)
        self._free.pop(process, None)
        self._full_until_s.pop(process, None)
        self._draining.pop(process, None)
        self.router.remove_peer(process)
        return True

    def denied(self, process: ProcessId, reason: str, now: float) -> None:
        """Pause a peer after a denial; a draining one is used only if there is no other."""
        if reason == "draining":
            self._draining[process] = None
        else:
            self._paused_until_s[process] = now + self.pause_s

    def record_free(self, process: ProcessId, free: int, now: float) -> None:
        """Record how many slots a peer has left after it has given one; without any it is not asked for a while."""
        self._free[process] = free
        self._full_until_s.pop(process, None)
        if not free:
            self._full_until_s[process] = now + self.pause_s

    def on_connection_lost(self, process: ProcessId, now: float) -> None:
        """Pause a peer whose connection broke, for twice as long each time."""
        self._losses[process] += 1
        pause_s = min(LOST_S * 2.0 ** self._losses[process], self.pause_s)
        self._paused_until_s[process] = max(self._paused_until_s.get(process, 0.0), now + pause_s)

    def credit(self, process: ProcessId) -> None:
        """End the pause of a peer that has a free slot."""
        self._paused_until_s.pop(process, None)
        self._full_until_s.pop(process, None)
        self._free.pop(process, None)

    def end_pauses(self, now: float) -> bool:
        """End pauses that have lasted long enough; return whether what waits may go to a peer since the last call."""
        pauses = (*self._paused_until_s.items(), *self._full_until_s.items())
        due = [process for process, until_s in pauses if until_s <= now]
        for process in due:
            self.credit(process)
        freed, self._freed = self._freed, False
        return bool(due) or freed

    def next_pause_over_s(self) -> float | None:
        """Return when the first pause ends."""
        return min((*self._paused_until_s.values(), *self._full_until_s.values()), default=None)

    def others(self, process: ProcessId) -> bool:
        """Return whether another peer may take a microbatch now."""
        return bool(self._alive.keys() - self._paused_until_s.keys() - self._draining.keys() - {process})

    @property
    def insist(self) -> bool:
        """Whether all peers are draining: the last peers of a stage still have to work."""
        return self._draining.keys() >= self._alive.keys()

    def measure(self, entry: InFlight, now: float) -> None:
        """Record the time from sending a microbatch until its holder passed it on, unless that is known already."""
        process = entry.holder
        if entry.measured or process is None:
            return
        seconds, entry.measured = now - entry.sent_at_s, True
        self._losses.pop(process, None)
        self._awaited[process] -= 1
        self.router.set_pending(process, self._awaited[process])
        service_s = None if entry.arrived_s is None else now - entry.arrived_s
        self.router.links.record_response(process, seconds, service_s, now)
        self.router.refresh(process)

    def choose(self, but: ProcessId | None, source: ProcessId | None = None) -> ProcessId | None:
        """Return the peer for the next microbatch of this trainer, but not `but`.

        None: all are paused, or enough were asked; a full peer sends a credit when it has a free slot.
        """
        paused = self._paused_until_s.keys()
        if len(paused) >= ASKED * len(self._alive).bit_length():
            return None
        asked = (process for process, count in self._asking.items() if count >= self._free.get(process, 1))
        enough = (process for process in (*asked, *self._full_until_s) if self.asks(process))
        excluded = {*paused, *enough, *(() if self.insist else self._draining), *(() if but is None else (but,))}
        choice = self.router.choose(excluded, source)
        return None if choice is None else choice.process

    def candidates(self, hint: ProcessId | None) -> set[ProcessId]:
        """Return the peers that may hold the microbatch of a repair: the peer of the hint, or the whole stage."""
        return {hint} if hint is not None and hint in self._alive else set(self._alive)

    def assign(self, entry: InFlight, holder: ProcessId, state: FlightState) -> None:
        """Make a peer the holder of a microbatch, and count the slot that it takes there."""
        entry.holder = holder
        entry.move(state)
        self._count(entry, 1)
        if state is FlightState.UNREQUESTED:
            self.unasked[holder] += 1
        elif state is FlightState.RESERVING:
            self._asking[holder] += 1

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
        if entry.state is FlightState.RESERVING and entry.holder is not None:
            self._asking[entry.holder] -= 1
            self._freed = True

    def _count(self, entry: InFlight, more: int) -> None:
        """Count a microbatch as held by its holder (1), or not any more (-1)."""
        assert entry.holder is not None, "only what has a holder is counted"
        self.held[entry.holder] += more
        self.router.add_held(entry.holder, entry.source, more)
        if entry.awaited:
            self._awaited[entry.holder] += more
            self.router.set_pending(entry.holder, self._awaited[entry.holder])

    def question(self, entry: InFlight, stage: int) -> ReserveSlot:
        """Return the question whether the peer that was chosen for a microbatch has a slot."""
        assert entry.holder is not None, "only a peer that is chosen is asked"
        return ReserveSlot(entry.microbatch, stage, entry.attempt, self.insist, self.unasked[entry.holder])

    def asks(self, process: ProcessId) -> bool:
        """Return whether this sender has used up its share of the peer's slots."""
        return self._shares is not None and self.held[process] >= self._shares.get(process, 0)
