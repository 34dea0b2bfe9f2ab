"""What the negotiation takes: CPU time of each decision, and what a node sends once the flows have come to rest."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from experiments.flow.asynchronous import ROUND_S
from experiments.flow.instance import SETTINGS, draw
from experiments.flow.policies import make
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.node_types import FlowNode, FlowSend, Link, View
from swarmflow.simulator.flow.rounds import Rounds
from swarmflow.simulator.garbage import searched_rarely

NEGOTIATED = 300  # rounds until the flows are taken to be at rest
STEADY = 300  # rounds that are measured then
BOUND_S = 0.005  # that a decision is to take at most
SEARCHED_EVERY = 10  # rounds


@dataclass(slots=True)
class DecisionMeter:
    """decisions_s: CPU time of each call of any node. size_bytes: of all that was said, as msgpack, without a frame."""

    decisions_s: list[float] = field(default_factory=list)
    size_bytes: int = 0

    def measure(self, call: Callable[[], list[FlowSend]]) -> list[FlowSend]:
        """One decision."""
        before_s = time.process_time()
        sends = call()
        self.decisions_s.append(time.process_time() - before_s)
        last: object = None
        for send in sends:
            if send.message is not last:  # a broadcast is packed once
                last, size_bytes = send.message, len(msgspec.msgpack.encode(send.message))
            self.size_bytes += size_bytes
        return sends


@dataclass(slots=True)
class Measured:
    """A node whose decisions are measured."""

    node: FlowNode
    meter: DecisionMeter

    @property
    def view(self) -> View:
        """As of the node, like all others."""
        return self.node.view

    @view.setter
    def view(self, view: View) -> None:
        self.node.view = view

    def handle(self, sender: ProcessId, message: Any, now: float) -> list[FlowSend]:  # noqa: ANN401
        """Measured."""
        return self.meter.measure(lambda: self.node.handle(sender, message, now))

    def tick(self, now: float) -> list[FlowSend]:
        """Measured; the world calls again while something is unfinished: each call is a decision."""
        return self.meter.measure(lambda: self.node.tick(now))

    def gone(self, process: ProcessId, now: float) -> list[FlowSend]:
        """Measured."""
        return self.meter.measure(lambda: self.node.gone(process, now))

    @property
    def inflow(self) -> Mapping[Link, int]:
        """What comes in."""
        return self.node.inflow

    @property
    def outflow(self) -> Mapping[Link, int]:
        """What goes out."""
        return self.node.outflow

    @property
    def unfinished(self) -> bool:
        """Whether it is to be ticked again."""
        return self.node.unfinished

    @property
    def held(self) -> int:
        """What is taken of its capacity."""
        return self.node.held


@dataclass(frozen=True, slots=True)
class Effort:
    """longest_s, mean_s: of a decision while flows are negotiated. long: decisions of more than BOUND_S. core: share of
    one core that a node takes at rest. sent_bytes_s: that a node sends at rest.
    """

    longest_s: float
    mean_s: float
    decisions: int
    long: int
    core: float
    sent_bytes_s: float


def effort(setting: str, seed: int) -> Effort:
    """Negotiate one instance in rounds of ROUND_S, then go on."""
    meter = DecisionMeter()
    nodes = {
        name: Measured(node, meter) for name, node in make(draw(SETTINGS[setting], seed), "swarmflow", seed).items()
    }
    swarm = Rounds(nodes)
    with searched_rarely():
        _run(swarm, NEGOTIATED)
        taken_s = meter.decisions_s
        meter.decisions_s, meter.size_bytes = [], 0
        _run(swarm, STEADY)
    node_seconds = len(nodes) * STEADY * ROUND_S
    core, sent_bytes_s = sum(meter.decisions_s) / node_seconds, meter.size_bytes / node_seconds
    long = sum(decision_s > BOUND_S for decision_s in taken_s)
    return Effort(max(taken_s), sum(taken_s) / len(taken_s), len(taken_s), long, core, sent_bytes_s)


def _run(swarm: Rounds, rounds: int) -> None:
    """Garbage is looked for between decisions.

    Among all nodes of a swarm that takes 0.3 s, where a process that is one of them has a thousandth to look at.
    """
    for begin in range(0, rounds, SEARCHED_EVERY):
        swarm.run(min(SEARCHED_EVERY, rounds - begin))
        gc.collect()
