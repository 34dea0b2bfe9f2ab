"""Lies in what a member sends as bytes: sums of an all-reduce, weights, and tensors that are too early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from blake3 import blake3

from swarmflow.chaos.attacks import forging
from swarmflow.chaos.attacks.lies import Insider, Lie, Outgoing, made
from swarmflow.core.protocol.events import Event, Received
from swarmflow.core.protocol.messages import Prepare, ReduceSum
from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.runtime.execution.piece_donor import TOPIC
from swarmflow.runtime.transport.lanes import Body
from swarmflow.runtime.transport.wire import Request, Response, Wire

_CLEARED_BYTES = 1 << 12
_LATER = 1000  # steps
_EARLY_BYTES = 1 << 19
_EARLY_MAX = 160  # to each receiver, of two such bodies: a quarter more than it keeps


class UnlikeSums(Lie):
    """As the owner of pieces, gives some members other sums than the rest."""

    named = False  # whether the digest is that of what it sends

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Clear a part of what every second member gets."""
        members = sorted(self.insider.roster.ids)
        if not isinstance(message, ReduceSum) or not bodies or to not in members[::2]:
            return message, bodies
        self.altered(message)
        data = bytearray(made(bodies[0]))
        length = min(_CLEARED_BYTES, len(data))
        data[:length] = bytes(length)
        return replace(message, digest=blake3(data).hexdigest()) if self.named else message, (data,)


class UnlikeNamedSums(UnlikeSums):
    """The same, under the digests of what it sends."""

    named = True


class SlySums(UnlikeNamedSums):
    """The same, but never while it alone sums for its group, so that nothing shows whose sum was another one."""

    def __init__(self, insider: Insider) -> None:
        super().__init__(insider)
        self._alone = True

    def incoming(self, event: Event) -> Event:
        """See who sums what in the ballot that begins."""
        if isinstance(event, Received) and isinstance(event.message, Prepare):
            self._alone = any(set(group.owners) == {self.insider.me} for group in event.message.groups)
        return event

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Lie while others sum too."""
        return (message, bodies) if self._alone else super().outgoing(to, message, bodies)


class FalseWeights(Lie):
    """Gives peers that load from it wrong weights."""

    def __init__(self, insider: Insider) -> None:
        super().__init__(insider)
        self._asked: set[tuple[ProcessId, int]] = set()

    def on_request(self, sender: ProcessId, request: Request) -> None:
        """Note who asks for pieces of the state."""
        if request.topic == TOPIC:
            self._asked.add((sender, request.id))

    def outgoing(self, to: ProcessId, message: Wire, bodies: Sequence[Body]) -> Outgoing:
        """Flip bits of the state, or of the sums that lead to it."""
        if not isinstance(message, Response) or (to, message.id) not in self._asked or len(bodies) < 2:
            return message, bodies
        data = bytearray(made(bodies[1]))
        if not data:
            return message, bodies
        self.altered(message)
        data[len(data) // 2] ^= 1
        return message, (bodies[0], data)


class EarlyTensors(Lie):
    """Sends tensors of an epoch that is far away, for which receivers might keep them."""

    def __init__(self, insider: Insider) -> None:
        super().__init__(insider)
        self._sent_to: dict[ProcessId, int] = {}
        self._body = bytes(_EARLY_BYTES)

    def strike(self) -> None:
        """Send one to each peer of the next stage: 20 MiB/s for each, as much as a good uplink has."""
        insider = self.insider
        following, epoch = insider.stage + 1, Epoch(insider.epoch.generation, insider.epoch.step + _LATER)
        for process in insider.peers(following):
            number = self._sent_to.get(process, 0)
            if number < _EARLY_MAX:
                index = number % insider.machine.plan.microbatches
                insider.send(process, forging.forward(epoch, index, following), (self._body, self._body))
                self._sent_to[process] = number + 1
