"""Journals that keep nothing: what a repair needs is computed again with weight 0, and no step starts over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.pipeline.hop import COMPUTING
from swarmflow.core.pipeline.hop_table import HopTable
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator.faults import Churn, FuzzSwarm, finish, kill_in_phase, peers_of
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, parameters

FORGETFUL = replace(SETTINGS, journal_bytes_max=0)
HOPS = 6 * 8 * 3  # steps, microbatches, stages


def learnt_exactly(world: World) -> None:
    """The simulator has checked each update: every microbatch once on every stage. No step was tried twice."""
    assert world.counts["evictions"] > 0
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0, "\n".join(world.log)
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


def accumulated(world: World, process: ProcessId) -> int:
    weights = world.hosts[process].device.weights
    assert weights is not None
    return sum(weights.present.values())


def first_of(stage: int, done: list[int]) -> Callable[[World], list[ProcessId]]:
    """Picks the first peer of a stage, and notes how many hops it has accumulated."""

    def pick(world: World) -> list[ProcessId]:
        [victim, *_] = peers_of(world, stage)
        done.append(accumulated(world, victim))
        return [victim]

    return pick


@pytest.mark.parametrize("stage", range(3))
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_death_amid_backward_work_costs_no_step(seed: int, stage: int) -> None:
    world = FuzzSwarm(FORGETFUL).start(seed)
    done_of_the_dead: list[int] = []
    pick = first_of(stage, done_of_the_dead)
    kill_in_phase(world, "working", pick, SETTLED_S, delay_s=world.random.uniform(0.5, 1.0))
    finish(world)
    learnt_exactly(world)
    assert world.counts["backward"] == HOPS + done_of_the_dead[0], "with weight 1 only the dead one's hops are redone"


@pytest.mark.parametrize("stage", range(3))
@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_death_after_completion_replays_its_hops_and_what_they_need(seed: int, stage: int) -> None:
    world = FuzzSwarm(FORGETFUL).start(seed)
    done_of_the_dead: list[int] = []
    pick = first_of(stage, done_of_the_dead)
    kill_in_phase(world, "preparing", pick, SETTLED_S)
    finish(world)
    learnt_exactly(world)
    [lost] = done_of_the_dead
    assert lost > 0
    assert world.counts["backward"] == HOPS + lost
    # What is before it goes forward again, once for the output; what is after it forward and then once more through.
    assert world.counts["recomputed"] == lost * {0: 3, 1: 2, 2: 2}[stage]


@pytest.mark.parametrize("victims", [(0, 1), (1, 2), (0, 2), (0, 1, 2)])
def test_deaths_on_several_stages_at_once_cost_no_step(victims: tuple[int, ...]) -> None:
    world = FuzzSwarm(FORGETFUL).start(seed=4)
    kill_in_phase(world, "preparing", lambda w: [peers_of(w, stage)[0] for stage in victims], SETTLED_S)
    finish(world)
    learnt_exactly(world)
    assert world.counts["recomputed"] > 0


@pytest.mark.parametrize("seed", range(3))
def test_orphans_whose_bytes_are_gone_are_taken_away_all_the_same(seed: int) -> None:
    """A peer is so slow that its work is given to another one; what both have done is counted once."""
    world = FuzzSwarm(replace(FORGETFUL, latency_s=(0.01, 0.3)).timed(late_s=0.5), peers=9).start(seed)

    def slow_down() -> None:
        for victim in (peers_of(world, stage)[0] for stage in range(3)):
            world.hosts[victim].device.executor.slow_until_s = world.clock.now_s + 6.0

    world.clock.after(SETTLED_S, slow_down)
    finish(world)
    learnt_exactly(world)
    assert world.counts["undone"] == world.counts["orphans_subtracted"]


def test_a_trainer_that_dies_leaves_its_tokens_to_another() -> None:
    def pick(world: World) -> list[ProcessId]:
        return [world.directory.followers()[0], peers_of(world, 0)[0]]

    recomputed = 0
    for seed in range(4):  # in one alone, what the peer had done may happen to need nothing of what was given up
        world = FuzzSwarm(FORGETFUL, trainers=3).start(seed)
        kill_in_phase(world, "preparing", pick, SETTLED_S)
        finish(world)
        learnt_exactly(world)
        recomputed += world.counts["recomputed"]
    assert recomputed > 0


def sums(hops: HopTable) -> tuple[int, int, int, bool]:
    """What a peer's running totals stand for, added up anew."""
    kept = sum(ref.size_bytes for hop in hops.hops.values() for ref in hop.kept)
    kept += sum(ref.size_bytes for entry in hops.dispatcher.flights.entries.values() for ref in entry.bodies)
    held = sum(hop.graph and hop.done is None and not hop.orphan for hop in hops.hops.values())
    queued = sum(hop.state in COMPUTING and hop.gradient is None for hop in hops.hops.values())
    return kept, held, queued, any(hop.orphan for hop in hops.hops.values())


@pytest.mark.parametrize("bytes_max", [0, 300, 1 << 30])
def test_running_totals_are_the_sums_whatever_dies(bytes_max: int) -> None:
    world = FuzzSwarm(replace(SETTINGS, journal_bytes_max=bytes_max).timed(late_s=3.0)).start(5)
    Churn(world, ("kill", "freeze", "slow", "cut", "join", "join"), 2.0).unleash()
    seen: list[int] = []

    def checked() -> bool:
        for host in world.hosts.values():
            hops = host.machine.hops if isinstance(host.machine, PeerMachine) else None
            if hops is not None and host.alive:
                assert (hops.journal.size_bytes, hops.held, hops.queued, hops.settling) == sums(hops)
                seen.append(hops.journal.size_bytes)
        return world.ended

    assert world.clock.run(checked, 600.0)
    assert max(seen) > 0
