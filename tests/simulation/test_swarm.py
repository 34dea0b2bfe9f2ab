"""The whole protocol in virtual time: nothing is lost, nothing counts twice, and the run goes on."""

from __future__ import annotations

from functools import partial

import pytest

from swarmflow.core.protocol.types import Plan, tied_ends
from swarmflow.simulator.world import Settings, World
from tests.further import seeds

PLAN = Plan(stages=3, microbatches=8, shared=tied_ends(3))


def swarm(seed: int, peers: int = 6, trainers: int = 2, plan: Plan = PLAN, steps: int = 6, every: int = 2) -> World:
    world = World(Settings(plan, steps, checkpoint_every=every), seed)
    world.start_trainer("t0", lead=True)
    for number in range(1, trainers):
        world.start_trainer(f"t{number}")
    for number in range(peers):
        world.start_peer(f"p{number}")
    return world


def finish(world: World, limit_s: float = 2000.0) -> None:
    if not world.clock.run(lambda: world.ended, limit_s):
        pytest.fail(f"seed {world.seed} stands still after {limit_s} s\n" + "\n".join(world.log[-40:]))


def test_quiet_run_commits_every_step_once() -> None:
    world = swarm(seed=1)
    finish(world)
    assert [result.step for result in world.results[::2]] == list(range(6))
    assert world.counts["steps_restarted"] == 0
    assert world.counts["retries:gone"] == 0
    assert world.counts["backward"] == 6 * 8 * 3
    assert not world.stored, "bytes were kept after the run"


def test_peers_that_start_together_spread() -> None:
    world = swarm(seed=2)
    finish(world)
    assert world.results[-1].peers == (2, 2, 2)


@pytest.mark.parametrize("seed", seeds(5, 35))
def test_a_death_at_any_moment_costs_no_step(seed: int) -> None:
    world = swarm(seed)
    at_s = world.random.uniform(6.0, 15.0)  # by then each stage has two
    victim = world.random.choice(world.alive_peers())
    world.clock.after(at_s, lambda: world.kill(victim))
    finish(world)
    steps = {result.step for result in world.results}
    assert steps == set(range(6))
    assert world.counts["steps_restarted"] == 0, "\n".join(world.log)


@pytest.mark.parametrize("seed", seeds(4, 56))
def test_random_churn_keeps_the_promises(seed: int) -> None:
    world = swarm(seed, steps=8)
    fresh = 6

    def fault() -> None:
        nonlocal fresh
        if world.clock.now_s > 60 or world.ended:
            return
        peers = world.alive_peers()
        kind = world.random.choice(["kill", "drain", "join", "join"])
        if kind == "join" or not peers:
            world.start_peer(f"p{fresh}")
            fresh += 1
        elif kind == "kill":
            world.kill(world.random.choice(peers))
        else:
            world.drain(world.random.choice(peers))
        world.clock.after(world.random.expovariate(1 / 2.0), fault)

    world.clock.after(1.0, fault)
    for number in range(3):
        world.clock.after(70.0, partial(world.start_peer, f"q{number}"))
    finish(world)
    assert {result.step for result in world.results} == set(range(8))


def test_a_newcomer_works_at_the_next_step() -> None:
    world = swarm(seed=5, peers=3, steps=10)
    world.clock.after(10.0, lambda: world.start_peer("late"))
    finish(world)
    assert sum(world.results[-1].peers) == 4
    assert world.counts["steps_restarted"] == 0


def kill_first(world: World) -> None:
    world.kill(world.alive_peers()[0])


def test_the_same_seed_replays_the_same_run() -> None:
    logs = []
    for _ in range(2):
        world = swarm(seed=11)
        world.clock.after(5.0, partial(kill_first, world))
        finish(world)
        logs.append(world.log)
    assert logs[0] == logs[1]
