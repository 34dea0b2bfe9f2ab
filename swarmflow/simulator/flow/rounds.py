"""A negotiation in rounds: messages that are sent in one round are received in the next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowNode, FlowSend


@dataclass(slots=True)
class Rounds:
    """Drives the nodes of a negotiation."""

    nodes: Mapping[ProcessId, FlowNode]  # in the order in which they act
    round: int = field(init=False, default=0)
    messages: int = field(init=False, default=0)  # sent so far
    kinds: Counter[str] = field(init=False, default_factory=Counter)  # of the messages, by name
    _in_flight: list[tuple[ProcessId, FlowSend]] = field(init=False, default_factory=list)  # (sender, message)

    def run(self, rounds: int, watch: Callable[[Rounds], bool] | None = None) -> None:
        """Run so many rounds. watch: called after each; it returns True to stop."""
        for _ in range(rounds):
            self.step()
            if watch is not None and watch(self):
                return

    def step(self) -> None:
        """Have all nodes handle the messages of the last round, then act."""
        received, self._in_flight = self._in_flight, []
        now = float(self.round)
        for sender, send in received:
            self.send(send.to, self.nodes[send.to].handle(sender, send.message, now))
        for name, node in self.nodes.items():
            self.send(name, node.tick(now))
            while node.unfinished:
                self.send(name, node.tick(now))
        self.round += 1

    def settle(self) -> None:
        """Deliver messages until none is in flight, without the nodes acting on their own."""
        while self._in_flight:
            received, self._in_flight = self._in_flight, []
            for sender, send in received:
                self.send(send.to, self.nodes[send.to].handle(sender, send.message, float(self.round)))

    def send(self, sender: ProcessId, sends: list[FlowSend]) -> None:
        """Send messages, which arrive in the next round."""
        self.messages += len(sends)
        for send in sends:
            self.kinds[type(send.message).__name__] += 1
            self._in_flight.append((sender, send))
