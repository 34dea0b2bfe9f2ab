"""Dispatches microbatches to the next stage: sends, tracks and re-sends each one until the step is committed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Count, Release, Send
from swarmflow.core.in_flight import REPAIR, InFlight, next_repair
from swarmflow.core.link_rates import LinkRates
from swarmflow.core.messages import Accepted, Adopt, Cancel, CreditReturned, Forward, Probed, ReserveSlot, SlotReserved
from swarmflow.core.next_stage import NextStage, Router
from swarmflow.core.prober import Prober
from swarmflow.core.types import Epoch, Microbatch, ProcessId, Ref

LATE_FACTOR = 10.0  # times the usual time: a peer at a tenth of its speed is as good as gone for the microbatch at hand
FIRST_FACTOR = 8.0  # times the least deadline, as long as no peer has passed anything on
SLOWEST_BYTES_S = 1.25e6  # 10 Mb/s: no holder is late before its tensor could have crossed such a link
TAKEOVER = 1_000_000  # above the attempts of one trainer, so that those of its successor are higher


@dataclass(slots=True)
class Dispatcher:
    """Dispatches each microbatch to a peer of `stage` and tracks it until its gradient returns.

    The bytes sent stay here until the step is committed, so that a dead peer's microbatches can be re-sent. The
    replacement computes the dead peer's hop and asks the stage after it who holds the next hop before it sends
    anything: only the dead peer's own work is repeated (GWTF, V-D).

    A holder is late after LATE_FACTOR times the usual time, and after late_min_s at least. Its microbatch then goes to
    another peer if there is one, with twice the deadline. Where there is none, and where a gradient or an answer does
    not arrive, the holder is asked again: a message may have been lost.
    """

    stage: int
    router: Router
    late_min_s: float = 15.0
    prober: Prober = field(default_factory=Prober)
    speeds: LinkRates = field(default_factory=LinkRates)
    next_stage: NextStage = field(init=False)
    entries: dict[int, InFlight] = field(default_factory=dict)  # by index
    starved: dict[int, None] = field(default_factory=dict)  # to be re-sent, but evicted: they wait for a refill
    size_bytes: int = 0  # kept for re-sending
    due_s: float = 0.0  # a tick before this time does nothing
    trainers: tuple[ProcessId, ...] = ()  # of the epoch, in the order in which microbatches fall to them
    _waiting: dict[int, None] = field(default_factory=dict)  # no peer could take them
    _deadlines: list[tuple[float, int]] = field(default_factory=list)  # heap of (late_s, index)

    def __post_init__(self) -> None:
        self.next_stage = NextStage(self.router)

    def open(
        self,
        epoch: Epoch,
        peers: tuple[ProcessId, ...],
        shares: Mapping[ProcessId, int] | None = None,
        mates: tuple[ProcessId, ...] = (),
    ) -> list[Action]:
        """Begin an epoch with these peers of the stage.

        shares: how many of this process' microbatches each peer has slots for. mates: the other peers of the own stage.
        """
        actions = self.clear()
        self.next_stage.open(peers, shares)
        strangers = (peer for peer in peers if not self.router.knows(peer))
        self.prober.open(epoch, strangers, self.speeds.open(mates, peers))
        self.due_s = 0.0
        return actions

    def clear(self) -> list[Action]:
        """Release all that was kept for repairs, once the step is committed or void."""
        refs = tuple(ref for entry in self.entries.values() for ref in entry.bodies)
        self.entries.clear()
        self.next_stage.clear()
        self.size_bytes = 0
        self.starved.clear()
        self._waiting.clear()
        self._deadlines.clear()
        return [Release(refs)] if refs else []

    def offer(
        self,
        microbatch: Microbatch,
        bodies: tuple[Ref, ...],
        now: float,
        attempt: int = 0,
        repair: bool = False,
        hint: ProcessId | None = None,
    ) -> list[Action]:
        """Dispatch a microbatch. attempt: of the own hop; downstream ones are no lower. hint: its probable holder."""
        data, targets = bodies
        source = self.trainers[microbatch.index % len(self.trainers)] if self.trainers else None
        entry = InFlight(microbatch, data, targets, attempt // REPAIR * REPAIR, repair, hint, source)
        former = self.entries.get(microbatch.index)
        self.size_bytes += entry.size_bytes - (0 if former is None else former.size_bytes)
        self.entries[microbatch.index] = entry
        return self._find_or_route(entry, now)

    def accepted(self, sender: ProcessId, message: Accepted, now: float) -> None:
        """Record that a peer holds it; the transfer took from sending its bytes until now."""
        entry = self._current(sender, message.microbatch, message.attempt)
        if entry is not None and not entry.reserving and not entry.measured:
            self.router.arrived(sender, now - entry.sent_at_s, now)
            if message.microbatch.index not in self.speeds.detoured:
                self.speeds.measured(sender, entry.size_bytes, now - entry.sent_at_s)
            entry.arrived_s = now
        self.router.told(sender, message.downstream_s)
        self._has(sender, message.microbatch, message.attempt)

    def _has(self, sender: ProcessId, microbatch: Microbatch, attempt: int) -> None:
        """Make the first of the asked peers that holds it the holder."""
        entry = self.entries.get(microbatch.index)
        if entry is None or entry.microbatch != microbatch or entry.attempt != attempt:
            return
        if sender == entry.holder:
            self._answered(entry)
            entry.reserving = False  # it was there already
        elif sender in entry.asked and entry.holder is None:
            self.hand(entry, sender)
            entry.asked.clear()

    def again(self, index: int, to: ProcessId, now: float) -> list[Action]:
        """Re-send a microbatch that was lost on its way to a peer."""
        entry = self.entries.get(index)
        if entry is None or entry.holder != to or entry.reserving or entry.returned or entry.arrived_s is not None:
            return []
        return self._send(entry, to, now)

    def rerouted(self, rates: dict[ProcessId, float]) -> None:
        """Tell the router that tensors to these peers take other paths now. rates: bytes/s; emptied."""
        for process, rate in rates.items():
            self.router.rerouted(process, self.prober.boundary_bytes / rate)
        rates.clear()

    def probed(self, sender: ProcessId, message: Probed, now: float) -> None:
        """Record the answer to a probe."""
        way_s = self.prober.answered(sender, message, now)
        self.due_s = now  # the next one's turn may have come
        if way_s is not None:
            self.router.probed(sender, way_s, now)
            self.speeds.measured(sender, self.prober.boundary_bytes, way_s)
        self.router.told(sender, message.downstream_s)

    def reserved(self, sender: ProcessId, message: SlotReserved, now: float) -> list[Action]:
        """Send the bytes that a slot was reserved for, unless the microbatch went elsewhere and that was cancelled."""
        self.router.told(sender, message.downstream_s)
        entry = self._current(sender, message.microbatch, message.attempt)
        return self._send(entry, sender, now) if entry is not None and entry.reserving else []

    def denied(self, sender: ProcessId, microbatch: Microbatch, attempt: int, reason: str, now: float) -> list[Action]:
        """Ask or try the next peer after a denial; leave a full one alone until it has a free slot."""
        entry = self.entries.get(microbatch.index)
        if entry is None or entry.microbatch != microbatch or entry.attempt != attempt:
            return []
        if sender in entry.asked:
            return self._unanswered(entry, sender, now)
        if entry.holder != sender:
            return []
        # A peer that lost it (its gradient was invalid, or it was cancelled) may have passed it on before.
        entry.repair |= reason in ("unknown", "invalid")
        self.next_stage.denied(sender, reason, now)
        self.due_s = min(self.due_s, now + self.next_stage.pause_s)
        # What was passed on may have been repaired downstream: an attempt of the next repair is above all of those.
        fresh = reason in ("full", "draining", "stage")
        entry.attempt = entry.attempt + 1 if fresh else next_repair(entry.attempt)
        retried: list[Action] = [Count("retries", "asked" if entry.reserving and fresh else reason)]
        self.hand(entry, None)
        return retried + self.route(entry, now)

    def credit(self, sender: ProcessId, now: float) -> list[Action]:
        """Use the credit of a peer that was full, or return it."""
        self.next_stage.credit(sender)
        return self._retry(now) if self._waiting else [Send(sender, CreditReturned(self.stage))]

    def routed(self, sender: ProcessId, microbatch: Microbatch, attempt: int, successor: ProcessId, now: float) -> None:
        """Record that the holder has passed it on, and how long that took."""
        entry = self._current(sender, microbatch, attempt)
        if entry is not None:
            self._measure(entry, sender, now)
            entry.successor = successor
            self.expect(entry, now + self._deadline_s(entry, sender))

    def returned(self, sender: ProcessId, microbatch: Microbatch, attempt: int, now: float) -> bool:
        """Record a gradient. Return whether it is the first one, and from the holder."""
        self._has(sender, microbatch, attempt)  # a stored gradient can overtake the answer to the Adopt
        entry = self._current(sender, microbatch, attempt)
        if entry is None or entry.returned:
            return False
        self._measure(entry, sender, now)
        self.next_stage.count(sender, -1, entry.source, awaited=False)
        entry.returned, entry.settled, entry.restored = True, True, False
        return True

    def evict(self, index: int) -> Ref | None:
        """Give up the input of a microbatch whose gradient has returned: only a repair needs it.

        The targets stay: they are small beside an activation, and a repair need not ask for them.
        """
        entry = self.entries.get(index)
        if entry is None or not entry.returned:
            return None
        data, entry.data = entry.data, None
        self.size_bytes -= 0 if data is None else data.size_bytes
        return data

    def refill(self, index: int, data: Ref, now: float) -> list[Action]:
        """Take evicted bytes back, and re-send them if that is due."""
        entry = self.entries.get(index)
        if entry is None or entry.data is not None:
            return [Release((data,))]
        entry.data = data
        self.size_bytes += data.size_bytes
        if index not in self.starved:
            return []
        del self.starved[index]
        entry.restored = True
        return self.route(entry, now)

    def gone(self, process: ProcessId, now: float, lost: Collection[int] = ()) -> list[Action]:
        """Re-send what a dead process held to others.

        lost: microbatches of this stage that no process holds any more, whoever the holder seemed to be: its hop may
        have been an orphan that was taken away.
        """
        served, actions = self.next_stage.gone(process), list[Action]()
        self.prober.gone(process)
        self.due_s = now
        for entry in list(self.entries.values()):
            if process in entry.asked:
                actions += self._unanswered(entry, process, now)
            elif entry.holder == process or (entry.returned and entry.microbatch.index in lost):
                actions += self._send_again(entry, now)
        # If only draining peers are left, they have to take what waits.
        return actions + (self._retry(now) if served else [])

    def enter(self, process: ProcessId, share: int, now: float) -> list[Action]:
        """Add a peer of the stage amid the epoch."""
        self.next_stage.enter(process, share)
        return self._retry(now)

    def _send_again(self, entry: InFlight, now: float) -> list[Action]:
        if entry.reserving:  # the bytes were never sent
            self.hand(entry, None)
            return self.route(entry, now)
        entry.attempt = next_repair(entry.attempt)
        self.hand(entry, None)
        entry.repair, entry.returned = True, False
        again: list[Action] = [Count("retries", "gone")]
        if entry.data is None:
            self.starved[entry.microbatch.index] = None
            return again
        return again + self.route(entry, now)

    def holder(self, index: int) -> ProcessId | None:
        """Return the known holder of a microbatch."""
        entry = self.entries.get(index)
        return None if entry is None or entry.reserving else entry.holder

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        """The peers of the stage."""
        return self.next_stage.alive

    @property
    def waiting(self) -> int:
        """Microbatches that no peer could take."""
        return len(self._waiting)

    def next_deadline(self) -> float | None:
        """When a paused peer is tried again, a probe is due or a holder is late."""
        first = self._first_late()
        rested_s = self.next_stage.next_rested_s() if self._waiting else None
        times = (None if first is None else first.late_s, rested_s, self.prober.next_deadline())
        return min((time_s for time_s in times if time_s is not None), default=None)

    def _first_late(self) -> InFlight | None:
        """Return the watched entry that is late first; drop the heap entries of others."""
        while self._deadlines:
            late_s, index = self._deadlines[0]
            entry = self.entries.get(index)
            if entry is not None and entry.watched and entry.late_s == late_s:
                return entry
            heapq.heappop(self._deadlines)
        return None

    def tick(self, now: float) -> list[Action]:
        """End pauses that have lasted long enough and handle late holders. Called after every event."""
        if now < self.due_s:
            return []
        rested = self.next_stage.rested(now)
        actions = self.prober.tick(now)
        while (first := self._first_late()) is not None and first.late_s <= now:
            actions += self._late(first, now)
        actions += self._retry(now) if rested else []
        first_s = self._deadlines[0][0] if self._deadlines else None
        times = (first_s, self.next_stage.next_rested_s(), self.prober.next_deadline())
        self.due_s = min((time_s for time_s in times if time_s is not None), default=math.inf)
        return actions

    def forget(self, index: int) -> list[Action]:
        """Drop a microbatch whose own hop was dropped."""
        entry = self.entries.pop(index, None)
        self._waiting.pop(index, None)
        self.starved.pop(index, None)
        if entry is None:
            return []
        unused = self._unreserve(entry)
        self.hand(entry, None)
        self.size_bytes -= entry.size_bytes
        return [*unused, Release(entry.bodies)]

    def _late(self, entry: InFlight, now: float) -> list[Action]:
        """Move a late holder's microbatch to another peer; ask again where there is none or nothing to compute.

        A holder that has it repeats its answer, with the gradient if that is computed; one that has not never got it.
        """
        former, attempt = entry.holder, entry.attempt
        entry.patience += 1
        self.expect(entry, now + self._deadline_s(entry, former))
        if former is None or not entry.awaited:
            silent = sorted(entry.asked) if former is None else [former]
            return [Send(process, Adopt(entry.microbatch, self.stage, attempt, entry.settled)) for process in silent]
        if not self.next_stage.others(former):
            again = ReserveSlot if entry.reserving else Adopt
            return [Send(former, again(entry.microbatch, self.stage, attempt, settled=entry.settled))]
        if entry.reserving:
            unused = self._unreserve(entry)
            self.hand(entry, None)
            return unused + self.route(entry, now, but=former)
        return self.move(entry, former, "late", now)

    def move(self, entry: InFlight, former: ProcessId, reason: str, now: float) -> list[Action]:
        """Move a microbatch to another peer although its holder may be alive."""
        relieved = Send(former, Cancel(entry.microbatch, self.stage, entry.attempt))
        entry.attempt, entry.repair = next_repair(entry.attempt), True
        self.hand(entry, None)
        return [Count("retries", reason), relieved, *self.route(entry, now, but=former)]

    def expect(self, entry: InFlight, late_s: float) -> None:
        """Set the time from which its holder is late."""
        entry.late_s = late_s
        self.due_s = min(self.due_s, late_s)
        heapq.heappush(self._deadlines, (late_s, entry.microbatch.index))

    def _deadline_s(self, entry: InFlight, holder: ProcessId | None) -> float:
        usual_s = self.next_stage.usual_s(holder) if holder is not None else 0.0
        # No peer has passed anything on yet, so it may wait in a full queue of unknown length.
        least_s = self.late_min_s if usual_s is not None else FIRST_FACTOR * self.late_min_s
        least_s += entry.size_bytes / SLOWEST_BYTES_S
        return float(max(least_s, LATE_FACTOR * (usual_s or 0.0)) * 2.0**entry.patience)

    def _current(self, sender: ProcessId, microbatch: Microbatch, attempt: int) -> InFlight | None:
        entry = self.entries.get(microbatch.index)
        if entry is None or entry.microbatch != microbatch or entry.holder != sender or entry.attempt != attempt:
            return None
        return entry

    def _find_or_route(self, entry: InFlight, now: float) -> list[Action]:
        """Route it; in a repair ask first who holds it: the peer of the hint, or the whole stage."""
        if not entry.repair:
            return self.route(entry, now)
        hinted = entry.hint is not None and entry.hint in self.next_stage
        entry.asked = {entry.hint} if entry.hint is not None and hinted else set(self.alive)
        return self._ask(entry, now)

    def _ask(self, entry: InFlight, now: float) -> list[Action]:
        if not entry.asked:
            return self.route(entry, now)
        entry.measured = True  # the time of an adoption says nothing about the peer's speed
        self.expect(entry, now + self._deadline_s(entry, None))
        return [Send(p, Adopt(entry.microbatch, self.stage, entry.attempt, entry.settled)) for p in sorted(entry.asked)]

    def _unanswered(self, entry: InFlight, process: ProcessId, now: float) -> list[Action]:
        """Note that an asked peer does not hold it. After the peer of a hint, ask the rest of the stage."""
        entry.asked.discard(process)
        if entry.asked:
            return []
        entry.attempt += 1
        if process == entry.hint:
            entry.hint = None
            entry.asked = {other for other in self.alive if other != process}
        return self._ask(entry, now)

    def route(self, entry: InFlight, now: float, but: ProcessId | None = None) -> list[Action]:
        """Send it to the peer that the router chooses, or let it wait. but: exclude this peer."""
        index = entry.microbatch.index
        chosen = self.next_stage.choose(but, entry.source)
        if chosen is None:
            self._waiting[index] = None
            return []
        self._waiting.pop(index, None)
        entry.sent_at_s, entry.measured = now, False
        entry.reserving = self.next_stage.asks(chosen)
        self.hand(entry, chosen)
        if not entry.reserving:
            entry.unasked = True
            self.next_stage.ahead[chosen] += 1
            return self._send(entry, chosen, now)
        self.expect(entry, now + self._deadline_s(entry, chosen))
        insist, ahead = self.next_stage.insist, self.next_stage.ahead[chosen]
        return [Send(chosen, ReserveSlot(entry.microbatch, self.stage, entry.attempt, insist, ahead, entry.settled))]

    def _send(self, entry: InFlight, chosen: ProcessId, now: float) -> list[Action]:
        entry.reserving, entry.sent_at_s, entry.arrived_s = False, now, None
        self.expect(entry, now + self._deadline_s(entry, chosen))
        how = entry.repair, entry.successor, self.next_stage.insist, entry.settled
        return [Send(chosen, Forward(entry.microbatch, self.stage, entry.attempt, *how), entry.bodies)]

    def _unreserve(self, entry: InFlight) -> list[Action]:
        """Cancel a reservation that is not needed any more."""
        if entry.holder is None or not entry.reserving:
            return []
        return [Send(entry.holder, Cancel(entry.microbatch, self.stage, entry.attempt))]

    def hand(self, entry: InFlight, holder: ProcessId | None) -> None:
        """Set its holder, and count the slot that it takes there."""
        self._answered(entry)
        if entry.held and entry.holder is not None:
            self.next_stage.count(entry.holder, -1, entry.source, awaited=entry.awaited)
        entry.holder = holder
        entry.reserving &= holder is not None
        if entry.held and holder is not None:
            self.next_stage.count(holder, 1, entry.source, awaited=entry.awaited)

    def _answered(self, entry: InFlight) -> None:
        """Note that unrequested bytes are not in flight any more."""
        if entry.unasked and entry.holder is not None:
            self.next_stage.ahead[entry.holder] -= 1
        entry.unasked = False

    def _retry(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for index in list(self._waiting):
            actions += self.route(self.entries[index], now)
            if index in self._waiting:
                break
        return actions

    def _measure(self, entry: InFlight, sender: ProcessId, now: float) -> None:
        if not entry.measured:
            inside_s = None if entry.arrived_s is None else now - entry.arrived_s
            entry.measured = True
            self.next_stage.measured(sender, now - entry.sent_at_s, inside_s)
