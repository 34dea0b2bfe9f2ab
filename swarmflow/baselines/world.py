"""Runs the swarm of a baseline in virtual time, on the simulated network and hardware that all policies get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from random import Random

from swarmflow.baselines.computer import Computer
from swarmflow.baselines.dispatcher import Repair
from swarmflow.baselines.leader import BaselineLeader
from swarmflow.baselines.machine import BaselineMachine, BaselineRuntime
from swarmflow.baselines.messages import BaselineBackward, BaselineForward, BaselineMessage, Path, cause_of, wire_bytes
from swarmflow.baselines.negotiation import ROUND_S, ROUNDS, GwtfNegotiation
from swarmflow.baselines.next_hop import NextHop
from swarmflow.baselines.peer import BaselinePeer, BaselinePeerSettings
from swarmflow.baselines.pipelines import PipelineLayout
from swarmflow.baselines.placement import BaselineLeaderSettings
from swarmflow.baselines.simulated_runtime import SimulatedRuntime
from swarmflow.baselines.source import BaselineSource
from swarmflow.baselines.trainer import BaselineTrainer
from swarmflow.core.commit.reduce import groups_of_stage
from swarmflow.core.machines.serving.peer_state import LOADERS_SHARE
from swarmflow.core.protocol.messages import StepResult
from swarmflow.core.protocol.types import Epoch, ProcessId
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.hardware import Hardware
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import Flight, Network
from swarmflow.simulator.settings import Environment, Settings, noticed_s
from swarmflow.simulator.swarm import PeerLife
from swarmflow.simulator.transfer import StageTransfer

DIAL_S = 10.0  # after which an unanswered connection is given up


@dataclass(frozen=True, slots=True)
class BaselineVariant:
    """What distinguishes one baseline from another."""

    next_hop: Callable[[GwtfNegotiation | None], NextHop]  # makes the router of a process, given its flow negotiation
    repair: Repair
    layout: Callable[[BaselineWorld], PipelineLayout]  # makes the leader's pipelines; an oracle's may read the network
    # Makes the flow negotiation of a process; None: no flows are negotiated.
    negotiation: Callable[[BaselineWorld, BaselineRuntime], GwtfNegotiation] | None = None


@dataclass(slots=True)
class BaselineProcess:
    """One life of a process."""

    machine: BaselineMachine
    computer: Computer
    began_s: float
    died_s: float = field(init=False, default=float("inf"))
    stage: int = field(init=False, default=-1)  # the current or the last one; -1: none yet
    left_s: dict[int, float] = field(init=False, default_factory=dict)  # when it left a stage in this iteration
    unsummed: float = field(init=False, default=0.0)  # share of its last gradient that nobody has got; it is gone
    links: dict[ProcessId, None] = field(init=False, default_factory=dict)  # the processes that it is connected to

    @property
    def alive(self) -> bool:
        """Whether it is alive."""
        return self.died_s == float("inf")

    def leave_stage(self, now_s: float, meter: Meter) -> None:
        """Count what it has computed in this iteration as in vain: the gradients go with the stage."""
        self.left_s[self.stage] = now_s
        self.computer.spent.commit(Epoch(0, 0), set(), meter)

    def lost_with(self, stage: int, summed_s: float) -> float:
        """Return the share of a stage's gradient that went with it: all of it before the all-reduce, or a part."""
        return 1.0 if min(self.died_s, self.left_s.get(stage, summed_s)) < summed_s else min(1.0, self.unsummed)


