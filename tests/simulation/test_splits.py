"""Partitions aimed at phases, symmetric and one-way: they strike when and where they should, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import pytest

from swarmflow.simulator.faults import FAULTS, Churn, finish, peers_of
from swarmflow.simulator.fuzz import Hunt, play
from swarmflow.simulator.moments import ELECTION_PHASES, JOINING_PHASES, STEP_PHASES, in_phase, split_in_phase
from swarmflow.simulator.partition_faults import AIMED, balanced_side
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM, fill_disks, parameters

LONG = replace(SWARM, settings=replace(SETTINGS, steps=16))


def reached(world: World) -> set[tuple[str, str]]:
    """Whose messages get to whom, tried with one from each to each."""
    found: set[tuple[str, str]] = set()
    processes = [*world.trainers, *world.alive_peers()]
    for sender in processes:
        for receiver in processes:
            across = world.transport.partitions.between(sender.name, receiver.name)
            if sender != receiver and across is None:
                found.add((sender.name, receiver.name))
    return found


@pytest.mark.parametrize("notified", [True, False], ids=["notified", "silent"])
def test_a_one_way_partition_keeps_messages_back_in_one_direction(notified: bool) -> None:
    world = SWARM.start(0)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S, SETTLED_S + 1.0)
    before = reached(world)
    world.transport.split({"p0", "p1"}, 5.0, symmetric=False, notified=notified)
    others = {process.name for process in world.hosts} - {"p0", "p1"}
    assert before - reached(world) == {(one, other) for one in ("p0", "p1") for other in others}
    world.clock.run(lambda: world.clock.now_s > SETTLED_S + 6.0, SETTLED_S + 7.0)
    assert reached(world) >= before
    finish(world)


@pytest.mark.parametrize("notified", [True, False], ids=["notified", "silent"])
def test_a_sender_learns_of_a_partition_only_if_it_is_notified(notified: bool) -> None:
    world = LONG.start(0)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S, SETTLED_S + 1.0)
    victim = peers_of(world, 1)[0]
    world.transport.split({victim.name}, 3.0, symmetric=False, notified=notified)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S + 2.0, SETTLED_S + 3.0)
    assert any(f"the leader {world.leader} was lost" in line and victim.name in line for line in world.log) == notified


@pytest.mark.parametrize("phase", [*STEP_PHASES[:-1], *ELECTION_PHASES, *JOINING_PHASES])
def test_a_partition_begins_with_its_phase(phase: str) -> None:
    world = replace(LONG, settings=replace(LONG.settings, load_s=(2.0, 3.0))).start(1)
    if phase == "prepared":
        fill_disks(world)
    world.clock.after(SETTLED_S, lambda: world.start_peer("late"))
    for number in range(40 if phase == "complete" else 0):  # a step that is complete waits for one that was late before
        world.clock.after(1.0 + 0.1 * number, partial(world.start_peer, f"late-{number}"))
    struck: list[bool] = []

    def side(world: World) -> set[str]:
        struck.append(phase == "taken over" or in_phase(world, phase)())
        return balanced_side(world, Random(0))

    split_in_phase(world, phase, side, 20.0, since_s=0.0 if phase in JOINING_PHASES else SETTLED_S)
    if phase in ELECTION_PHASES:
        world.clock.after(SETTLED_S + 0.1, lambda: world.kill(world.launcher.latest["t0"]))
    finish(world)
    assert struck == [True]
    assert world.counts["aimed_splits"] == 1
    assert world.disks.durable[16] == {stage: parameters(stage, 16) for stage in range(3)}


def test_an_unknown_phase_is_refused() -> None:
    with pytest.raises(ValueError, match="no phase 'lunch'"):
        in_phase(SWARM.start(0), "lunch")


def test_either_side_of_a_split_may_have_trainers_and_peers_of_each_stage() -> None:
    world = replace(SWARM, peers=12).start(2)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S, SETTLED_S + 1.0)
    for seed in range(20):
        side = balanced_side(world, Random(seed))
        for group in (["t0", "t1"], *([p.name for p in peers_of(world, stage)] for stage in range(3))):
            assert 0 < len(side & set(group)) < len(group)


@pytest.mark.parametrize("kind", [*(fault.__name__ for fault in AIMED), "block"])
@pytest.mark.parametrize("seed", seeds(1, 1))
def test_partitions_of_each_kind_hold_nothing_up(seed: int, kind: str) -> None:
    world = replace(LONG, trainers=3, peers=9).start(seed)
    churn = Churn(world, (kind,), gap_s=8.0)
    churn.unleash()
    finish(world)
    assert churn.happened[kind] == churn.happened.total() > 0
    assert world.disks.durable[16] == {stage: parameters(stage, 16) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(2, 10))
def test_a_random_swarm_under_partitions(seed: int) -> None:
    world = play(seed, Hunt(partitions=True))
    assert world.settings.steps in world.disks.durable


def test_a_hunt_with_certain_kinds_has_no_others() -> None:
    hunted = Hunt(only=("block", "kill")).of(3)
    assert set(hunted.kinds) == {"block", "kill", "join"}
    assert set(Hunt().of(3).kinds) <= set(FAULTS)
