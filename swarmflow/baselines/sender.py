"""What a process hands to the next stage: seen into somebody's hands, and handed on again when those die."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
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
from swarmflow.core.types import ProcessId


class Repair(Enum):
    """What a death does to a microbatch that the dead peer held.

    RESEND: its predecessor sends its input to another peer, which takes the gradient from whoever has it. RESTART: so
    only if nobody after the dead one had it; else it is started over. LINE: it is started over in another pipeline.
    """

    RESEND = "resend"
    RESTART = "restart"
    LINE = "line"


@dataclass(slots=True)
class Out:
    """One microbatch on its way through the next stages.

    holder: who was asked, or has it (accepted). path: who has it, from the next stage on. rest: who probably has it
    after that stage, when it has to be sent again. ready: the tensors are there. claiming: the holder is only asked
    whether it is there already. repair: how often each sender before has sent it again; repairs: how often this one.
    asked_s, handed_s: when the holder was asked, and when the tensors set out to it.
    """

    trip: Trip
    source: ProcessId
    tensor_bytes: int
    repair: tuple[int, ...] = ()
    repairs: int = 0
    rest: Path = ()
    path: Path = ()
    attempt: int = 0
    holder: ProcessId | None = None
    accepted: bool = False
    claiming: bool = False
    ready: bool = False
    returned: bool = False
    computed: bool = False
    asked_s: float = 0.0
    handed_s: float = 0.0


@dataclass(slots=True)
class Sender:
    """Sends to the peers of `stage`. on_path: told who has a microbatch now. on_broken: it has to be started over.
    on_stale: somebody else sends it by now.

    A peer is asked before tensors are sent to it, so that a denial costs no more than a round trip (docs/baselines.md).
    """

    hands: BaselineRuntime
    stage: int
    hop: NextHop
    repair: Repair
    on_path: Callable[[Trip, Path], None]
    on_broken: Callable[[Trip], None]
    on_stale: Callable[[Trip], None]
    outs: dict[Trip, Out] = field(default_factory=dict)
    _full: dict[ProcessId, None] = field(default_factory=dict)
    _waiting: dict[Trip, None] = field(default_factory=dict)
    _longest_s: float = 0.0  # that a gradient ever took to come back, from when its tensors had set out

    def open(self, said: BaselineOpen) -> None:
        """A new iteration: nothing is on its way."""
        self.outs.clear()
        self._waiting.clear()
        self.revise(said)

    def revise(self, said: BaselineOpen) -> None:
        """Others serve the stage."""
        self._full.clear()
        self.hop.open(said, self.stage)
        self._retry()

    def offer(
        self, trip: Trip, source: ProcessId, tensor_bytes: int, repair: tuple[int, ...] = (), rest: Path = ()
    ) -> None:
        """Take a microbatch over, before its tensors are there. rest: who may hold it, from the next stage on."""
        out = self.outs[trip] = Out(trip, source, tensor_bytes, repair, rest=rest)
        if rest:
            out.claiming, out.holder, out.rest = True, rest[0], rest[1:]
            self._ask(out)

    def ready(self, trip: Trip) -> None:
        """The tensors are there."""
        out = self.outs[trip]
        out.ready = True
        if out.holder is None:
            self._route(out)

    def accepted(self, sender: ProcessId, word: BaselineAccepted) -> None:
        """Somebody takes it, or has it."""
        out = self._asked(sender, word.trip, word.attempt)
        if out is None:
            return
        out.accepted, out.claiming = True, False
        out.computed = word.held  # then there is no response time to be measured
        out.path = (sender, *word.path)
        self.hop.accepted(out.trip, sender)
        out.handed_s = self.hands.now_s
        if not word.held:
            self.hands.send(sender, BaselineForward(out.trip, out.attempt), out.tensor_bytes)
        self.on_path(out.trip, out.path)

    def denied(self, sender: ProcessId, word: BaselineDenied) -> None:
        """Somebody does not take it, or does not have it."""
        out = self._asked(sender, word.trip, word.attempt)
        if out is None:
            return
        out.holder = None
        if word.reason == "stale":
            self.on_stale(out.trip)
            return
        if not out.claiming:
            self._full[sender] = None
            self.hands.count("denials")
            self.hop.denied(out.trip, sender)
        out.claiming = False
        if out.ready:
            self._route(out)

    def room(self, sender: ProcessId) -> None:
        """A full peer has room again."""
        self._full.pop(sender, None)
        self._retry()

    def computed(self, sender: ProcessId, trip: Trip) -> None:
        """The holder's forward pass is done."""
        out = self.outs.get(trip)
        if out is not None and out.holder == sender and not out.computed:
            out.computed = True
            self.hop.done(trip, sender, self.hands.now_s - out.asked_s)

    def routed(self, sender: ProcessId, word: BaselineRouted) -> None:
        """The holder has passed it on, or those after it have."""
        out = self.outs.get(word.trip)
        if out is not None and out.holder == sender and out.accepted:
            out.path = (sender, *word.path)
            self.on_path(out.trip, out.path)

    def returned(self, sender: ProcessId, trip: Trip) -> bool:
        """The gradient came back. True: it is the first one, and from the right hands."""
        out = self.outs.get(trip)
        if out is None or out.holder != sender or out.returned:
            return False
        self.computed(sender, trip)
        out.returned = True
        self.hop.freed(trip)
        self._longest_s = max(self._longest_s, self.hands.now_s - out.handed_s)
        return True

    def repaired(self, trip: Trip, repair: tuple[int, ...]) -> None:
        """Somebody before has sent it again."""
        if trip in self.outs:
            self.outs[trip].repair = repair

    def path(self, trip: Trip) -> Path:
        """Who has a microbatch, from the next stage on."""
        out = self.outs.get(trip)
        return () if out is None else out.path

    def drop(self, trip: Trip) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(trip, None)
        self.hop.freed(trip)
        out = self.outs.pop(trip, None)
        if out is not None and out.holder is not None:
            self.hands.send(out.holder, BaselineAbandon(trip))

    def lost(self, process: ProcessId) -> None:
        """A peer is dead: what it held goes to others."""
        self._full.pop(process, None)
        self.hop.lost(process)
        for out in list(self.outs.values()):
            if out.holder == process and not out.returned:
                self._lost(out)

    def _lost(self, out: Out) -> None:
        passed_on = len(out.path) > 1
        if self.repair is Repair.LINE:
            self.on_broken(out.trip)
            return
        if self.repair is Repair.RESTART and out.accepted and passed_on:
            left_s = out.handed_s + (self.hands.timeout_s or self._longest_s) - self.hands.now_s
            self.hands.after(max(0.0, left_s), partial(self._time_out, out))
            return
        if out.accepted:
            self.hands.count("retries")
            out.rest, out.repairs = out.path[1:], out.repairs + 1
        out.holder, out.accepted, out.claiming, out.path = None, False, False, ()
        if out.ready:
            self._route(out)

    def _time_out(self, out: Out) -> None:
        if self.outs.get(out.trip) is out and not out.returned:
            self.on_broken(out.trip)

    def _asked(self, sender: ProcessId, trip: Trip, attempt: int) -> Out | None:
        out = self.outs.get(trip)
        current = out is not None and (out.holder, out.attempt, out.accepted) == (sender, attempt, False)
        return out if current else None

    def _retry(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for trip in waiting:
            self._route(self.outs[trip])

    def _route(self, out: Out) -> None:
        out.holder = self.hop.choose(out.trip, self._full)
        if out.holder is None:
            self._waiting[out.trip] = None
            if self.repair is Repair.LINE and self.hop.choose(out.trip, ()) is None:
                self.on_broken(out.trip)
            return
        out.asked_s = self.hands.now_s
        self._ask(out)

    def _ask(self, out: Out) -> None:
        assert out.holder is not None
        out.attempt += 1
        out.accepted = False
        repair = (*out.repair, out.repairs)
        self.hands.send(
            out.holder, BaselineAsk(out.trip, self.stage, out.attempt, out.source, repair, out.rest, out.claiming)
        )
