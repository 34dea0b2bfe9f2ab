"""What the negotiations of flows have in common: the roster of a process, its neighbours, its costs and its units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random
from typing import Generic, TypeVar
from zlib import crc32

from swarmflow.core.protocol.actions import Action
from swarmflow.core.protocol.messages import Negotiate
from swarmflow.core.protocol.shares import shares
from swarmflow.core.protocol.types import Member, ProcessId, Roster
from swarmflow.core.routing.compute_timer import ComputeTimer
from swarmflow.core.routing.flow.costs import FlowCosts
from swarmflow.core.routing.flow.node_types import FlowNode, View
from swarmflow.core.routing.flow.router import NO_FLOWS, FlowRouter
from swarmflow.core.routing.flow.units import units

TRAINER = -1
COSTS_EVERY_S = 2.0  # between two updates of the costs, until they are calm
CALM_S = 60.0  # after the last change of membership; from then on the costs are calm
COSTS_CALM_EVERY_S = 20.0  # between two updates of calm costs
LINKS = 48  # approximate links of a process to a neighbouring stage, where both stages are larger

Node = TypeVar("Node", bound=FlowNode)


@dataclass(slots=True)
class NegotiationBase(ABC, Generic[Node]):
    """Connects a flow machine with its process. A process knows its neighbours only."""

    me: ProcessId
    stage: int  # TRAINER: a trainer
    stages: int
    microbatches: int  # of a step
    router: FlowRouter  # follows the negotiated flows
    random: Random  # of this process alone
    timer: ComputeTimer  # of the passes here; a trainer computes none
    most: int = 1  # microbatches that this process takes at a time, as a multiple of its capacity
    node: Node | None = field(init=False, default=None)  # None: this process takes no part
    costs: FlowCosts = field(init=False)
    _places: dict[ProcessId, int] = field(init=False, default_factory=dict)  # stage of each process known here
    _capacity: dict[ProcessId, int] = field(init=False, default_factory=dict)  # of the processes of the own stage
    _sources: dict[ProcessId, None] = field(init=False, default_factory=dict)  # trainers, former ones included
    _next_s: float = field(init=False, default=0.0)  # when `tick` is due
    _costs_s: float = field(init=False, default=0.0)  # when the costs are updated
    _calm_s: float = field(init=False, default=0.0)  # when the costs become calm

    def __post_init__(self) -> None:
        self.costs = FlowCosts(lambda: self.timer.compute_s, self.router.links.link_s)

    def open(self, roster: Roster, now: float) -> list[Action]:
        """Take the roster of a new epoch: remove processes that have left, and add newcomers."""
        ring = (roster.trainers, *roster.stages)
        self._capacity = {member.process: member.capacity for member in ring[self.stage + 1]}
        if self.me not in self._capacity:
            self.stop()
            return []
        places = {member.process: stage - 1 for stage in self._known_stages(ring) for member in ring[stage]}
        actions: list[Action] = []
        for process in [process for process, stage in self._places.items() if places.get(process) != stage]:
            actions += self.gone(process, now)
        former, self._places = self._places, places
        self._sources |= dict.fromkeys(member.process for member in roster.trainers)
        view = self._view(ring)
        if self.node is None or any(process not in former for process in view.linked):
            self._calm_s, self._costs_s = now + CALM_S, min(self._costs_s, now + COSTS_EVERY_S)
        return actions + self._update_view(replace(view, cost=self.costs.of(view)), now)

    def _known_stages(self, ring: tuple[tuple[Member, ...], ...]) -> list[int]:
        """Return the places in the ring whose members are known here.

        ring: the trainers, then the stages; place i holds stage i - 1. A trainer knows all stages; a peer knows its own
        stage, those before and after it, and the trainers.
        """
        place = self.stage + 1
        places = {0, place - 1, place, (place + 1) % len(ring)}
        return list(range(len(ring))) if self.stage == TRAINER else sorted(places)

    def _view(self, ring: tuple[tuple[Member, ...], ...]) -> View:
        place = self.stage + 1
        beside = tuple(member.process for member in ring[place] if member.process != self.me)
        before, after = (self._linked(ring[place], ring[at % len(ring)]) for at in (place - 1, place + 1))
        view = View(self.me, self.stage, self.stages, 0, before, beside, after, {})
        return replace(view, capacity=self._units(view))

    def _linked(self, own: tuple[Member, ...], other: tuple[Member, ...]) -> tuple[ProcessId, ...]:
        """Return the processes of another stage that have a link to this one.

        Between large stages only some pairs have one, which both ends derive from their names.
        """
        return self.some((member.process for member in other), min(len(own), len(other)), LINKS)

    def some(self, processes: Iterable[ProcessId], count: int, most: int) -> tuple[ProcessId, ...]:
        """Return all of the processes, or, where count is above it, about most / count of them: both ends agree."""
        if count <= most:
            return tuple(processes)
        return tuple(process for process in processes if _pair_number(self.me, process) * count < most)

    def _units(self, view: View) -> int:
        """Return the own units of flow: a trainer's microbatches of a step, or a peer's part of the step."""
        if self.stage == TRAINER:
            return len(shares(tuple(self._capacity), self.microbatches)[self.me])
        rates = self.costs.rates(view, self._capacity)
        return units(self.me, self._capacity, rates, self.microbatches, self.most)

    @abstractmethod
    def _update_view(self, view: View, now: float) -> list[Action]:
        """Make the flow machine, or give it the view if that has other neighbours."""

    def stop(self) -> None:
        """Stop negotiating: this process is no member."""
        self.node, self.router.outflow = None, NO_FLOWS
        self._places.clear()

    def gone(self, process: ProcessId, now: float) -> list[Action]:
        """Handle a process that is dead or serves another stage."""
        if self._places.pop(process, None) is None or self.node is None:
            return []
        self.costs.forget(process)
        self._capacity.pop(process, None)
        return self._lost(self.node, process, now)

    @abstractmethod
    def _lost(self, node: Node, process: ProcessId, now: float) -> list[Action]:
        """Have the flow machine handle a neighbour that is dead, serves another stage, or has no link any more."""

    @abstractmethod
    def received(self, sender: ProcessId, message: Negotiate, now: float) -> list[Action]:
        """Handle a neighbour's message."""

    def next_deadline(self) -> float | None:
        """Return when `tick` is due; None: this process takes no part."""
        return None if self.node is None else self._next_s

    @abstractmethod
    def tick(self, now: float) -> list[Action]:
        """Do what is due."""


def _pair_number(one: ProcessId, other: ProcessId) -> float:
    """Return a number in [0, 1), uniform over pairs of processes, and the same for both ends of a pair."""
    if not one < other:
        return _pair_number(other, one)
    return (crc32(one.name.encode()) ^ crc32(other.name.encode(), 1)) / (1 << 32)
