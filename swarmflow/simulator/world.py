"""A swarm in virtual time: the production machines of peers and trainers on a pretended network and devices."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

from swarmflow.core.actions import Action, Count, Exit, Log, Record, Rejoin, Send
from swarmflow.core.events import DrainAsked, Event, Lost, Received, Tick
from swarmflow.core.iwrr import Iwrr
from swarmflow.core.leader import Leader
from swarmflow.core.messages import Join, StepResult
from swarmflow.core.outbox import Outbox
from swarmflow.core.peer import PeerMachine, PeerSettings
from swarmflow.core.rules import LeaderSettings
from swarmflow.core.source import Source
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import Body, Member, Plan, ProcessId, Ref, Slice
from swarmflow.simulator.arithmetic import digest
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.device import Device


class InvariantViolated(AssertionError):
    """Something happened that must never happen; the seed replays it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """A scenario. Latencies and times in seconds; each is drawn between its two bounds.

    broken_s: after which a process notices that its connection to a dead one broke. load_s: to load a stage.
    unusable: share of the computations that fail because of what the network brought.
    """

    plan: Plan
    steps: int
    capacity: int = 4
    latency_s: tuple[float, float] = (0.001, 0.05)
    compute_s: tuple[float, float] = (0.05, 0.2)
    broken_s: tuple[float, float] = (0.005, 0.1)
    load_s: tuple[float, float] = (0.1, 2.0)
    checkpoint_every: int = 0
    validate_every: int = 0
    unusable: float = 0.0


@dataclass(slots=True)
class Host:
    """One life of a process in the world. stored: the bytes that it holds. Until frozen_until_s it does nothing."""

    machine: PeerMachine | TrainerMachine
    device: Device
    wish: int = -1
    alive: bool = True
    wake_s: float = float("inf")
    frozen_until_s: float = 0.0
    stored: dict[int, object] = field(default_factory=dict)


