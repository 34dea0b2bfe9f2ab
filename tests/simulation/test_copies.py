"""The trainers' disks are lost: the run goes on from what the peers kept, or waits for it; it never begins again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.disks import Disks
from swarmflow.simulator.faults import finish, kill_in_phase
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import SETTINGS, SWARM, parameters

LONG = replace(SWARM, settings=replace(SETTINGS, steps=20, checkpoint_every=2))
LOST_S = 20.0  # by then versions have been written and copied


def lose_everything(world: World) -> list[ProcessId]:
    """Every process dies, and the trainers' disks are gone."""
    world.disks.lose(*world.disks.trainers)
    return sorted(process for process, host in world.hosts.items() if host.alive)


def start_again(world: World, *peers: str) -> None:
    world.start_trainer("t0", lead=True)
    world.start_trainer("t1")
    for peer in peers:
        world.start_peer(peer)


def newest_whole(world: World) -> int:
    """The newest version whose every stage is on some peer's disk, written there or copied."""
    disks, peers = world.disks, [f"p{number}" for number in range(6)]
    versions = sorted(disks.durable, reverse=True)
    return next((v for v in versions if all(any(disks.holds(p, v, s) for p in peers) for s in range(3))), 0)


def check(world: World) -> None:
    finish(world)
    steps = LONG.settings.steps
    assert world.disks.durable[steps] == {stage: parameters(stage, steps) for stage in range(3)}


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_run_whose_trainers_lost_their_disks_goes_on_from_the_peers_copies(seed: int, remembered: bool) -> None:
    world = LONG.start(seed)
    world.disks.remembered = remembered
    kill_in_phase(world, "working", lose_everything, LOST_S, world.random.uniform(0.0, 1.0))
    assert world.clock.run(lambda: not world.alive_peers() and world.clock.now_s > LOST_S, 100.0)
    kept = newest_whole(world)
    assert kept > 0
    before = len(world.results)
    start_again(world, *(f"p{number}" for number in range(6)))
    check(world)
    assert min(result.step for result in world.results[before:]) == kept, "\n".join(world.log)


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_run_waits_for_who_has_what_is_missing(seed: int) -> None:
    world = LONG.start(seed)
    kill_in_phase(world, "working", lose_everything, LOST_S, world.random.uniform(0.0, 1.0))
    assert world.clock.run(lambda: not world.alive_peers() and world.clock.now_s > LOST_S, 100.0)
    kept = newest_whole(world)
    # Of any version: an earlier one that is whole without them would be gone on from, after a while.
    versions = [version for version in world.disks.durable if version > 0]
    peers = [f"p{number}" for number in range(6)]
    holders = [peer for peer in peers if any(world.disks.holds(peer, version, 0) for version in versions)]
    others = [f"p{number}" for number in range(6) if f"p{number}" not in holders]
    before = len(world.results)
    start_again(world, *others, "fresh")
    world.clock.run(lambda: False, 120.0)
    assert len(world.results) == before, "\n".join(world.log)
    assert any(" waiting for version " in line and "stage 0" in line for line in world.log), "\n".join(world.log)
    for holder in holders:
        world.start_peer(holder)
    check(world)
    assert min(result.step for result in world.results[before:]) == kept, "\n".join(world.log)


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_two_generations_lie_on_the_disks_of_peers(seed: int) -> None:
    world = LONG.start(seed)
    check(world)
    for name, disk in world.disks.copies.items():
        assert len([version for version, stages in disk.items() if stages]) <= 3, (name, disk)
    assert newest_whole(world) >= 8


def test_a_trainer_leads_from_its_own_disk_and_copies_what_the_others_tell_of() -> None:
    world = LONG.start(0)
    world.disks.remembered = False
    assert world.clock.run(lambda: max(world.disks.trainers["t1"]) >= 2, 100.0)
    [follower] = [process for process in world.trainers if process.name == "t1"]
    world.kill(follower)
    assert world.clock.run(lambda: max(world.disks.trainers["t0"]) >= 6, 100.0)
    own, kept = set(world.disks.trainers["t1"]), max(world.disks.trainers["t0"])
    for process in [process for process, host in world.hosts.items() if host.alive]:
        world.kill(process)
    before = len(world.results)
    world.start_trainer("t1", lead=True)
    assert world.leader is not None
    lead = world.trainers[world.leader].lead
    assert lead is not None
    assert (lead.version, world.disks.trainers["t1"]) == (max(own), own)
    world.start_trainer("t0")
    assert world.clock.run(lambda: kept in world.disks.trainers["t1"], world.clock.now_s + 10.0)
    for number in range(6):
        world.start_peer(f"p{number}")
    check(world)
    assert min(result.step for result in world.results[before:]) >= kept, "\n".join(world.log)


def test_the_world_raises_where_two_disks_have_unlike_files_of_a_version() -> None:
    disks = Disks(stages=2)
    disks.trainers["t0"] = {0}
    assert disks.write("p0", 2, 0, "right")
    assert disks.put("t0", 2, {0: "right", 1: "other"})
    assert disks.write("p1", 2, 1, "other"), "the same again"
    with pytest.raises(InvariantViolated, match="p2 writes another version 2 of stage 1"):
        disks.write("p2", 2, 1, "wrong")
    with pytest.raises(InvariantViolated, match="t0 writes another version 2 of stage 0"):
        disks.put("t0", 2, {0: "wrong", 1: "other"})
