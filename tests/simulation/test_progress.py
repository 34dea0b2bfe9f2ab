"""Processes that show signs of life and do nothing: put out with the reason, and the run goes on to its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.faults import finish, peers_of
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM, fill_disks, parameters

STEPS = 12
LONG = replace(SWARM, settings=replace(SETTINGS, steps=STEPS))


def check(world: World, put_out: int = 1) -> None:
    """It came to its end with the right weights, and so many processes were put out."""
    finish(world)
    text = "\n".join(world.log)
    assert world.disks.durable[STEPS] == {stage: parameters(stage, STEPS) for stage in range(3)}
    assert world.counts["stalled"] == put_out, text
    assert world.counts["rollbacks"] == 0, text


def stall_at(world: World, kind: str, pick: str, time_s: float = SETTLED_S) -> list[ProcessId]:
    """From then on a peer of stage 1, a trainer or the leader does nothing of a kind. Holds it when it has begun."""
    victims: list[ProcessId] = []

    def begin() -> None:
        leader = world.leader
        assert leader is not None
        follower = (world.directory.followers() or [leader])[0]
        victims.append({"peer": peers_of(world, 1)[0], "trainer": follower, "leader": leader}[pick])
        interventions.stall(world, victims[0], kind)

    world.clock.at(time_s, begin)
    return victims


@pytest.mark.parametrize("seed", seeds(1, 1))
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("compute", ""),  # amid its hops or amid an all-reduce
        ("reduce", "holds up the all-reduce"),
        ("seal", "holds up the all-reduce"),
        ("update", "does not apply the update"),
    ],
)
def test_a_peer_that_breathes_and_does_nothing_is_put_out_for_a_while(seed: int, kind: str, what: str) -> None:
    world = LONG.start(seed)
    victims = stall_at(world, kind, "peer")
    check(world)
    [line] = [line for line in world.log if "is gone" in line]
    assert f"{victims[0]} is gone: it {what}" in line
    assert "put out for 30 s" in line
    assert "not let in for" in "\n".join(world.log), "its next life is told why it has to wait"


def test_a_peer_that_hashes_nothing_does_not_keep_a_run_from_its_end() -> None:
    world = LONG.start(0)
    victims = stall_at(world, "hash", "peer")
    check(world)
    [line] = [line for line in world.log if "is gone" in line]
    assert f"{victims[0]} is gone: it does not report the root of its state" in line


def test_who_was_put_out_serves_again_after_the_pause() -> None:
    world = replace(LONG, settings=replace(LONG.settings, steps=60)).start(0)
    victims = stall_at(world, "seal", "peer")
    finish(world)
    assert world.counts["stalled"] == 1
    again = [line for line in world.log if f"{victims[0].name} serving stage" in line]
    assert len(again) == 2, "\n".join(world.log)


@pytest.mark.parametrize("seed", seeds(1, 1))
def test_the_microbatches_of_a_trainer_that_forms_none_fall_to_others(seed: int) -> None:
    world = LONG.start(seed)
    victims = stall_at(world, "feed", "trainer")
    check(world)
    assert any(f"{victims[0]} is gone: it forms none of the microbatches" in line for line in world.log)


def test_a_leader_that_forms_nothing_leaves_the_lead_to_another_trainer() -> None:
    world = LONG.start(0)
    stall_at(world, "feed", "leader")
    check(world, put_out=0)
    assert world.counts["successions"] == 1
    assert any("this trainer forms none of the microbatches" in line for line in world.log)


def test_a_leader_that_leaves_the_lead_decides_nothing_more() -> None:
    """Both trainers form nothing: the one that leads goes, and leaves the other one, who is to lead, alone."""
    world = LONG.start(0)
    leader, other = stall_at(world, "feed", "leader"), stall_at(world, "feed", "trainer")
    assert world.clock.run(lambda: world.counts["successions"] > 0, 200.0)
    assert not world.alive(leader[0])
    assert world.alive(other[0])
    assert world.leader == other[0]
    assert world.counts["stalled"] == 0
    finish(world)


def test_the_only_trainer_is_waited_for_with_a_reason() -> None:
    world = replace(LONG, trainers=1).start(0)
    stall_at(world, "feed", "leader")
    assert not world.clock.run(lambda: world.ended, 400.0)
    assert "forms none of the microbatches that are its to form, and nobody can do so in its place" in world.waiting_for


@pytest.mark.parametrize(("kind", "what"), [("compute", "computes none"), ("update", "does not apply the update")])
def test_the_only_peer_of_a_stage_is_waited_for_with_a_reason(kind: str, what: str) -> None:
    world = replace(LONG, peers=3).start(0)
    victims = stall_at(world, kind, "peer")
    assert not world.clock.run(lambda: world.ended, 1200.0)
    assert f"{victims[0]} of stage 1: it {what}" in world.waiting_for
    assert world.counts["stalled"] == 0
    assert world.alive(victims[0])


@pytest.mark.parametrize(("times", "put_out"), [(1, 0), (2, 1)])
def test_a_load_that_never_ends_is_granted_again_and_then_put_out(times: int, put_out: int) -> None:
    """The stage has nobody else: without the deadline the run would wait for the peer that loads it for ever."""
    world = replace(LONG, peers=0).start(1)
    world.clock.at(1.0, lambda: [world.start_peer(f"p{number}", number % 3) for number in range(3)] and None)

    def stall() -> None:
        loader = next(p for p in world.alive_peers() if p.name == "p2")
        interventions.stall(world, loader, "load", times)

    world.clock.at(1.0, stall)
    check(world, put_out=put_out)
    assert any("loads stage 2: it does not get on with loading" in line for line in world.log)


def drain_stage(world: World, stage: int) -> None:
    for peer in peers_of(world, stage):
        world.drain(peer)


@pytest.mark.parametrize("drained", [False, True])
def test_a_save_of_which_nothing_comes_is_given_up_and_tried_again(drained: bool) -> None:
    world = LONG.start(0) if drained else fill_disks(LONG.start(0))
    begin_s = SETTLED_S + 3.0 if drained else SETTLED_S  # amid no save of a version that was due
    world.clock.at(begin_s, lambda: interventions.stall(world, world.leader, "save", 1))  # type: ignore[arg-type]
    if drained:
        world.clock.at(begin_s, lambda: drain_stage(world, 1))
        world.clock.at(SETTLED_S + 20.0, lambda: world.start_peer("late") and None)
    check(world, put_out=0)
    assert any("could not be written: nothing of it has come for 121 s" in line for line in world.log)


def test_a_validation_that_does_not_come_back_is_measured_on_those_that_gave_some() -> None:
    world = replace(LONG, settings=replace(LONG.settings, validate_every=4)).start(0)
    victims = stall_at(world, "give", "peer")
    check(world, put_out=0)
    assert any("it is measured on 5 peers that gave some" in line for line in world.log), victims
    assert {r.validation_loss for r in world.results if r.step % 4 == 3} == {1.0}


def test_a_validation_that_nobody_brings_back_is_left_out() -> None:
    world = replace(LONG, settings=replace(LONG.settings, validate_every=4)).start(0)
    world.clock.at(SETTLED_S, lambda: interventions.stall(world, world.leader, "validate", 1))  # type: ignore[arg-type]
    check(world, put_out=0)
    assert any("has come back for" in line and "it is left out" in line for line in world.log)
    assert [r.validation_loss for r in world.results if r.step == 3] == [None] * 2


@pytest.mark.extended
def test_who_makes_progress_however_slowly_is_left_alone() -> None:
    """Each computation takes minutes: the usual time is the measure, not a fixed one."""
    slow = replace(LONG.settings, steps=2, compute_s=(100.0, 150.0)).timed(late_s=5000.0)
    world = replace(LONG, settings=slow).start(0)
    finish(world, 60_000.0)
    assert world.counts["stalled"] == world.counts["ballots_again"] == 0
