"""Records what a viewer sees of a simulated run: its views, its events and its steps (docs/view.md)."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import Any, Final

from swarmflow.core.machines.leader import Leader
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.actions import Log, Record
from swarmflow.core.protocol.types import ProcessId
from swarmflow.errors import ConfigError
from swarmflow.forecast.frames import RecordedFrames
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.host import Host
from swarmflow.simulator.report import SimulationReport
from swarmflow.simulator.world import World
from swarmflow.view.run_view import Hop, view_of
from swarmflow.view.step_line import step_line
from swarmflow.view.timeline import Event, Timeline

EVENTS_MAX: Final = 20_000  # the newest; thousands of peers that join are thousands of events
WAIT_EVERY_S: Final = 1.0  # how often it looks what the run waits for
_PRETENDED: Final = ("loss", "validation_loss", "tokens", "grad_norm", "lr")  # of a step: a simulation computes none


@dataclass(slots=True)
class Recorder:
    """Watches a simulation, and changes nothing in it: the clock shows it each moment that is due.

    Raises ConfigError for a policy whose leader has no view.
    """

    simulation: InitVar[Simulation]
    frames: RecordedFrames = field(default_factory=RecordedFrames)
    timeline: Timeline = field(init=False, default_factory=lambda: Timeline("simulation"))
    _world: World = field(init=False)
    _name: str = field(init=False)
    _hosts: dict[str, Host] = field(init=False, default_factory=dict)  # by the id in a view
    _leading: TrainerMachine | None = field(init=False, default=None)  # the latest machine that led
    _waits_due_s: float = field(init=False, default=0.0)

    def __post_init__(self, simulation: Simulation) -> None:
        if not isinstance(simulation.world, World):
            raise ConfigError(f"the policy {simulation.policy} has no view: only swarmflow's own machines have one")
        self._world, self._name = simulation.world, simulation.scenario.run.name
        self.timeline.events = deque(maxlen=EVENTS_MAX)
        self._world.observer = self._observe
        self._world.clock.watch(self._look)

    def recording(self, report: SimulationReport) -> Iterator[bytes]:
        """Return the recording as JSON, in parts, once the simulation has ended. Take it once."""
        if (lead := self._lead()) is not None:
            self.frames.close(self._world.clock.now_s, self._view(lead))
        rows = {row.number: row for row in report.iterations}
        steps: list[dict[str, Any]] = []
        for line in self.timeline.steps:
            known = {name: value for name, value in line.items() if name not in _PRETENDED}
            if (row := rows.get(line["step"])) is not None:
                known |= {"utilisation": round(row.utilisation, 4), "sent_bytes": row.wire_bytes}
            steps.append(known)
        yield f'{{"duration_s":{self._world.clock.now_s},"frames":['.encode()
        for number, frame in enumerate(self.frames.kept):
            if number:
                yield b","
            yield frame.text
        events: list[Event] = list(self.timeline.events)
        yield f'],"events":{json.dumps(events)},"steps":{json.dumps(steps)}}}\n'.encode()

    # --- watching -----------------------------------------------------------------------------------------------------

    def _observe(self, process: ProcessId, action: Log | Record) -> None:
        """Record what a leader logs and commits."""
        machine = self._world.trainers.get(process)
        if machine is None or machine.lead is None:
            return
        self._leading, now_s = machine, self._world.clock.now_s
        if isinstance(action, Log):
            self.timeline.log(action, machine.lead.version, now_s)
        else:
            self.timeline.committed(step_line(action.result, now_s))

    def _look(self) -> bool:
        """Take a view if it is due. Returns False: there will be another one."""
        now_s = self._world.clock.now_s
        if now_s < self.frames.due_s and now_s < self._waits_due_s:
            return False
        if (leader := self._world.leader) is not None:
            self._leading = self._world.trainers[leader]
        lead = self._lead()
        if lead is None or leader is None:
            return False
        if now_s >= self._waits_due_s:
            self._waits_due_s = now_s + WAIT_EVERY_S
            self.timeline.wait("" if lead.step is not None else lead.waiting_for, lead.version, now_s)
        if now_s >= self.frames.due_s:
            self.frames.add(now_s, self._view(lead))
        return False

    def _lead(self) -> Leader | None:
        return self._leading.lead if self._leading is not None else None

    def _view(self, lead: Leader) -> dict[str, Any]:
        """Return the leader's view, with what it cannot know: where each microbatch is, and what peers have done."""
        assert self._leading is not None
        flights, now_s = self._leading.source.dispatcher.flights, self._world.clock.now_s
        view = view_of(lead, flights, self.timeline, self._name, "simulation", now_s, further=self._hops(lead))
        view |= {"loss": None, "tokens_per_s": None}
        for stage in view["stages"]:
            for peer in stage["peers"]:
                peer["summary"] = _summary(self._host(peer["id"]))
        return view

    def _hops(self, lead: Leader) -> Iterable[Hop]:
        """Return where the microbatches of the open step are, as the peers know it themselves."""
        if lead.step is None:
            return
        for process in lead.step.roster.peer_ids:
            host = self._world.hosts[process]
            table = host.machine.hops if host.alive and isinstance(host.machine, PeerMachine) else None
            if table is not None and table.epoch == lead.step.epoch:
                for microbatch, hop in table.hops.items():
                    if microbatch.epoch == lead.step.epoch:
                        yield microbatch.index, table.stage, str(process), "forward" if hop.done is None else "done"

    def _host(self, peer: str) -> Host:
        if peer not in self._hosts:
            self._hosts = {str(process): host for process, host in self._world.hosts.items()}
        return self._hosts[peer]


def _summary(host: Host) -> dict[str, Any] | None:
    """Return what a peer would report of itself; null is what is not simulated. None: it has computed nothing."""
    executor = host.device.executor
    if not executor.busy_s:
        return None  # as most of a thousand peers: their frames are half as large
    return {
        "microbatches": executor.spent.hops,
        "tokens": None,
        "compute_s": round(executor.busy_s, 3),
        "used_s": round(executor.spent.used_s, 3),
        "wasted_s": round(executor.spent.wasted_s, 3),
        "sent_bytes": host.sent_bytes,
        "received_bytes": host.received_bytes,
        "memory_bytes": None,
        "loading_bytes": 0,
        "loading_total_bytes": 0,
        "metrics_port": 0,
        "reach": "unknown",
    }
