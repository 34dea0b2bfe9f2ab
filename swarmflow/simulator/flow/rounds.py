"""A negotiation in rounds: what is said in one round is heard in the next by all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from swarmflow.core.flow.node_types import FlowNode, FlowSend
from swarmflow.core.types import ProcessId


@dataclass(slots=True)
class Rounds:
    """nodes: in the order in which they act. messages: said so far; kinds: of them, by name."""

    nodes: Mapping[ProcessId, FlowNode]
    round: int = 0
    messages: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    _in_flight: list[tuple[ProcessId, FlowSend]] = field(default_factory=list)

    def run(self, rounds: int, watch: Callable[[Rounds], bool] | None = None) -> None:
        """So many rounds more. watch: called after each; True: it is enough."""
        for _ in range(rounds):
            self.step()
            if watch is not None and watch(self):
                return

    def step(self) -> None:
        """All hear what was said in the round before, then all act."""
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
        """Nobody begins anything any more; what has been begun is finished."""
        while self._in_flight:
            received, self._in_flight = self._in_flight, []
            for sender, send in received:
                self.send(send.to, self.nodes[send.to].handle(sender, send.message, float(self.round)))

    def send(self, sender: ProcessId, sends: list[FlowSend]) -> None:
        """It is heard in the next round."""
        self.messages += len(sends)
        for send in sends:
            self.kinds[type(send.message).__name__] += 1
            self._in_flight.append((sender, send))
