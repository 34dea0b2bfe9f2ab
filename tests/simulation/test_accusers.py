"""Links that break while both ends live, and deaths that few can see: repaired as soon, and nobody else put out."""

from __future__ import annotations

import pytest

from swarmflow.core.protocol.types import Plan, ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.faults import FuzzSwarm, finish, peers_of
from swarmflow.simulator.settings import Settings
from swarmflow.simulator.world import World

PLAN = Plan(2, 8)


def started(peers: int, **changes: object) -> World:
    """A swarm of two stages at work."""
    settings = Settings(PLAN, steps=8, latency_s=(0.001, 0.01), **changes)  # type: ignore[arg-type]
    world = FuzzSwarm(settings, peers, trainers=1).start(1)
    world.clock.run(lambda: len(world.results) > 0, 60.0)
    return world


def gone(world: World) -> list[str]:
    """What the leader said of those whom it put out."""
    return [line for line in world.log if " is gone: " in line]


def break_for(world: World, one: ProcessId, other: ProcessId, seconds: float, every_s: float = 0.2) -> None:
    """One process cannot reach the other: what it sends is lost, and it notices; the way back is open."""
    until_s = world.clock.now_s + seconds

    def again() -> None:
        if world.clock.now_s < until_s and not world.ended:
            world.transport.mute(one, other, every_s)
            if other in world.hosts[one].links:
                world.transport.lose(one, other)
            world.clock.after(every_s, again)

    again()


@pytest.mark.parametrize("peers", [2, 4])
def test_a_connection_that_breaks_once_puts_nobody_out(peers: int) -> None:
    world = started(peers)
    one, other = peers_of(world, 0)[0], peers_of(world, 1)[0]
    for steps in (2, 3, 4):
        world.transport.cut(one, other)
        assert world.clock.run(lambda least=steps: len(world.results) >= least, 60.0)  # type: ignore[misc]
    finish(world)
    assert not gone(world)
    assert world.counts["accusations"] >= 3
    assert not world.counts["rollbacks"]


def test_mates_whose_link_breaks_amid_a_ballot_begin_it_anew() -> None:
    world = started(4)
    one, other = peers_of(world, 0)
    leader = world.leader
    assert leader is not None
    lead = world.trainers[leader].lead
    assert lead is not None
    assert world.clock.run(lambda: lead.step is not None and lead.step.phase == "preparing", 60.0)
    world.transport.mute(one, other, 0.05)
    world.transport.mute(other, one, 0.05)
    began_s = world.clock.now_s
    steps = len(world.results)
    world.clock.after(0.1, lambda: world.transport.cut(one, other))
    assert world.clock.run(lambda: len(world.results) > steps, 100.0)
    assert world.clock.now_s - began_s < 5.0, "not after the minute that a ballot may take"
    finish(world)
    assert not gone(world)


@pytest.mark.parametrize("peers", [2, 4, 6])
def test_a_way_that_stays_broken_in_one_direction_stops_nobody(peers: int) -> None:
    world = started(peers, checkpoint_every=1)
    one, other = peers_of(world, 0)[0], peers_of(world, 1)[0]
    began_s = world.clock.now_s
    break_for(world, one, other, 1000.0)
    finish(world)
    assert world.clock.now_s - began_s < 120.0
    assert {line.split()[2].split(".")[0] for line in gone(world)} <= {one.name, other.name}


@pytest.mark.parametrize("peers", [3, 6])
def test_a_death_is_repaired_as_soon_as_its_connection_to_the_leader_breaks(peers: int) -> None:
    world = started(peers)
    crowded = max((0, 1), key=lambda stage: len(peers_of(world, stage)))
    victim = peers_of(world, crowded)[0]
    began_s = world.clock.now_s
    world.kill(victim)
    assert world.clock.run(lambda: len(gone(world)) > 0, 60.0)
    assert world.clock.now_s - began_s < 0.2
    finish(world)


def test_a_death_that_only_one_neighbour_sees_is_found_out_by_the_leader() -> None:
    world = started(3)
    crowded = max((0, 1), key=lambda stage: len(peers_of(world, stage)))
    victim, witness = peers_of(world, crowded)[0], peers_of(world, 1 - crowded)[0]
    began_s = world.clock.now_s
    interventions.freeze(world, victim, 1000.0)  # no connection breaks, as when its machine has lost power
    world.transport.lose(witness, victim)
    assert world.clock.run(lambda: len(gone(world)) > 0, 60.0)
    assert world.clock.now_s - began_s < 4.0, "sooner than by the 8 s of silence"
    finish(world)