@dataclass(slots=True)
class BaselineWorld:
    """A simulated swarm of a baseline, as `simulator.world.World` is of swarmflow: both are a `simulator.swarm.Swarm`.

    It delivers messages, runs the computers, and checks what the baselines promise: no peer holds more than its
    capacity, and each microbatch of an iteration is trained on exactly once, on a path with one peer of each stage.
    """

    settings: Settings
    seed: int
    make_environment: InitVar[Callable[[Random], Environment]]
    variant: BaselineVariant
    clock: Clock = field(init=False, default_factory=Clock)
    meter: Meter = field(init=False, default_factory=Meter)
    processes: dict[ProcessId, BaselineProcess] = field(init=False, default_factory=dict)  # all that ever began
    counts: Counter[str] = field(init=False, default_factory=Counter)
    ended: bool = field(init=False, default=False)  # the last iteration is over
    on_result: Callable[[StepResult], None] | None = field(init=False, default=None)  # called after each iteration
    trace: Callable[[str], None] | None = field(init=False, default=None)  # called with each line of the trace
    stopwatch: Callable[[], float] | None = field(init=False, default=None)  # of the computer that simulates
    network: Network = field(init=False)
    hardware: Hardware = field(init=False)
    noticed_s: Callable[[], float] = field(init=False)  # until it shows that a process that was asked is dead
    leader_machine: BaselineLeader | None = field(init=False, default=None)
    leader: ProcessId | None = field(init=False, default=None)
    _trainers: dict[ProcessId, None] = field(init=False, default_factory=dict)
    _incarnations: int = field(init=False, default=0)
    _retries: int = field(init=False, default=0)  # that were counted until the last iteration ended

    def __post_init__(self, make_environment: Callable[[Random], Environment]) -> None:
        environment = make_environment(Random(self.seed))
        self.network, self.hardware = environment.network, environment.hardware
        self.noticed_s = partial(noticed_s, self.hardware, self.settings)

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_trainer(self, name: str, lead: bool = False) -> None:
        """Start a trainer."""
        process, plan = self._new_process(name), self.settings.plan
        runtime = SimulatedRuntime(self, process)
        if lead:
            silence_s = plan.timeouts.silence_s if self.hardware.broken_s() is None else 0.0
            negotiates = self.variant.negotiation is not None
            period_s, negotiate_s = (0.0, ROUNDS * ROUND_S) if negotiates else (self.settings.rebalance_s, 0.0)
            settings = BaselineLeaderSettings(
                plan, self.settings.steps, self.settings.peers_first, period_s, silence_s, negotiate_s
            )
            self.leader = process
            self.leader_machine = BaselineLeader(runtime, settings, self.variant.layout(self), self._end_iteration)
        if self.leader is None:
            raise ValueError("the trainer that leads has to be started first")
        flows = self._negotiation(runtime)
        source = BaselineSource(
            runtime, self.leader, plan.microbatches, self.variant.next_hop(flows), self.variant.repair
        )
        self._trainers[process] = None
        self._begin(
            process, BaselineTrainer(runtime, self.leader, source, self.leader_machine if lead else None, flows)
        )

    def start_peer(self, name: str, wish: int = -1) -> ProcessId | None:
        """Start a peer."""
        if self.ended or self.leader is None:
            return None
        process = self._new_process(name)
        settings = BaselinePeerSettings(
            stages=self.settings.plan.stages,
            wish=wish,
            speed=self.hardware.speed(name),
            repair=self.variant.repair,
            heartbeats=self.hardware.broken_s() is None,
        )
        runtime = SimulatedRuntime(self, process)
        flows = self._negotiation(runtime)
        machine = BaselinePeer(runtime, self.leader, settings, partial(self.variant.next_hop, flows), flows)
        self._begin(process, machine)
        return process

    def kill(self, process: ProcessId) -> None:
        """Let a process die; the processes connected to it notice when their connections break."""
        life = self.processes[process]
        if not life.alive:
            return
        life.computer.die()
        life.died_s = self.clock.now_s
        self.write_trace(process, "dies")
        for other in list(life.links):
            seconds = self.hardware.broken_s()
            if seconds is not None and self.alive(other):
                self.clock.after(seconds, partial(self._report_lost, other, process))

    def alive(self, process: ProcessId) -> bool:
        """Whether a process is alive."""
        return self.processes[process].alive

    def alive_peers(self) -> list[ProcessId]:
        """Peers that are alive, in the order of their ids."""
        return sorted(process for process in self.peers() if self.alive(process))

    def peers(self) -> list[ProcessId]:
        """All lives of peers that ever began, in that order."""
        return [process for process in self.processes if process not in self._trainers]

    def life(self, process: ProcessId) -> PeerLife:
        """Return what a peer has done so far."""
        life = self.processes[process]
        return PeerLife(process, life.stage, life.began_s, life.died_s, life.computer.busy_s)

    @property
    def waiting_for(self) -> str:
        """What the leader waits for, in words."""
        return "nobody leads" if self.leader_machine is None else self.leader_machine.waiting_for

    def _negotiation(self, runtime: SimulatedRuntime) -> GwtfNegotiation | None:
        return None if self.variant.negotiation is None else self.variant.negotiation(self, runtime)

    def _new_process(self, name: str) -> ProcessId:
        self._incarnations += 1
        return ProcessId(name, self._incarnations)

    def _begin(self, process: ProcessId, machine: BaselineMachine) -> None:
        hardware = partial(self._compute_s, process), partial(self._weights_share, process)
        computer = Computer(self.clock, self.meter, *hardware)
        self.processes[process] = BaselineProcess(machine, computer, self.clock.now_s)
        self.write_trace(process, "starts")
        machine.start()

    def _compute_s(self, process: ProcessId, work: str) -> float:
        return self.hardware.compute_s(process.name, self.processes[process].stage, work)

    def _weights_share(self, process: ProcessId, work: str) -> float:
        """Return the part of a pass that is left when the gradient of the input is there; none on the first stage."""
        return self.hardware.weights_share(process.name, work) if self.processes[process].stage > 0 else 0.0

    # --- messages -----------------------------------------------------------------------------------------------------

    def send(self, sender: ProcessId, to: ProcessId, message: BaselineMessage, tensor_bytes: int) -> None:
        """Send a message."""
        now_s, kind = self.clock.now_s, type(message).__name__.removeprefix("Baseline")  # counted like swarmflow's own
        if to.name == sender.name:
            self.clock.at(now_s, partial(self._deliver, sender, to, message))
            return
        size_bytes = wire_bytes(message) + tensor_bytes
        self.meter.messages[kind] += 1
        self.meter.wire_bytes[kind] += size_bytes
        if self.trace is not None:
            self.write_trace(sender, f"sends {kind} of {size_bytes} bytes to {to.name}.{to.incarnation}")
        if self.alive(to):  # else there is no connection to break
            self.processes[sender].links[to] = None
            self.processes[to].links[sender] = None
        flight = self.network.path(sender, to).send(size_bytes, tensor_bytes > 0, now_s)
        self.clock.at(flight.due_s, partial(self._arrive, sender, to, message, flight, now_s), cause_of(message))

    def _arrive(
        self, sender: ProcessId, to: ProcessId, message: BaselineMessage, flight: Flight, sent_s: float
    ) -> None:
        received_s = flight.received_s(self.clock.now_s)
        if flight.bulk and isinstance(message, BaselineForward | BaselineBackward):
            self.meter.transit_s += received_s - sent_s
        self.clock.at(received_s, partial(self._deliver, sender, to, message), cause_of(message))

    def _deliver(self, sender: ProcessId, to: ProcessId, message: BaselineMessage) -> None:
        if self.alive(to):
            self.act(to, partial(self.processes[to].machine.received, sender, message))
        elif self.alive(sender):
            self.clock.after(self.hardware.broken_s() or DIAL_S, partial(self._report_lost, sender, to))

    def _report_lost(self, process: ProcessId, lost: ProcessId) -> None:
        if self.alive(process):
            self.act(process, partial(self.processes[process].machine.lost, lost))

    def act(self, process: ProcessId, decide: Callable[[], None]) -> None:
        """Let a machine decide, and check that it holds no more than it may."""
        if self.stopwatch is None:
            decide()
        else:
            began_s = self.stopwatch()
            decide()
            self.meter.decision_s += self.stopwatch() - began_s
            self.meter.decisions += 1
        life = self.processes[process]
        if isinstance(life.machine, BaselinePeer) and life.machine.stage >= 0:
            life.stage = life.machine.stage
            held, graphs = life.machine.slots, life.machine.graphs
            capacity = self.hardware.capacity(process.name, life.stage)
            if graphs > capacity or held > life.machine.slots_max:
                what = f"{held} microbatches, {graphs} of them with graphs"
                raise InvariantViolated(f"seed {self.seed}: {process} holds {what}, and its capacity is {capacity}")

    def after(self, process: ProcessId, delay_s: float, callback: Callable[[], None]) -> None:
        """Run a callback of a process after a delay, unless it is dead by then."""
        self.clock.after(delay_s, partial(self._run_callback, process, callback))

    def _run_callback(self, process: ProcessId, callback: Callable[[], None]) -> None:
        if self.alive(process):
            self.act(process, callback)

    def load(self, process: ProcessId, stage: int, donors: tuple[ProcessId, ...], done: Callable[[], None]) -> None:
        """Copy a stage's state to a process; without donors it is made from the seed at once.

        Like swarmflow's newcomers, it loads from all donors at a time, and one that serves the stage alone gives a
        share of its uplink however busy that is. When all donors are dead, the leader gives its copy of the rest.
        """
        self.processes[process].leave_stage(self.clock.now_s, self.meter)
        seconds = self.hardware.load_s()
        if seconds is not None or not donors:
            self.after(process, seconds or 0.0, done)
            return
        assert self.leader is not None, "it has granted the stage"
        share, last = LOADERS_SHARE if len(donors) == 1 else 0.0, [self.leader]

        def named() -> list[ProcessId]:
            return [donor for donor in donors if self.alive(donor)] or last

        size_bytes, then = self.hardware.state_bytes(stage), partial(self.act, process, done)
        StageTransfer(self, process, named, lambda _: share, size_bytes, then).begin()

    def write_trace(self, process: ProcessId, what: str) -> None:
        """Write a line of the trace."""
        if self.trace is not None:
            self.trace(f"{self.clock.now_s:.9f} {process.name}.{process.incarnation} {what}")

    # --- results ------------------------------------------------------------------------------------------------------

    def _end_iteration(self, iteration: int, paths: dict[int, Path], sizes: tuple[int, ...]) -> None:
        """End an iteration; of what was computed, only that of alive peers on the final paths counts as useful."""
        plan = self.settings.plan
        if sorted(paths) != list(range(plan.microbatches)) or any(len(p) != plan.stages for p in paths.values()):
            raise InvariantViolated(f"seed {self.seed}: iteration {iteration} learnt {paths}")
        assert self.leader_machine is not None
        lives, summed_s = self.processes, self.leader_machine.aggregated_s
        hops = [hop for path in paths.values() for hop in enumerate(path)]
        self.meter.unlearnt += sum(lives[p].lost_with(stage, summed_s) for stage, p in hops) / plan.stages
        for process in self.peers():
            if self.alive(process):
                indices = {index for index, path in paths.items() if process in path}
                lives[process].computer.spent.commit(Epoch(0, 0), indices, self.meter)
                lives[process].left_s, lives[process].unsummed = {}, 0.0
        retries, self._retries = self.counts["retries"] - self._retries, self.counts["retries"]
        result = StepResult(
            term=0,
            epoch=Epoch(0, iteration),
            loss=0.0,
            tokens=0,
            seconds=0.0,
            grad_norm=0.0,
            learning_rate=0.0,
            microbatches=plan.microbatches,
            peers=sizes,
            retries=retries,
        )
        self.ended = iteration + 1 >= self.settings.steps
        if self.on_result is not None:
            self.on_result(result)

    def unsummed(self, process: ProcessId, group: str, share: float) -> None:
        """Count what of a process' gradient nobody has got in the all-reduce amid which it died."""
        stage = self.processes[process].stage
        elements = {name: self.hardware.elements(name) for name in groups_of_stage(stage, self.settings.plan.shared)}
        self.processes[process].unsummed += share * elements.get(group, 0) / sum(elements.values())
