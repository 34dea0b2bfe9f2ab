"""What a process of a simulated baseline has of its world: its network, its computer and its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from swarmflow.baselines.machine import BaselineTask
from swarmflow.baselines.messages import BaselineMessage, Trip
from swarmflow.core.protocol.types import ProcessId

if TYPE_CHECKING:
    from swarmflow.baselines.world import BaselineWorld


@dataclass(frozen=True, slots=True)
class SimulatedRuntime:
    """The network, computer and clock of one process of a `BaselineWorld`."""

    world: BaselineWorld
    me: ProcessId

    @property
    def now_s(self) -> float:
        """The time."""
        return self.world.clock.now_s

    @property
    def timeout_s(self) -> float:
        """The timeout of the scenario."""
        return self.world.settings.timeout_s

    def send(self, to: ProcessId, message: BaselineMessage, tensor_bytes: int = 0) -> None:
        """Send a message."""
        self.world.send(self.me, to, message, tensor_bytes)

    @property
    def forward_s(self) -> float | None:
        """The smoothed time of the own computer's forward passes."""
        return self.world.processes[self.me].computer.forward_s

    @property
    def without_graph(self) -> int:
        """By the rules of the run."""
        return self.world.settings.without_graph

    def compute(self, task: BaselineTask) -> None:
        """Queue a task for the own computer."""
        act = partial(self.world.act, self.me)
        given = None if task.given is None else partial(act, task.given)
        self.world.processes[self.me].computer.add(replace(task, done=partial(act, task.done), given=given))

    def drop(self, trip: Trip | None = None) -> None:
        """Cancel queued work of a trip, or all; what runs already is finished."""
        self.world.processes[self.me].computer.drop(trip)

    def after(self, delay_s: float, callback: Callable[[], None]) -> None:
        """Run a callback after a delay."""
        self.world.after(self.me, delay_s, callback)

    def load(self, stage: int, donors: tuple[ProcessId, ...], done: Callable[[], None]) -> None:
        """Copy a stage's state."""
        self.world.load(self.me, stage, donors, done)

    def capacity(self, stage: int) -> int:
        """The capacity of the own computer."""
        return self.world.hardware.capacity(self.me.name, stage)

    def tensor_bytes(self, stage: int, kind: str) -> int:
        """The size of a tensor of the model."""
        return self.world.hardware.boundary_bytes(stage, kind)

    def share_bytes(self, group: str, members: int) -> int:
        """The size of a share of a flat gradient, sent in the form of swarmflow's pieces after a first step."""
        hardware = self.world.hardware
        return hardware.piece().usual_bytes(-(-hardware.elements(group) // members))

    def unsummed(self, process: ProcessId, group: str, share: float) -> None:
        """Count a share of a gradient that is lost."""
        self.world.unsummed(process, group, share)

    def count(self, name: str) -> None:
        """Count an event."""
        self.world.counts[name] += 1
