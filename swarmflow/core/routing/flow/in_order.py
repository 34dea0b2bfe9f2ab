"""Ordered delivery between neighbours: each message is handled once, after all earlier ones, whatever a link loses."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from swarmflow.core.protocol.messages.gwtf import InOrder, InOrderAck
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowSend

ACK_TIMEOUT_ROUNDS = 3.0  # without an acknowledgement before all messages without one are repeated
ACK_TIMEOUT_MAX_ROUNDS = 60.0  # the time-out doubles with each repetition, up to this
QUEUE_MAX = 512  # messages without an acknowledgement to one neighbour; after them both begin anew
REPEATED_MAX = 64  # of them that are repeated at a time


class ArrivalOrder(Enum):
    """What an ordered message is for its receiver."""

    NEXT = auto()  # the next one, to be handled
    RESTART = auto()  # the next one, from a neighbour that has forgotten all before it
    OTHER = auto()  # handled already, or before its turn


@dataclass(slots=True)
class _Outbound:
    """The messages to one neighbour that it has not acknowledged."""

    session: int
    queue: list[FlowSend] = field(default_factory=list)
    acknowledged: int = 0  # the number of the last acknowledged message
    sent_at: float = 0.0  # when the oldest one was last sent
    timeout: float = ACK_TIMEOUT_ROUNDS  # rounds


@dataclass(slots=True)
class _Inbound:
    """What was accepted from one neighbour."""

    session: int
    number: int = 0  # of the last accepted message


@dataclass(slots=True)
class OrderedDelivery:
    """The ordered messages of one node (go-back-N).

    A session begins when two nodes meet. Who forgets a neighbour begins a new session with it, at which the neighbour
    forgets as well: else it would believe in flows of which the other end knows nothing.
    """

    round_s: float  # seconds
    _outbound: dict[ProcessId, _Outbound] = field(init=False, default_factory=dict)
    _inbound: dict[ProcessId, _Inbound] = field(init=False, default_factory=dict)
    _last_session: int = field(init=False, default=0)
    _due: dict[ProcessId, InOrderAck] = field(init=False, default_factory=dict)  # acknowledgements to send

    @property
    def busy(self) -> bool:
        """Return whether a message or an acknowledgement has to be sent, or one is awaited."""
        return bool(self._due) or any(outbound.queue for outbound in self._outbound.values())

    def is_full(self, node: ProcessId) -> bool:
        """Return whether too many messages to a neighbour are not acknowledged."""
        return node in self._outbound and len(self._outbound[node].queue) >= QUEUE_MAX

    def wrap(self, send: FlowSend, now: float) -> FlowSend:
        """Return the message in its place in the order."""
        outbound = self._outbound.get(send.to)
        if outbound is None:
            self._last_session = max(self._last_session + 1, round(1000 * now))  # above those of a former stage
            outbound = self._outbound[send.to] = _Outbound(self._last_session)
        if not outbound.queue:
            outbound.sent_at, outbound.timeout = now, ACK_TIMEOUT_ROUNDS
        outbound.queue.append(send)
        return self._numbered(outbound, len(outbound.queue))

    def _numbered(self, outbound: _Outbound, place: int) -> FlowSend:
        send = outbound.queue[place - 1]
        inbound = self._inbound.get(send.to)
        known = 0 if inbound is None else inbound.session
        return FlowSend(
            send.to, InOrder(outbound.session, outbound.acknowledged + place, known, send.message), send.reason
        )

    def arrived(self, sender: ProcessId, message: InOrder) -> ArrivalOrder:
        """Return what a message is, and note that it is to be acknowledged."""
        inbound, outbound = self._inbound.get(sender), self._outbound.get(sender)
        if inbound is None or message.session > inbound.session:
            if message.number != 1:  # this node has forgotten the sender, which does not know that
                self._due[sender] = InOrderAck(message.session, 0)
                return ArrivalOrder.OTHER
            self._inbound[sender] = _Inbound(message.session, 1)
            self._due[sender] = InOrderAck(message.session, 1)
            met = inbound is not None or (outbound is not None and outbound.acknowledged > 0)
            knows = outbound is not None and message.known == outbound.session
            return ArrivalOrder.RESTART if met and not knows else ArrivalOrder.NEXT
        if message.session < inbound.session:
            return ArrivalOrder.OTHER
        found = ArrivalOrder.OTHER
        if message.number == inbound.number + 1:
            inbound.number, found = message.number, ArrivalOrder.NEXT
        if message.number <= inbound.number:
            self._due[sender] = InOrderAck(inbound.session, inbound.number)
        return found

    def acknowledged(self, sender: ProcessId, message: InOrderAck, now: float) -> bool:
        """Drop the acknowledged messages. Return False if the neighbour has forgotten this node."""
        outbound = self._outbound.get(sender)
        if outbound is None or message.session != outbound.session:
            return True
        more = min(message.number - outbound.acknowledged, len(outbound.queue))
        if more > 0:
            del outbound.queue[:more]
            outbound.acknowledged += more
            outbound.sent_at, outbound.timeout = now, ACK_TIMEOUT_ROUNDS
        return message.number > 0 or outbound.acknowledged == 0

    def tick(self, now: float) -> list[FlowSend]:
        """Return the acknowledgements that are due, and the messages to repeat."""
        sends = [FlowSend(node, ack, "received") for node, ack in self._due.items()]
        self._due.clear()
        for outbound in self._outbound.values():
            if outbound.queue and now - outbound.sent_at >= outbound.timeout * self.round_s:
                outbound.sent_at = now
                outbound.timeout = min(2 * outbound.timeout, ACK_TIMEOUT_MAX_ROUNDS)
                count = min(len(outbound.queue), REPEATED_MAX)
                sends += [self._numbered(outbound, place) for place in range(1, count + 1)]
        return sends

    def forget(self, node: ProcessId, *, begun: bool = False) -> None:
        """Forget a neighbour that is dead, or begin anew with it. begun: its new session has, and is kept."""
        self._outbound.pop(node, None)
        if not begun:
            self._inbound.pop(node, None)
            self._due.pop(node, None)
