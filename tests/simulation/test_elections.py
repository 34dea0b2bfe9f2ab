"""The leader dies or freezes at each point of a step: another one goes on, and no step is lost or done twice."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import pytest

from swarmflow.core.protocol.messages import StepResult
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.faults import FuzzSwarm, finish, kill_in_phase, leader_phase, peers_of
from swarmflow.simulator.world import World
from tests.further import more, more_of, seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM, fill_disks, parameters

LASTING = ("working", "preparing", "prepared", "committing")
PHASES = ("complete", *LASTING)
STEPS, HOPS = SETTINGS.steps, SETTINGS.steps * 8 * 3
LONG = replace(SWARM, settings=replace(SETTINGS, steps=40))
SLOW = replace(SWARM, settings=replace(SETTINGS, checkpoint_every=1, load_s=(2.0, 3.0)))


def the_leader(world: World) -> list[ProcessId]:
    return [world.leader] if world.leader is not None else []


def start_slow(scenario: FuzzSwarm, seed: int, phase: str) -> World:
    """A swarm in which phases last: versions are copied from memory (`prepared`), or a peer that was ready in a ballot
    gets the update of that step (`complete`): where many come one after the other, there is one.
    """
    if phase != "complete":
        world = fill_disks(scenario.start(seed))
        world.clock.after(SETTLED_S, lambda: world.start_peer("late"))
        return world
    world = replace(scenario, settings=replace(scenario.settings, checkpoint_every=STEPS)).start(seed)
    for number in range(60):
        world.clock.after(1.0 + 0.1 * number, partial(world.start_peer, f"late-{number}"))
    return world


def check(world: World, scenario: FuzzSwarm, leaders: int = 1, began_again: bool = False, restarts: int = 0) -> None:
    """Every step exactly once, on every stage; so many trainers took over; nothing was computed again.

    restarts: of trainers, each of which may hear once more of a step that its former life had heard of.
    """
    finish(world)
    text = "\n".join(world.log)
    steps = scenario.settings.steps
    recorded = Counter(result.step for result in world.results)
    assert sorted(recorded) == list(range(steps)), text
    assert max(recorded.values()) <= scenario.trainers + restarts, "a step was recorded twice by one trainer"
    assert world.disks.durable[steps] == {stage: parameters(stage, steps) for stage in range(3)}
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0, text
    assert (world.counts["successions"], world.counts["lineages"]) == (leaders, int(began_again)), text


@pytest.mark.parametrize("trainers", [3, *more(2)])
@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seed", seeds(1, 5))
def test_the_leader_dies_at_each_point_of_a_step(seed: int, phase: str, trainers: int) -> None:
    scenario = replace(SLOW, trainers=trainers)
    world = start_slow(scenario, seed, phase)
    kill_in_phase(world, phase, the_leader, SETTLED_S, world.random.uniform(0.0, 0.08))
    check(world, scenario)
    assert world.counts["backward"] == HOPS, "no hop of the living is done again"


@pytest.mark.parametrize("seed", seeds(1, 5))
def test_the_leader_dies_between_a_commit_and_the_next_open(seed: int) -> None:
    """A step that everybody has applied, and whose validation loss is being measured, is told by the next leader."""
    scenario = replace(SWARM, settings=replace(SETTINGS, validate_every=1))
    world = scenario.start(seed)
    kill_in_phase(world, "", the_leader, SETTLED_S, world.random.uniform(0.0, 0.08))
    check(world, scenario)
    assert world.counts["backward"] == HOPS
    assert {result.validation_loss for result in world.results} == {1.0}


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_leaders_die_one_after_the_other(seed: int) -> None:
    scenario = replace(SLOW, trainers=3)
    world = start_slow(scenario, seed, "working")
    kill_in_phase(world, "working", the_leader, SETTLED_S, world.random.uniform(0.0, 1.0))
    kill_in_phase(world, LASTING[seed], the_leader, SETTLED_S + 8.0, world.random.uniform(0.0, 0.05))
    check(world, scenario, leaders=2)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_leader_and_a_peer_die_together(seed: int, phase: str) -> None:
    world = start_slow(SLOW, seed, phase)
    stage = seed % 3
    # The first step may have five voters, four of whom have to agree: two deaths before the next commit leave three.
    kill_in_phase(world, phase, lambda w: [*the_leader(w), peers_of(w, stage)[0]], SETTLED_S + 2.5)
    check(world, SLOW)


@pytest.mark.parametrize(
    ("phase", "frozen_s"),
    [
        ("working", 30.0),
        ("committing", 11.0),
        *more_of(("working", 11.0), ("committing", 30.0)),
        *more_of(*product(("working", "committing"), (11.5, 12.0, 12.5, 14.0))),
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 1))
def test_a_frozen_leader_wakes_as_a_deposed_one_and_joins_again(seed: int, phase: str, frozen_s: float) -> None:
    world = LONG.start(seed)

    def freeze() -> None:
        if leader_phase(world) == phase and world.leader is not None:
            interventions.freeze(world, world.leader, frozen_s)
        else:
            world.clock.after(0.002, freeze)

    world.clock.after(SETTLED_S, freeze)
    check(world, LONG)
    assert any(" t1 trainer t0." in line and line.endswith("joined") for line in world.log), "\n".join(world.log)
    assert world.finisher == next(process for process in world.hosts if process.name == "t1"), "its first life led"


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_leader_that_froze_for_a_moment_leads_on(seed: int) -> None:
    world = LONG.start(seed)
    world.clock.after(
        SETTLED_S + world.random.uniform(0.0, 2.0), lambda: interventions.freeze(world, the_leader(world)[0], 8.0)
    )
    check(world, LONG, leaders=0)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_all_trainers_but_the_leader_die(seed: int, phase: str) -> None:
    scenario = replace(SWARM, trainers=3)
    world = scenario.start(seed)
    kill_in_phase(world, phase, lambda w: w.directory.followers(), SETTLED_S, world.random.uniform(0.0, 0.5))
    check(world, scenario, leaders=0)
    assert world.counts["backward"] == HOPS, "the leader answers for their microbatches, which others hold"


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_leader_whom_most_have_left_waits_and_then_goes_on_alone(seed: int) -> None:
    world = SWARM.start(seed)
    left: list[float] = []

    def pick(world: World) -> list[ProcessId]:
        left.append(world.clock.now_s)
        return [*world.directory.followers(), *(peers_of(world, stage)[0] for stage in range(3))]

    kill_in_phase(world, "working", pick, SETTLED_S)
    check(world, SWARM, leaders=0, began_again=True)
    assert world.clock.now_s > left[0] + 30.0, "others might have had another leader"


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_leader_that_starts_again_finds_the_one_that_has_taken_over(seed: int) -> None:
    world = LONG.start(seed)
    kill_in_phase(world, "working", the_leader, SETTLED_S, world.random.uniform(0.0, 1.0))
    world.clock.after(SETTLED_S + 2.0, lambda: world.start_trainer("t0", lead=True))
    check(world, LONG, restarts=1)
    assert world.results[-1].term == world.results[-2].term


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_trainer_that_half_of_the_swarm_is_left_to_goes_on_as_a_lineage_of_its_own(seed: int) -> None:
    """The leader and a peer of each stage die at once, 4 of 8: nobody can be elected, and nothing is lost."""
    world = SWARM.start(seed)
    died_s: list[float] = []

    def pick(world: World) -> list[ProcessId]:
        died_s.append(world.clock.now_s)
        return [*the_leader(world), *(peers_of(world, stage)[0] for stage in range(3))]

    def opens(result: StepResult) -> None:
        died_s.append(world.clock.now_s)

    kill_in_phase(world, "working", pick, SETTLED_S)
    world.on_result = opens
    finish(world)
    assert (world.counts["lineages"], world.counts["rollbacks"]) == (1, 0), "\n".join(world.log)
    longest_s = max(after - before for before, after in pairwise(died_s))
    assert 30.0 < longest_s < 45.0, "they wait for a majority, then redo the step"
    assert world.disks.durable[STEPS] == {stage: parameters(stage, STEPS) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_most_may_leave_at_once_without_costing_a_majority(seed: int) -> None:
    """Who is let go tells the leader that it follows nobody else: nobody has to wait for its vote."""
    world = replace(SWARM, peers=9).start(seed)

    def leave() -> None:
        for leaver in [
            *world.directory.followers(),
            *(peer for stage in range(3) for peer in peers_of(world, stage)[:2]),
        ]:
            world.drain(leaver)

    world.clock.after(SETTLED_S, leave)
    finish(world, limit_s=60.0)
    assert world.counts["lineages"] == 0, "\n".join(world.log)
    assert world.results[-1].peers == (1, 1, 1)
