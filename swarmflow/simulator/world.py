"""A swarm in virtual time: the production machines of peers and trainers on a pretended network and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from random import Random

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.actions import Action, Count, Exit, Forget, Log, Record, Rejoin, Saved, Send, TookOver
from swarmflow.core.protocol.events import DrainAsked, Event, Received, Tick
from swarmflow.core.protocol.messages import (
    Commit,
    Heartbeat,
    LeaderHeartbeat,
    Message,
    OpenStep,
    RosterDelta,
    StepResult,
)
from swarmflow.core.protocol.types import ProcessId, Ref, Role
from swarmflow.simulator.arithmetic import Sum
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.directory import INTRODUCE_EVERY_S, LeaderDirectory
from swarmflow.simulator.disks import Disks
from swarmflow.simulator.hardware import Hardware
from swarmflow.simulator.host import Host
from swarmflow.simulator.invariants import Witness
from swarmflow.simulator.kept import KeptState
from swarmflow.simulator.launcher import Launcher
from swarmflow.simulator.machines import PRODUCTION, Machines
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import Network
from swarmflow.simulator.settings import Environment, Settings, noticed_s, random_environment
from swarmflow.simulator.spoiling import Spoiling
from swarmflow.simulator.swarm import PeerLife
from swarmflow.simulator.transport import Transport

__all__ = ["Environment", "Host", "Settings", "World"]

ROUNDING_S = 1e-6
TICK = Tick()
SIGNS_OF_LIFE = (LeaderHeartbeat, Heartbeat)
DECISIONS = (Commit, OpenStep, RosterDelta)


@dataclass(slots=True, repr=False)  # its repr would be millions of letters long
class World:
    """Drives every machine through handle(event, now), as the runtime does, and checks the invariants of the protocol.

    Its settings and its seed alone decide all that happens.
    """

    settings: Settings
    seed: int
    make_environment: InitVar[Callable[[Random], Environment] | None] = None  # None: random ones
    machines: Machines = PRODUCTION
    random: Random = field(init=False)
    network: Network = field(init=False)
    hardware: Hardware = field(init=False)
    noticed_s: Callable[[], float] = field(init=False)  # until it shows that a process that was asked is dead
    disks: Disks = field(init=False)  # of all processes
    clock: Clock = field(init=False, default_factory=Clock)
    transport: Transport = field(init=False)
    directory: LeaderDirectory = field(init=False)
    launcher: Launcher = field(init=False)
    meter: Meter = field(init=False, default_factory=Meter)
    hosts: dict[ProcessId, Host] = field(init=False, default_factory=dict)  # every life that ever began
    trainers: dict[ProcessId, TrainerMachine] = field(init=False, default_factory=dict)  # the same, of trainers
    results: list[StepResult] = field(init=False, default_factory=list)  # each step, once for each trainer
    counts: Counter[str] = field(init=False, default_factory=Counter)
    log: list[str] = field(init=False, default_factory=list)
    ended: bool = field(init=False, default=False)
    finisher: ProcessId | None = field(init=False, default=None)  # the leader that ended the run
    saved: dict[int, Saved] = field(init=False, default_factory=dict)  # answers to ask_save, by its number
    spoiling: dict[str, Spoiling] = field(init=False, default_factory=dict)  # machines with non-finite numbers, by name
    liars: set[str] = field(init=False, default_factory=set)  # peers that lie (lying.py), by name
    on_result: Callable[[StepResult], None] | None = field(init=False, default=None)  # called with each result
    trace: Callable[[str], None] | None = field(init=False, default=None)  # called with each line of the trace
    # Called with each line that a process logs and each result that it records; it must change nothing.
    observer: Callable[[ProcessId, Log | Record], None] | None = field(init=False, default=None)
    # CPU time of the computer that simulates: with it the cost of decisions is measured, and nothing else changes.
    stopwatch: Callable[[], float] | None = field(init=False, default=None)
    _refs: int = field(init=False, default=0)  # bodies that were stored so far
    _certified: dict[str, bool] = field(init=False, default_factory=dict)  # peers, by name
    invariants: Witness = field(init=False)

    def __post_init__(self, make_environment: Callable[[Random], Environment] | None) -> None:
        self.random = Random(self.seed)
        if make_environment is None:
            environment = random_environment(self.settings, self.random)
        else:
            environment = make_environment(self.random)
        self.network, self.hardware = environment.network, environment.hardware
        self.noticed_s = partial(noticed_s, self.hardware, self.settings)
        self.disks = Disks(self.settings.plan.stages)
        self.transport, self.directory, self.launcher = Transport(self), LeaderDirectory(self), Launcher(self)
        self.clock.after(INTRODUCE_EVERY_S, self.directory.introduce)
        self.invariants = Witness(self.seed, self.settings.plan.microbatches)

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_trainer(self, name: str, lead: bool = False) -> None:
        """Start a trainer. lead: from the newest version on disk, unless another trainer leads or may take over."""
        if self.ended or self.launcher.runs(name):
            return
        leader = self.directory.found_by(name)
        if leader is None and (not lead or self.directory.may_be_taken_over(name)):
            self.launcher.look_again(name, partial(self.start_trainer, name, lead))
            return
        host, machine = self.launcher.trainer(name, leader)
        process = host.process
        self.hosts[process], self.trainers[process] = host, machine
        self.write_trace(process, "starts")
        self._perform(host, machine.start(self.clock.now_s))
        self._arm(host)

    def start_peer(self, name: str, wish: int = -1, kept: KeptState | None = None) -> ProcessId | None:
        """Start a peer, which joins the leader that it finds. Returns None where it finds none yet, or runs already.

        kept: what it has in memory; None: it has what lies in its folder.
        """
        leader = self.directory.found_by(name)
        if self.ended or self.launcher.runs(name):
            return None
        if leader is None:
            self.launcher.look_again(name, partial(self.start_peer, name, wish, kept))
            return None
        host = self.launcher.peer(name, wish, kept, leader)
        process = host.process
        self.hosts[process] = host
        self.write_trace(process, "starts")
        self.deliver(process, Tick())
        return process

    @property
    def leader(self) -> ProcessId | None:
        """The leader that is alive; of several the one that began last."""
        return self.directory.leader

    def kill(self, process: ProcessId) -> None:
        """Kill a process, as SIGKILL does: it sends nothing more, and its connections break."""
        host = self.hosts[process]
        if host.alive:
            host.device.executor.die()
            host.died_s = self.clock.now_s
            self.write_trace(process, "dies")
        host.alive = False
        host.stored.clear()
        self.transport.break_connections(host)

    def drain(self, process: ProcessId) -> None:
        """Ask a process to leave, as SIGTERM does."""
        self.deliver(process, DrainAsked())

    @property
    def stored(self) -> list[Ref]:
        """The bodies that the processes that are alive hold."""
        return [Ref(key) for host in self.hosts.values() if host.alive for key in host.stored]

    def alive_peers(self) -> list[ProcessId]:
        """Return the peers that are alive, in the order of their ids."""
        return [process for process in alive_processes(self) if process not in self.trainers]

    def role(self, process: ProcessId) -> Role | None:
        """Return the role that the certificate of a process gives it; None: it has none."""
        if process in self.trainers:
            return "trainer"
        if not self.settings.uncertified:
            return "peer"
        name = process.name
        if name not in self._certified:
            self._certified[name] = Random(f"certificate of {name} {self.seed}").random() >= self.settings.uncertified
        return "peer" if self._certified[name] else None

    # --- events and actions -------------------------------------------------------------------------------------------

    def deliver(self, process: ProcessId, event: Event) -> None:
        """Have a process handle an event, now or when it wakes."""
        self.handle(self.hosts[process], event)

    def handle(self, host: Host, event: Event) -> None:
        """Have the process of a host handle an event, now or when it wakes."""
        if not host.alive:
            return
        now_s = self.clock.now_s
        if host.frozen_until_s > now_s:
            self.clock.after(host.frozen_until_s - now_s, partial(self.handle, host, event))
            return
        if self.stopwatch is None:
            actions = host.machine.handle(event, now_s + host.skew_s)
        else:
            began_s = self.stopwatch()
            actions = host.machine.handle(event, now_s + host.skew_s)
            self.meter.decision_s += self.stopwatch() - began_s
            self.meter.decisions += 1
        if actions:
            self._perform(host, actions)
            host.check_memory()
        elif type(event) is Received and type(event.message) in SIGNS_OF_LIFE:
            return  # they make nothing due earlier
        self._arm(host)

    def _perform(self, host: Host, actions: list[Action]) -> None:
        """Carry out the actions of a machine."""
        process = host.process
        for action in actions:
            if type(action) is Send:  # most are
                if type(action.message) in DECISIONS:
                    self._decided(process, action.message)
                self.transport.send(host, action)
                continue
            match action:
                case Log():
                    self.log.append(f"{self.clock.now_s:9.3f} {process.name:>4} {action.text}")
                    self.write_trace(process, action.text)
                    if self.observer is not None:
                        self.observer(process, action)
                case Forget():
                    self.transport.forget(host, action.process)
                    host.device.perform(action)
                case Saved():
                    self.saved[action.number] = action
                case Count():
                    self.counts[f"{action.name}:{action.label}" if action.label else action.name] += int(action.amount)
                case Record():
                    self.results.append(action.result)
                    if self.on_result is not None:
                        self.on_result(action.result)
                    if self.observer is not None:
                        self.observer(process, action)
                case Exit():
                    self._exit(process, action)
                case Rejoin():
                    self._rejoin(process, action)
                case TookOver():
                    self.directory.add(process)
                case _:
                    host.device.perform(action)

    def _exit(self, process: ProcessId, action: Exit) -> None:
        """A process exits. The run ends with a leader, unless that was asked to go: then it is started again."""
        self.log.append(f"{self.clock.now_s:9.3f} {process.name:>4} exits: {action.reason}")
        led = self.trainers[process].lead if process in self.directory.leaders() else None
        self.kill(process)
        if led is not None and not led.fate and self.settings.steps not in self.disks.durable:
            self.start_trainer(process.name, lead=True)
        elif led is not None and not self.ended:
            self.ended, self.finisher = True, process

    def store(self, owner: ProcessId, value: object, size_bytes: int = 0) -> Ref:
        """Store a value for a process under a new name."""
        self._refs += 1
        self.hosts[owner].stored[self._refs] = value
        return Ref(self._refs, size_bytes)

    def witness(self, process: ProcessId, stage: int, version: int, parameters: str, gradient: Sum) -> None:
        """Check an update that a peer has applied. Raises InvariantViolated."""
        if process.name in self.liars:
            return  # what it has itself it may spoil
        machine = self.hosts[process].machine
        assert isinstance(machine, PeerMachine)
        assert machine.epoch_view is not None
        opened = machine.epoch_view.opened
        self.invariants.updated(opened.lineage, opened.epoch, stage, version, parameters, gradient)

    def _decided(self, leader: ProcessId, message: Message) -> None:
        """Check a commit that a leader sends, by itself or with the step that follows; not what was one's before."""
        lead = self.trainers[leader].lead
        commit, lineage = None, ""
        if isinstance(message, Commit) and lead is not None and lead.step is not None:
            commit, lineage = message, lead.step.open_step.lineage
        elif isinstance(message, OpenStep | RosterDelta) and message.commit is not None:
            of = message.commit.term, message.commit.epoch
            commit = message.commit if of == (message.term, message.epoch.former) else None
            lineage = message.lineage
        if commit is None or not self.invariants.decided(lineage, commit):
            return
        for host in self.hosts.values():
            weights, spent = host.device.weights, host.device.executor.spent
            spent.undo(commit.epoch, self.meter)
            if host.alive and weights is not None and host.machine.epoch == commit.epoch:
                spent.commit(commit.epoch, set(weights.present), self.meter)

    def _rejoin(self, process: ProcessId, action: Rejoin) -> None:
        host = self.hosts[process]
        kept = host.device.keep(action.held)
        self.kill(process)
        self.launcher.look_again(process.name, partial(self._start_again, process.name, host, kept))

    def _start_again(self, name: str, former: Host, kept: KeptState | None) -> None:
        if self.ended:
            return
        if isinstance(former.machine, PeerMachine):
            self.start_peer(name, former.wish, kept)
        else:
            self.start_trainer(name, lead=True)

    def write_trace(self, process: ProcessId, what: str) -> None:
        """Write a line of the trace, which is the same for a scenario and a seed on any computer."""
        if self.trace is not None:
            self.trace(f"{self.clock.now_s:.9f} {process.name}.{process.incarnation} {what}")

    def _arm(self, host: Host) -> None:
        """Set the one timer of a process: to the deadline that its machine names."""
        due_s = host.machine.next_deadline()
        if host.skew_s:
            due_s += ROUNDING_S - host.skew_s  # never a little too early
        if due_s >= host.wake_s - 1e-9 or not host.alive:
            return
        due_s = max(due_s, self.clock.now_s)
        if due_s >= host.wake_s - 1e-9:
            return
        host.wake_s = due_s
        self.clock.at(due_s, partial(self._wake, host, due_s))

    def _wake(self, host: Host, due_s: float) -> None:
        if host.wake_s == due_s and host.alive:
            host.wake(self.clock.now_s)
            self.handle(host, TICK)

    # --- queries ------------------------------------------------------------------------------------------------------

    def alive(self, process: ProcessId) -> bool:
        """Return whether a process is alive."""
        return self.hosts[process].alive

    def peers(self) -> list[ProcessId]:
        """Return all lives of peers that ever began, in the order in which they did."""
        return [process for process in self.hosts if process not in self.trainers]

    def life(self, process: ProcessId) -> PeerLife:
        """Return the record of a peer's life so far."""
        host = self.hosts[process]
        stage = host.device.weights.stage if host.device.weights is not None else -1
        died_s = float("inf") if host.alive else host.died_s
        return PeerLife(process, stage, host.began_s, died_s, host.device.executor.busy_s)

    @property
    def waiting_for(self) -> str:
        """What the leader waits for, as a text."""
        lead = self.trainers[self.leader].lead if self.leader is not None else None
        return lead.waiting_for if lead is not None else "nobody leads"


def alive_processes(world: World) -> list[ProcessId]:
    """Return the processes that are alive, in the order of their ids."""
    return sorted(process for process, host in world.hosts.items() if host.alive)
