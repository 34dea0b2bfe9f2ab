"""Lies about hops: claims of those of others, and tensors that nobody has passed on."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from swarmflow.chaos.attacks import forging
from swarmflow.chaos.attacks.lies import Insider, Lie, Outgoing, made
from swarmflow.core.protocol.events import Event, Received
from swarmflow.core.protocol.messages import Forward, Message, Prepare
from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.runtime.transport.lanes import Body
from swarmflow.runtime.transport.wire import Wire

_FORGED_MAX = 4  # tensors of a step, to each receiver


class _OnceAHop(Lie):
    """Does something once for each hop of each step that is not its own."""

    def __init__(self, insider: Insider) -> None:
        super().__init__(insider)
        self._epoch: Epoch | None = None
        self.claimed: set[int] = set()  # indices, of the step at hand

    def due(self) -> list[int]:
        """Return the microbatches that were not claimed yet."""
        if self.insider.epoch != self._epoch:
            self._epoch, self.claimed = self.insider.epoch, set()
        found = [index for index in self.insider.not_held() if index not in self.claimed]
        return found if self.insider.roster.peer_ids else []


class FalseDone(_OnceAHop):
    """Reports hops of others as its own, and plays along when they are to count as such."""

    def strike(self) -> None:
        """Claim all hops of its stage that it does not have."""
        insider = self.insider
        for index in self.due():
            self.claimed.add(index)
            forged = forging.done(insider.epoch, index, insider.stage, insider.handovers())
            insider.send(insider.leader, forged)

    def incoming(self, event: Event) -> Event:
        """Hide from its own machine that hops count which it has never had."""
        if not isinstance(event, Received) or not isinstance(event.message, Prepare):
            return event
        hops = self.insider.machine.hops
        own = {hop.microbatch.index: hop.attempt for hop in hops.hops.values()} if hops is not None else {}
        entries = [(index, own[index]) for index, _ in event.message.entries if index in own]
        return replace(event, message=replace(event.message, entries=tuple(entries)))


class _FalseReport(_OnceAHop, ABC):
    """Voids each step, on account of a hop that it was given, or of another one with the handovers of that."""

    _other = True  # the last report was on account of another hop

    def strike(self) -> None:
        """Report one hop a step, once some hop of it is here."""
        own = self.insider.own_hops()
        if not self.due() or self.claimed or not own:
            return
        self.claimed.add(0)
        self._other = not self._other
        index = self.insider.not_held()[0] if self._other else own[0].microbatch.index
        self.insider.send(self.insider.leader, self.report(index, own[0].handovers))

    @abstractmethod
    def report(self, index: int, handovers: forging.Handovers) -> Message:
        """Return the report."""


class FalseOverflow(_FalseReport):
    """Says that a gradient is too large."""

    def report(self, index: int, handovers: forging.Handovers) -> Message:
        """Return the report."""
        return forging.overflow(self.insider.epoch, index, handovers)


class FalseNotFinite(_FalseReport):
    """Says that a value is not finite."""

    def report(self, index: int, handovers: forging.Handovers) -> Message:
        """Return the report."""
        return forging.not_finite(self.insider.epoch, index, handovers)


class FalseAdopt(_OnceAHop):
    """Claims to be the predecessor of all hops of the next stage, and so the one to get their gradients."""

    def strike(self) -> None:
        """Ask every peer of the next stage for every hop that others pass on."""
        following = self.insider.stage + 1
        for index in self.due():
            self.claimed.add(index)
            forged = forging.adopt(self.insider.epoch, index, following, self.insider.handovers())
            for process in self.insider.peers(following):
                self.insider.send(process, forged)


class _ForgedTensors(_OnceAHop, ABC):
    """Hands a tensor of its own on in place of those of some other hops."""

    def __init__(self, insider: Insider) -> None:
        super().__init__(insider)
        self._bodies: tuple[bytes, ...] = ()

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Keep a tensor of its own: it has the right form."""
        if isinstance(message, Forward) and not self._bodies:
            self._bodies = tuple(bytes(made(body)) for body in bodies)
        return message, bodies

    def strike(self) -> None:
        """Pass that tensor on, to all peers of the next stage."""
        following = self.insider.stage + 1
        due = self.due()[:_FORGED_MAX] if self._bodies and len(self.claimed) < _FORGED_MAX else []
        for index in due:
            self.claimed.add(index)
            for process in self.insider.peers(following):
                for forged in self.forged(index, following):
                    self.insider.send(process, forged, self._bodies)

    @abstractmethod
    def forged(self, index: int, stage: int) -> list[Message]:
        """Return what carries it."""


class FalseForward(_ForgedTensors):
    """Hands on what was not given to it, with how another hop came to it."""

    def forged(self, index: int, stage: int) -> list[Message]:
        """Return a Forward of its own."""
        shown = self.insider.handovers()
        return [forging.forward(self.insider.epoch, index, stage, shown)] if shown else []


class FalseRelay(_ForgedTensors):
    """Hands tensors to the next stage as if others of its own stage had sent them."""

    def forged(self, index: int, stage: int) -> list[Message]:
        """Return what a peer has when it relays."""
        origins = self.insider.peers(self.insider.stage)[:1]
        return [forging.relayed(origin, self.insider.epoch, index, stage) for origin in origins]
