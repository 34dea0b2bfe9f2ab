"""What a process has handed to the next stage: sent until somebody has it, kept until the step is committed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmflow.core.actions import Action, Count, Release, Send
from swarmflow.core.entry import REPAIR, InFlight, next_repair
from swarmflow.core.messages import Accepted, Adopt, Cancel, CreditReturned, Forward, Probed, ReserveSlot, SlotReserved
from swarmflow.core.prober import Prober
from swarmflow.core.rates import LinkRates
from swarmflow.core.takers import NextStage, Router
from swarmflow.core.types import Epoch, Microbatch, ProcessId, Ref

LATE_FACTOR = 10.0  # a peer that is a tenth as fast as it was is as good as gone, for the microbatch at hand
FIRST_FACTOR = 8.0  # of the least deadline, as long as nothing was ever passed on
SLOWEST_BYTES_S = 1.25e6  # 10 Mb/s: a tensor may take as long as over such a link before anybody is late for it
TAKEOVER = 1_000_000  # what one trainer's attempts stay below, so that those of the trainer after it are higher


@dataclass(slots=True)
class Dispatcher:
    """Sends microbatches to the peers of `stage` and sees each into somebody's hands, whoever dies or is full.

    The bytes sent stay here until the step is committed: whoever loses a peer re-sends what that peer held. The
    replacement computes the dead peer's hop, and asks the stage after it who holds the next one before it sends
    anything: only the dead peer's own work is done again (GWTF, V-D; design, Failures). starved: microbatches that have
    to be sent again although their bytes were evicted; they wait for a refill. A holder is late after LATE_FACTOR times
    the usual time, and late_min_s at least; its microbatch goes to another, if there is one, and the next deadline is
    twice as long. Where there is none, and where a gradient or an answer does not come, the holder is asked: a message
    may have been lost on the way there or back. size_bytes: of all that is kept for re-sending. due_s: before it a tick
    leads to nothing. trainers: of the epoch, in the order by which microbatches fall to them.
    """

    stage: int
    router: Router
    late_min_s: float = 15.0
    prober: Prober = field(default_factory=Prober)
    speeds: LinkRates = field(default_factory=LinkRates)
    takers: NextStage = field(init=False)
    entries: dict[int, InFlight] = field(default_factory=dict)
    starved: dict[int, None] = field(default_factory=dict)
    size_bytes: int = 0
    due_s: float = 0.0
    trainers: tuple[ProcessId, ...] = ()
    _waiting: dict[int, None] = field(default_factory=dict)
    _deadlines: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.takers = NextStage(self.router)

    def open(
        self,
        epoch: Epoch,
        peers: tuple[ProcessId, ...],
        shares: Mapping[ProcessId, int] | None = None,
        mates: tuple[ProcessId, ...] = (),
    ) -> list[Action]:
        """A new epoch: forget everything; these peers serve the stage.

        shares: of their room, for the own ones. mates: the others of the own stage.
        """
        actions = self.clear()
        self.takers.open(peers, shares)
        strangers = (peer for peer in peers if not self.router.knows(peer))
        self.prober.open(epoch, strangers, self.speeds.open(mates, peers))
        self.due_s = 0.0
        return actions

    def clear(self) -> list[Action]:
        """The step is committed, or void: what was kept for repairs is not needed any more."""
        refs = tuple(ref for entry in self.entries.values() for ref in entry.bodies)
        self.entries.clear()
        self.takers.clear()
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
        """Take a microbatch over. attempt: that of the own hop; those downstream are no lower."""
        data, targets = bodies
        source = self.trainers[microbatch.index % len(self.trainers)] if self.trainers else None
        entry = InFlight(microbatch, data, targets, attempt // REPAIR * REPAIR, repair, hint, source)
        former = self.entries.get(microbatch.index)
        self.size_bytes += entry.size_bytes - (0 if former is None else former.size_bytes)
        self.entries[microbatch.index] = entry
        return self._find_or_route(entry, now)

    def accepted(self, sender: ProcessId, message: Accepted, now: float) -> None:
        """Somebody has it: the way there took from when its bytes were sent until now."""
        entry = self._current(sender, message.microbatch, message.attempt)
        if entry is not None and not entry.reserving and not entry.measured:
            self.router.arrived(sender, now - entry.sent_at_s, now)
            if message.microbatch.index not in self.speeds.detoured:
                self.speeds.measured(sender, entry.size_bytes, now - entry.sent_at_s)
            entry.arrived_s = now
        self.router.told(sender, message.rest_s)
        self._has(sender, message.microbatch, message.attempt)

    def _has(self, sender: ProcessId, microbatch: Microbatch, attempt: int) -> None:
        """Of those that were asked, the first one that has it stays the holder."""
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
        """What was on its way to somebody was lost on it."""
        entry = self.entries.get(index)
        if entry is None or entry.holder != to or entry.reserving or entry.returned or entry.arrived_s is not None:
            return []
        return self._send(entry, to, now)

    def rerouted(self, rates: dict[ProcessId, float]) -> None:
        """Tensors to these go on other ways now, of so many bytes a second."""
        for process, rate in rates.items():
            self.router.rerouted(process, self.prober.boundary_bytes / rate)
        rates.clear()

    def probed(self, sender: ProcessId, message: Probed, now: float) -> None:
        """A peer has answered a probe."""
        way_s = self.prober.answered(sender, message, now)
        self.due_s = now  # the next one's turn may have come
        if way_s is not None:
            self.router.probed(sender, way_s, now)
            self.speeds.measured(sender, self.prober.boundary_bytes, way_s)
        self.router.told(sender, message.rest_s)

    def reserved(self, sender: ProcessId, message: SlotReserved, now: float) -> list[Action]:
        """There is room for it: send the bytes. Who keeps room for what has gone elsewhere was told so."""
        self.router.told(sender, message.rest_s)
        entry = self._current(sender, message.microbatch, message.attempt)
        return self._send(entry, sender, now) if entry is not None and entry.reserving else []

    def denied(self, sender: ProcessId, microbatch: Microbatch, attempt: int, reason: str, now: float) -> list[Action]:
        """Somebody does not have it or does not want it: ask or try the next one; leave who is full alone."""
        entry = self.entries.get(microbatch.index)
        if entry is None or entry.microbatch != microbatch or entry.attempt != attempt:
            return []
        if sender in entry.asked:
            return self._unanswered(entry, sender, now)
        if entry.holder != sender:
            return []
        # Who lost it, for what it got back was no tensor or since it was relieved, may have passed it on before.
        entry.repair |= reason in ("unknown", "invalid")
        self.takers.denied(sender, reason, now)
        self.due_s = min(self.due_s, now + self.takers.pause_s)
        # What was passed on may have been repaired there: an attempt of the next repair is above all of that.
        fresh = reason in ("full", "draining", "stage")
        entry.attempt = entry.attempt + 1 if fresh else next_repair(entry.attempt)
        retried: list[Action] = [Count("retries", "asked" if entry.reserving and fresh else reason)]
        self.hand(entry, None)
        return retried + self.route(entry, now)

    def room(self, sender: ProcessId, now: float) -> list[Action]:
        """A full peer has room again."""
        self.takers.room(sender)
        return self._retry(now) if self._waiting else [Send(sender, CreditReturned(self.stage))]

    def routed(self, sender: ProcessId, microbatch: Microbatch, attempt: int, successor: ProcessId, now: float) -> None:
        """The holder has passed it on, which tells how long it took."""
        entry = self._current(sender, microbatch, attempt)
        if entry is not None:
            self._measure(entry, sender, now)
            entry.successor = successor
            self.expect(entry, now + self._deadline_s(entry, sender))

    def returned(self, sender: ProcessId, microbatch: Microbatch, attempt: int, now: float) -> bool:
        """The gradient came back. True: it is the first one, and from the right hands."""
        self._has(sender, microbatch, attempt)  # a stored gradient can overtake the word that it was adopted
        entry = self._current(sender, microbatch, attempt)
        if entry is None or entry.returned:
            return False
        self._measure(entry, sender, now)
        self.takers.count(sender, -1, entry.source, awaited=False)
        entry.returned, entry.settled, entry.restored = True, True, False
        return True

    def evict(self, index: int) -> Ref | None:
        """Give up what was sent of a microbatch whose gradient has come back: it is of use to a repair alone.

        The targets stay: they are nothing beside an activation, and spare a repair to ask for them.
        """
        entry = self.entries.get(index)
        if entry is None or not entry.returned:
            return None
        data, entry.data = entry.data, None
        self.size_bytes -= 0 if data is None else data.size_bytes
        return data

    def refill(self, index: int, data: Ref, now: float) -> list[Action]:
        """Evicted bytes are there again; if they have to be sent, they are."""
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
        """A process died: what it held is sent to others, and who holds the hop after it is told.

        lost: microbatches of this stage that nobody holds any more, whoever the holder seemed to be: it may have been
        an orphan that was taken away.
        """
        served, actions = self.takers.gone(process), list[Action]()
        self.prober.gone(process)
        self.due_s = now
        for entry in list(self.entries.values()):
            if process in entry.asked:
                actions += self._unanswered(entry, process, now)
            elif entry.holder == process or (entry.returned and entry.microbatch.index in lost):
                actions += self._send_again(entry, now)
        # If only those are left who want to leave, they have to take what waits.
        return actions + (self._retry(now) if served else [])

    def enter(self, process: ProcessId, share: int, now: float) -> list[Action]:
        """One more serves the stage, amid the epoch."""
        self.takers.enter(process, share)
        return self._retry(now)

    def _send_again(self, entry: InFlight, now: float) -> list[Action]:
        if entry.reserving:  # it never had it
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
        """Who has a microbatch, as far as is known."""
        entry = self.entries.get(index)
        return None if entry is None or entry.reserving else entry.holder

    @property
    def alive(self) -> tuple[ProcessId, ...]:
        """The peers of the stage."""
        return self.takers.alive

    @property
    def waiting(self) -> int:
        """Microbatches that nobody could take."""
        return len(self._waiting)

    def next_deadline(self) -> float | None:
        """When a paused peer is tried again although it never said that it had room, or a holder is late."""
        first = self._first_late()
        rested_s = self.takers.next_rested_s() if self._waiting else None
        times = (None if first is None else first.late_s, rested_s, self.prober.next_deadline())
        return min((time_s for time_s in times if time_s is not None), default=None)

    def _first_late(self) -> InFlight | None:
        """The watched entry that will be late first; those that are not watched any more are passed over."""
        while self._deadlines:
            late_s, index = self._deadlines[0]
            entry = self.entries.get(index)
            if entry is not None and entry.watched and entry.late_s == late_s:
                return entry
            heapq.heappop(self._deadlines)
        return None

    def tick(self, now: float) -> list[Action]:
        """Give up pauses that have lasted long enough, and see who is late. A machine ticks after every event."""
        if now < self.due_s:
            return []
        rested = self.takers.rested(now)
        actions = self.prober.tick(now)
        while (first := self._first_late()) is not None and first.late_s <= now:
            actions += self._late(first, now)
        actions += self._retry(now) if rested else []
        first_s = self._deadlines[0][0] if self._deadlines else None
        times = (first_s, self.takers.next_rested_s(), self.prober.next_deadline())
        self.due_s = min((time_s for time_s in times if time_s is not None), default=math.inf)
        return actions

    def forget(self, index: int) -> list[Action]:
        """The hop before it is not this process's any more."""
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
        """A holder is late: somebody else gets its microbatch. Where there is nobody else, or nothing to compute: ask.

        Who has it says so once more, with the gradient if it is there; who has it not never got it.
        """
        former, attempt = entry.holder, entry.attempt
        entry.patience += 1
        self.expect(entry, now + self._deadline_s(entry, former))
        if former is None or not entry.awaited:
            silent = sorted(entry.asked) if former is None else [former]
            return [Send(process, Adopt(entry.microbatch, self.stage, attempt, entry.settled)) for process in silent]
        if not self.takers.others(former):
            again = ReserveSlot if entry.reserving else Adopt
            return [Send(former, again(entry.microbatch, self.stage, attempt, settled=entry.settled))]
        if entry.reserving:
            unused = self._unreserve(entry)
            self.hand(entry, None)
            return unused + self.route(entry, now, but=former)
        return self.move(entry, former, "late", now)

    def move(self, entry: InFlight, former: ProcessId, reason: str, now: float) -> list[Action]:
        """Another one gets a microbatch, although its holder may live."""
        relieved = Send(former, Cancel(entry.microbatch, self.stage, entry.attempt))
        entry.attempt, entry.repair = next_repair(entry.attempt), True
        self.hand(entry, None)
        return [Count("retries", reason), relieved, *self.route(entry, now, but=former)]

    def expect(self, entry: InFlight, late_s: float) -> None:
        """Its holder is late from then on."""
        entry.late_s = late_s
        self.due_s = min(self.due_s, late_s)
        heapq.heappush(self._deadlines, (late_s, entry.microbatch.index))

    def _deadline_s(self, entry: InFlight, holder: ProcessId | None) -> float:
        usual_s = self.takers.usual_s(holder) if holder is not None else 0.0
        # Nobody has passed anything on yet: it may wait in a full queue, of which nothing is known.
        least_s = self.late_min_s if usual_s is not None else FIRST_FACTOR * self.late_min_s
        least_s += entry.size_bytes / SLOWEST_BYTES_S
        return float(max(least_s, LATE_FACTOR * (usual_s or 0.0)) * 2.0**entry.patience)

    def _current(self, sender: ProcessId, microbatch: Microbatch, attempt: int) -> InFlight | None:
        entry = self.entries.get(microbatch.index)
        if entry is None or entry.microbatch != microbatch or entry.holder != sender or entry.attempt != attempt:
            return None
        return entry

    def _find_or_route(self, entry: InFlight, now: float) -> list[Action]:
        """In a repair, ask first: the one who was told to have it, or everybody of the stage."""
        if not entry.repair:
            return self.route(entry, now)
        hinted = entry.hint is not None and entry.hint in self.takers
        entry.asked = {entry.hint} if entry.hint is not None and hinted else set(self.alive)
        return self._ask(entry, now)

    def _ask(self, entry: InFlight, now: float) -> list[Action]:
        if not entry.asked:
            return self.route(entry, now)
        entry.measured = True  # an adoption takes no time that tells of the peer's speed
        self.expect(entry, now + self._deadline_s(entry, None))
        return [Send(p, Adopt(entry.microbatch, self.stage, entry.attempt, entry.settled)) for p in sorted(entry.asked)]

    def _unanswered(self, entry: InFlight, process: ProcessId, now: float) -> list[Action]:
        """One of those asked does not have it. If it was the only one, on a hint, the others are asked."""
        entry.asked.discard(process)
        if entry.asked:
            return []
        entry.attempt += 1
        if process == entry.hint:
            entry.hint = None
            entry.asked = {other for other in self.alive if other != process}
        return self._ask(entry, now)

    def route(self, entry: InFlight, now: float, but: ProcessId | None = None) -> list[Action]:
        """Send it to whoever is chosen, or have it wait. but: not to this one."""
        index = entry.microbatch.index
        chosen = self.takers.choose(but, entry.source)
        if chosen is None:
            self._waiting[index] = None
            return []
        self._waiting.pop(index, None)
        entry.sent_at_s, entry.measured = now, False
        entry.reserving = self.takers.asks(chosen)
        self.hand(entry, chosen)
        if not entry.reserving:
            entry.unasked = True
            self.takers.ahead[chosen] += 1
            return self._send(entry, chosen, now)
        self.expect(entry, now + self._deadline_s(entry, chosen))
        insist, ahead = self.takers.insist, self.takers.ahead[chosen]
        return [Send(chosen, ReserveSlot(entry.microbatch, self.stage, entry.attempt, insist, ahead, entry.settled))]

    def _send(self, entry: InFlight, chosen: ProcessId, now: float) -> list[Action]:
        entry.reserving, entry.sent_at_s, entry.arrived_s = False, now, None
        self.expect(entry, now + self._deadline_s(entry, chosen))
        how = entry.repair, entry.successor, self.takers.insist, entry.settled
        return [Send(chosen, Forward(entry.microbatch, self.stage, entry.attempt, *how), entry.bodies)]

    def _unreserve(self, entry: InFlight) -> list[Action]:
        """Room that is kept for it is needed no more."""
        if entry.holder is None or not entry.reserving:
            return []
        return [Send(entry.holder, Cancel(entry.microbatch, self.stage, entry.attempt))]

    def hand(self, entry: InFlight, holder: ProcessId | None) -> None:
        """Whose hands it is in now. What it takes up there is counted."""
        self._answered(entry)
        if entry.held and entry.holder is not None:
            self.takers.count(entry.holder, -1, entry.source, awaited=entry.awaited)
        entry.holder = holder
        entry.reserving &= holder is not None
        if entry.held and holder is not None:
            self.takers.count(holder, 1, entry.source, awaited=entry.awaited)

    def _answered(self, entry: InFlight) -> None:
        """Its bytes are no more on the way to somebody who was not asked."""
        if entry.unasked and entry.holder is not None:
            self.takers.ahead[entry.holder] -= 1
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
            self.takers.measured(sender, now - entry.sent_at_s, inside_s)
