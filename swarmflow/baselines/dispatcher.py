"""Sends a process' microbatches to peers of the next stage, and again to other peers where those die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import (
    BaselineAbandon,
    BaselineAccepted,
    BaselineAsk,
    BaselineDenied,
    BaselineForward,
    BaselineOpen,
    BaselineRouted,
    Path,
    Trip,
)
from swarmflow.baselines.next_hop import NextHop
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.transitions import Transitions


class Repair(Enum):
    """What happens to a microbatch whose holder dies."""

    RESEND = "resend"  # its predecessor sends its input to another peer, which takes the gradient from its holder
    RESTART = "restart"  # as RESEND where no later stage holds it; else the trainer starts it over
    PIPELINE = "pipeline"  # the trainer starts it over in another pipeline


class HolderState(StrEnum):
    """How far a microbatch has come to a holder at the next stage."""

    WAITING = "waiting"  # no peer is chosen
    CLAIMING = "claiming"  # a peer is asked whether it holds the microbatch already
    ASKED = "asked"  # a peer is asked for a slot
    HELD = "held"  # a peer has accepted


HOLDERS = Transitions(
    "holder of a microbatch of a baseline",
    HolderState.WAITING,
    {
        HolderState.WAITING: {HolderState.CLAIMING: "a peer probably holds it", HolderState.ASKED: "a peer is chosen"},
        HolderState.CLAIMING: {HolderState.HELD: "the peer holds it", HolderState.WAITING: "it does not, or is lost"},
        HolderState.ASKED: {HolderState.HELD: "the peer accepts", HolderState.WAITING: "it denies, or is lost"},
        HolderState.HELD: {HolderState.WAITING: "the peer is lost"},
    },
)


@dataclass(slots=True)
class BaselineInFlight:
    """One microbatch that is offered to the next stage, or is somewhere beyond it."""

    trip: Trip
    source: ProcessId  # its trainer
    tensor_bytes: int
    repair: tuple[int, ...] = ()  # how often each earlier sender has sent it again
    rest: Path = ()  # the probable holders after the next stage, for when it is sent again
    repairs: int = field(init=False, default=0)  # how often this process has sent it again
    path: Path = field(init=False, default=())  # its holders, from the next stage on
    attempt: int = field(init=False, default=0)  # counts the peers that were asked
    state: HolderState = field(init=False, default=HOLDERS.initial)
    holder: ProcessId | None = field(init=False, default=None)  # the peer that is asked, or holds it; None: WAITING
    ready: bool = field(init=False, default=False)  # its tensors are here
    computed: bool = field(init=False, default=False)  # the holder's forward pass is done
    returned: bool = field(init=False, default=False)  # its gradient is here, even while a claim is not answered yet
    asked_s: float = field(init=False, default=0.0)  # when the holder was asked
    sent_s: float = field(init=False, default=0.0)  # when the tensors were sent to the holder

    def enter(self, state: HolderState, holder: ProcessId | None) -> None:
        """Move to a state, in which this peer is asked or holds the microbatch (None: WAITING).

        Raises IllegalTransition, and leaves everything as it was, where the state cannot follow.
        """
        self.state = HOLDERS.move(self.state, state)
        self.holder = holder
        assert (self.holder is None) == (self.state is HolderState.WAITING), f"{self.trip} is {self.state} at {holder}"


@dataclass(slots=True)
class BaselineDispatcher:
    """Sends microbatches to the peers of one stage, and tracks each until its gradient returns.

    A peer is asked before tensors are sent to it, so that a denial costs no more than a round trip (docs/baselines.md).
    """

    runtime: BaselineRuntime
    stage: int  # whose peers it sends to
    next_hop: NextHop
    repair: Repair
    on_path: Callable[[Trip, Path], None]  # called when the holders of a microbatch change
    on_broken: Callable[[Trip], None]  # called when a microbatch has to be started over
    on_stale: Callable[[Trip], None]  # called when another process has become the sender of a microbatch
    in_flight: dict[Trip, BaselineInFlight] = field(init=False, default_factory=dict)
    _full: dict[ProcessId, None] = field(init=False, default_factory=dict)  # peers that denied, until they have room
    _waiting: dict[Trip, None] = field(init=False, default_factory=dict)  # ready microbatches that no peer takes
    _longest_s: float = field(init=False, default=0.0)  # the longest time from sending tensors to their gradient

    def open(self, opened: BaselineOpen) -> None:
        """Begin an iteration: nothing is in flight."""
        self.in_flight.clear()
        self._waiting.clear()
        self.revise(opened)

    def revise(self, opened: BaselineOpen) -> None:
        """Take over a new list of the stage's peers."""
        self._full.clear()
        self.next_hop.open(opened, self.stage)
        self._retry()

    def offer(
        self, trip: Trip, source: ProcessId, tensor_bytes: int, repair: tuple[int, ...] = (), rest: Path = ()
    ) -> None:
        """Announce a microbatch before its tensors are here. rest: its probable holders, from the next stage on."""
        entry = self.in_flight[trip] = BaselineInFlight(trip, source, tensor_bytes, repair, rest=rest)
        if rest:
            entry.rest = rest[1:]
            self._ask(entry, HolderState.CLAIMING, rest[0])

    def ready(self, trip: Trip) -> None:
        """Send a microbatch whose tensors are here now."""
        entry = self.in_flight[trip]
        entry.ready = True
        if entry.state is HolderState.WAITING:
            self._route(entry)

    def accepted(self, sender: ProcessId, message: BaselineAccepted) -> None:
        """Handle a peer's acceptance: it has kept a slot, or holds the microbatch already."""
        entry = self._asked(sender, message.trip, message.attempt)
        if entry is None:
            return
        entry.enter(HolderState.HELD, sender)
        entry.computed = message.held  # then there is no response time to measure
        entry.path = (sender, *message.path)
        self.next_hop.accepted(entry.trip, sender)
        entry.sent_s = self.runtime.now_s
        if not message.held:
            self.runtime.send(sender, BaselineForward(entry.trip, entry.attempt), entry.tensor_bytes)
        self.on_path(entry.trip, entry.path)

    def denied(self, sender: ProcessId, message: BaselineDenied) -> None:
        """Handle a peer's denial: it has no slot, or does not hold the microbatch."""
        entry = self._asked(sender, message.trip, message.attempt)
        if entry is None:
            return
        claimed = entry.state is HolderState.CLAIMING
        entry.enter(HolderState.WAITING, None)
        if message.reason == "stale":
            self.on_stale(entry.trip)
            return
        if not claimed:
            self._full[sender] = None
            self.runtime.count("denials")
            self.next_hop.denied(entry.trip, sender)
        if entry.ready:
            self._route(entry)

    def room(self, sender: ProcessId) -> None:
        """Try a peer again that was full."""
        self._full.pop(sender, None)
        self._retry()

    def computed(self, sender: ProcessId, trip: Trip) -> None:
        """Measure the response time of a holder whose forward pass is done."""
        entry = self.in_flight.get(trip)
        if entry is not None and entry.holder == sender and not entry.computed:
            entry.computed = True
            self.next_hop.done(trip, sender, self.runtime.now_s - entry.asked_s)

    def routed(self, sender: ProcessId, message: BaselineRouted) -> None:
        """Update the path of a microbatch: a later stage has a holder now."""
        entry = self.in_flight.get(message.trip)
        if entry is not None and entry.holder == sender and entry.state is HolderState.HELD:
            entry.path = (sender, *message.path)
            self.on_path(entry.trip, entry.path)

    def returned(self, sender: ProcessId, trip: Trip) -> bool:
        """Return whether a gradient is the first one of its microbatch and comes from its holder."""
        entry = self.in_flight.get(trip)
        if entry is None or entry.holder != sender or entry.returned:
            return False
        self.computed(sender, trip)
        entry.returned = True
        self.next_hop.freed(trip)
        self._longest_s = max(self._longest_s, self.runtime.now_s - entry.sent_s)
        return True

    def repaired(self, trip: Trip, repair: tuple[int, ...]) -> None:
        """Record that an earlier sender has sent a microbatch again."""
        if trip in self.in_flight:
            self.in_flight[trip].repair = repair

    def path(self, trip: Trip) -> Path:
        """Return the holders of a microbatch, from the next stage on."""
        entry = self.in_flight.get(trip)
        return () if entry is None else entry.path

    @property
    def has_waiting(self) -> bool:
        """Whether a microbatch that is ready waits for a peer with room."""
        return bool(self._waiting)

    def drop(self, trip: Trip) -> None:
        """Give a microbatch up, and tell its holder."""
        self._waiting.pop(trip, None)
        self.next_hop.freed(trip)
        entry = self.in_flight.pop(trip, None)
        if entry is not None and entry.holder is not None:
            self.runtime.send(entry.holder, BaselineAbandon(trip))

    def lost(self, process: ProcessId) -> None:
        """Repair the microbatches that a dead peer holds."""
        self._full.pop(process, None)
        self.next_hop.lost(process)
        for entry in list(self.in_flight.values()):
            if entry.holder == process and not entry.returned:
                self._lost(entry)

    def _lost(self, entry: BaselineInFlight) -> None:
        held, passed_on = entry.state is HolderState.HELD, len(entry.path) > 1
        if self.repair is Repair.PIPELINE:
            self.on_broken(entry.trip)
            return
        if self.repair is Repair.RESTART and held and passed_on:
            left_s = entry.sent_s + (self.runtime.timeout_s or self._longest_s) - self.runtime.now_s
            self.runtime.after(max(0.0, left_s), partial(self._time_out, entry))
            return
        if held:
            self.runtime.count("retries")
            entry.rest, entry.repairs = entry.path[1:], entry.repairs + 1
        entry.enter(HolderState.WAITING, None)
        entry.path = ()
        if entry.ready:
            self._route(entry)

    def _time_out(self, entry: BaselineInFlight) -> None:
        if self.in_flight.get(entry.trip) is entry and not entry.returned:
            self.on_broken(entry.trip)

    def _asked(self, sender: ProcessId, trip: Trip, attempt: int) -> BaselineInFlight | None:
        """Return the microbatch that an answer is about, unless the answer is out of date."""
        entry = self.in_flight.get(trip)
        if entry is None or entry.state not in (HolderState.CLAIMING, HolderState.ASKED):
            return None
        return entry if (entry.holder, entry.attempt) == (sender, attempt) else None

    def _retry(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for trip in waiting:
            self._route(self.in_flight[trip])

    def _route(self, entry: BaselineInFlight) -> None:
        choice = self.next_hop.choose(entry.trip, self._full)
        if choice is None:
            self._waiting[entry.trip] = None
            if self.repair is Repair.PIPELINE and self.next_hop.choose(entry.trip, ()) is None:
                self.on_broken(entry.trip)
            return
        entry.asked_s = self.runtime.now_s
        self._ask(entry, HolderState.ASKED, choice)

    def _ask(self, entry: BaselineInFlight, state: HolderState, process: ProcessId) -> None:
        entry.enter(state, process)
        entry.attempt += 1
        repair, claim = (*entry.repair, entry.repairs), state is HolderState.CLAIMING
        self.runtime.send(
            process, BaselineAsk(entry.trip, self.stage, entry.attempt, entry.source, repair, entry.rest, claim)
        )
