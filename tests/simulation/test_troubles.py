"""Clocks that jump, disks that fail, bits that flip, slow links, little memory: each is noticed, or costs nothing."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from swarmflow.core.machines.leading import roots
from swarmflow.simulator import interventions
from swarmflow.simulator.faults import DRAWN, FAULTS, Churn, finish, peers_of
from swarmflow.simulator.network import Jittery
from swarmflow.simulator.troubles import ALONE, TROUBLES
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM, parameters

LONG = replace(SWARM, settings=replace(SETTINGS, steps=16), peers=9)


def settled(seed: int = 0) -> World:
    world = LONG.start(seed)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S, SETTLED_S + 1.0)
    return world


def end_well(world: World) -> None:
    finish(world)
    assert world.disks.durable[16] == {stage: parameters(stage, 16) for stage in range(3)}


@pytest.mark.parametrize("kind", [fault.__name__ for fault in (*TROUBLES, *ALONE)])
@pytest.mark.parametrize("seed", seeds(1, 1))
def test_each_trouble_again_and_again(seed: int, kind: str) -> None:
    world = LONG.start(seed)
    churn = Churn(world, (kind,), gap_s=2.5)
    churn.unleash()
    end_well(world)
    assert churn.happened[kind] > 5


def test_what_is_still_in_flight_on_a_slow_link_at_the_end_is_not_missed() -> None:
    world = replace(LONG, settings=replace(LONG.settings, load_s=(1.0, 2.0))).start(0)
    assert isinstance(world.network, Jittery)
    world.clock.after(2 * SETTLED_S, partial(world.network.slowed.update, {"t1": (5.0, 0.0)}))
    end_well(world)
    assert world.hosts[world.launcher.latest["t1"]].stored, "it does not know yet that the last step is committed"


@pytest.mark.parametrize("seconds", [1.0, 30.0, 1e6])
def test_a_clock_that_jumps_makes_nobody_but_its_process_late(seconds: float) -> None:
    world = settled()
    for victim in (peers_of(world, 1)[0], world.launcher.latest["t1"]):
        interventions.jump(world, victim, seconds)
    end_well(world)
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0


def test_who_was_suspended_finds_that_no_time_has_passed_on_its_clock_and_joins_again() -> None:
    world = settled()
    sleeper = peers_of(world, 0)[0]
    interventions.suspend(world, sleeper, 15.0)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S + 16.0, SETTLED_S + 17.0)
    assert world.counts["gone"] == 1
    assert not world.hosts[sleeper].alive
    assert world.launcher.latest[sleeper.name] in world.alive_peers()
    end_well(world)


def test_a_flipped_bit_in_a_sum_fails_the_ballot_before_anybody_learns_from_it() -> None:
    world = settled()
    world.hosts[peers_of(world, 2)[0]].device.sums.flips_sum = True
    end_well(world)
    assert world.counts["steps_restarted"] == 1
    assert any("do not agree on the reduced gradient" in line for line in world.log)


@pytest.mark.parametrize("alone", [False, True])
def test_damage_of_a_state_in_memory_is_found_before_anybody_learns_from_it(alone: bool) -> None:
    world = settled()
    victim, *others = peers_of(world, 1)
    for other in others if alone else []:
        world.kill(other)
    weights = world.hosts[victim].device.weights
    assert weights is not None
    weights.damage()
    end_well(world)
    assert world.counts["states_damaged"] == 1
    assert any(f"{victim.name} stage 1 at version" in line and "is damaged" in line for line in world.log)
    assert world.counts["rollbacks"] == alone


def test_nobody_loads_what_is_damaged_in_the_memory_of_its_only_donor() -> None:
    world = settled()
    victim, *others = peers_of(world, 1)
    for other in others:
        world.kill(other)
    weights = world.hosts[victim].device.weights
    assert weights is not None
    weights.damage()
    world.start_peer("late", wish=1)
    end_well(world)
    assert world.counts["states_damaged"] == 1
    steps = [result.step for result in world.results]
    assert steps == sorted(steps), "a copy on a disk has the version: no step is done again"


@pytest.mark.parametrize("hashed", [True, False])
def test_a_flipped_bit_in_the_parameters_is_outvoted_by_the_stage(hashed: bool) -> None:
    """By the roots, which the leader asks for where the version is not hashed and the next gradients do not agree."""
    world = settled()
    victim = peers_of(world, 1)[0]
    assert world.leader is not None
    lead = world.trainers[world.leader].lead
    assert lead is not None

    def comes() -> bool:
        undecided = lead.step is not None and lead.step.decision is None
        begun = world.hosts[victim].machine.epoch == lead.epoch  # the update of the version before is made
        return undecided and begun and roots.due(lead, lead.version + 1) == hashed

    world.clock.run(comes, world.clock.now_s + 60.0)
    world.hosts[victim].device.sums.flips_parameters = True
    end_well(world)
    assert (world.counts["resynchronisations"], world.counts["put_out"]) == (1, 0)
    assert world.counts["steps_restarted"] == (not hashed)
    assert any(f"{victim} is gone: its state of stage 1 at version" in line for line in world.log)


def test_a_flipped_bit_on_the_wire_breaks_the_stream_and_no_more() -> None:
    world = settled()
    world.transport.flips.add((peers_of(world, 0)[0], peers_of(world, 1)[0]))
    end_well(world)
    assert not world.transport.flips
    assert world.counts["rollbacks"] == 0


def test_a_damaged_copy_is_not_loaded_from_while_another_one_is_intact() -> None:
    world = settled()
    assert world.clock.run(lambda: 2 in world.disks.trainers["t0"] & world.disks.trainers["t1"], 60.0)
    newest = max(world.disks.trainers["t1"])
    world.disks.damaged.add(("t1", newest, 0))
    world.disks.remembered = False  # else it waits for what the peers may have in memory
    for process in [process for process, host in world.hosts.items() if host.alive]:
        world.kill(process)
    world.start_trainer("t1", lead=True)
    assert (world.disks.damaged, world.disks.holds("t1", newest, 0)) == (set(), False), "it was set aside"
    world.start_trainer("t0")
    assert world.clock.run(lambda: world.disks.whole("t1", newest), world.clock.now_s + 9.0), "copied from t0's disk"
    for number in range(6):
        world.start_peer(f"p{number}")
    end_well(world)


@pytest.mark.parametrize("name", ["t0", "p0"])
def test_a_disk_that_was_rolled_back_holds_what_it_held_before(name: str) -> None:
    world = settled()
    disks = world.disks
    disks.trainers["t0"], disks.copies["p0"] = {0, 2, 4}, {2: {1}, 4: {1}}
    disks.roll_back(name, 1)
    assert (disks.trainers["t0"] == {0, 2}, disks.copies["p0"] == {2: {1}}) == (name == "t0", name == "p0")
    disks.roll_back("t0", 5)
    assert 0 in disks.trainers["t0"]


def test_a_full_disk_takes_nothing_and_what_was_on_it_stays() -> None:
    world = settled()
    disks, held = world.disks, set(world.disks.trainers["t1"])
    disks.full.add("t1")
    assert not disks.put("t1", 99, {})
    assert disks.trainers["t1"] == held
    world.clock.after(10.0, disks.full.clear)
    end_well(world)


def test_flips_that_only_a_majority_notices_are_not_drawn_among_splits_and_deaths() -> None:
    assert {fault.__name__ for fault in ALONE}.isdisjoint(DRAWN)
    assert {*DRAWN, "join", *(fault.__name__ for fault in ALONE)} == set(FAULTS)
