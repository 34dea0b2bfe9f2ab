"""Faults that partition the network, most of them as a chosen phase of a step, an election or a join begins."""

from __future__ import annotations

from random import Random
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.moments import ELECTION_PHASES, JOINING_PHASES, STEP_PHASES, at_phase, peers_of, split_in_phase
from swarmflow.simulator.partitions import Partition
from swarmflow.simulator.world import World

ACTIVE_MAX = 2  # partitions at a time: with more, no side could go on
DELAYS_S = (0.0, 0.0, 0.02, 0.1, 1.0)  # upper limits of the random delay between the phase and the partition


class FaultSchedule(Protocol):
    """What a fault needs: the world, random numbers, and when faults end."""

    world: World
    random: Random
    until_s: float

    def new_name(self, prefix: str) -> str:
        """Return a name that no process has had."""
        ...

    def sample(self, processes: list[ProcessId], count: int = 1) -> list[ProcessId]:
        """Return this many of the processes at random; all where there are fewer."""
        ...


def _proper_subset(random: Random, names: list[str]) -> list[str]:
    """Return a random non-empty proper subset; of a single name, that name or nothing."""
    if len(names) < 2:
        return names if names and random.random() < 0.5 else []
    return random.sample(names, random.randint(1, len(names) - 1))


def balanced_side(world: World, random: Random) -> set[str]:
    """Return a side of a partition such that both may have trainers and peers of every stage: either could go on."""
    leader = [world.leader] if world.leader is not None else []
    side = _proper_subset(random, [process.name for process in (*leader, *world.directory.followers())])
    for stage in range(-1, world.settings.plan.stages):  # -1: peers that have no stage yet
        side += _proper_subset(random, [process.name for process in peers_of(world, stage)])
    return set(side)


def majority_side(world: World, random: Random) -> set[str]:
    """Return the trainers that follow and all peers but one of each stage: the leader may be able to go on as well."""
    side = [process.name for process in world.directory.followers()]
    for stage in range(-1, world.settings.plan.stages):  # -1: peers that have no stage yet
        peers = [process.name for process in peers_of(world, stage)]
        side += random.sample(peers, max(0, len(peers) - 1))
    return set(side)


def random_side(world: World, random: Random) -> set[str]:
    """Return a side of a partition: balanced, the majority, any processes, a single one, or the leader."""
    style = random.choice(("both", "both", "most", "most", "any", "one", "leader"))
    leader = [world.leader] if world.leader is not None else []
    names = sorted({process.name for process in (*leader, *world.directory.followers(), *world.alive_peers())})
    if style == "leader" and leader:
        return {leader[0].name}
    if style == "any":
        return set(_proper_subset(random, names))
    if style == "one":
        return set(random.sample(names, min(1, len(names))))
    return majority_side(world, random) if style == "most" else balanced_side(world, random)


def _seconds(random: Random) -> float:
    """Return a duration, from one that passes unnoticed to one that lets both sides go on for long."""
    return random.choice((random.uniform(0.5, 8.0), random.uniform(8.0, 30.0), random.uniform(30.0, 120.0)))


def _symmetric_notified(random: Random) -> tuple[bool, bool]:
    """Return whether a partition is symmetric, and whether the processes are notified of broken connections."""
    return random.random() < 0.5, random.random() < 0.5


def _split_at(schedule: FaultSchedule, phase: str, until_s: float) -> None:
    random, world = schedule.random, schedule.world
    seconds, (symmetric, notified) = _seconds(random), _symmetric_notified(random)
    delay_s = random.uniform(0.0, random.choice(DELAYS_S))

    def side(world: World) -> set[str]:
        return random_side(world, random) if len(world.transport.partitions.present) < ACTIVE_MAX else set()

    split_in_phase(world, phase, side, seconds, symmetric, notified, 0.0, delay_s, until_s)


def split_step(schedule: FaultSchedule) -> None:
    """Partition the network, in both directions or in one, as a phase of a step begins."""
    _split_at(schedule, schedule.random.choice(STEP_PHASES), schedule.until_s)


def split_election(schedule: FaultSchedule) -> None:
    """Take the leader away, and partition the network as a phase of the election begins."""
    random, world = schedule.random, schedule.world
    phase, loss = random.choice(ELECTION_PHASES), random.choice(("kill", "freeze", "split"))
    back_s, leader = random.uniform(0.1, 40.0), world.leader
    if leader is None:
        return
    _split_at(schedule, phase, min(schedule.until_s, world.clock.now_s + 40.0))
    if loss == "kill":
        world.kill(leader)
        world.clock.after(back_s, lambda: world.start_trainer(leader.name, lead=True))
    elif loss == "freeze":
        interventions.freeze(world, leader, back_s)
    elif len(world.transport.partitions.present) < ACTIVE_MAX:
        world.transport.split({leader.name}, back_s, *_symmetric_notified(random))


def heal_election(schedule: FaultSchedule) -> None:
    """Cut the leader's side off until a phase of the election begins on the other one."""
    random, world = schedule.random, schedule.world
    phase, seconds, delay_s = random.choice(ELECTION_PHASES), _seconds(random), random.uniform(0.0, 1.0)
    leader = world.leader
    if leader is None or len(world.transport.partitions.present) >= ACTIVE_MAX:
        return
    names = balanced_side(world, random) if random.random() < 0.7 else {leader.name}
    partition: Partition = world.transport.split(names or {leader.name}, seconds, *_symmetric_notified(random))
    world.counts["aimed_splits"] += 1

    def heal() -> None:
        world.transport.partitions.heal(partition)

    at_phase(world, phase, heal, world.clock.now_s, delay_s, world.clock.now_s + seconds)


def split_joining(schedule: FaultSchedule) -> None:
    """Start a peer, and partition the network as it joins, loads its stage, or is ready to take part."""
    random, world = schedule.random, schedule.world
    _split_at(schedule, random.choice(JOINING_PHASES), min(schedule.until_s, world.clock.now_s + 40.0))
    world.start_peer(schedule.new_name("n"))


def block(schedule: FaultSchedule) -> None:
    """Drop the messages of random processes to all others for a while; those in the other direction arrive."""
    random, world = schedule.random, schedule.world
    if len(world.transport.partitions.present) >= ACTIVE_MAX:
        return
    side, seconds = random_side(world, random), _seconds(random)
    if side:
        world.transport.split(side, seconds, symmetric=False, notified=random.random() < 0.5)


AIMED = (split_step, split_election, heal_election, split_joining)
SPLITS = (*AIMED, block)
