"""Peers move between the stages while the run goes on, and nothing of what is learnt changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.types import Plan
from swarmflow.simulator.faults import FuzzSwarm, finish, peers_of
from swarmflow.simulator.world import Settings, World
from tests.further import seeds

PERIOD_S = 10.0
PLAN = Plan(stages=3, microbatches=8)
SETTINGS = Settings(PLAN, steps=60, checkpoint_every=5, rebalance_s=PERIOD_S)


def sizes(world: World) -> list[int]:
    return [len(peers_of(world, stage)) for stage in range(PLAN.stages)]


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_peers_that_all_began_on_one_stage_spread_while_they_train(seed: int) -> None:
    world = FuzzSwarm(SETTINGS, peers=0).start(seed)
    for number in range(8):
        world.start_peer(f"p{number}", wish=0)
    finish(world)
    assert sorted(world.results[-1].peers) == [2, 3, 3]
    assert world.counts["rebalances"] >= 3
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0
    assert world.counts["backward"] == 60 * 8 * 3, "moving costs no microbatch"


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_others_come_within_two_periods_when_all_but_one_of_a_stage_die(seed: int) -> None:
    world = FuzzSwarm(replace(SETTINGS, steps=100), peers=9).start(seed)
    world.clock.run(lambda: bool(world.results) and world.results[-1].peers == (3, 3, 3), 60.0)
    for victim in peers_of(world, 1)[:2]:
        world.kill(victim)
    died_s = world.clock.now_s
    assert world.clock.run(lambda: sizes(world)[1] >= 2, died_s + 2 * PERIOD_S)
    finish(world)
    assert sorted(world.results[-1].peers) == [2, 2, 3]
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0


def test_peers_that_are_to_stay_stay() -> None:
    world = FuzzSwarm(replace(SETTINGS, steps=30, rebalance_s=0.0), peers=0).start(1)
    for number, stage in enumerate((0, 1, 2, 2, 2, 2, 2)):
        world.start_peer(f"p{number}", wish=stage)
    finish(world)
    assert world.counts["rebalances"] == 0
    assert world.results[-1].peers == (1, 1, 5)
