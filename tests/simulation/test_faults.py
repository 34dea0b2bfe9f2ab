"""Hard faults at chosen and at random moments: no step is lost, nothing counts twice, nothing alive is redone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from swarmflow.core.protocol.types import Plan, ProcessId, tied_ends
from swarmflow.simulator import interventions
from swarmflow.simulator.faults import Churn, FuzzSwarm, finish, kill_in_phase, leader_phase, peers_of, stage_of
from swarmflow.simulator.fuzz import Hunt, main, play
from swarmflow.simulator.invariants import InvariantViolated
from swarmflow.simulator.world import Settings, World
from tests.further import found, seeds
from tests.simulation.samples import SETTINGS, SETTLED_S, SWARM, parameters

THREE_EACH = replace(SWARM, peers=9)
ALL_FAULTS_BUT_JOIN = (
    "kill",
    "kill_neighbours",
    "kill_stage",
    "kill_at_edge",
    "restart",
    "kill_trainer",
    "drain_trainer",
    "drain",
    "drain_storm",
    "cut",
    "freeze",
    "lead_again",
)


def one_of_each(world: World, stages: tuple[int, ...]) -> list[ProcessId]:
    return [peers_of(world, stage)[0] for stage in stages]


@pytest.mark.parametrize("stages", [(0, 1), (1, 2), (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("seed", seeds(1, 4))
def test_deaths_on_several_stages_at_once_cost_no_step(seed: int, stages: tuple[int, ...]) -> None:
    world = SWARM.start(seed)
    kill_in_phase(world, "working", lambda w: one_of_each(w, stages), SETTLED_S, delay_s=world.random.uniform(0.0, 1.5))
    finish(world)
    assert world.counts["gone"] == len(stages)
    assert world.counts["steps_restarted"] == 0, "\n".join(world.log)
    assert world.counts["rollbacks"] == 0


@pytest.mark.parametrize("phase", ["complete", "preparing", "prepared", "committing"])
@pytest.mark.parametrize("seed", seeds(1, 5))
def test_deaths_at_a_steps_end_cost_no_step(seed: int, phase: str) -> None:
    world = THREE_EACH.start(seed)
    victims = tuple(world.random.sample(range(3), 2))
    kill_in_phase(world, phase, lambda w: one_of_each(w, victims), SETTLED_S, world.random.uniform(0.0, 0.05), 60.0)
    finish(world)
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0, "\n".join(world.log)
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(2, 8))
def test_a_death_redoes_only_the_dead_peers_work(seed: int) -> None:
    world = SWARM.start(seed)
    stage = seed % 3
    done_of_the_dead: list[int] = []

    def pick(world: World) -> list[ProcessId]:
        [victim] = one_of_each(world, (stage,))
        host = world.hosts[victim]
        assert host.device.weights is not None
        lead = world.trainers[world.leader].lead if world.leader is not None else None
        assert lead is not None
        updates = host.machine.epoch < lead.epoch  # then it has what it did in the step before, which is committed
        done_of_the_dead.append(0 if updates else sum(host.device.weights.present.values()))
        return [victim]

    kill_in_phase(world, "working", pick, SETTLED_S, world.random.uniform(0.0, 1.2))
    finish(world)
    assert world.counts["gone"] == 1
    assert world.counts["backward"] == 6 * 8 * 3 + done_of_the_dead[0]
    sent_again = world.counts["retries:gone"] + world.counts["retries:lost"]  # by whether its neighbour was told first
    assert world.counts["forward"] <= 6 * 8 * 2 + sent_again


@pytest.mark.parametrize("seed", seeds(2, 3))
def test_a_death_while_loading_is_nothing(seed: int) -> None:
    world = SWARM.start(seed)
    world.clock.after(0.06, lambda: world.kill(world.alive_peers()[seed]))
    finish(world)
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == 0


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_who_loads_does_not_wait_for_a_frozen_donor_longer_than_the_swarm_does(seed: int) -> None:
    world = replace(SWARM, settings=replace(SETTINGS, steps=40)).start(seed)
    world.clock.run(lambda: world.clock.now_s > SETTLED_S, SETTLED_S + 1.0)
    [frozen] = one_of_each(world, (0,))
    interventions.freeze(world, frozen, 100.0)
    newcomer = world.start_peer("n", wish=0)
    assert newcomer is not None
    assert world.clock.run(lambda: stage_of(world, newcomer) == 0, SETTLED_S + 16.0), "\n".join(world.log)
    assert world.hosts[frozen].frozen_until_s > world.clock.now_s
    finish(world)


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_trainer_that_dies_takes_no_microbatch_along(seed: int) -> None:
    world = replace(SWARM, trainers=3).start(seed)
    kill_in_phase(world, "working", lambda w: w.directory.followers()[:1], SETTLED_S, world.random.uniform(0.0, 1.0))
    finish(world)
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_stage_that_is_lost_goes_back_to_a_committed_version(seed: int) -> None:
    world = SWARM.start(seed)
    kill_in_phase(world, "working", lambda w: peers_of(w, seed % 3), SETTLED_S + 4.0)
    finish(world)
    assert world.counts["steps_restarted"] == 1
    for version, stages in world.disks.durable.items():
        assert stages == {stage: parameters(stage, version) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_a_stage_that_is_lost_while_others_load_it_goes_back(seed: int) -> None:
    """Newcomers that cannot load what nobody has are no reason to wait for them."""
    world = replace(SWARM, settings=replace(SETTINGS, checkpoint_every=0)).start(seed)
    kill_in_phase(world, "working", lambda w: peers_of(w, 1), SETTLED_S + 4.0)
    for number in range(4):
        world.clock.after(SETTLED_S + 4.0 + 0.3 * number, partial(world.start_peer, f"n{number}", wish=1))
    finish(world, limit_s=200.0)
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_the_last_stage_lost_while_the_model_is_written_costs_steps_but_not_the_run(seed: int) -> None:
    settings = replace(SETTINGS, load_s=(1.0, 2.0), broken_s=(0.5, 2.0))
    world = FuzzSwarm(settings).start(seed)

    def strike() -> None:
        if leader_phase(world) == "" and any("writing the model" in line for line in world.log):
            for victim in peers_of(world, 2):
                world.kill(victim)
            world.start_peer("late")
        else:
            world.clock.after(0.05, strike)

    world.clock.after(SETTLED_S, strike)
    finish(world)
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(1, 4))
def test_draining_costs_nothing(seed: int) -> None:
    world = THREE_EACH.start(seed)

    def storm() -> None:
        for stage in range(3):
            for leaver in peers_of(world, stage)[:2]:
                world.drain(leaver)

    world.clock.after(SETTLED_S + world.random.uniform(0.0, 3.0), storm)
    finish(world)
    assert world.results[-1].peers == (1, 1, 1)
    assert world.counts["steps_restarted"] == world.counts["rollbacks"] == world.counts["gone"] == 0
    assert world.counts["backward"] == 6 * 8 * 3


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_a_stage_may_drain_to_nothing_and_come_back(seed: int) -> None:
    world = SWARM.start(seed)

    def empty() -> None:
        for leaver in peers_of(world, 1):
            world.drain(leaver)

    world.clock.after(SETTLED_S, empty)
    world.clock.after(SETTLED_S + 60.0, lambda: world.start_peer("late"))
    finish(world)
    assert world.counts["rollbacks"] == 0, "its state was brought to safety first"
    assert world.counts["backward"] == 6 * 8 * 3


@pytest.mark.parametrize(
    ("plan", "peers", "capacity"),
    [
        (Plan(1, 8), 3, 4),
        (Plan(5, 8, tied_ends(5)), 10, 4),
        (Plan(3, 8, tied_ends(3)), 6, 1),
        (Plan(3, 32, tied_ends(3)), 40, 2),
        (Plan(2, 1), 2, 1),
    ],
)
@pytest.mark.parametrize("seed", seeds(1, 3))
def test_other_shapes_survive_churn(seed: int, plan: Plan, peers: int, capacity: int) -> None:
    settings = Settings(plan, steps=4, capacity=capacity, checkpoint_every=1)
    world = FuzzSwarm(settings, peers).start(seed)
    Churn(world, ("kill", "drain", "kill_at_edge", "join", "join"), until_s=30.0, helpers=2 * plan.stages).unleash()
    finish(world)
    assert world.disks.durable[4] == {stage: parameters(stage, 4, plan.microbatches) for stage in range(plan.stages)}


@pytest.mark.parametrize("seed", seeds(2, 10))
def test_every_kind_of_fault_at_random_moments(seed: int) -> None:
    world = SWARM.start(seed)
    churn = Churn(world, (*ALL_FAULTS_BUT_JOIN, *["join"] * 8), gap_s=1.5)
    churn.unleash()
    finish(world)
    assert churn.happened.total() > 0
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


FOUND = (  # by `make fuzz`, with the faults that there were then
    106706481,  # gradients went through a peer that had not heard of the one they were for
    928319,  # a newcomer entered the step next to a stage that nobody served, and that a peer had just been moved to
    925715,  # who followed a new leader too late was not told that it was taken for dead
)


@pytest.mark.parametrize("seed", [*seeds(2, 8), *FOUND])
def test_a_random_swarm_under_the_earlier_faults(seed: int) -> None:
    world = play(seed, Hunt(earlier=True))
    assert world.settings.steps in world.disks.durable


FOUND_SINCE = (
    1001345,  # the leader died with the only message that said that a hop could not be repaired
    1003966,  # a leader of the other side had a member load another state amid the step, and others waited for its work
    1505524,  # the OpenStep was lost on a link whose sender had begun to count its messages anew
    1506736,  # a peer came back and applied a sum in which a bit had flipped, after a commit without it
    1720422,  # the only peer of its stage that the next leader found had a flipped bit in its sum
    1450070,  # a slot reserved for an attempt that was over kept out the later ones
    2014289,  # a newcomer entered, for a dead peer, a ballot that was prepared before the leader took over
    2401289,  # the only peer that may have applied a commit died with its leader, and the next one began the step anew
    93000950,  # a peer that a lost leader had sent back to an earlier version was taken for one with the last
    92006454,  # newcomers loaded a stage from its only peer, in whose memory a bit had flipped
    1428630,  # the run ended while what its leader sent to another trainer was lost, which thus keeps its bytes
)


@pytest.mark.parametrize("seed", [*seeds(2, 13), *found(FOUND_SINCE, 2)])
def test_a_random_swarm_under_random_faults(seed: int) -> None:
    world = play(seed)
    assert world.settings.steps in world.disks.durable


FOUND_DELAYED = (
    94102032,  # peers that had written their stage died before they knew of the version, and nobody asked them for it
    95100178,  # who came in for the last peer of a stage did not know that the next step had begun, nor answer for it
)


@pytest.mark.parametrize("seed", [*seeds(2, 10), *found(FOUND_DELAYED, 1)])
def test_a_random_swarm_under_random_faults_whose_updates_are_delayed(seed: int) -> None:
    world = play(seed, Hunt(delay=1))
    assert world.settings.steps in world.disks.durable


@pytest.mark.parametrize("seed", seeds(2, 40))
def test_nothing_is_lost_where_stages_share_weights(seed: int) -> None:
    hunt = Hunt(shared=True)
    world = play(seed, hunt)
    assert world.settings.steps in world.disks.durable
    assert str(hunt) == " --shared"


@pytest.mark.exhaustive
def test_who_starts_what_the_leader_waits_for_looks_again_when_it_waits_for_something_else() -> None:
    """All trainers' disks were rolled back: it waits for a version in memory, then for one on the disks of peers."""
    world = play(92100315, Hunt(delay=1))
    text = "\n".join(world.log)
    assert 0 < text.find("in memory, 40 s at most") < text.find("of which nobody here holds stage")
    assert world.settings.steps in world.disks.durable


