"""Random faults of a swarm, at moments that a seed decides, and what must hold at the end all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.arithmetic import exact
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.moments import kill_in_phase, leader_phase, peers_of, stage_of
from swarmflow.simulator.network import Jittery
from swarmflow.simulator.partition_faults import SPLITS
from swarmflow.simulator.troubles import ALONE, TROUBLES
from swarmflow.simulator.world import Settings, World

__all__ = ["FAULTS", "Churn", "FuzzSwarm", "finish", "kill_in_phase", "leader_phase", "peers_of", "stage_of"]

HEED_S = 60.0  # after the last fault, and again: a person has read by then what the leader waits for
MISSED_S = 40.0  # within it a process that missed a message has noticed, joined again, and dropped what it held
LOG_LINES = 40
# How an honest process ends: with the run, as a person wants it, or as its disk is full when it leaves.
EXITS = ("the run is finished", "left", "drained", "stopped at version")


@dataclass(frozen=True, slots=True)
class FuzzSwarm:
    """A swarm as it begins. The trainers are t0 (which leads), t1, ...; the peers p0, p1, ..."""

    settings: Settings
    peers: int = 6
    trainers: int = 2

    def start(self, seed: int) -> World:
        """Return the swarm with all its processes started."""
        world = World(self.settings, seed)
        world.start_trainer("t0", lead=True)
        for number in range(1, self.trainers):
            world.start_trainer(f"t{number}")
        for number in range(self.peers):
            world.start_peer(f"p{number}")
        return world


def finish(world: World, limit_s: float = 2000.0, hostile: Collection[str] = ()) -> None:
    """Run to the end of the training, and check what must hold there.

    hostile: names of those that have sent what cannot be, beside the liars of the world. Raises InvariantViolated: it
    stood still or gave up, a step is missing, a process keeps bytes for nothing.
    """
    if not world.clock.run(lambda: world.ended, limit_s):
        raise _violated(world, f"it stands still after {limit_s:.0f} s")
    check_honest(world, hostile)
    steps = world.settings.steps
    if missing := set(range(steps)) - {result.step for result in world.results}:
        raise _violated(world, f"steps {sorted(missing)} are missing")
    if steps not in world.disks.durable:
        raise _violated(world, "the last version was not written")
    for version, copies in sorted(world.disks.durable.items()):
        expected = {stage: exact(stage, version, world.settings.plan.microbatches) for stage in copies}
        if copies != expected:
            raise _violated(world, f"version {version} on disk is damaged: {copies}, not {expected}")
    settled = world.settings.load_s[0] > 2 * world.settings.latency_s[1]  # writing takes longer than a message
    lead = world.trainers[world.finisher].lead if world.finisher is not None else None
    for process, host in sorted(world.hosts.items()):
        lease = host.machine.lease
        left = lease.leader != world.finisher or lease.lost_s is not None
        left |= lead is not None and process not in lead.membership.known  # evicted, and not notified yet
        left |= world.finisher is not None and not world.transport.reaches(process.name, world.finisher.name)
        left |= world.finisher is not None and _late(world, world.finisher, process)
        left |= world.clock.now_s - world.transport.partitions.dropped_s.get(process.name, -MISSED_S) < MISSED_S
        left |= isinstance(host.machine, TrainerMachine) and _gave_up(world, host.machine)
        behind = left or host.frozen_until_s > world.clock.now_s
        early = host.machine.early if isinstance(host.machine, PeerMachine) else []
        awaited = {ref.key for event in early for ref in event.bodies}
        kept = [value for key, value in host.stored.items() if key not in awaited]
        if settled and host.alive and not behind and kept and process.name not in world.liars:
            raise _violated(world, f"{process.name} still holds {kept}")


def check_honest(world: World, hostile: Collection[str]) -> None:
    """Check that no honest process has ended but as it should. Raises InvariantViolated.

    hostile: as in `finish`.
    """
    for line in world.log:
        name, _, reason = line[10:].strip().partition(" exits: ")
        if reason and name not in (*world.liars, *hostile) and not reason.startswith(EXITS):
            raise _violated(world, f"{name} ended: {reason}")


def _gave_up(world: World, trainer: TrainerMachine) -> bool:
    """Return whether a trainer's last step was given up for a version after it, which peers came back with.

    It drops what it has of a step when the next one opens, and this run ends without another.
    """
    return trainer.epoch > max(result.epoch for result in world.results)


def _late(world: World, sender: ProcessId, receiver: ProcessId) -> bool:
    """Return whether messages from one process to the other are still in flight on a slow link."""
    return isinstance(world.network, Jittery) and world.network.late(sender, receiver, world.clock.now_s)


@dataclass(slots=True)
class Churn:
    """Random faults from 1 s to until_s; then enough new peers to go on, and disks that the leader waits for."""

    world: World
    kinds: tuple[str, ...]  # names in FAULTS, drawn evenly: one that is named twice happens twice as often
    gap_s: float = 2.0  # mean, between two faults
    until_s: float = 60.0
    helpers: int = 3  # new peers after the last fault
    happened: Counter[str] = field(init=False, default_factory=Counter)  # by kind
    random: Random = field(init=False)  # its own, so that runs of one seed differ only by what the machines decide
    _fresh: int = field(init=False, default=0)  # new names so far

    def __post_init__(self) -> None:
        unknown = [kind for kind in self.kinds if kind not in FAULTS]
        if unknown or not self.kinds:
            raise ValueError(f"no such fault: {unknown}; there are {sorted(FAULTS)}")
        self.random = Random(self.world.seed)

    def unleash(self) -> None:
        """Plan the first fault, and the new peers after the last one."""
        self.world.clock.after(1.0, self._strike)
        self.world.clock.after(self.until_s + 10.0, self._relieve)

    def _strike(self) -> None:
        if self.world.clock.now_s > self.until_s or self.world.ended:
            return
        kind = self.random.choice(self.kinds)
        self.happened[kind] += 1
        self.world.log.append(f"{self.world.clock.now_s:9.3f} ---- fault: {kind}")
        FAULTS[kind](self)
        self.world.clock.after(self.random.expovariate(1 / self.gap_s), self._strike)

    def _heed(self) -> None:
        """Start those that the leader waits for: the peers that kept the version, or the trainer whose disk has it.

        Who is there may tell of a later version than the one that the leader began with, and it asks for that.
        """
        leader = self.world.leader
        lead = self.world.trainers[leader].lead if leader is not None else None
        if self.world.ended:
            return
        # What it waits for changes: first for those with a version in memory, then for disks.
        self.world.clock.after(HEED_S, self._heed)
        if lead is None or lead.recovery.restoring is None:
            return
        disks, known = self.world.disks, lead.recovery.restoring.known
        keepers = disks.keepers(known)
        for name in keepers:
            self.world.start_peer(name)
        for name in sorted(disks.trainers):
            if disks.newest() in disks.trainers[name] and (disks.newest() >= known or not keepers):
                self.world.start_trainer(name, lead=True)
                return

    def _relieve(self) -> None:
        if self.world.ended:
            return
        self.world.clock.after(HEED_S, self._heed)
        for number in range(self.helpers):
            self.world.start_peer(f"q{number}")

    def new_name(self, prefix: str) -> str:
        """Return a name that no process has had."""
        self._fresh += 1
        return f"{prefix}{self._fresh}"

    def sample(self, processes: list[ProcessId], count: int = 1) -> list[ProcessId]:
        """Return so many of these at random, or all."""
        return self.random.sample(processes, min(count, len(processes)))

    def kill(self) -> None:
        """A peer dies."""
        for victim in self.sample(self.world.alive_peers()):
            self.world.kill(victim)

    def kill_neighbours(self) -> None:
        """Two peers of neighbouring stages die at one moment."""
        stage = self.random.randrange(max(1, self.world.settings.plan.stages - 1))
        for victim in self.sample(peers_of(self.world, stage)) + self.sample(peers_of(self.world, stage + 1)):
            self.world.kill(victim)

    def kill_stage(self) -> None:
        """All peers of a stage die."""
        for victim in peers_of(self.world, self.random.randrange(self.world.settings.plan.stages)):
            self.world.kill(victim)

    def kill_at_edge(self) -> None:
        """A peer or two die while the next step is reduced or committed."""
        phase = self.random.choice(("complete", "preparing", "prepared", "committing"))
        count, delay_s = self.random.choice((1, 1, 2)), self.random.uniform(0.0, 0.1)

        def pick(world: World) -> list[ProcessId]:
            return self.sample(world.alive_peers(), count)

        kill_in_phase(self.world, phase, pick, 0.0, delay_s, self.until_s)

    def restart(self) -> None:
        """A peer dies, and its next life joins before any process has noticed."""
        for victim in self.sample(self.world.alive_peers()):
            self.world.kill(victim)
            self.world.start_peer(victim.name)

    def kill_trainer(self) -> None:
        """A trainer that does not lead dies, and is started again."""
        for victim in self.sample(self.world.directory.followers()):
            self.world.kill(victim)
            self.world.start_trainer(victim.name, lead=True)

    def drain_trainer(self) -> None:
        """A trainer is asked to leave; another one starts."""
        for leaver in self.sample(self.world.directory.followers()):
            self.world.drain(leaver)
            self.world.start_trainer(self.new_name("u"))

    def drain(self) -> None:
        """A peer is asked to leave."""
        for leaver in self.sample(self.world.alive_peers()):
            self.world.drain(leaver)

    def drain_storm(self) -> None:
        """Half of the peers are asked to leave."""
        peers = self.world.alive_peers()
        for leaver in self.sample(peers, len(peers) // 2):
            self.world.drain(leaver)

    def cut(self) -> None:
        """A connection between two peers breaks."""
        pair = self.sample(self.world.alive_peers(), 2)
        if len(pair) == 2:
            self.world.transport.cut(*pair)

    def mute(self) -> None:
        """The messages from one process to another one are lost silently for a while."""
        leader = self.world.leader
        processes = [*self.world.alive_peers(), *self.world.directory.followers(), *([leader] if leader else [])]
        pair = self.sample(processes, 2)
        if len(pair) == 2:
            sender, receiver = pair
            self.world.transport.mute(sender, receiver, self.random.uniform(0.5, 20.0))

    def freeze(self) -> None:
        """A peer is frozen for a while, at times longer than the leader's timeouts."""
        for sleeper in self.sample(self.world.alive_peers()):
            interventions.freeze(self.world, sleeper, self.random.uniform(0.2, 12.0))

    def split(self) -> None:
        """The network falls apart in two for a while, with trainers on one side or on both."""
        if self.world.transport.partitions.present:
            return
        names = sorted({process.name for process in (*self.world.alive_peers(), *self.world.directory.followers())})
        leader = self.world.leader
        if leader is not None and self.random.random() < 0.5:
            names.append(leader.name)
        apart = set(self.random.sample(names, self.random.randint(1, len(names)))) if names else set()
        self.world.transport.split(apart, self.random.choice((2.0, 15.0, 70.0)))

    def slow(self) -> None:
        """A peer computes at a fraction of its speed for a while."""
        for victim in self.sample(self.world.alive_peers()):
            device = self.world.hosts[victim].device
            device.executor.slow_until_s = self.world.clock.now_s + self.random.uniform(1.0, 30.0)

    def join(self) -> None:
        """A new peer starts."""
        self.world.start_peer(self.new_name("n"))

    def lead_again(self) -> None:
        """The leader dies and is started again at once."""
        leader = self.world.leader
        if leader is not None:
            self.world.kill(leader)
            self.world.start_trainer(leader.name, lead=True)

    def kill_leader_at_edge(self) -> None:
        """The leader dies while a step is reduced or committed, and is started again later."""
        phase = self.random.choice(("working", "complete", "preparing", "prepared", "committing"))
        delay_s = self.random.uniform(0.0, 0.1)

        def pick(world: World) -> list[ProcessId]:
            leader = world.leader
            if leader is None:
                return []
            world.clock.after(self.random.uniform(0.1, 20.0), lambda: world.start_trainer(leader.name, lead=True))
            return [leader]

        kill_in_phase(self.world, phase, pick, 0.0, delay_s, self.until_s)

    def freeze_leader(self) -> None:
        """The leader is frozen for a while, at times so long that another trainer takes over."""
        if self.world.leader is not None:
            interventions.freeze(self.world, self.world.leader, self.random.uniform(1.0, 25.0))


EARLIER: tuple[Callable[[Churn], None], ...] = (
    Churn.kill,
    Churn.kill_neighbours,
    Churn.kill_stage,
    Churn.kill_at_edge,
    Churn.restart,
    Churn.kill_trainer,
    Churn.drain_trainer,
    Churn.drain,
    Churn.drain_storm,
    Churn.cut,
    Churn.freeze,
    Churn.join,
    Churn.lead_again,
    Churn.kill_leader_at_edge,
    Churn.freeze_leader,
    Churn.split,
    Churn.slow,
    Churn.mute,
)
FAULTS: dict[str, Callable[[Churn], None]] = {fault.__name__: fault for fault in (*EARLIER, *SPLITS, *TROUBLES, *ALONE)}
DRAWN = tuple(fault.__name__ for fault in (*EARLIER, *SPLITS, *TROUBLES) if fault is not Churn.join)  # at random


def _violated(world: World, what: str) -> InvariantViolated:
    return InvariantViolated("\n".join([f"seed {world.seed}: {what}", *world.log[-LOG_LINES:]]))
