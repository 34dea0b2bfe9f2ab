"""Every trainer is killed: the run goes on from what the living peers hold in memory, and never goes back behind it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from swarmflow.core.commit.step_phase import StepPhase
from swarmflow.core.machines.peer import PeerMachine
from swarmflow.core.protocol.events import Received
from swarmflow.core.protocol.messages import Granted
from swarmflow.core.protocol.types import ProcessId
from swarmflow.simulator import interventions
from swarmflow.simulator.faults import Churn, finish, kill_in_phase, peers_of
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import SETTINGS, SWARM, parameters

LONG = replace(SWARM, settings=replace(SETTINGS, steps=30, checkpoint_every=0))
PHASES = ("working", "preparing", "committing")
KILLED_S = 15.0  # by then several steps are committed, and no version is on a disk


def every_trainer(world: World) -> list[ProcessId]:
    """They die, and some of them are started again later."""
    trainers = [process for process, machine in world.trainers.items() if world.alive(process)]
    world.log.append(f"{world.clock.now_s:9.3f} ---- every trainer dies")
    delay_s = world.random.uniform(0.0, 20.0)
    for process in sorted(trainers)[: world.random.randint(1, len(trainers))]:
        world.clock.after(delay_s, partial(world.start_trainer, process.name, lead=True))
    return trainers


def newest(world: World) -> int:
    """The newest version of which a living peer holds a stage: whoever lacks its commit has reduced its gradient."""
    weights = [world.hosts[process].device.weights for process in world.alive_peers()]
    return max(of.version for of in weights if of is not None)


def names(world: World, peers: list[ProcessId]) -> set[str]:
    """Of the states that these hold."""
    machines = [world.hosts[process].machine for process in peers]
    return {machine.memory.name for machine in machines if isinstance(machine, PeerMachine)}


def check(world: World, killed: int) -> list[int]:
    """The steps recorded after the trainers' death, of a run that ends as it should."""
    finish(world)
    steps = LONG.settings.steps
    assert world.disks.durable[steps] == {stage: parameters(stage, steps) for stage in range(3)}
    return [result.step for result in world.results[killed:]]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_a_run_whose_trainers_are_all_killed_goes_on_from_the_peers_memory(phase: str, seed: int) -> None:
    world = LONG.start(seed)
    kill_in_phase(world, phase, every_trainer, KILLED_S, world.random.uniform(0.0, 0.3))
    died = world.clock.run(lambda: bool(world.results) and world.leader is None, 100.0)
    assert died
    killed, version = len(world.results), newest(world)
    recorded = max(result.step for result in world.results) + 1
    # The last commit may be lost with all that knew it: the step is done again, from the gradients' same sum.
    assert recorded - 1 <= version <= recorded + 1
    after = check(world, killed)
    log = "\n".join(world.log)
    assert min(after) >= version - 1, log
    assert "from the memory of peers" in log


@pytest.mark.parametrize("seed", seeds(2, 2))
def test_trainers_that_die_together_again_and_again_among_other_faults(seed: int) -> None:
    """Also where the peers of one stage, or a leader in its step's last phase, die with them."""
    world = replace(LONG, settings=replace(LONG.settings, checkpoint_every=7)).start(seed)
    others = ("kill", "kill_stage", "split", "mute", "freeze_leader", "kill_leader_at_edge", "join")
    kinds = (*["kill_every_trainer"] * 4, *others)
    churn = Churn(world, kinds, gap_s=8.0)
    churn.unleash()
    check(world, 0)
    assert churn.happened["kill_every_trainer"] > 0


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_the_memory_of_two_histories_is_never_put_together(seed: int) -> None:
    """Both sides of a split have gone on; all trainers die, and the peers of both meet at the next leader."""
    world = replace(LONG, peers=12, settings=replace(LONG.settings, steps=400)).start(seed)
    world.clock.run(lambda: world.clock.now_s > KILLED_S, KILLED_S + 1.0)
    side = {"t1", *(process.name for stage in range(3) for process in peers_of(world, stage)[::2])}
    world.transport.split(side, 90.0)
    world.clock.run(lambda: world.clock.now_s > KILLED_S + 80.0, KILLED_S + 81.0)
    trainers = [process for process in world.trainers if world.alive(process)]
    one = [process for process in world.alive_peers() if process.name in side]
    other = [process for process in world.alive_peers() if process.name not in side]
    assert names(world, one).isdisjoint(names(world, other)), "both have gone on"
    for trainer in trainers:
        world.kill(trainer)
    world.clock.after(11.0, lambda: world.start_trainer("t0", lead=True))
    before = len(world.log)
    recorded = len(world.results)
    world.clock.run(lambda: len(world.results) > recorded + 3, 300.0)
    decided = "\n".join(world.log[before:]).split("going on from version")[1:]  # again where a later version is found
    assert decided
    for log in decided:
        resumed = {line.split()[1] for line in log.splitlines() if "is here already" in line}
        assert resumed
        assert resumed <= side or resumed.isdisjoint(side)


@pytest.mark.parametrize("same", [True, False])
def test_who_wakes_to_two_grants_answers_the_later_one(same: bool) -> None:
    """What is in memory is granted to a peer that sleeps, and then once more, or version 0 instead."""
    world = LONG.start(0)
    world.clock.run(lambda: world.clock.now_s > KILLED_S, KILLED_S + 1.0)
    for trainer in [process for process in world.trainers if world.alive(process)]:
        world.kill(trainer)
    back_s = KILLED_S + 20.0
    world.clock.at(back_s, partial(world.start_trainer, "t0", lead=True))
    world.clock.run(lambda: world.clock.now_s > back_s and bool(world.alive_peers()), back_s + 10.0)
    leader, peer = world.launcher.latest["t0"], world.alive_peers()[0]
    host = world.hosts[peer]
    machine, device = host.machine, host.device
    assert isinstance(machine, PeerMachine)
    held = machine.memory.held
    assert held is not None
    first = Granted(2, held.stage, held.version, (), 0, held.name)  # in a later term than what the leader grants
    second = replace(first, grant=1) if same else Granted(2, held.stage, 0, (), 1)
    interventions.freeze(world, peer, 5.0)
    for granted in (first, second):
        world.deliver(peer, Received(leader, granted))
    world.clock.run(lambda: machine.phase == "ready", world.clock.now_s + 10.0)
    assert (machine.version, machine.grant) == (second.version, 1)
    assert device.weights is not None
    assert device.weights.version == second.version


@pytest.mark.parametrize("how", ["freeze", "suspend"])
def test_the_only_trainer_sleeps_and_nothing_is_trained_twice(how: str) -> None:
    """Its peers give it up and it gives them up; they find it again with what they held."""
    world = replace(LONG, trainers=1).start(0)
    trainer = world.launcher.latest["t0"]
    leading = world.trainers[trainer]

    def amid_a_step() -> bool:
        """Amid the decision peers have different versions, and the older one is gone on from."""
        step = leading.lead.step if leading.lead is not None else None
        return world.clock.now_s > KILLED_S and step is not None and step.phase is StepPhase.WORKING

    assert world.clock.run(amid_a_step, KILLED_S + 10.0)
    interventions.freeze(world, trainer, 30.0) if how == "freeze" else interventions.suspend(world, trainer, 30.0)
    assert check(world, 0) == list(range(LONG.settings.steps))
    assert world.counts["gone"] > 5
