"""Messages that nobody asks for again and that must not be lost: sent until they are acknowledged, heard once."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.flow.messages import Ack, Reliable
from swarmflow.core.flow.node_types import FlowSend
from swarmflow.core.types import ProcessId

ACKNOWLEDGED_AFTER = 3.0  # times a message's: then it is sent again
TRIES = 6
REMEMBERED = 512  # messages that would not be heard a second time


@dataclass(slots=True)
class Unacknowledged:
    """A message that is not acknowledged yet. at: when it was sent, the last time."""

    say: FlowSend
    at: float
    tries: int = 1


@dataclass(slots=True)
class ReliableDelivery:
    """Both ends: what this node has sent, and what it has heard."""

    round_s: float
    made: int = 0
    sent: dict[int, Unacknowledged] = field(default_factory=dict)
    _heard: dict[tuple[ProcessId, int], None] = field(default_factory=dict)

    def say(self, said: FlowSend, now: float) -> FlowSend:
        """The same, to be acknowledged."""
        self.made += 1
        wrapped = FlowSend(said.to, Reliable(self.made, said.message), said.reason)
        self.sent[self.made] = Unacknowledged(wrapped, now)
        return wrapped

    def got(self, message: Ack) -> None:
        """It is acknowledged."""
        self.sent.pop(message.number, None)

    def first(self, sender: ProcessId, message: Reliable) -> bool:
        """Whether it has not been heard before."""
        key = sender, message.number
        if key in self._heard:
            return False
        self._heard[key] = None
        while len(self._heard) > REMEMBERED:
            del self._heard[next(iter(self._heard))]
        return True

    def again(self, now: float) -> list[FlowSend]:
        """What is to be sent again."""
        said = []
        for number, sent in list(self.sent.items()):
            if now - sent.at < ACKNOWLEDGED_AFTER * self.round_s:
                continue
            if sent.tries >= TRIES:
                del self.sent[number]
            else:
                sent.at, sent.tries = now, sent.tries + 1
                said.append(sent.say)
        return said

    def forget(self, node: ProcessId) -> None:
        """It is dead."""
        for number in [number for number, sent in self.sent.items() if sent.say.to == node]:
            del self.sent[number]
