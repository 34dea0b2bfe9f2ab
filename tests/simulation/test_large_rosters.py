"""A swarm of many members: peers know those around them, and an heir finds everybody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.machines.trainer import TrainerMachine
from swarmflow.core.protocol.types import Plan
from swarmflow.simulator.faults import FuzzSwarm
from swarmflow.simulator.world import Settings

STAGES, PEERS = 5, 1100
SETTINGS = Settings(
    Plan(STAGES, microbatches=10), steps=3, load_s=(0.1, 0.5), compute_s=(0.2, 0.4), peers_first=PEERS - 1
)


@pytest.mark.extended
def test_the_leader_of_a_large_swarm_dies_and_no_step_is_lost() -> None:
    world = FuzzSwarm(SETTINGS, PEERS, trainers=3).start(0)
    assert world.clock.run(lambda: bool(world.results), 120.0)
    first = world.leader
    assert first is not None
    world.kill(first)
    assert world.clock.run(lambda: world.ended, 300.0), "\n".join(world.log[-20:])
    assert sorted({result.step for result in world.results}) == [0, 1, 2]
    assert world.counts["successions"] == 1
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0
    assert all(
        host.machine.epoch_view is not None and host.machine.epoch_view.opened.roster.size > PEERS
        for host in world.hosts.values()
        if isinstance(host.machine, TrainerMachine) and host.alive
    ), "each trainer knows of everybody"
    for host in world.hosts.values():
        if isinstance(host.machine, PeerMachine) and host.machine.epoch_view is not None:
            named = host.machine.epoch_view.opened
            assert named.voters > PEERS > len(named.roster.peers), "it knows of how many there are, and of a part"


def test_peers_that_know_a_part_of_the_swarm_take_over_its_work_when_others_die() -> None:
    world = FuzzSwarm(replace(SETTINGS, plan=Plan(6, microbatches=6), peers_first=0), 18, trainers=2).start(1)
    for at_s in (4.0, 5.0, 6.0):
        world.clock.after(at_s, lambda: world.kill(world.random.choice(world.alive_peers())))
    assert world.clock.run(lambda: world.ended, 300.0), "\n".join(world.log[-20:])
    assert sorted({result.step for result in world.results}) == [0, 1, 2]
