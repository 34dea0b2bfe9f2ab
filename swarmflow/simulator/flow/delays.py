"""A negotiation with delays: every message takes its own time, some are lost, and nodes die in the middle of it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowNode, FlowSend


@dataclass(slots=True)
class Delays:
    """Carries the messages of a negotiation with delays, and checks after each event that no node holds too much."""

    nodes: dict[ProcessId, FlowNode]
    latency_s: Callable[[ProcessId, ProcessId], float]  # of a message from one node to another, before jitter
    random: Random
    tick_s: float  # how often a node acts on its own; each node has its own phase
    loss: float = 0.0  # the share of messages that are lost
    jitter: float = 0.5  # a message takes up to this share longer, so that messages overtake each other
    notice_s: tuple[float, float] = (0.5, 2.0)  # (least, most) from a death until its neighbours notice it
    now_s: float = field(init=False, default=0.0)
    messages: int = field(init=False, default=0)  # sent so far
    lost: int = field(init=False, default=0)  # messages that were lost so far
    kinds: Counter[str] = field(init=False, default_factory=Counter)  # of the messages sent so far
    dead: list[ProcessId] = field(init=False, default_factory=list)
    violations: list[str] = field(init=False, default_factory=list)  # a line for each time a node held too much
    _queue: list[tuple[float, int, str, ProcessId, Any]] = field(init=False, default_factory=list)  # a heap
    _made: int = field(init=False, default=0)  # events that were queued so far; it orders those of one moment

    def __post_init__(self) -> None:
        for name in self.nodes:
            self._push(self.random.uniform(0, self.tick_s), "tick", name, None)

    def kill(self, name: ProcessId, at_s: float) -> None:
        """Have a node die at this time, without a message."""
        self._push(at_s, "die", name, None)

    def run(self, until_s: float) -> None:
        """Run until this virtual time."""
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, _, kind, name, what = heapq.heappop(self._queue)
            if kind == "die":
                self._die(name)
                continue
            node = self.nodes.get(name)
            if node is None:
                continue
            if kind == "tick":
                self._send(name, node.tick(self.now_s))
                while node.unfinished:
                    self._send(name, node.tick(self.now_s))
                self._push(self.now_s + self.tick_s, "tick", name, None)
            elif kind == "gone":
                self._send(name, node.gone(what, self.now_s))
            else:
                sender, message = what
                self._send(name, node.handle(sender, message, self.now_s))
            if node.held > node.view.capacity:
                self.violations.append(f"{self.now_s:.3f} {name} holds {node.held} of {node.view.capacity}")
        self.now_s = until_s

    def _die(self, name: ProcessId) -> None:
        del self.nodes[name]
        self.dead.append(name)
        for other, node in self.nodes.items():
            view = node.view
            if name in view.before or name in view.beside or name in view.after:
                self._push(self.now_s + self.random.uniform(*self.notice_s), "gone", other, name)

    def _send(self, sender: ProcessId, sends: Iterable[FlowSend]) -> None:
        for sent in sends:
            self.messages += 1
            self.kinds[type(sent.message).__name__] += 1
            if self.random.random() < self.loss:
                self.lost += 1
                continue
            takes_s = self.latency_s(sender, sent.to) * (1 + self.jitter * self.random.random())
            self._push(self.now_s + takes_s, "message", sent.to, (sender, sent.message))

    def _push(self, at_s: float, kind: str, name: ProcessId, what: Any) -> None:  # noqa: ANN401
        self._made += 1
        heapq.heappush(self._queue, (at_s, self._made, kind, name, what))


def region_latency(
    region: Mapping[ProcessId, int], matrix_s: tuple[tuple[float, ...], ...], unknown_s: float = 0.1
) -> Callable[[ProcessId, ProcessId], float]:
    """The latency between the regions of two nodes."""

    def between(sender: ProcessId, receiver: ProcessId) -> float:
        if sender not in region or receiver not in region:
            return unknown_s
        return matrix_s[region[sender]][region[receiver]]

    return between
