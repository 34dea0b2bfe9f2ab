"""The trainers that lead a pretended swarm, and how processes find them, as by the DHT of the runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from swarmflow.core.protocol.events import Rival
from swarmflow.core.protocol.types import ProcessId

if TYPE_CHECKING:
    from swarmflow.simulator.world import World

INTRODUCE_EVERY_S = 10.0  # how often leaders look for other leaders


@dataclass(slots=True)
class LeaderDirectory:
    """Knows which trainers lead; during a partition several may."""

    world: World
    _led: list[ProcessId] = field(init=False, default_factory=list)  # all that ever led, in the order of beginning

    def add(self, process: ProcessId) -> None:
        """Record that a trainer begins to lead."""
        self._led.append(process)

    @property
    def leader(self) -> ProcessId | None:
        """The leader that is alive; of several the one that began last."""
        return next((process for process in reversed(self._led) if self._leads(process)), None)

    def leaders(self) -> list[ProcessId]:
        """Return the leaders that are alive, in the order in which they began to lead."""
        return [process for process in self._led if self._leads(process)]

    def followers(self) -> list[ProcessId]:
        """Return the trainers that are alive and do not lead, in the order of their ids."""
        world = self.world
        alive = sorted(process for process in world.trainers if world.hosts[process].alive)
        leading = self.leaders()
        return [process for process in alive if process not in leading]

    def found_by(self, name: str) -> ProcessId | None:
        """Return the leader that a process of this name finds."""
        reaches = self.world.transport.reaches
        return next((leader for leader in reversed(self.leaders()) if reaches(name, leader.name)), None)

    def may_be_taken_over(self, name: str) -> bool:
        """Return whether a trainer that a process of this name reaches was in an epoch, and so may take over."""
        world = self.world
        machines = [world.trainers[p] for p in self.followers() if world.transport.reaches(name, p.name)]
        return any(machine.epoch_view is not None for machine in machines)

    def introduce(self) -> None:
        """Have the leaders that reach each other find each other, now and every INTRODUCE_EVERY_S."""
        world = self.world
        for process in self.leaders():
            for rival in self.leaders():
                lead = world.trainers[rival].lead
                if rival != process and lead is not None and world.transport.reaches(process.name, rival.name):
                    world.deliver(process, Rival(rival, lead.version))
        if not world.ended:
            world.clock.after(INTRODUCE_EVERY_S, self.introduce)

    def _leads(self, process: ProcessId) -> bool:
        return self.world.trainers[process].lead is not None and self.world.hosts[process].alive
