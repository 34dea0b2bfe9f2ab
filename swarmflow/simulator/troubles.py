"""Faults of computers: their clocks, disks, memory and links, each for a while."""

from __future__ import annotations

from functools import partial

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.hardware import RandomHardware
from swarmflow.simulator.moments import peers_of
from swarmflow.simulator.network import Jittery
from swarmflow.simulator.partition_faults import FaultSchedule
from swarmflow.simulator.world import World

LITTLE_BYTES = 300  # of a journal's budget under pressure


def _alive_processes(world: World) -> list[ProcessId]:
    leader = [world.leader] if world.leader is not None else []
    return [*leader, *world.directory.followers(), *world.alive_peers()]


def clock_jump(schedule: FaultSchedule) -> None:
    """The clock of a machine jumps forward."""
    for victim in schedule.sample(_alive_processes(schedule.world)):
        seconds = schedule.random.choice((0.5, 5.0, 30.0, 300.0)) * schedule.random.uniform(0.5, 1.5)
        interventions.jump(schedule.world, victim, seconds)


def suspend(schedule: FaultSchedule) -> None:
    """A machine is suspended: its processes sleep, and their clock stands still."""
    for victim in schedule.sample(_alive_processes(schedule.world)):
        seconds = schedule.random.choice((1.0, 7.0, 20.0, 60.0)) * schedule.random.uniform(0.5, 1.5)
        interventions.suspend(schedule.world, victim, seconds)


def disk_full(schedule: FaultSchedule) -> None:
    """The disk of a computer is full for a while."""
    world = schedule.world
    for victim in schedule.sample(_alive_processes(world)):
        world.disks.full.add(victim.name)
        world.clock.after(schedule.random.uniform(1.0, 30.0), partial(world.disks.full.discard, victim.name))


def _safe_without(world: World, name: str) -> bool:
    """Return whether the newest version would survive the loss of a process' disk.

    Else a run that knows of the version would wait for it for ever, rightly.
    """
    disks = world.disks
    if name in disks.trainers:
        return any(disks.whole(other, disks.newest()) for other in disks.trainers if other != name)
    newest = max((version for held in disks.copies.values() for version, stages in held.items() if stages), default=0)
    others = {*disks.trainers, *disks.copies, *disks.written} - {name}
    return newest <= disks.newest() or all(
        any(disks.holds(other, newest, stage) for other in others) for stage in range(disks.stages)
    )


def _start_again(world: World, process: ProcessId) -> None:
    if process in world.trainers:
        world.start_trainer(process.name, lead=True)
    else:
        world.start_peer(process.name)


def disk_lost(schedule: FaultSchedule) -> None:
    """A process dies, and its next life has an empty disk; what it has of the newest version is on others as well."""
    world = schedule.world
    for victim in schedule.sample(_alive_processes(world)):
        if _safe_without(world, victim.name):
            world.kill(victim)
            world.disks.lose(victim.name)
            world.clock.after(schedule.random.uniform(0.0, 5.0), partial(_start_again, world, victim))


def disk_rolled_back(schedule: FaultSchedule) -> None:
    """A process dies, and its next life has the disk as it was some versions ago."""
    world = schedule.world
    for victim in schedule.sample(_alive_processes(world)):
        if _safe_without(world, victim.name):
            world.kill(victim)
            world.disks.roll_back(victim.name, schedule.random.choice((1, 1, 2, 5)))
            world.clock.after(schedule.random.uniform(0.0, 5.0), partial(_start_again, world, victim))


def disk_corrupt(schedule: FaultSchedule) -> None:
    """A file on a disk does not match its digest any more; of the newest version it is intact on another one."""
    world, disks = schedule.world, schedule.world.disks
    stages = range(disks.stages)
    held = [(name, v, s) for name, versions in disks.trainers.items() for v in versions if v for s in stages]
    held += [(name, v, s) for name, copies in disks.copies.items() for v, copied in copies.items() for s in copied]
    alive = {process.name for process in _alive_processes(world)}
    intact = [each for each in held if each not in disks.damaged and each[0] in alive]
    for name, version, stage in schedule.random.sample(sorted(intact), min(1, len(intact))):
        if _safe_without(world, name):
            disks.damaged.add((name, version, stage))


def flip_sum(schedule: FaultSchedule) -> None:
    """A bit flips in a reduced gradient that a peer has received: the members' digests do not agree."""
    for victim in schedule.sample(schedule.world.alive_peers()):
        schedule.world.hosts[victim].device.sums.flips_sum = True


