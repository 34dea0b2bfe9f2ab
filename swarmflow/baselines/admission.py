"""Which microbatches a peer of a baseline admits, and which graphs it keeps: by the rules of swarmflow's own peers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from swarmflow.baselines.dispatcher import BaselineDispatcher, Repair
from swarmflow.baselines.hop import BaselineHop, BaselineHopState
from swarmflow.baselines.machine import BaselineRuntime
from swarmflow.baselines.messages import Trip
from swarmflow.core.pipeline.admission import LAST_STAGE_MIN, PASSES
from swarmflow.core.routing.compute_timer import UNKNOWN_S
from swarmflow.core.routing.smoothing import smoothed

QUEUED = (BaselineHopState.FORWARD, BaselineHopState.NO_MEMORY, BaselineHopState.BACKWARD)


@dataclass(slots=True)
class BaselineAdmission:
    """The slots and the graphs of one peer (`swarmflow/core/pipeline/admission.py` has those of swarmflow).

    A peer admits as many microbatches as have room for their graphs. Beyond that it admits more while it would be idle,
    keeps no graph of what does not fit, and does the forward pass of those again when their gradient is here. At the
    last stage some wait, however small its memory is.
    """

    runtime: BaselineRuntime
    dispatcher: BaselineDispatcher  # to the next stage
    capacity: int  # microbatches whose graphs fit in memory
    extra: int  # microbatches without a graph, as a multiple of `capacity`
    last: bool = False  # whether this is the last stage
    # Those that are not done, the oldest first, and how many are in each state: to count all hops of an iteration at
    # each question took most of the time of a simulation.
    _held: dict[Trip, BaselineHop] = field(init=False, default_factory=dict)
    _states: Counter[BaselineHopState] = field(init=False, default_factory=Counter)
    _graphs: int = field(init=False, default=0)
    _transfer_s: float | None = field(init=False, default=None)  # smoothed, from a reservation to the tensors' arrival

    def reserve(self, hop: BaselineHop) -> None:
        """Keep a slot for a microbatch."""
        self._held[hop.trip] = hop
        self._states[hop.state] += 1

    def enter(self, hop: BaselineHop, state: BaselineHopState) -> None:
        """Move a hop to a state. Raises IllegalTransition, and leaves everything as it was, where it cannot follow."""
        former = hop.state
        hop.enter(state)
        self._states[former] -= 1
        self._states[state] += 1
        if state is BaselineHopState.DONE:
            self.forget(hop)

    def forget(self, hop: BaselineHop) -> None:
        """Free the slot of a hop that is done or given up."""
        if self._held.pop(hop.trip, None) is not None:
            self._states[hop.state] -= 1
            self._graphs -= hop.graph

    def clear(self) -> None:
        """Free all slots."""
        self._held.clear()
        self._states.clear()
        self._graphs = 0

    @property
    def taken(self) -> int:
        """Slots in use."""
        return len(self._held)

    @property
    def slots_max(self) -> int:
        """Microbatches that it holds at a time at most."""
        return max(self.capacity, LAST_STAGE_MIN) if self.last else self.capacity * (1 + self.extra)

    @property
    def graphs(self) -> int:
        """Microbatches whose graphs are kept, or will be when they are computed."""
        return self._graphs

    @property
    def unfinished(self) -> bool:
        """Whether gradients of parameters are left to compute of microbatches whose gradients were sent."""
        return self._states[BaselineHopState.GIVEN] > 0

    @property
    def room(self) -> int:
        """Graphs that there is memory for beside those, in which passes may wait between their two parts.

        None in a fixed pipeline, whose share of the next iteration goes by how soon its gradients return.
        """
        return 0 if self.dispatcher.repair is Repair.PIPELINE else max(0, self.capacity - self.graphs)

    @property
    def admits(self) -> bool:
        """Whether there is a slot for one more microbatch."""
        taken = self.taken
        return taken < self.capacity or (taken < self.slots_max and (self.last or self._idle))

    def arrived(self, hop: BaselineHop) -> None:
        """Begin a hop whose tensors are here: it gets a graph if there is memory for one."""
        self._transfer_s = smoothed(self._transfer_s, self.runtime.now_s - hop.reserved_s)
        self._keep_graph(hop, self.graphs < self.capacity)
        self.enter(hop, BaselineHopState.FORWARD)

    def _keep_graph(self, hop: BaselineHop, graph: bool) -> None:
        self._graphs += graph - hop.graph
        hop.graph = graph

    def replays(self) -> list[BaselineHop]:
        """Begin the backward passes without a graph for which there is memory now.

        Where all graphs wait for their gradients, and there is nothing else to compute, the one that was kept last
        gives way.
        """
        begun: list[BaselineHop] = []
        if not self._states[BaselineHopState.NO_MEMORY]:
            return begun
        for hop in [hop for hop in self._held.values() if hop.state is BaselineHopState.NO_MEMORY]:
            if self.graphs >= self.capacity:
                spared = None if begun else self._spared()
                if spared is None:
                    break
                self._keep_graph(spared, False)
            self._keep_graph(hop, True)
            self.enter(hop, BaselineHopState.BACKWARD)
            begun.append(hop)
        return begun

    def _spared(self) -> BaselineHop | None:
        """Return the hop whose graph gives way; None: there is something else to compute, or no graph waits."""
        if self._states[BaselineHopState.FORWARD] or self._states[BaselineHopState.BACKWARD]:
            return None
        waits = (h for h in reversed(self._held.values()) if h.graph and h.state is BaselineHopState.COMPUTED)
        return next(waits, None)

    @property
    def _idle(self) -> bool:
        """Whether nothing is queued, and what is on its way takes no longer to compute than to arrive.

        Until something has arrived, all is admitted. Nor is a peer idle whose results wait for room at the next stage,
        where tensors arrive sooner than they are computed: what is computed sooner there is only computed twice. A
        fixed pipeline takes it all the same: it was slower without (docs/baselines.md).
        """
        if any(self._states[state] for state in QUEUED):
            return False
        if self._transfer_s is None:
            return True
        forward_s = self.runtime.forward_s or UNKNOWN_S
        routed = self.dispatcher.repair is not Repair.PIPELINE
        if routed and self._transfer_s < forward_s and self.dispatcher.has_waiting:
            return False
        return self._states[BaselineHopState.RESERVED] * PASSES * forward_s <= self._transfer_s
