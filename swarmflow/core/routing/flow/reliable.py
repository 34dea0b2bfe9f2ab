"""Reliable delivery of messages that have no answer: they are repeated until acknowledged, and handled once."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.messages.negotiation import Ack, Reliable
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowSend

ACK_TIMEOUT_ROUNDS = 3.0  # without an acknowledgement before a message is repeated
SENDS_MAX = 6  # how often a message is sent; after that it is dropped
REMEMBERED_MAX = 512  # received messages whose duplicates are recognised


@dataclass(slots=True)
class Unacknowledged:
    """A sent message without an acknowledgement."""

    send: FlowSend
    at: float  # when it was last sent
    tries: int = 1


@dataclass(slots=True)
class ReliableDelivery:
    """The reliable messages of one node: those that it has sent, and the numbers of those that it has received."""

    round_s: float  # of the negotiation
    last_number: int = 0  # of the latest own message
    sent: dict[int, Unacknowledged] = field(init=False, default_factory=dict)  # by number
    _received: dict[tuple[ProcessId, int], None] = field(init=False, default_factory=dict)  # (sender, number)

    def wrap(self, send: FlowSend, now: float) -> FlowSend:
        """Wrap a message so that it is repeated until it is acknowledged."""
        self.last_number += 1
        wrapped = FlowSend(send.to, Reliable(self.last_number, send.message), send.reason)
        self.sent[self.last_number] = Unacknowledged(wrapped, now)
        return wrapped

    def acknowledged(self, message: Ack) -> None:
        """Stop repeating a message that its receiver has acknowledged."""
        self.sent.pop(message.number, None)

    def first(self, sender: ProcessId, message: Reliable) -> bool:
        """Record a received message; return whether it is new, and no duplicate."""
        key = sender, message.number
        if key in self._received:
            return False
        self._received[key] = None
        while len(self._received) > REMEMBERED_MAX:
            del self._received[next(iter(self._received))]
        return True

    def repeat(self, now: float) -> list[FlowSend]:
        """Return the messages to repeat; those that were sent often enough are dropped."""
        sends = []
        for number, sent in list(self.sent.items()):
            if now - sent.at < ACK_TIMEOUT_ROUNDS * self.round_s:
                continue
            if sent.tries >= SENDS_MAX:
                del self.sent[number]
            else:
                sent.at, sent.tries = now, sent.tries + 1
                sends.append(sent.send)
        return sends

    def forget(self, node: ProcessId) -> None:
        """Drop the messages to a node that is dead."""
        for number in [number for number, sent in self.sent.items() if sent.send.to == node]:
            del self.sent[number]
