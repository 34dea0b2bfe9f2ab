"""Partitions among the faults: aimed at phases of a step, of an election and of joining, in both directions or one."""

from __future__ import annotations

from random import Random
from typing import Protocol

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.moments import ELECTION_PHASES, JOINING_PHASES, STEP_PHASES, at_phase, peers_of, split_in_phase
from swarmflow.simulator.partitions import Partition
from swarmflow.simulator.world import World

PRESENT_MAX = 2  # partitions at a time: more of them would leave no side that could go on
DELAYS_S = (0.0, 0.0, 0.02, 0.1, 1.0)  # a split comes up to so much later than the phase at which it is aimed


class FaultSchedule(Protocol):
    """What a fault needs: the world, random numbers, and when faults end."""

    world: World
    random: Random
    until_s: float

    def new_name(self, prefix: str) -> str:
        """Return a name that no process has had."""
        ...

    def some(self, processes: list[ProcessId], count: int = 1) -> list[ProcessId]:
        """Return so many of these at random, or all."""
        ...


def _proper(random: Random, names: list[str]) -> list[str]:
    """Return some of these names, and not all of them; of a single one, it or none."""
    if len(names) < 2:
        return names if names and random.random() < 0.5 else []
    return random.sample(names, random.randint(1, len(names) - 1))


def both_sides(world: World, random: Random) -> set[str]:
    """Return one side of a split where both sides may have trainers and peers of every stage: either could go on."""
    leader = [world.leader] if world.leader is not None else []
    apart = _proper(random, [process.name for process in (*leader, *world.directory.followers())])
    for stage in range(-1, world.settings.plan.stages):
        apart += _proper(random, [process.name for process in peers_of(world, stage)])
    return set(apart)


def most(world: World, random: Random) -> set[str]:
    """Return the trainers that follow and all peers but one of each stage: the leader may be able to go on as well."""
    apart = [process.name for process in world.directory.followers()]
    for stage in range(-1, world.settings.plan.stages):
        peers = [process.name for process in peers_of(world, stage)]
        apart += random.sample(peers, max(0, len(peers) - 1))
    return set(apart)


def any_side(world: World, random: Random) -> set[str]:
    """Return one side of a split: that of both_sides or of most, any processes, a single one, or the leader."""
    style = random.choice(("both", "both", "most", "most", "any", "one", "leader"))
    leader = [world.leader] if world.leader is not None else []
    names = sorted({process.name for process in (*leader, *world.directory.followers(), *world.alive_peers())})
    if style == "leader" and leader:
        return {leader[0].name}
    if style == "any":
        return set(_proper(random, names))
    if style == "one":
        return set(random.sample(names, min(1, len(names))))
    return most(world, random) if style == "most" else both_sides(world, random)


def _seconds(random: Random) -> float:
    """Return a duration, from one that passes unnoticed to one that lets both sides go on for long."""
    return random.choice((random.uniform(0.5, 8.0), random.uniform(8.0, 30.0), random.uniform(30.0, 120.0)))


def _kind(random: Random) -> tuple[bool, bool]:
    """Return whether a split is symmetric, and whether the processes are notified."""
    return random.random() < 0.5, random.random() < 0.5


def _split_at(schedule: FaultSchedule, phase: str, until_s: float) -> None:
    random, world = schedule.random, schedule.world
    seconds, (symmetric, notified) = _seconds(random), _kind(random)
    delay_s = random.uniform(0.0, random.choice(DELAYS_S))

    def apart(world: World) -> set[str]:
        return any_side(world, random) if len(world.transport.partitions.present) < PRESENT_MAX else set()

    split_in_phase(world, phase, apart, seconds, symmetric, notified, 0.0, delay_s, until_s)


def split_step(schedule: FaultSchedule) -> None:
    """The network falls apart, in both directions or in one, as a phase of a step begins."""
    _split_at(schedule, schedule.random.choice(STEP_PHASES), schedule.until_s)


def split_election(schedule: FaultSchedule) -> None:
    """The leader is lost, and the network falls apart as a phase of the election begins."""
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
    elif len(world.transport.partitions.present) < PRESENT_MAX:
        world.transport.split({leader.name}, back_s, *_kind(random))


def heal_election(schedule: FaultSchedule) -> None:
    """The leader's side is cut off until a phase of the election begins on the other one."""
    random, world = schedule.random, schedule.world
    phase, seconds, delay_s = random.choice(ELECTION_PHASES), _seconds(random), random.uniform(0.0, 1.0)
    leader = world.leader
    if leader is None or len(world.transport.partitions.present) >= PRESENT_MAX:
        return
    names = both_sides(world, random) if random.random() < 0.7 else {leader.name}
    partition: Partition = world.transport.split(names or {leader.name}, seconds, *_kind(random))
    world.counts["aimed_splits"] += 1

    def heal() -> None:
        world.transport.partitions.heal(partition)

    at_phase(world, phase, heal, world.clock.now_s, delay_s, world.clock.now_s + seconds)


def split_joining(schedule: FaultSchedule) -> None:
    """A peer starts, and the network falls apart as it joins, loads its stage, or is ready to take part."""
    random, world = schedule.random, schedule.world
    _split_at(schedule, random.choice(JOINING_PHASES), min(schedule.until_s, world.clock.now_s + 40.0))
    world.start_peer(schedule.new_name("n"))


def block(schedule: FaultSchedule) -> None:
    """The messages of some processes do not get to the others for a while."""
    random, world = schedule.random, schedule.world
    if len(world.transport.partitions.present) >= PRESENT_MAX:
        return
    apart, seconds = any_side(world, random), _seconds(random)
    if apart:
        world.transport.split(apart, seconds, symmetric=False, notified=random.random() < 0.5)


AIMED = (split_step, split_election, heal_election, split_joining)
SPLITS = (*AIMED, block)
