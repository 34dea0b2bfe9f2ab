"""What a stage's only peer is told while it drains, saves that somebody asks for, and who goes home again."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from swarmflow.simulator import interventions
from swarmflow.simulator.faults import finish
from swarmflow.simulator.moments import at_phase, peers_of, stage_of
from swarmflow.simulator.world import World
from tests.further import more, seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM

STEPS = 40
LONG = replace(SWARM, settings=replace(SETTINGS, steps=STEPS, checkpoint_every=0))


def lines(world: World, text: str) -> list[str]:
    return [line for line in world.log if text in line]


def test_the_only_peer_of_a_stage_is_told_what_it_waits_for_and_what_leaving_now_would_cost() -> None:
    slow = replace(LONG.settings, load_s=(3.0, 4.0), keeps=False)
    world = replace(LONG, settings=slow, peers=3).start(0)
    world.clock.at(20.0, lambda: world.drain(peers_of(world, 1)[0]))
    world.clock.at(60.0, lambda: world.start_peer("next"))
    finish(world)
    leaving = lines(world, "no other peer serves stage 1: leaving when version")
    costs = lines(world, "to leave now, by a second Ctrl-C or in")
    assert len(leaving) == len(costs) == 2, "when it is asked, and when its state is being written"
    assert float(leaving[0].split()[0]) < 20.2, "at once"
    assert "and the step under way are on a disk" in leaving[0]
    version = int(leaving[0].split("version ")[1].split()[0])
    assert version > 0
    assert costs[0].endswith(f"costs the run the {version} steps since version 0")
    assert f"leaving when version {version + 1} is on a disk" in leaving[1]
    assert lines(world, "drained: nothing depends on this process any more")
    assert world.counts["rollbacks"] == 0


def test_who_drains_beside_another_peer_is_told_nothing_of_the_kind() -> None:
    world = LONG.start(0)
    world.clock.at(SETTLED_S, lambda: world.drain(peers_of(world, 1)[0]))
    finish(world)
    assert not lines(world, "no other peer serves")


def leave_at_once(world: World, at_s: float, stage: int = 1) -> str:
    """The only peer of a stage is asked to go twice, before its step can end; its name."""
    names: list[str] = []

    def go() -> None:
        [peer] = peers_of(world, stage)
        names.append(peer.name)
        world.drain(peer)
        world.clock.after(0.2, lambda: world.drain(peer))

    world.clock.at(at_s, go)
    assert world.clock.run(lambda: bool(lines(world, "it left, with its state")), at_s + 30.0), "\n".join(world.log)
    return names[0]


def test_the_only_peer_of_a_stage_leaves_at_once_and_comes_back_with_what_it_had() -> None:
    world = replace(LONG, peers=3).start(1)
    name = leave_at_once(world, 20.0)
    assert lines(world, "waiting for")[-1].endswith(
        f"{name} with stage 1, left in its state folder; without it the run goes back to version 0"
    )
    world.clock.after(20.0, lambda: world.start_peer(name))
    finish(world)
    [cost] = lines(world, "to leave now, by a second Ctrl-C or in")
    assert cost.endswith("unless it is started again within 40 s: its state stays in the state folder")
    assert lines(world, "left with its state in the state folder; started again within 40 s it goes on from there")
    assert lines(world, f"peer {world.launcher.latest[name]} holds stage 1: it holds that one")
    assert world.counts["rollbacks"] == 0
    assert Counter(result.step for result in world.results) == dict.fromkeys(range(STEPS), 2), "once by each trainer"


def test_who_does_not_come_back_is_waited_for_no_longer_than_was_told() -> None:
    world = replace(LONG, peers=3).start(1)
    name = leave_at_once(world, 20.0)
    world.clock.after(5.0, lambda: world.start_peer("next"))
    world.clock.after(60.0, lambda: world.start_peer(name))
    finish(world)
    [back] = lines(world, "stage 1 has lost everybody: back from version")
    [left] = lines(world, "is gone: it left, with its state in its folder")
    assert 40.0 <= float(back.split()[0]) - float(left.split()[0]) < 42.0
    assert world.counts["rollbacks"] == 1


def test_a_folder_that_takes_nothing_is_not_waited_for() -> None:
    world = replace(LONG, peers=3).start(1)
    world.clock.at(19.0, lambda: world.disks.full.add(peers_of(world, 1)[0].name))
    leave_at_once(world, 20.0)
    world.start_peer("next")
    finish(world)
    [failed] = lines(world, "left, and its state is lost: the disk is full")
    [back] = lines(world, "stage 1 has lost everybody: back from version")
    assert float(back.split()[0]) - float(failed.split()[0]) < 1.0


def test_who_leaves_beside_another_peer_writes_nothing() -> None:
    world = replace(LONG, peers=6).start(0)
    world.clock.at(20.0, lambda: world.drain(peers_of(world, 1)[0]))
    world.clock.at(20.05, lambda: world.drain(peers_of(world, 1)[0]))
    finish(world)
    assert not lines(world, "to the state folder")


@pytest.mark.parametrize("phase", ["working", *more("preparing"), "committing", *more("")])
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_in_whatever_phase_of_a_step_it_leaves_nothing_is_lost(phase: str, seed: int) -> None:
    world = replace(LONG, peers=3).start(seed)
    left: list[str] = []

    def strike() -> None:
        [peer] = peers_of(world, 1)
        left.append(peer.name)
        world.drain(peer)
        world.drain(peer)
        world.clock.after(15.0, lambda: world.start_peer(peer.name))

    at_phase(world, phase, strike, since_s=20.0)
    finish(world)
    assert left
    assert world.counts["rollbacks"] == 0, "\n".join(world.log)
    assert Counter(result.step for result in world.results) == dict.fromkeys(range(STEPS), 2), "once by each trainer"


def test_a_version_that_somebody_asks_for_is_brought_to_disk_and_told() -> None:
    world = LONG.start(0)
    world.clock.at(12.0, lambda: interventions.ask_save(world, 7))
    finish(world)
    assert world.saved[7].failed == ""
    assert 0 < world.saved[7].version < STEPS


def test_a_save_that_fails_is_tried_again_and_one_that_cannot_be_is_told_so() -> None:
    world = replace(LONG, settings=replace(LONG.settings, steps=100, compute_s=(0.5, 2.0)).timed(stall_s=20.0)).start(0)
    world.clock.at(30.0, lambda: interventions.stall(world, world.leader, "save", 2))  # type: ignore[arg-type]
    world.clock.at(30.1, lambda: interventions.ask_save(world, 1))
    assert world.clock.run(lambda: 1 in world.saved, 330.0)
    assert world.saved[1].failed == ""
    assert len(lines(world, "could not be written: nothing of it has come")) == 1, "the second time it says nothing new"
    assert world.clock.now_s > 30.0 + 2 * 2 * 20.0, "the second try was stalled too"
    now_s = world.clock.now_s
    world.clock.at(now_s + 0.5, lambda: interventions.stall(world, world.leader, "save"))  # type: ignore[arg-type]
    step_s = 15.0  # at least one more version is there then
    world.clock.at(now_s + step_s + 5.0, lambda: interventions.ask_save(world, 2))
    assert world.clock.run(lambda: 2 in world.saved, now_s + 345.0)
    assert "is on no disk yet: nothing of it has come for" in world.saved[2].failed


def test_who_stood_in_on_a_stage_goes_back_to_the_one_that_it_asked_for() -> None:
    """All ask for their stage, and may be moved. One is moved where nobody is left; then another one comes there."""
    world = replace(LONG, settings=replace(LONG.settings, rebalance_s=1e6), peers=0).start(0)
    for name, wish in (("a", 0), ("b", 1), ("c", 2), ("d", 2), ("e", 2)):
        world.clock.at(1.0, lambda name=name, wish=wish: world.start_peer(name, wish))  # type: ignore[misc]
    world.clock.at(12.0, lambda: world.kill(peers_of(world, 1)[0]))
    moved: list[str] = []

    def come() -> None:
        [stand_in] = peers_of(world, 1)
        moved.append(stand_in.name)
        world.start_peer("f", 1)

    world.clock.at(40.0, come)
    finish(world)
    assert moved[0] in ("c", "d", "e")
    assert lines(world, "loads stage 2: it asked for it, and stage 1 has another peer by now"), "\n".join(world.log)
    [home] = [peer for peer in world.hosts if peer.name == moved[0]]
    assert stage_of(world, home) == 2


def test_a_leader_that_stops_without_having_written_its_version_is_not_the_end_of_the_run() -> None:
    world = replace(LONG, trainers=1).start(0)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S and bool(world.results), 2 * SETTLED_S)
    world.disks.full.add("t0")
    world.drain(world.launcher.latest["t0"])
    assert world.clock.run(lambda: bool(lines(world, "could not be written (")), 60.0)
    world.disks.full.clear()
    finish(world)