@dataclass(slots=True)
class World:
    """Drives every machine through handle(event, now), as the runtime does, and checks what must always hold."""

    settings: Settings
    seed: int
    clock: Clock = field(default_factory=Clock)
    hosts: dict[ProcessId, Host] = field(default_factory=dict)
    durable: dict[int, dict[int, str]] = field(default_factory=dict)
    results: list[StepResult] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    leader: ProcessId | None = None
    ended: bool = False
    random: random.Random = field(init=False)
    _channels: dict[tuple[ProcessId, ProcessId, bool], float] = field(default_factory=dict)
    _incarnations: int = 0
    _refs: int = 0
    _history: dict[tuple[int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.durable[0] = {stage: digest("initial", stage) for stage in range(self.settings.plan.stages)}

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_trainer(self, name: str, lead: bool = False) -> ProcessId:
        """Start a trainer; the first one leads, from the newest version on disk."""
        process = self._new_process(name)
        me = Member(process, -1)
        plan = self.settings.plan
        leader = None
        if lead:
            version = max(self.durable)
            rules = LeaderSettings(self.settings.steps, lambda step: 0.1, 1.0, "sim", "run", True,
                                   self.settings.checkpoint_every, self.settings.validate_every)  # fmt: skip
            leader = Leader(me, plan, rules, 1, version, version)
            self.leader = process
        if self.leader is None:
            raise ValueError("the first trainer has to lead")
        source = Source(process, plan.microbatches, Outbox(0, Iwrr()))
        join = Join("trainer", "sim", "run", me)
        machine = TrainerMachine(me, self.leader, source, join, leader)
        self.hosts[process] = Host(machine, Device(self, process))
        self.perform(process, machine.start(self.clock.now_s))
        self._arm(process)
        return process

    def start_peer(self, name: str, wish: int = -1) -> ProcessId:
        """Start a peer; it joins at the leader."""
        if self.leader is None:
            raise ValueError("a peer needs a leader to join")
        process = self._new_process(name)
        join = Join("peer", "sim", "run", Member(process, wish, self.settings.capacity))
        machine = PeerMachine(process, self.leader, self.settings.plan, PeerSettings(join))
        self.hosts[process] = Host(machine, Device(self, process), wish)
        self.post(process, Tick())
        return process

    def kill(self, process: ProcessId) -> None:
        """SIGKILL: it says nothing more; those connected to it notice when their connections break."""
        self.hosts[process].alive = False
        self.hosts[process].stored.clear()
        for other in sorted(self.hosts):
            if self.hosts[other].alive:
                self.clock.after(self.draw(self.settings.broken_s), partial(self._lose, other, process))

    def drain(self, process: ProcessId) -> None:
        """SIGTERM."""
        self.post(process, DrainAsked())

    def freeze(self, process: ProcessId, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: what happens to it meanwhile, it learns then."""
        self.hosts[process].frozen_until_s = self.clock.now_s + seconds

    def cut(self, one: ProcessId, other: ProcessId) -> None:
        """The connection between two processes breaks, and both notice; it can be made anew at once."""
        self._lose(one, other)
        self._lose(other, one)

    @property
    def stored(self) -> list[Ref]:
        """What the living processes hold."""
        return [Ref(key) for host in self.hosts.values() if host.alive for key in host.stored]

    def living_trainers(self) -> list[ProcessId]:
        """Trainers that are alive and do not lead, in the order of their ids."""
        living = [p for p, h in sorted(self.hosts.items()) if h.alive and isinstance(h.machine, TrainerMachine)]
        return [process for process in living if process != self.leader]

    def living_peers(self) -> list[ProcessId]:
        """Peers that are alive, in the order of their ids."""
        return [p for p, h in sorted(self.hosts.items()) if h.alive and isinstance(h.machine, PeerMachine)]

    # --- events and actions -------------------------------------------------------------------------------------------

    def post(self, process: ProcessId, event: Event) -> None:
        """Something happens to a process."""
        host = self.hosts[process]
        if not host.alive:
            return
        if host.frozen_until_s > self.clock.now_s:
            self.clock.after(host.frozen_until_s - self.clock.now_s, partial(self.post, process, event))
            return
        self.perform(process, host.machine.handle(event, self.clock.now_s))
        self._arm(process)

    def perform(self, process: ProcessId, actions: list[Action]) -> None:
        """Do what a machine asked for."""
        host = self.hosts[process]
        for action in actions:
            match action:
                case Send():
                    self._send(process, action)
                case Log():
                    self.log.append(f"{self.clock.now_s:9.3f} {process.name:>4} {action.text}")
                case Count():
                    self.counts[f"{action.name}:{action.label}" if action.label else action.name] += int(action.amount)
                case Record():
                    self._record(action.result)
                case Exit():
                    host.alive = False
                    self.log.append(f"{self.clock.now_s:9.3f} {process.name:>4} exits: {action.reason}")
                    self.ended = self.ended or process == self.leader
                    self.kill(process)
                case Rejoin():
                    self._rejoin(process)
                case _:
                    host.device.perform(action)

    def store(self, owner: ProcessId, value: object, size_bytes: int = 0) -> Ref:
        """Keep a value for a process, under a new name."""
        self._refs += 1
        self.hosts[owner].stored[self._refs] = value
        return Ref(self._refs, size_bytes)

    def draw(self, bounds: tuple[float, float]) -> float:
        """A number between two bounds."""
        return self.random.uniform(*bounds)

    def witness(self, stage: int, version: int, parameters: str, gradient: Counter[int]) -> None:
        """A peer has applied an update: every microbatch must be in it once, and its stage must agree."""
        expected = dict.fromkeys(range(self.settings.plan.microbatches), 1)
        if dict(gradient) != expected:
            raise InvariantViolated(f"seed {self.seed}: version {version} of stage {stage} learnt {dict(gradient)}")
        usual = self._history.setdefault((stage, version), parameters)
        if usual != parameters:
            raise InvariantViolated(f"seed {self.seed}: two different versions {version} of stage {stage}")

    def _new_process(self, name: str) -> ProcessId:
        self._incarnations += 1
        return ProcessId(name, self._incarnations)

    def _lose(self, process: ProcessId, lost: ProcessId) -> None:
        self.post(process, Lost(lost, "the connection broke"))

    def _rejoin(self, process: ProcessId) -> None:
        host = self.hosts[process]
        self.kill(process)
        self.clock.after(0.5, partial(self._start_again, process.name, host))

    def _start_again(self, name: str, former: Host) -> None:
        if self.ended:
            return
        if isinstance(former.machine, PeerMachine):
            self.start_peer(name, former.wish)
        else:
            self.start_trainer(name)

    def _send(self, sender: ProcessId, action: Send) -> None:
        bodies = [self._read(sender, body) for body in action.bodies]
        delay_s = 0.0 if action.to == sender else self.draw(self.settings.latency_s)
        # Two lanes, as in the runtime: what was sent first on a lane arrives first, but tensors do not hold up words.
        lane = (sender, action.to, bool(bodies))
        arrival_s = max(self.clock.now_s + delay_s, self._channels.get(lane, 0.0))
        self._channels[lane] = arrival_s
        self.clock.after(arrival_s - self.clock.now_s, partial(self._deliver, sender, action, bodies))

    def _deliver(self, sender: ProcessId, action: Send, bodies: list[tuple[object, int]]) -> None:
        host = self.hosts.get(action.to)
        if host is not None and host.alive:
            refs = tuple(self.store(action.to, value, size_bytes) for value, size_bytes in bodies)
            self.post(action.to, Received(sender, action.message, refs))
        elif self.hosts[sender].alive:
            self.post(sender, Lost(action.to, "nobody answers"))

    def _read(self, sender: ProcessId, body: Body) -> tuple[object, int]:
        host = self.hosts[sender]
        if isinstance(body, Slice):
            return host.device.read(body), 4 * (body.stop - body.start)
        return host.stored[body.key], body.size_bytes

    def _record(self, result: StepResult) -> None:
        self.results.append(result)

    def _arm(self, process: ProcessId) -> None:
        """One timer a process: at the deadline that its machine names."""
        host = self.hosts[process]
        due_s = max(host.machine.next_deadline(), self.clock.now_s)
        if not host.alive or due_s >= host.wake_s - 1e-9:
            return
        host.wake_s = due_s
        self.clock.after(due_s - self.clock.now_s, partial(self._wake, process, due_s))

    def _wake(self, process: ProcessId, due_s: float) -> None:
        host = self.hosts[process]
        if host.alive and host.wake_s == due_s:
            host.wake_s = float("inf")
            self.post(process, Tick())


