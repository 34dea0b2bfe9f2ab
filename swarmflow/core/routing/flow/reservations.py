"""Reservations of units: a node's requests, and the answers that it has given to the requests of others.

A request is repeated under its number until it is answered. The node that answers keeps its answer, so that a repeated
request gets the same units instead of further ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.protocol.messages.negotiation import ReserveUnits, UnitsReserved
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowSend

ANSWER_TIMEOUT_ROUNDS = 4.0  # without an answer before a request is repeated
SENDS_MAX = 4  # of one request; after that its receiver counts as silent
ANSWERS_KEPT = 64  # the newest of all nodes: requests are repeated within a few rounds, in which few others arrive


@dataclass(slots=True)
class PendingReservation:
    """A request for units that has no answer yet."""

    to: ProcessId  # its receiver, a node of the next stage
    message: ReserveUnits
    sent_s: float  # when it was last sent
    sends: int = 1  # how often it was sent


@dataclass(slots=True)
class Reservations:
    """The requests that this node has sent, and the answers that it has given."""

    round_s: float  # of the negotiation
    last_number: int = 0  # of the latest own request
    pending: dict[int, PendingReservation] = field(init=False, default_factory=dict)  # own requests, by number
    _answers: dict[tuple[ProcessId, int], UnitsReserved] = field(init=False, default_factory=dict)  # by asker, number

    def request(self, to: ProcessId, source: ProcessId, count: int, now: float, reason: str) -> FlowSend:
        """Return the request to send to a node of the next stage, for `count` flows of the data node `source`.

        reason: of the request, for people who read traces.
        """
        self.last_number += 1
        message = ReserveUnits(source, count, self.last_number)
        self.pending[self.last_number] = PendingReservation(to, message, now)
        return FlowSend(to, message, reason)

    def take_answer(self, sender: ProcessId, message: UnitsReserved) -> bool:
        """End the request that this message answers; a count of 0 denies it. False: the answer is invalid.

        An invalid answer has no pending request, or grants more units than were requested, which no honest node does.
        """
        request = self.pending.get(message.number)
        if request is None or request.to != sender or request.message.source != message.source:
            return False
        del self.pending[message.number]
        return message.count <= request.message.count

    def pending_units(self, source: ProcessId) -> int:
        """Return the number of units that are requested for flows of a data node."""
        return sum(request.message.count for request in self.pending.values() if request.message.source == source)

    def is_pending_with(self, node: ProcessId) -> bool:
        """Return whether a request to this node is pending."""
        return any(request.to == node for request in self.pending.values())

    def tick(self, now: float) -> tuple[list[FlowSend], list[ProcessId]]:
        """Return the requests to repeat, and the receivers of the requests that are given up.

        Units that such a node grants too late have no request any more; an audit frees them (Books).
        """
        sends, silent = [], []
        for number, request in list(self.pending.items()):
            if now - request.sent_s < ANSWER_TIMEOUT_ROUNDS * self.round_s:
                continue
            if request.sends >= SENDS_MAX:
                del self.pending[number]
                silent.append(request.to)
            else:
                request.sent_s, request.sends = now, request.sends + 1
                sends.append(FlowSend(request.to, request.message, "no answer"))
        return sends, silent

    def answer_given(self, asker: ProcessId, number: int) -> UnitsReserved | None:
        """Return the answer that granted units to an earlier copy of a request; None: there is none."""
        return self._answers.get((asker, number))

    def keep_answer(self, asker: ProcessId, answer: UnitsReserved) -> None:
        """Keep an answer that grants units. A denial need not be kept: the request may be granted the next time."""
        self._answers[asker, answer.number] = answer
        while len(self._answers) > ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]

    def drop_requests_to(self, node: ProcessId) -> None:
        """Drop the pending requests to a dead node."""
        for number in [number for number, request in self.pending.items() if request.to == node]:
            del self.pending[number]
