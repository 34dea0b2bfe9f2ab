"""Reservations under way: asked again under the same number until there is an answer, so that none is granted twice."""

from __future__ import annotations

from dataclasses import dataclass, field

from swarmflow.core.flow.messages import ReserveUnits, UnitsReserved
from swarmflow.core.flow.node_types import FlowSend
from swarmflow.core.types import ProcessId

ANSWER_WAITED = 4.0  # times a message's: then it is asked again
TRIES = 4
REMEMBERED = 64  # answers that are given again to whoever asks again


@dataclass(slots=True)
class PendingReservation:
    """What was asked of whom. at: when, the last time."""

    node: ProcessId
    message: ReserveUnits
    at: float
    tries: int = 1


@dataclass(slots=True)
class Reservations:
    """Both what this node asks for, and what it has answered."""

    round_s: float
    under_way: dict[int, PendingReservation] = field(default_factory=dict)
    made: int = 0
    _answers: dict[tuple[ProcessId, int], UnitsReserved] = field(default_factory=dict)

    def ask(self, node: ProcessId, source: ProcessId, count: int, now: float, reason: str) -> FlowSend:
        """Ask a node for so many units."""
        self.made += 1
        message = ReserveUnits(source, count, self.made)
        self.under_way[self.made] = PendingReservation(node, message, now)
        return FlowSend(node, message, reason)

    def answered(self, node: ProcessId, message: UnitsReserved) -> bool:
        """False: nobody waits for this answer any more, or it is none to what was asked of this node."""
        asked = self.under_way.get(message.number)
        if asked is None or asked.node != node or asked.message.source != message.source:
            return False
        del self.under_way[message.number]
        return message.count <= asked.message.count

    def units(self, source: ProcessId) -> int:
        """Units of a data node that are asked for."""
        return sum(asked.message.count for asked in self.under_way.values() if asked.message.source == source)

    def with_node(self, node: ProcessId) -> bool:
        """Whether one is under way with this node."""
        return any(asked.node == node for asked in self.under_way.values())

    def again(self, now: float) -> tuple[list[FlowSend], list[ProcessId]]:
        """What is to be asked again, and the nodes that never answered."""
        sends, silent = [], []
        for number, asked in list(self.under_way.items()):
            if now - asked.at < ANSWER_WAITED * self.round_s:
                continue
            if asked.tries >= TRIES:
                del self.under_way[number]
                silent.append(asked.node)
            else:
                asked.at, asked.tries = now, asked.tries + 1
                sends.append(FlowSend(asked.node, asked.message, "no answer"))
        return sends, silent

    def given(self, node: ProcessId, number: int) -> UnitsReserved | None:
        """The answer that was given to this question before."""
        return self._answers.get((node, number))

    def give(self, node: ProcessId, answer: UnitsReserved) -> None:
        """Remember an answer that granted something."""
        self._answers[node, answer.number] = answer
        while len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]

    def forget(self, node: ProcessId) -> None:
        """It is dead."""
        for number in [number for number, asked in self.under_way.items() if asked.node == node]:
            del self.under_way[number]