def flip_parameters(schedule: FaultSchedule) -> None:
    """A bit flips as a peer applies an update, in a stage of three or more, most of which are there to outvote it."""
    world = schedule.world
    for victim in schedule.sample(
        [p for stage in range(world.settings.plan.stages) for p in peers_of(world, stage)[2:]]
    ):
        world.hosts[victim].device.sums.flips_parameters = True


def flip_state(schedule: FaultSchedule) -> None:
    """A bit flips in the state that a peer has in memory."""
    for victim in schedule.sample(schedule.world.alive_peers()):
        weights = schedule.world.hosts[victim].device.weights
        if weights is not None and not weights.damaged:
            weights.damage()


def flip_frame(schedule: FaultSchedule) -> None:
    """A bit flips in what a process sends to another one: the frame is refused, and its stream ends."""
    processes = _alive_processes(schedule.world)
    pair = schedule.sample(processes, 2)
    if len(pair) == 2:
        schedule.world.transport.flips.add((pair[0], pair[1]))


def slow_link(schedule: FaultSchedule) -> None:
    """The messages from and to a computer take long for a while; or its tensors do, which queue for one another."""
    world, network = schedule.world, schedule.world.network
    assert isinstance(network, Jittery)
    for victim in schedule.sample(_alive_processes(world)):
        saturated = schedule.random.random() < 0.5
        late_s = 0.0 if saturated else schedule.random.choice((0.3, 2.0, 10.0))
        network.slowed[victim.name] = (late_s, schedule.random.choice((0.2, 1.0, 3.0)) if saturated else 0.0)
        world.clock.after(schedule.random.uniform(2.0, 30.0), partial(network.slowed.pop, victim.name, None))


def little_memory(schedule: FaultSchedule) -> None:
    """A peer's journal is small for a while, and a stage that it loads leaves room for one microbatch."""
    world, hardware = schedule.world, schedule.world.hardware
    assert isinstance(hardware, RandomHardware)
    for victim in schedule.sample(world.alive_peers()):
        machine = world.hosts[victim].machine
        assert isinstance(machine, PeerMachine)
        hardware.pressed.add(victim.name)
        journal = machine.hops.journal if machine.hops is not None else None
        if journal is not None:
            journal.bytes_max = min(LITTLE_BYTES, journal.bytes_max)
        world.clock.after(schedule.random.uniform(2.0, 30.0), partial(_relieve, world, victim, hardware))


def _relieve(world: World, process: ProcessId, hardware: RandomHardware) -> None:
    hardware.pressed.discard(process.name)
    machine = world.hosts[process].machine
    if isinstance(machine, PeerMachine) and machine.hops is not None:
        machine.hops.journal.bytes_max = world.settings.journal_bytes_max


def leave_at_once(schedule: FaultSchedule) -> None:
    """A peer is asked to leave at once, without the time that it needs; it may be started again with its folder."""
    world = schedule.world
    for leaver in schedule.sample(world.alive_peers()):
        world.drain(leaver)
        again_s = schedule.random.uniform(0.0, 2.0)
        world.clock.after(again_s, partial(world.drain, leaver))
        if schedule.random.random() < 0.7:
            world.clock.after(again_s + schedule.random.choice((5.0, 30.0, 90.0)), partial(_back, world, leaver))


def _back(world: World, process: ProcessId) -> None:
    if not world.alive(process) and world.launcher.latest[process.name] == process:
        world.start_peer(process.name)


def kill_every_trainer(schedule: FaultSchedule) -> None:
    """All trainers die at one moment, and some are started again: the peers hold the newest version in memory."""
    world = schedule.world
    trainers = [process for process in _alive_processes(world) if process in world.trainers]
    delay_s = schedule.random.uniform(0.1, 15.0)
    for victim in trainers:
        world.kill(victim)
    for victim in schedule.sample(trainers, schedule.random.randint(1, max(1, len(trainers)))):
        world.clock.after(delay_s, partial(_start_again, world, victim))


TROUBLES = (
    clock_jump,
    suspend,
    disk_full,
    disk_lost,
    disk_rolled_back,
    disk_corrupt,
    flip_sum,
    flip_state,
    flip_frame,
    slow_link,
    little_memory,
    leave_at_once,
)
# Parameters that differ are noticed only where most of a stage commit to one leader, and without trainers the swarm
# waits for its peers: these two are not mixed with splits and deaths at random.
ALONE = (flip_parameters, kill_every_trainer)