def test_the_command_says_how_many_seeds_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["2", "--first", "13"]) == 0
    assert capsys.readouterr().out.startswith("2 seeds from 13 on: nothing lost")


def test_a_swarm_that_stands_still_is_reported() -> None:
    world = replace(SWARM, peers=2).start(0)
    with pytest.raises(InvariantViolated, match="seed 0: it stands still"):
        finish(world, limit_s=30.0)


@pytest.mark.parametrize("seed", seeds(2, 4))
def test_messages_lost_one_way_on_a_connection_that_stays_hold_nothing_up(seed: int) -> None:
    world = SWARM.start(seed)
    churn = Churn(world, ("mute",), gap_s=1.0, until_s=40.0)
    churn.unleash()
    finish(world, limit_s=600.0)
    assert churn.happened["mute"] > 10
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


@pytest.mark.parametrize("seed", seeds(2, 2))
def test_what_peers_lose_between_them_is_said_again_and_nobody_is_taken_for_dead(seed: int) -> None:
    world = SWARM.start(seed)

    def mute() -> None:
        for sender in world.alive_peers():
            world.transport.mute(sender, world.random.choice([p for p in world.alive_peers() if p != sender]), 5.0)

    world.clock.after(SETTLED_S, mute)
    finish(world, limit_s=600.0)
    assert world.counts["gone"] == world.counts["steps_restarted"] == 0
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


@pytest.mark.parametrize("seconds", [0.3, 4.0, 20.0])
@pytest.mark.parametrize("to_leader", [True, False], ids=["to_leader", "from_leader"])
def test_who_loses_words_of_or_to_the_leader_joins_again(to_leader: bool, seconds: float) -> None:
    world = SWARM.start(3)

    def mute() -> None:
        [leader, peer] = [world.leader, peers_of(world, 1)[0]]
        assert leader is not None
        world.transport.mute(*((peer, leader) if to_leader else (leader, peer)), seconds=seconds)

    world.clock.after(SETTLED_S, mute)
    finish(world, limit_s=300.0)
    assert world.counts["gone"] <= 1
    assert world.counts["rollbacks"] == 0
    assert world.disks.durable[6] == {stage: parameters(stage, 6) for stage in range(3)}


def test_an_undisturbed_swarm_misses_no_word() -> None:
    world = replace(SWARM, trainers=3).start(0)
    finish(world)
    assert world.counts["gone"] == 0
    assert not any("loses messages" in line for line in world.log)


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="no such fault: \\['flood'\\]"):
        Churn(SWARM.start(0), ("flood",))
