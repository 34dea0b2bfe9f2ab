"""Whole scenarios: what they give can be worked out by hand where they are simple, and is the same every time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from swarmflow.errors import ConfigError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.world import World
from tests.further import seeds
from tests.simulation.samples import CHURN, PIPELINE, SETTINGS, SWARM, scenario, simulated


def test_a_pipeline_takes_what_can_be_worked_out_by_hand(tmp_path: Path) -> None:
    _, report = simulated(tmp_path, PIPELINE.replace("microbatches = 4", "microbatches = 1"))
    assert (report.outcome, report.violations) == ("finished", ())
    # Through three stages and back: three forwards, three backwards, of two of which the half that nobody waits for is
    # computed later, four ways of 0.1 s + 1 MB at 80 Mb/s between the stages, one more from the trainer; and the words
    # around it, of 0.1 s each, of which a step has ten at most.
    for row in report.measured:
        assert 7.0 + 4 * 0.2 + 0.1 <= row.seconds <= 7.0 + 4 * 0.2 + 0.1 + 1.0
        assert row.minutes_a_microbatch == pytest.approx(row.seconds / 60)
        assert row.useful_s == pytest.approx(9.0)
        assert (row.wasted_s, row.lost_s) == (0.0, 0.0)
        assert row.communication_s == pytest.approx(4 * 0.2 + 0.1, abs=0.01)
        assert row.utilisation == pytest.approx(9.0 / 3 / row.seconds)
    assert {device.stage for device in report.devices} == {0, 1, 2}
    assert [device.busy_s for device in report.devices] == pytest.approx([9.0, 9.0, 9.0])


def test_more_microbatches_fill_the_pipeline(tmp_path: Path) -> None:
    _, report = simulated(tmp_path, PIPELINE)
    seconds, _ = report.over(lambda row: row.seconds)
    assert 4 * 3.0 < seconds < 4 * (9.0 + 0.8)
    assert report.over(lambda row: row.utilisation)[0] > 0.5
    assert report.messages["Forward"] == 3 * 4 * 3
    assert report.wire_bytes["Backward"] >= 3 * 4 * 2 * 1_000_000


def test_a_faster_network_and_faster_peers_give_more(tmp_path: Path) -> None:
    def seconds(text: str) -> float:
        return simulated(tmp_path, text)[1].over(lambda row: row.seconds)[0]

    usual = seconds(PIPELINE)
    assert seconds(PIPELINE.replace("up_mbps = 80", "up_mbps = 800")) < usual
    assert seconds(PIPELINE.replace("backward_s = 2.0", "backward_s = 1.0")) < usual
    assert seconds(PIPELINE + "break_s = 5.0\n") == usual, "nothing dies"
    assert seconds(PIPELINE.replace("activation_bytes", "codec_ratio = 4.0\nactivation_bytes")) < usual


def test_what_is_learnt_again_after_going_back_is_useful_once(tmp_path: Path) -> None:
    """Stage 0 loses its only peer, in the second step or later: the run begins again."""
    (tmp_path / "churn.csv").write_text("60,leave,0\n61,join,0\n", encoding="utf-8")
    text = PIPELINE + "[churn]\ntrace = 'churn.csv'\nspare_last = false\n"
    simulation, report = simulated(tmp_path, text)
    assert (report.outcome, report.counts["rollbacks"]) == ("finished", 1)
    meter, steps, hops_s = simulation.world.meter, len(report.iterations), 3.0 * 4 * 3
    assert min(row.useful_s for row in report.iterations) == pytest.approx(hops_s)
    assert meter.useful_s == pytest.approx(steps * hops_s)
    assert meter.wasted_s > hops_s
    computed_s = sum(simulation.world.life(process).busy_s for process in simulation.world.peers())
    assert meter.useful_s + meter.twice_s + meter.wasted_s + meter.lost_s == pytest.approx(computed_s)


def test_peers_with_memory_for_one_graph_are_seldom_asked_for_a_slot_and_seldom_full(tmp_path: Path) -> None:
    """Where a question takes longer than a pass."""
    text = PIPELINE.replace("microbatches = 4", "microbatches = 24").replace("count = 3", "count = 12")
    text = text.replace("forward_s = 1.0", "forward_s = 0.02").replace("backward_s = 2.0", "backward_s = 0.04")
    text = text.replace("capacity = 4", "capacity = 1").replace("up_mbps = 80", "up_mbps = 800")
    _, report = simulated(tmp_path, text)
    assert report.outcome == "finished"
    needed = len(report.iterations) * 3 * 24
    assert report.messages["ReserveSlot"] < needed / 2
    assert report.messages["Forward"] < 1.2 * needed
    assert report.over(lambda row: row.seconds)[0] < 3.0, "with a question for each it takes 4.7 s"


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_churn_costs_time_and_no_microbatch(tmp_path: Path, seed: int) -> None:
    simulation, report = simulated(tmp_path, CHURN, seed=seed)
    assert (report.outcome, report.violations) == ("finished", ())
    assert len(report.measured) == 8
    assert {row.microbatches for row in report.iterations} == {12}
    assert simulation.churn.deaths > 0
    assert simulation.churn.joins > 0
    calm = simulated(tmp_path, CHURN.split("[churn]")[0], seed=seed)[1]
    assert calm.waste()[:2] == (0.0, 0.0)
    assert report.waste()[1] > 0.0
    meter = simulation.world.meter
    useful_s = sum(row.useful_s for row in report.iterations)
    assert meter.useful_s == pytest.approx(useful_s)


def test_peers_come_and_go_by_rate_and_by_trace(tmp_path: Path) -> None:
    (tmp_path / "churn.csv").write_text("20,leave,0\n30,join\n31,join\n40,leave\n", encoding="utf-8")
    calm = CHURN.split("[churn]")[0].replace("iterations = 8", "iterations = 15")
    simulation, report = simulated(tmp_path, calm + "[churn]\ntrace = 'churn.csv'\n")
    assert report.outcome == "finished"
    assert (simulation.churn.deaths, simulation.churn.joins) == (2, 2)
    assert [name for name in ("p0", "p12") if name in {p.name for p in simulation.world.alive_peers()}]
    simulation, report = simulated(tmp_path, calm + "[churn]\nleaves_per_hour = 60\nabsence_s = 5\n")
    assert report.outcome == "finished"
    assert simulation.churn.deaths > 5
    assert simulation.churn.joins >= simulation.churn.deaths - 2


def test_peers_leave_at_their_rate_however_many_others_are_persistent(tmp_path: Path) -> None:
    """In ten hours, of which a microbatch takes one, each of ten leaves ten times."""
    kind = "[[peers]]\nforward_s = 1200\ncount = "
    text = "[run]\nduration_s = 36_000\n[churn]\nleaves_per_hour = 1\nabsence_s = 1\n"
    simulation, _ = simulated(tmp_path, f"{text}{kind}10\n{kind}20\npersistent = true\n", "swarm")
    assert simulation.churn.deaths == pytest.approx(10 * 10, rel=0.3)


@pytest.mark.extended
def test_those_who_are_persistent_stay(tmp_path: Path) -> None:
    (tmp_path / "churn.csv").write_text("20,leave\n25,leave\n30,leave,1\n31,leave\n32,leave\n", encoding="utf-8")
    kinds = "count = 4\npersistent = true\nspread = true\nforward_s = 0.1\n[[peers]]\ncount = 4"
    text = CHURN.replace("count = 12", kinds)
    for churn in ("leave_chance = 0.6\njoin_chance = 0.1", "leaves_per_hour = 400", "trace = 'churn.csv'"):
        simulation, report = simulated(tmp_path, text.split("[churn]")[0] + f"[churn]\n{churn}\nspare_last = false\n")
        assert report.outcome == "finished"
        assert simulation.churn.deaths > 2
        lives = [simulation.world.life(process) for process in simulation.world.peers()]
        first = [life for life in lives if life.process.name in ("p0", "p1", "p2", "p3")]
        assert [life.alive for life in first] == [True] * 4


def test_a_machine_that_is_gone_without_a_word_is_found_by_its_silence(tmp_path: Path) -> None:
    (tmp_path / "churn.csv").write_text("12,leave\n", encoding="utf-8")
    text = CHURN.split("[churn]")[0] + "break_s = BREAK\n[churn]\ntrace = 'churn.csv'\n"
    notified, silent = (simulated(tmp_path, text.replace("BREAK", break_s))[1] for break_s in ("0.1", "0"))
    assert notified.outcome == silent.outcome == "finished"
    assert notified.counts["gone"] == silent.counts["gone"] == 1
    assert silent.virtual_s > notified.virtual_s


def test_a_swarm_that_cannot_go_on_says_what_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "churn.csv").write_text("12,leave,1\n", encoding="utf-8")
    text = PIPELINE.replace("iterations = 3", "iterations = 3\nlimit_s = 500") + "[churn]\ntrace = 'churn.csv'\n"
    _, report = simulated(tmp_path, text + "spare_last = false\n")
    assert report.outcome == "stands still: a peer for stage 1"
    assert len(report.iterations) < 4
    _, report = simulated(tmp_path, text)
    assert report.outcome == "finished", "the last peer of a stage is spared"


MEMORY = """
[run]
iterations = 2
[model]
stages = 2
microbatches = 4
stage_memory_bytes = 100
microbatch_memory_bytes = 10
[[peers]]
count = 8
forward_s = 0.1
memory_bytes = { choice = [50, 130] }
"""


@pytest.mark.parametrize("policy", ["swarmflow", "gpipe", "dtfm"])
def test_peers_without_memory_for_a_stage_take_no_part(tmp_path: Path, policy: str) -> None:
    (tmp_path / "churn.csv").write_text("".join(f"0.{time},join\n" for time in range(1, 9)), encoding="utf-8")
    text = MEMORY.replace("[model]", "duration_s = 30\n[model]") + "[churn]\ntrace = 'churn.csv'\n"
    simulation, report = simulated(tmp_path, text, policy)
    poor = {name for name, profile in simulation._hardware.profiles.items() if profile.capacities[0] == 0}
    assert 0 < len(poor) < len(simulation._hardware.profiles)
    assert any(int(name[1:]) >= 8 for name in poor)
    assert {process.name for process in simulation.world.peers()}.isdisjoint(poor)
    assert {simulation._hardware.profiles[process.name].capacities[0] for process in simulation.world.peers()} == {3}
    assert report.outcome == "finished"
    first = len([name for name in poor if int(name[1:]) < 8])
    assert report.notes == (f"{first} of 8 peers have no memory for the 110 bytes of a stage with one microbatch",)


def test_a_swarm_of_which_too_few_have_the_memory_cannot_begin(tmp_path: Path) -> None:
    text = MEMORY.replace("130] }", "50, 50, 130] }").replace("count = 8", "count = 2")
    _, report = simulated(tmp_path, text)
    assert report.outcome == "cannot begin: 2 stages, 0 peers"
    assert (report.iterations, len(report.notes)) == ((), 1)


def test_a_duration_ends_it(tmp_path: Path) -> None:
    _, report = simulated(tmp_path, PIPELINE.replace("iterations = 3", "iterations = 3\nduration_s = 30"))
    assert report.outcome == "duration over"
    assert report.virtual_s <= 30


def test_the_same_seed_gives_the_same_report_and_another_seed_another(tmp_path: Path) -> None:
    brief = CHURN.replace("iterations = 8", "iterations = 2")
    first, again, other = (simulated(tmp_path, brief, seed=seed)[1].as_json() for seed in (1, 1, 2))
    assert first == again
    assert first["iterations"] != other["iterations"]


def test_a_broken_promise_ends_the_simulation(tmp_path: Path) -> None:
    simulation = Simulation(scenario(tmp_path, PIPELINE), 0, "swarmflow")

    def forge() -> None:
        assert isinstance(simulation.world, World)
        peer = simulation.world.alive_peers()[0]
        weights = simulation.world.hosts[peer].device.weights
        assert weights is not None
        weights.present[0] += 1

    simulation.world.clock.after(15.0, forge)
    report = simulation.run()
    assert report.outcome == "violated"
    assert "learnt" in report.violations[0]


def test_an_unknown_policy_is_one_clear_line(tmp_path: Path) -> None:
    found = scenario(tmp_path, PIPELINE)
    with pytest.raises(ConfigError, match=r"^unknown policy 'best'; allowed: swarmflow, swarm, "):
        Simulation(found, 0, "best")


def test_the_first_step_waits_for_the_peers_that_are_to_begin_it() -> None:
    world = dataclasses.replace(SWARM, settings=dataclasses.replace(SETTINGS, peers_first=6)).start(3)
    assert world.clock.run(lambda: bool(world.results), 200.0)
    assert sum(world.results[0].peers) == 6


def test_idle_peers_without_memory_for_graphs_do_the_forward_pass_twice(tmp_path: Path) -> None:
    """The network is what is slow here: with room for one graph alone a peer would wait for its gradient."""
    narrow = PIPELINE.replace("microbatches = 4", "microbatches = 8").replace("capacity = 4", "capacity = 1")
    slow = narrow.replace("backward_s = 2.0", "backward_s = 0.02").replace("forward_s = 1.0", "forward_s = 0.01")
    assert slow.count("0.0") == 2
    _, report = simulated(tmp_path, slow)
    assert (report.outcome, report.violations) == ("finished", ())
    assert (report.waste()[0], report.waste()[2] > 0) == (0.0, True)


@pytest.mark.parametrize("leader", ["found", "sought"])
def test_a_process_that_runs_or_looks_for_a_leader_is_not_started_a_second_time(leader: str) -> None:
    """Its folder is locked: two lives of one process would put each other out without end."""
    world = World(SETTINGS, 0)
    if leader == "found":
        world.start_trainer("t0", lead=True)
    world.start_peer("p0")
    world.start_peer("p0")
    world.start_trainer("t0", lead=True)
    world.clock.run(lambda: False, 10.0)
    alive = [process.name for process, host in world.hosts.items() if host.alive]
    assert sorted(alive) == ["p0", "t0"]
    assert world.counts["gone"] == 0
