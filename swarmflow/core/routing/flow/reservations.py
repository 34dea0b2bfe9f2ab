"""Pending reservations: repeated under the same number until they are answered, so that none is granted twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.messages.negotiation import ReserveUnits, UnitsReserved
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowSend

ANSWER_WAITED = 4.0  # rounds without an answer before a request is repeated
TRIES = 4
REMEMBERED = 64  # answers kept for repeated requests


@dataclass(slots=True)
class PendingReservation:
    """A request for units that has no answer yet."""

    node: ProcessId
    message: ReserveUnits
    at: float  # when it was last sent
    tries: int = 1


@dataclass(slots=True)
class Reservations:
    """The requests that this node has sent, and the answers that it has given."""

    round_s: float
    pending: dict[int, PendingReservation] = field(init=False, default_factory=dict)  # own requests, by number
    made: int = field(init=False, default=0)  # own requests so far: the last number
    _answers: dict[tuple[ProcessId, int], UnitsReserved] = field(init=False, default_factory=dict)

    def ask(self, node: ProcessId, source: ProcessId, count: int, now: float, reason: str) -> FlowSend:
        """Request units of a data node from a node of the next stage."""
        self.made += 1
        message = ReserveUnits(source, count, self.made)
        self.pending[self.made] = PendingReservation(node, message, now)
        return FlowSend(node, message, reason)

    def answered(self, node: ProcessId, message: UnitsReserved) -> bool:
        """Take an answer. False: it matches no pending request, or grants more than was requested."""
        asked = self.pending.get(message.number)
        if asked is None or asked.node != node or asked.message.source != message.source:
            return False
        del self.pending[message.number]
        return message.count <= asked.message.count

    def units(self, source: ProcessId) -> int:
        """Return the number of units of a data node in pending requests."""
        return sum(asked.message.count for asked in self.pending.values() if asked.message.source == source)

    def with_node(self, node: ProcessId) -> bool:
        """Return whether a request to this node is pending."""
        return any(asked.node == node for asked in self.pending.values())

    def repeat(self, now: float) -> tuple[list[FlowSend], list[ProcessId]]:
        """Return the requests to repeat, and the nodes that never answered."""
        sends, silent = [], []
        for number, asked in list(self.pending.items()):
            if now - asked.at < ANSWER_WAITED * self.round_s:
                continue
            if asked.tries >= TRIES:
                del self.pending[number]
                silent.append(asked.node)
            else:
                asked.at, asked.tries = now, asked.tries + 1
                sends.append(FlowSend(asked.node, asked.message, "no answer"))
        return sends, silent

    def answer_to(self, node: ProcessId, number: int) -> UnitsReserved | None:
        """Return the answer that an earlier copy of this request was given, if any."""
        return self._answers.get((node, number))

    def remember(self, node: ProcessId, answer: UnitsReserved) -> None:
        """Store an answer that grants units, in case its request is repeated."""
        self._answers[node, answer.number] = answer
        while len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]

    def forget(self, node: ProcessId) -> None:
        """Drop the pending requests to a node that is dead."""
        for number in [number for number, asked in self.pending.items() if asked.node == node]:
            del self.pending[number]
