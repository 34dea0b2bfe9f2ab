"""Dispatches microbatches to the next stage: sends, tracks and re-sends each one until the step is committed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from swarmflow.core.pipeline.flight_table import FlightTable
from swarmflow.core.pipeline.in_flight import FlightState, InFlight
from swarmflow.core.pipeline.next_stage import NextStage
from swarmflow.core.pipeline.send_window import SendWindow
from swarmflow.core.protocol.actions import Action, Release, Send
from swarmflow.core.protocol.messages import Accepted, Cancel, CreditReturned, Forward, HopHandover, Probed
from swarmflow.core.protocol.types import FIRST_ATTEMPT, Attempt, Epoch, Microbatch, Plan, ProcessId, Ref
from swarmflow.core.routing.link_rates import LinkRates
from swarmflow.core.routing.prober import Prober
from swarmflow.core.routing.router import Router
from swarmflow.core.routing.routers import router_named

LATE_FACTOR = 10.0  # times the usual time: a peer at a tenth of its speed is as good as gone for the microbatch at hand
FIRST_FACTOR = 8.0  # times the least deadline, as long as no peer has passed anything on
QUEUE_MAX = 16  # passes: who says that it has more to compute first is given no more time for that
SLOWEST_BYTES_S = 1.25e6  # 10 Mb/s: no holder is late before its tensor could have crossed such a link


@dataclass(slots=True)
class Dispatcher:
    """Dispatches each microbatch to a peer of `stage` and tracks it until its gradient returns.

    The bytes sent stay here until the step is committed, so that a dead peer's microbatches can be re-sent. The
    replacement computes the dead peer's hop and asks the stage after it who holds the next hop before it sends
    anything: only the dead peer's own work is repeated (GWTF, V-D).

    A holder is late after LATE_FACTOR times the usual time, or that of what it has to compute first, and after
    late_min_s at least. Its microbatch then goes to another peer if there is one, with twice the deadline. Where there
    is none, and where a gradient or an answer does not arrive, the holder is asked again: a message may have been lost.
    """

    stage: int
    router: Router
    late_min_s: float = 15.0
    prober: Prober = field(default_factory=Prober)
    senders: int = field(default=1, init=False)  # to this stage, this one included, as of the beginning of the epoch
    link_rates: LinkRates = field(init=False)
    next_stage: NextStage = field(init=False)
    flights: FlightTable = field(default_factory=FlightTable, init=False)
    send_window: SendWindow = field(init=False)
    waiting: dict[Microbatch, None] = field(default_factory=dict, init=False)  # for a peer, or for the send window
    due_s: float = field(default=0.0, init=False)  # a tick before this time does nothing
    trainers: tuple[ProcessId, ...] = field(default=(), init=False)  # in the order in which microbatches fall to them

    def __post_init__(self) -> None:
        self.next_stage, self.link_rates = NextStage(self.router), LinkRates(self.router.links)
        self.send_window = SendWindow(self.flights, self.router.links, self.prober.boundary_bytes > 0)

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
        self.measure_links(epoch, peers, mates)
        return actions

    def measure_links(self, epoch: Epoch, peers: tuple[ProcessId, ...], mates: tuple[ProcessId, ...]) -> None:
        """Measure, in this epoch, the links that have not been: to the peers of the stage, and of the own one."""
        unmeasured_mates = self.link_rates.open(mates, peers)
        strangers = (peer for peer in peers if self.router.probes and not self.router.links.is_fresh(peer))
        self.prober.open(epoch, strangers, unmeasured_mates)
        self.due_s = 0.0

    def clear(self) -> list[Action]:
        """Release all that was kept for repairs, since the step is void."""
        refs = self.flights.clear()
        self.next_stage.clear()
        self.waiting.clear()
        self.send_window.clear()
        return [Release(refs)] if refs else []

    def offer(
        self,
        microbatch: Microbatch,
        bodies: tuple[Ref, ...],
        now: float,
        attempt: Attempt = FIRST_ATTEMPT,
        handovers: tuple[HopHandover, ...] = (),
        repair: bool = False,
        hint: ProcessId | None = None,
    ) -> list[Action]:
        """Dispatch a microbatch; in a repair, ask first which peer holds it already.

        attempt, handovers: of the own hop; downstream attempts are no lower. hint: its probable holder.
        """
        entry = self._entry(microbatch, bodies, attempt, handovers, repair, hint)
        if not repair:
            return self.route(entry, now)
        entry.asked = self.next_stage.candidates(hint)
        return self.ask(entry, now)

    def offer_held(
        self,
        microbatch: Microbatch,
        bodies: tuple[Ref, ...],
        now: float,
        attempt: Attempt,
        handovers: tuple[HopHandover, ...],
        holder: ProcessId,
        successor: ProcessId | None,
    ) -> None:
        """Take a microbatch that a peer of the stage has said to hold: only its gradient is awaited."""
        assert holder in self.next_stage.availability, "what a peer that is gone has said is forgotten"
        entry = self._entry(microbatch, bodies, attempt, handovers, True, holder)
        entry.move(FlightState.ASKING)
        entry.measured, entry.successor = True, successor
        self.next_stage.assign(entry, holder, FlightState.HELD)
        self.expect(entry, now + self.deadline_s(entry, holder))

    def _entry(
        self,
        microbatch: Microbatch,
        bodies: tuple[Ref, ...],
        attempt: Attempt,
        handovers: tuple[HopHandover, ...],
        repair: bool,
        hint: ProcessId | None,
    ) -> InFlight:
        data, targets = bodies
        source = self.trainers[microbatch.index % len(self.trainers)] if self.trainers else None
        entry = InFlight(microbatch, data, targets, attempt.passed_on(), repair, hint, source, handovers)
        self.flights.add(entry)
        return entry

    def accepted(self, sender: ProcessId, message: Accepted, now: float) -> None:
        """Record that a peer holds it; the transfer took from sending its bytes until now."""
        entry = self.flights.held_by(sender, message.microbatch, message.attempt)
        if entry is not None:
            entry.unheard = False
        if entry is not None and not entry.reserving and not entry.measured and entry.arrived_s is None:
            direct = message.microbatch not in self.link_rates.relayed
            self.router.links.record_transfer(sender, entry.size_bytes, now - entry.sent_at_s, now, direct)
            self.router.links.record_service(sender, message.pass_s, now)
            self.router.links.record_work(sender, message.work_s, message.each_s, now)
            self.router.refresh(sender)
            entry.arrived_s, entry.queued = now, message.queued
            self._acknowledged(now)
            self.next_stage.record_queued(max(0, message.queued - 1))  # it counts this one
        self.router.record_downstream(sender, message.downstream_s)
        self._found(sender, message.microbatch, message.attempt)

    def _found(self, sender: ProcessId, microbatch: Microbatch, attempt: Attempt) -> None:
        """Record that a peer has a microbatch; the first of the asked peers that has it is its holder."""
        entry = self.flights.find(microbatch, attempt)
        if entry is None:
            return
        if sender == entry.holder and not entry.reserving:  # who was asked for a slot alone has nothing yet
            self.next_stage.answered(entry)
        elif sender in entry.asked and entry.holder is None:
            self.next_stage.assign(entry, sender, FlightState.HELD)
            entry.asked.clear()

    def probed(self, sender: ProcessId, message: Probed, now: float) -> None:
        """Record the answer to a probe."""
        link = self.prober.answered(sender, message, now)
        self.due_s = now  # the next one's turn may have come
        if link is not None:
            size_bytes = self.prober.boundary_bytes
            self.router.links.record_probe(sender, size_bytes, link.tensor_s(size_bytes), now)
            self.router.refresh(sender)
        self.router.record_downstream(sender, message.downstream_s)

    def credit(self, sender: ProcessId, now: float) -> list[Action]:
        """Use the credit of a peer that was full, or return it."""
        self.next_stage.availability.credit(sender)
        wanted = self.waiting and not self.next_stage.availability.is_postponed(sender)
        return self.retry(now) if wanted else [Send(sender, CreditReturned(self.stage))]

    def routed(
        self, sender: ProcessId, microbatch: Microbatch, attempt: Attempt, successor: ProcessId, now: float
    ) -> None:
        """Record that the holder has passed it on, and how long that took."""
        entry = self.flights.held_by(sender, microbatch, attempt)
        if entry is not None and not entry.reserving:
            self.next_stage.measure(entry, now)
            self._acknowledged(now)
            entry.successor = successor
            self.expect(entry, now + self.deadline_s(entry, sender))

    def returned(self, sender: ProcessId, microbatch: Microbatch, attempt: Attempt, now: float) -> bool:
        """Record a gradient. Return whether it is the first one, and from the holder."""
        self._found(sender, microbatch, attempt)  # a stored gradient can overtake the answer to the Adopt
        entry = self.flights.held_by(sender, microbatch, attempt)
        if entry is None or entry.returned or entry.reserving:
            return False
        self.next_stage.measure(entry, now)
        self.next_stage.returned(entry)
        self._acknowledged(now)
        return True

    def _acknowledged(self, now: float) -> None:
        """Look again at what waits for the send window."""
        if self.send_window.has_waiting:
            self.due_s = now

    def repair(self, entry: InFlight, now: float) -> list[Action]:
        """Send a microbatch again whose hop is lost, as soon as its bytes are here."""
        entry.attempt, entry.repair = entry.attempt.next_repair(), True
        if entry.data is None:
            self.next_stage.withdraw(entry)
            self.flights.starve(entry)
            return []
        self.next_stage.withdraw(entry, FlightState.WAITING)
        return self.route(entry, now)

    def refill(self, microbatch: Microbatch, data: Ref, now: float) -> list[Action]:
        """Take evicted bytes back, and re-send them if that is due."""
        entry = self.flights.entries.get(microbatch)
        if entry is None or entry.data is not None:
            return [Release((data,))]
        return self.route(entry, now) if self.flights.refill(entry, data) else []

    def enter(self, process: ProcessId, share: int, now: float) -> list[Action]:
        """Add a peer of the stage amid the epoch."""
        self.next_stage.enter(process, share)
        return self.retry(now)

    def forget(self, microbatch: Microbatch) -> list[Action]:
        """Drop a microbatch whose own hop was dropped."""
        self.waiting.pop(microbatch, None)
        entry = self.flights.remove(microbatch)
        if entry is None:
            return []
        actions: list[Action] = []
        if entry.reserving:
            actions = [
                Send(process, Cancel(entry.microbatch, self.stage, entry.attempt)) for process in entry.candidates
            ]
            self.due_s = -math.inf  # another one may be asked for instead
        self.next_stage.withdraw(entry)
        return [*actions, Release(entry.bodies)]

    def expect(self, entry: InFlight, late_s: float) -> None:
        """Set the time from which its holder is late."""
        self.flights.expect(entry, late_s)
        self.due_s = min(self.due_s, late_s)

    def deadline_s(self, entry: InFlight, holder: ProcessId | None) -> float:
        """Return the seconds after which a holder is late, or an answer of asked peers (holder None).

        Whether there is a slot is answered at once, whatever is computed and sent meanwhile.
        """
        if entry.reserving:
            return self.late_min_s
        links = self.router.links
        usual_s = 0.0 if holder is None else links.response_s(holder) or links.any_response_s
        queue_s = min(entry.queued, QUEUE_MAX) * (links.any_pass_s or 0.0)
        # No peer has passed anything on yet, so it may wait in a full queue of unknown length.
        least_s = self.late_min_s if usual_s is not None else FIRST_FACTOR * self.late_min_s
        least_s += entry.size_bytes / SLOWEST_BYTES_S
        return float(max(least_s, LATE_FACTOR * max(usual_s or 0.0, queue_s)) * entry.patience)

    def ask(self, entry: InFlight, now: float) -> list[Action]:
        """Ask the peers of `entry.asked` whether they hold it; route it where there is none."""
        if not entry.asked:
            if entry.state is FlightState.ASKING:
                entry.move(FlightState.WAITING)
            return self.route(entry, now)
        if entry.state is not FlightState.ASKING:
            entry.move(FlightState.ASKING)
        entry.measured = True  # the time of an adoption says nothing about the peer's speed
        self.expect(entry, now + self.deadline_s(entry, None))
        return [Send(process, entry.adopt(self.stage)) for process in sorted(entry.asked)]

    def unanswered(self, entry: InFlight, process: ProcessId, now: float) -> list[Action]:
        """Note that an asked peer does not hold it. After the peer of a hint, ask the rest of the stage."""
        entry.asked.discard(process)
        if entry.asked:
            return []
        entry.attempt = entry.attempt.next()
        if process == entry.hint:
            entry.hint = None
            entry.asked = self.next_stage.candidates(None) - {process}
        return self.ask(entry, now)

    def route(self, entry: InFlight, now: float, but: Collection[ProcessId] = ()) -> list[Action]:
        """Send it to the peer that the router chooses, or let it wait. but: exclude these peers.

        Where the peer is asked for a slot, others are asked too, and the best one gets it (`offers`).
        """
        microbatch = entry.microbatch
        choice = None if self.send_window.full else self.next_stage.choose(but, entry.source)
        if choice is None:
            self.waiting[microbatch] = None
            return []
        self.waiting.pop(microbatch, None)
        entry.sent_at_s, entry.measured = now, False
        chosen = choice.process
        if not self.next_stage.asks(chosen):
            self.next_stage.assign(entry, chosen, FlightState.UNREQUESTED)
            return self.send(entry, chosen, now)
        self.next_stage.assign(entry, chosen, FlightState.RESERVING)
        self.send_window.add(microbatch)
        for process in self.next_stage.alternatives(entry, choice, but):
            self.next_stage.ask_alternative(entry, process)
        self.expect(entry, now + self.deadline_s(entry, chosen))
        return [Send(asked, self.next_stage.question(entry, self.stage, asked)) for asked in entry.candidates]

    def send(self, entry: InFlight, holder: ProcessId, now: float) -> list[Action]:
        """Send its bytes to its holder, and announce them where the gradient is to come meanwhile."""
        entry.sent_at_s, entry.arrived_s, entry.queued, entry.unheard = now, None, 0, False
        self.expect(entry, now + self.deadline_s(entry, holder))
        self.send_window.add(entry.microbatch)
        how = entry.repair, entry.successor, self.next_stage.availability.insist, entry.settled, entry.handovers
        forward = Forward(entry.microbatch, self.stage, entry.attempt, *how)
        announced = [Send(holder, forward)] if entry.gradient_at is not None else []
        return [*announced, Send(holder, forward, entry.bodies)]

    def retry(self, now: float) -> list[Action]:
        """Route what waits, in order, until no peer can take the next."""
        actions: list[Action] = []
        # The present step goes before the one that was begun ahead.
        for microbatch in sorted(self.waiting, key=lambda microbatch: microbatch.epoch):
            actions += self.route(self.flights.entries[microbatch], now)
            if microbatch in self.waiting:
                break
        return actions


def dispatcher_for(plan: Plan, sender: ProcessId, stage: int) -> Dispatcher:
    """Return the dispatcher of a process to this stage. Token ids, which go to stage 0, are too few to be probed."""
    prober = Prober(plan.boundary_bytes if stage > 0 else 0, str(sender))
    return Dispatcher(stage, router_named(plan.router, sender), plan.timeouts.late_s, prober)
