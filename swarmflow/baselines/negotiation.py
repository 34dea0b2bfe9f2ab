"""A process' part in GWTF's negotiation of flows, which continues during the training (GWTF, V)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import BaselineNegotiate, Present
from swarmflow.core.protocol.messages.gwtf import CheapestOutflow, FlowQuery, FlowReport
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import ProcessId
from swarmflow.core.routing.flow.gwtf import GwtfRelay
from swarmflow.core.routing.flow.gwtf_source import GwtfSource
from swarmflow.core.routing.flow.node_types import FlowSend, Link, View

ROUND_S = 0.5  # GWTF, VI, Ablation studies: 120 iterations are "roughly a minute"
ROUNDS = 120  # before the first iteration
ASKED = (CheapestOutflow, FlowReport, FlowQuery)  # messages that change no flow
EVEN_SHARES = 2  # of the microbatches, that a relay offers to carry beyond its capacity (docs/baselines.md)
TRAINER = -1  # the stage of a trainer, which comes before the first one and after the last

Place = tuple[str, int]  # a process' name and its stage


@dataclass(slots=True)
class GwtfNegotiation:
    """One process' negotiation of flows.

    Messages from or about processes that the leader has not announced yet wait until it does.
    """

    runtime: BaselineRuntime
    stages: int
    microbatches: int
    link_s: Callable[[Place, Place], float]  # the cost of a link (equation 1), which both of its ends know
    random: Random
    # The machine that negotiates, once the leader has announced the processes.
    node: GwtfRelay | GwtfSource | None = field(init=False, default=None)
    costs: dict[ProcessId, float] = field(init=False, default_factory=dict)  # of the links to neighbours
    _stage: dict[ProcessId, int] = field(init=False, default_factory=dict)  # of each announced process
    _gone: dict[ProcessId, None] = field(init=False, default_factory=dict)  # processes that are dead, or left a stage
    _early: list[tuple[ProcessId, BaselineNegotiate]] = field(init=False, default_factory=list)

    @property
    def outflow(self) -> dict[Link, int]:
        """How many microbatches may be sent at a time, by (next peer, data node)."""
        return {} if self.node is None else self.node.outflow

    def received(self, sender: ProcessId, message: Present | BaselineNegotiate) -> None:
        """Handle the leader's list of processes, or a neighbour's message."""
        if isinstance(message, Present):
            self._present(message)
        elif self.node is None or not self._knows(sender, message):
            self._early.append((sender, message))
        else:
            self._send(self.node.handle(sender, message.payload, self.runtime.now_s))
            if not isinstance(message.payload, ASKED):
                self._forget(self.node)

    def lost(self, process: ProcessId) -> None:
        """Forget a process that is dead, or has left its stage."""
        self._gone[process] = None
        self._early = [(sender, message) for sender, message in self._early if process not in _ends(sender, message)]
        if self.node is not None:
            self._send(self.node.gone(process, self.runtime.now_s))

    def stop(self) -> None:
        """Stop negotiating: this process leaves its stage."""
        self.node = None
        self.costs.clear()
        self._stage.clear()
        self._early.clear()

    def _present(self, present: Present) -> None:
        ring = [present.trainers, *present.stages]
        place = next((number for number, members in enumerate(ring) if self.runtime.me in members), None)
        if place is None:  # the list was made before this process was ready
            return
        for number, members in enumerate(ring):
            for process in members:
                self._gone.pop(process, None)
                self._stage[process] = number - 1
        before, beside, after = ring[place - 1], ring[place], ring[(place + 1) % len(ring)]
        own = self.runtime.me.name, place - 1
        self.costs.update({p: self.link_s(own, (p.name, self._stage[p])) for p in (*before, *after)})
        others = tuple(process for process in beside if process != self.runtime.me)
        view = View(self.runtime.me, place - 1, self.stages, self._units(present), before, others, after, self.costs)
        if self.node is None:
            self.node = GwtfSource(view) if place == 0 else GwtfRelay(view, self.random, round_s=ROUND_S)
            self._tick(self.node)
        else:
            self._send(self.node.met(view))
        early, self._early = self._early, []
        for sender, message in early:
            self.received(sender, message)

    def _units(self, present: Present) -> int:
        """Return how many units of flow this process has: of a trainer, its microbatches of an iteration.

        A relay has as many as it keeps graphs of. Where that is less than EVEN_SHARES times its even share of all
        microbatches, it offers that, as far as it takes so many without their graphs.
        """
        if self.runtime.me in present.trainers:
            return len(shares(present.trainers, self.microbatches)[self.runtime.me])
        stage = self._stage[self.runtime.me]
        capacity = self.runtime.capacity(stage)
        share = -(-EVEN_SHARES * self.microbatches // len(present.stages[stage]))
        return max(capacity, min(share, capacity * (1 + self.runtime.without_graph)))

    def _tick(self, node: GwtfRelay | GwtfSource) -> None:
        if self.node is node:
            self._send(node.tick(self.runtime.now_s))
            self.runtime.after(ROUND_S, lambda: self._tick(node))

    def _forget(self, node: GwtfRelay | GwtfSource) -> None:
        """Remove flows of dead processes, whose messages may arrive after the news of their death."""
        for process, _ in (*node.inflow, *node.outflow):
            if process in self._gone:
                self._send(node.gone(process, self.runtime.now_s))

    def _knows(self, sender: ProcessId, message: BaselineNegotiate) -> bool:
        return all(process in self._stage for process in _ends(sender, message))

    def _send(self, messages: list[FlowSend]) -> None:
        for send in messages:
            self.runtime.send(send.to, BaselineNegotiate(send.message))


def _ends(sender: ProcessId, message: BaselineNegotiate) -> tuple[ProcessId, ...]:
    """Return the processes whose links a message is about."""
    others = (getattr(message.payload, end, None) for end in ("before", "after"))
    return (sender, *(process for process in others if process is not None))
