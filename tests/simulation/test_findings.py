"""Machines whose numbers are not finite: nothing of it is learnt, they are put out, and the run goes on or says why."""

from __future__ import annotations

import pytest

from swarmflow.core.protocol.types import Plan
from swarmflow.simulator.faults import FuzzSwarm, finish, kill_in_phase
from swarmflow.simulator.settings import Settings
from swarmflow.simulator.spoiling import Spoiling
from swarmflow.simulator.world import World
from tests.further import more, seeds

PLAN = Plan(2, 4)
FAST = Settings(PLAN, 4, compute_s=(0.05, 0.2), load_s=(0.1, 0.5))
LIMIT_S = 600.0


def swarm(seed: int, peers: int, settings: Settings = FAST) -> World:
    return FuzzSwarm(settings, peers).start(seed)


def line(world: World, text: str) -> str:
    """The only line of the logs with this text."""
    [found] = {entry.split(maxsplit=1)[1] for entry in world.log if text in entry}
    return found


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("seed", seeds(2, 2))
def test_a_machine_that_gives_nothing_finite_is_put_out_and_the_others_go_on(seed: int, silent: bool) -> None:
    world = swarm(seed, peers=6)
    world.spoiling["p3"] = Spoiling(silent=silent)
    finish(world, LIMIT_S)
    assert world.counts["not_finite"] == world.counts["put_out"] == 1, "it is not granted a stage again at once"
    assert world.counts["rollbacks"] == 0
    assert line(world, "is gone: the ").startswith("t0 p3")


@pytest.mark.parametrize("silent", [True, *more(False)])
def test_after_a_while_a_machine_that_was_put_out_serves_again(silent: bool) -> None:
    world = swarm(0, 4, Settings(PLAN, 150, compute_s=(0.05, 0.2), load_s=(0.1, 0.5)))
    world.spoiling["p2"] = Spoiling(since_s=10.0, until_s=30.0, silent=silent)
    finish(world, LIMIT_S)
    assert world.counts["put_out"] == 1
    assert line(world, "its time outside is over").startswith("t0 peer p2")


@pytest.mark.parametrize("silent", [False, True])
def test_a_stages_only_peer_tries_once_more_and_stays(silent: bool) -> None:
    world = swarm(1, peers=2)
    world.spoiling["p1"] = Spoiling(until_s=6.0, silent=silent)
    world.clock.run(lambda: world.counts["not_finite"] == 1, LIMIT_S)
    world.spoiling.clear()
    finish(world, LIMIT_S)
    assert (world.counts["not_finite"], world.counts["put_out"], world.counts["gone"]) == (1, 0, 0)
    assert "finite the second time" in line(world, "check the memory")


def test_a_stages_only_peer_that_gives_nothing_finite_stops_the_run_at_its_last_version() -> None:
    world = swarm(1, 2, Settings(PLAN, 100))
    world.clock.run(lambda: len(world.results) == 5, LIMIT_S)
    world.spoiling["p0"] = Spoiling()
    assert world.clock.run(lambda: world.ended, LIMIT_S)
    version = max(result.step for result in world.results) + 1
    ended = line(world, "t0 exits: ")
    assert f"of microbatch {version}/" in ended
    assert "is not finite in layers." in ended
    assert f"version {version} is on disk" in ended
    assert version in world.disks.durable


@pytest.mark.parametrize("peers", [2, 3, 6, 9])
def test_a_microbatch_that_is_finite_nowhere_stops_the_run_and_is_named(peers: int) -> None:
    world = swarm(peers, peers, Settings(PLAN, 4, poisoned=2))
    assert world.clock.run(lambda: world.ended, LIMIT_S)
    assert not world.results
    assert world.counts["put_out"] == 0, "no machine is at fault"
    ended = line(world, "t0 exits: the activation of microbatch 0/2 is not finite in layers.0 of stage 0")
    assert ended.endswith("no version is on disk")


def test_those_who_are_there_when_the_run_stops_are_told_why() -> None:
    world = swarm(3, 4, Settings(PLAN, 4, poisoned=0))
    world.clock.run(lambda: world.ended, LIMIT_S)
    world.clock.run(lambda: not world.alive_peers(), world.clock.now_s + 10.0)
    stopped = [entry for entry in world.log if "exits: the run stopped at version 0: the activation of" in entry]
    assert len(stopped) == 5, "four peers and a trainer"


@pytest.mark.parametrize("seed", seeds(2, 2))
def test_another_leader_finds_it_again(seed: int) -> None:
    world = swarm(seed, peers=6)
    world.spoiling["p3"] = Spoiling(silent=seed % 2 == 0)
    world.clock.run(lambda: world.counts["not_finite"] == 1, LIMIT_S)
    leader = world.leader
    assert leader is not None
    kill_in_phase(world, "preparing", lambda _: [leader], world.clock.now_s)
    finish(world, LIMIT_S)
    assert world.counts["rollbacks"] == 0
