"""A swarm in virtual time: the production machines of peers and trainers on a pretended network and devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import partial
from random import Random

from swarmflow.core.actions import Action, Count, Exit, Forget, Log, Record, Rejoin, Saved, Send, TookOver
from swarmflow.core.events import DrainAsked, Event, Lost, Received, Rival, SaveAsked, Tick
from swarmflow.core.leader import Leader
from swarmflow.core.leader_lease import FIRST_TERM, LeaderLease
from swarmflow.core.leading.memories import Former
from swarmflow.core.messages import Commit, Heartbeat, Join, LeaderHeartbeat, StepResult
from swarmflow.core.peer import PeerMachine
from swarmflow.core.trainer import TrainerMachine
from swarmflow.core.types import Holding, Member, ProcessId, Ref, Snapshot
from swarmflow.simulator.arithmetic import Sum
from swarmflow.simulator.clock import Clock
from swarmflow.simulator.device import Device
from swarmflow.simulator.disks import Disks
from swarmflow.simulator.hardware import Hardware
from swarmflow.simulator.host import Host
from swarmflow.simulator.invariants import Witness
from swarmflow.simulator.kept import KeptState
from swarmflow.simulator.machines import PRODUCTION, Machines, TrainerStart
from swarmflow.simulator.measure import Meter
from swarmflow.simulator.network import Network
from swarmflow.simulator.partitions import Partition
from swarmflow.simulator.settings import Settings, Surroundings, random_surroundings
from swarmflow.simulator.spoiling import Spoiling
from swarmflow.simulator.swarm import PeerLife
from swarmflow.simulator.transport import DIAL_S, Transport

__all__ = ["Host", "Settings", "Surroundings", "World"]

FIND_AGAIN_S = 0.5  # how soon a process looks for a leader again
RIVALS_EVERY_S = 10.0  # how often leaders look for other leaders
ROUNDING_S = 1e-6
TICK = Tick()
SIGNS_OF_LIFE = (LeaderHeartbeat, Heartbeat)


@dataclass(slots=True, repr=False)  # in words it would be millions of letters long
class World:
    """Drives every machine through handle(event, now), as the runtime does, and checks what must always hold.

    disks: what lies on those of its processes. latest: the life of each name that began last. on_result: told of each
    step that a trainer records. trace: given a line for all that happens. spoiling: machines whose numbers are not
    finite, by name. stopwatch: of the computer that simulates; with it, what decisions cost is measured, and nothing
    else changes.
    """

    settings: Settings
    seed: int
    surroundings: InitVar[Callable[[Random], Surroundings] | None] = None
    machines: Machines = PRODUCTION
    clock: Clock = field(default_factory=Clock)
    meter: Meter = field(default_factory=Meter)
    hosts: dict[ProcessId, Host] = field(default_factory=dict)
    results: list[StepResult] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    log: list[str] = field(default_factory=list)
    ended: bool = False
    saved: dict[int, Saved] = field(default_factory=dict)
    finisher: ProcessId | None = None
    spoiling: dict[str, Spoiling] = field(default_factory=dict)
    transport: Transport = field(init=False)
    on_result: Callable[[StepResult], None] | None = None
    trace: Callable[[str], None] | None = None
    stopwatch: Callable[[], float] | None = None
    random: Random = field(init=False)
    network: Network = field(init=False)
    hardware: Hardware = field(init=False)
    disks: Disks = field(init=False)
    trainers: dict[ProcessId, TrainerMachine] = field(default_factory=dict)
    latest: dict[str, ProcessId] = field(default_factory=dict)
    _incarnations: Random = field(init=False)
    _led: list[ProcessId] = field(default_factory=list)
    _lineages: Random = field(init=False)
    _refs: int = 0
    _witness: Witness = field(init=False)

    def __post_init__(self, surroundings: Callable[[Random], Surroundings] | None) -> None:
        self.random, self._incarnations = Random(self.seed), Random(f"incarnations {self.seed}")
        self._lineages = Random(f"lineages {self.seed}")
        around = random_surroundings(self.settings, self.random) if surroundings is None else surroundings(self.random)
        self.network, self.hardware = around.network, around.hardware
        self.clock.after(RIVALS_EVERY_S, self._introduce)
        self.disks = Disks(self.settings.plan.stages)
        self.transport = Transport(self)
        self._witness = Witness(self.seed, self.settings.plan.microbatches)

    # --- processes ----------------------------------------------------------------------------------------------------

    def start_trainer(self, name: str, lead: bool = False) -> None:
        """Start a trainer. lead: from the newest version on disk, unless another one answers for the run."""
        if self.ended:
            return
        leader = self._leader_for(name)
        if leader is None and (not lead or self._anybody_may_lead(name)):
            self.clock.after(FIND_AGAIN_S, partial(self.start_trainer, name, lead))
            return
        process = self._new_process(name)
        me, plan = Member(process, -1), self.settings.plan
        rules = self.settings.of_leader(self._new_lineage)
        self.disks.set_aside(name)
        held = self.disks.trainers.setdefault(name, {0})
        leads = None
        if leader is None:
            newest = self.disks.newest(partial(self.transport.reaches, name))
            held.add(newest)  # trainers beside each other see each other's disks
            self._led.append(process)
            digests = self.disks.digests(newest)
            leads = Leader(me, plan, rules, FIRST_TERM, newest, newest, digests, self.disks.known(), self._former())
            leads.safe.copies.record(me, self.disks.holdings(name))
        lease = LeaderLease(leader or process, timeouts=plan.timeouts)
        stages, digests = tuple(range(plan.stages)), self.disks.digests(max(held))
        copies = (Holding(Snapshot(max(held), digests), stages),) if digests else ()
        join = Join("trainer", "sim", "run", me, copies=(*copies, *self.disks.holdings(name)))
        start = TrainerStart(lease, plan, rules, join, max(held), digests, leads)
        machine = self.machines.trainer(start)
        host = self.hosts[process] = Host(process, machine, Device(self, process), self.clock.now_s)
        self.trainers[process] = machine
        self.write_trace(process, "starts")
        self._perform(host, machine.start(self.clock.now_s))
        self._arm(host)

    def _former(self) -> Former:
        """What a trainer that starts finds in its folder: how far the run had come, and who took part."""
        if not self.results or not self.disks.remembered:
            return Former()
        standings = [machine.epoch_view for machine in self.trainers.values() if machine.epoch_view is not None]
        names = {process.name for epoch_view in standings[-1:] for process in epoch_view.opened.roster.serving}
        return Former(max(result.step for result in self.results) + 1, frozenset(names))

    def start_peer(self, name: str, wish: int = -1, kept: KeptState | None = None) -> ProcessId | None:
        """Start a peer, which has `kept` in memory; it joins at the leader, as soon as there is one. None: not yet.

        Where it has nothing in memory, it has what lies in its folder.
        """
        leader = self._leader_for(name)
        if self.ended:
            return None
        if leader is None:
            self.clock.after(FIND_AGAIN_S, partial(self.start_peer, name, wish, kept))
            return None
        self.disks.set_aside(name)
        if kept is None and name in self.disks.left:
            kept = self.disks.left[name].copied()
        process = self._new_process(name)
        member = Member(process, wish, self.hardware.capacity(name, wish))
        join = Join(
            "peer",
            "sim",
            "run",
            member,
            self.hardware.speed(name),
            self.settings.rebalance_s,
            keeps=self.settings.keeps,
            copies=self.disks.holdings(name),
            held=kept.held if kept is not None else None,
        )
        lease = LeaderLease(leader, timeouts=self.settings.plan.timeouts)
        machine = self.machines.peer(process, lease, self.settings.plan, self.settings.of_peer(join))
        device = Device(self, process, kept=kept)
        self.hosts[process] = Host(process, machine, device, self.clock.now_s, wish)
        self.write_trace(process, "starts")
        self.deliver(process, Tick())
        return process

    @property
    def leader(self) -> ProcessId | None:
        """Who leads, of those alive; of two, the one that began later."""
        return next((process for process in reversed(self._led) if self._leads(process)), None)

    def _leaders(self) -> list[ProcessId]:
        """In the order in which they began to lead."""
        return [process for process in self._led if self._leads(process)]

    def _leads(self, process: ProcessId) -> bool:
        return self.trainers[process].lead is not None and self.hosts[process].alive

    def _leader_for(self, name: str) -> ProcessId | None:
        """Whom a process of this name finds."""
        return next((leader for leader in reversed(self._leaders()) if self.transport.reaches(name, leader.name)), None)

    def _anybody_may_lead(self, name: str) -> bool:
        """Whether a living trainer that a process of this name reaches was in an epoch, and so may take over."""
        machines = [self.trainers[p] for p in self.following_trainers() if self.transport.reaches(name, p.name)]
        return any(machine.epoch_view is not None for machine in machines)

    def kill(self, process: ProcessId) -> None:
        """SIGKILL: it says nothing more; those connected to it notice when their connections break."""
        host = self.hosts[process]
        if host.alive:
            host.device.die()
            host.died_s = self.clock.now_s
            self.write_trace(process, "dies")
        host.alive = False
        host.stored.clear()
        for other in list(host.links):
            seconds = self.hardware.broken_s()
            if seconds is not None and self.hosts[other].alive:
                self.clock.after(seconds, partial(self.lose, other, process))

    def drain(self, process: ProcessId) -> None:
        """SIGTERM."""
        self.deliver(process, DrainAsked())

    def freeze(self, process: ProcessId, seconds: float) -> None:
        """SIGSTOP, and SIGCONT later: what happens to it meanwhile, it learns then."""
        host = self.hosts[process]
        host.frozen_until_s = max(host.frozen_until_s, self.clock.now_s + seconds)

    def jump(self, process: ProcessId, seconds: float) -> None:
        """Its clock jumps forward."""
        self.hosts[process].skew_s += seconds
        self.deliver(process, TICK)

    def suspend(self, process: ProcessId, seconds: float) -> None:
        """The machine sleeps, and its clock with it."""
        host, now_s = self.hosts[process], self.clock.now_s
        host.skew_s -= max(0.0, now_s + seconds - max(now_s, host.frozen_until_s))
        self.freeze(process, seconds)

    def stall(self, process: ProcessId, kind: str, times: float = float("inf")) -> None:
        """A process breathes on, and does nothing of one kind of work (see STALLS), for so many actions of it."""
        self.hosts[process].device.stalls.begin(kind, times)

    def ask_save(self, number: int) -> None:
        """Somebody asks the leader to bring its version to disk; the answer is in `saved` under this number."""
        if self.leader is not None:
            self.deliver(self.leader, SaveAsked(number))

    def split(self, apart: set[str], seconds: float, symmetric: bool = True, notified: bool = True) -> Partition:
        """The processes of these names, and those of all others, cannot reach each other for a while.

        symmetric: else those of all others are heard by the ones of these names, but not the other way round. told:
        connections break; else messages are lost and nobody learns so.
        """
        partition = Partition(frozenset(apart), symmetric, notified)
        self.transport.partitions.present.append(partition)
        for process in sorted(self.hosts) if notified else ():
            for other in sorted(self.hosts):
                if self.hosts[process].alive and partition.blocks(process.name, other.name):
                    self.clock.after(self.hardware.broken_s() or DIAL_S, partial(self.lose, process, other))
        self.clock.after(seconds, partial(self.transport.partitions.heal, partition))
        return partition

    def _introduce(self) -> None:
        """Now and again leaders that can reach each other find each other in the directory."""
        for process in self._leaders():
            for rival in self._leaders():
                lead = self.trainers[rival].lead
                if rival != process and lead is not None and self.transport.reaches(process.name, rival.name):
                    self.deliver(process, Rival(rival, lead.version))
        if not self.ended:
            self.clock.after(RIVALS_EVERY_S, self._introduce)

    def mute(self, sender: ProcessId, receiver: ProcessId, seconds: float) -> None:
        """What one process sends to the other is lost for a while, and neither is told."""
        self.transport.mute_until_s[sender, receiver] = self.clock.now_s + seconds

    def cut(self, one: ProcessId, other: ProcessId) -> None:
        """The connection between two processes breaks, and both notice; it can be made anew at once."""
        self.lose(one, other)
        self.lose(other, one)

    @property
    def stored(self) -> list[Ref]:
        """What the living processes hold."""
        return [Ref(key) for host in self.hosts.values() if host.alive for key in host.stored]

    def following_trainers(self) -> list[ProcessId]:
        """Trainers that are alive and do not lead, in the order of their ids."""
        living = sorted(process for process in self.trainers if self.hosts[process].alive)
        leading = self._leaders()
        return [process for process in living if process not in leading]

    def alive_peers(self) -> list[ProcessId]:
        """Peers that are alive, in the order of their ids."""
        return sorted(p for p, host in self.hosts.items() if host.alive and p not in self.trainers)

    # --- events and actions -------------------------------------------------------------------------------------------

    def deliver(self, process: ProcessId, event: Event) -> None:
        """Something happens to a process."""
        self.handle(self.hosts[process], event)

    def handle(self, host: Host, event: Event) -> None:
        """The same, where the process has been looked up."""
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
        elif type(event) is Received and type(event.message) in SIGNS_OF_LIFE:
            return  # they make nothing due earlier
        self._arm(host)

    def _perform(self, host: Host, actions: list[Action]) -> None:
        """Do what a machine asked for."""
        process = host.process
        for action in actions:
            if type(action) is Send:  # most are
                if type(action.message) is Commit:
                    self._decided(process, action.message)
                self.transport.send(host, action)
                continue
            match action:
                case Log():
                    self.log.append(f"{self.clock.now_s:9.3f} {process.name:>4} {action.text}")
                    self.write_trace(process, action.text)
                case Forget():
                    self.transport.forget(host, action.process)
                    host.device.perform(action)
                case Saved():
                    self.saved[action.number] = action
                case Count():
                    self.counts[f"{action.name}:{action.label}" if action.label else action.name] += int(action.amount)
                case Record():
                    self._record(action.result)
                case Exit():
                    self._exit(process, action)
                case Rejoin():
                    self._rejoin(process, action)
                case TookOver():
                    self._led.append(process)
                case _:
                    host.device.perform(action)

    def _exit(self, process: ProcessId, action: Exit) -> None:
        """A process ends by itself. With a leader the run ends, unless it was asked to go: then it is started again."""
        self.log.append(f"{self.clock.now_s:9.3f} {process.name:>4} exits: {action.reason}")
        led = self.trainers[process].lead if process in self._leaders() else None
        self.kill(process)
        if led is not None and not led.fate and self.settings.steps not in self.disks.durable:
            self.start_trainer(process.name, lead=True)
        elif led is not None and not self.ended:
            self.ended, self.finisher = True, process

    def store(self, owner: ProcessId, value: object, size_bytes: int = 0) -> Ref:
        """Keep a value for a process, under a new name."""
        self._refs += 1
        self.hosts[owner].stored[self._refs] = value
        return Ref(self._refs, size_bytes)

    def witness(self, process: ProcessId, stage: int, version: int, parameters: str, gradient: Sum) -> None:
        """A peer has applied an update."""
        machine = self.hosts[process].machine
        assert isinstance(machine, PeerMachine)
        assert machine.epoch_view is not None
        opened = machine.epoch_view.opened
        self._witness.updated(opened.lineage, opened.epoch, stage, version, parameters, gradient)

    def _decided(self, leader: ProcessId, commit: Commit) -> None:
        lead = self.trainers[leader].lead
        if lead is not None and lead.step is not None:
            self._witness.decided(lead.step.open_step.lineage, commit)

    def _new_lineage(self) -> str:
        return f"{self._lineages.getrandbits(64):016x}"

    def _new_process(self, name: str) -> ProcessId:
        self.latest[name] = ProcessId(name, 1 + self._incarnations.getrandbits(62))  # no order, as in the runtime
        return self.latest[name]

    def lose(self, process: ProcessId, lost: ProcessId) -> None:
        """A process is told that its connection to another one broke."""
        self.deliver(process, Lost(lost, "the connection broke"))

    def _rejoin(self, process: ProcessId, action: Rejoin) -> None:
        host = self.hosts[process]
        kept = host.device.keep(action.held)
        self.kill(process)
        self.clock.after(0.5, partial(self._start_again, process.name, host, kept))

    def _start_again(self, name: str, former: Host, kept: KeptState | None) -> None:
        if self.ended:
            return
        if isinstance(former.machine, PeerMachine):
            self.start_peer(name, former.wish, kept)
        else:
            self.start_trainer(name, lead=True)

    def _record(self, result: StepResult) -> None:
        self.results.append(result)
        if self.on_result is not None:
            self.on_result(result)

    def write_trace(self, process: ProcessId, what: str) -> None:
        """A line of the trace: the same for the same scenario and seed, on any machine."""
        if self.trace is not None:
            self.trace(f"{self.clock.now_s:.9f} {process.name}.{process.incarnation} {what}")

    def _arm(self, host: Host) -> None:
        """One timer a process: at the deadline that its machine names."""
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

    # --- what a simulation asks of any swarm --------------------------------------------------------------------------

    def alive(self, process: ProcessId) -> bool:
        """Whether a process lives."""
        return self.hosts[process].alive

    def peers(self) -> list[ProcessId]:
        """All lives of peers that ever began, in the order in which they did."""
        return [process for process in self.hosts if process not in self.trainers]

    def life(self, process: ProcessId) -> PeerLife:
        """What there is to say of a peer."""
        host = self.hosts[process]
        stage = host.device.weights.stage if host.device.weights is not None else -1
        died_s = float("inf") if host.alive else host.died_s
        return PeerLife(process, stage, host.began_s, died_s, host.device.busy_s)

    @property
    def waiting_for(self) -> str:
        """What the leader waits for, in words."""
        lead = self.trainers[self.leader].lead if self.leader is not None else None
        return lead.waiting_for if lead is not None else "nobody leads"
