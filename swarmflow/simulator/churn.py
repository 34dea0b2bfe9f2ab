"""The peers that leave a simulated swarm without notice, and those that join, by the scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from random import Random

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.causes import CHANCE
from swarmflow.simulator.distributions import DIGITS
from swarmflow.simulator.scenario import Arrival
from swarmflow.simulator.scenario_hardware import ScenarioHardware, peer_name, peer_number
from swarmflow.simulator.swarm import Swarm

HOUR_S = 3600.0


@dataclass(slots=True)
class ScenarioChurn:
    """Kills and starts peers of a swarm. It never kills peers that the scenario calls persistent."""

    world: Swarm
    hardware: ScenarioHardware
    random: Random  # its own, so that it is the same under every policy
    deaths: int = field(init=False, default=0)
    joins: int = field(init=False, default=0)
    _numbers: int = field(init=False, default=0)  # peers that there ever were have the numbers below this
    _absent: dict[int, None] = field(init=False, default_factory=dict)  # numbers of peers, in the order of leaving
    _iteration_s: float = field(init=False, default=0.0)  # the length of the last iteration
    _began_s: float = field(init=False, default=0.0)  # when the present iteration began

    def begin(self) -> None:
        """Plan the churn that does not depend on iterations."""
        churn = self.hardware.scenario.churn
        self._numbers = self.hardware.scenario.peer_count
        for arrival in self.hardware.scenario.arrivals:
            self.world.clock.at(arrival.time_s, partial(self._follow_trace, arrival), CHANCE)
        if churn.leaves_per_hour > 0:
            self._plan_leave()

    def iteration(self) -> None:
        """Plan an iteration: each peer leaves, and each absent one returns, with the chances of the scenario."""
        churn, now_s = self.hardware.scenario.churn, self.world.clock.now_s
        self._iteration_s, self._began_s = now_s - self._began_s, now_s
        if churn.leave_chance > 0:
            for process in self._mortal():
                if self.random.random() < churn.leave_chance:
                    self.world.clock.after(self._moment_s(), partial(self._leave, process), CHANCE)
        if churn.join_chance > 0:
            for number in sorted(self._absent):
                if self.random.random() < churn.join_chance:
                    self.world.clock.after(self._moment_s(), partial(self._join, number), CHANCE)

    def _moment_s(self) -> float:
        """Return a random moment of the iteration that begins, if it is as long as the last one."""
        return round(self.random.random() * self._iteration_s, DIGITS)

    def _plan_leave(self) -> None:
        rate = self.hardware.scenario.churn.leaves_per_hour / HOUR_S * max(1, len(self._present()))
        self.world.clock.after(round(self.random.expovariate(rate), DIGITS), self._leave_by_rate, CHANCE)

    def _present(self) -> list[int]:
        """Return the numbers of the peers that are present and may leave."""
        there = (number for number in range(self._numbers) if number not in self._absent)
        return [number for number in there if not self.hardware.persistent(number)]

    def _mortal(self) -> list[ProcessId]:
        """Return the peers that are alive and may leave."""
        return [p for p in self.world.alive_peers() if not self.hardware.persistent(peer_number(p.name))]

    def _leave_by_rate(self) -> None:
        if self.world.ended:
            return
        if mortal := self._present():
            self._leave_number(self.random.choice(mortal))
        self._plan_leave()

    def _follow_trace(self, arrival: Arrival) -> None:
        if arrival.joins:
            self._join(arrival.peer if arrival.peer >= 0 else min(self._absent, default=self._numbers))
            return
        mortal = [peer_number(process.name) for process in self._mortal()]
        if arrival.peer >= 0:
            self._leave_number(arrival.peer)
        elif mortal:
            self._leave_number(self.random.choice(mortal))

    def _leave_number(self, number: int) -> None:
        name = peer_name(number)
        for process in self.world.alive_peers():
            if process.name == name:
                self._leave(process)
                return

    def _leave(self, process: ProcessId) -> None:
        churn, number = self.hardware.scenario.churn, peer_number(process.name)
        if not self.world.life(process).alive or self.hardware.persistent(number):
            return
        if churn.spare_last and self._is_last(process):
            return
        self.deaths += 1
        self.world.kill(process)
        self._absent[number] = None
        if churn.leaves_per_hour > 0:
            absent_s = round(churn.absence_s.at(self.random.random()), DIGITS)
            self.world.clock.after(absent_s, partial(self._join, number), CHANCE)

    def _is_last(self, process: ProcessId) -> bool:
        """Return whether no other peer that is alive holds its stage."""
        stage = self.world.life(process).stage
        others = (self.world.life(other).stage for other in self.world.alive_peers() if other != process)
        return stage >= 0 and stage not in others

    def _join(self, number: int) -> None:
        if self.world.ended or (number < self._numbers and number not in self._absent):
            return
        self._absent.pop(number, None)
        for between in range(self._numbers, number):
            self._absent[between] = None
        self._numbers = max(self._numbers, number + 1)
        name = self.hardware.add_peer(number)
        if not self.hardware.fits(name):
            return
        self.joins += 1
        self.world.start_peer(name, self.hardware.profiles[name].stage)
