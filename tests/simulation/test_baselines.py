"""The baselines: what they take is worked out by hand where it can be, and what they promise holds under churn."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from swarmflow.baselines.negotiation import TRAINER
from swarmflow.baselines.peer import BaselinePeer
from swarmflow.baselines.world import BaselineWorld
from swarmflow.forecast.simulation import Simulation
from swarmflow.policies.flows import link_s
from swarmflow.simulator.scenario_hardware import ScenarioHardware
from tests.further import more, more_of, seeds
from tests.simulation import samples
from tests.simulation.samples import scenario, simulated

PIPELINE = samples.PIPELINE.replace("microbatches = 4", "microbatches = 1")
CHURN = samples.CHURN.replace("leave_chance = 0.2", "leave_chance = 0.3")
CHURN = CHURN.replace("iterations = 8", "iterations = 6\nlimit_s = 20000")
NEAR = [{0, 3}, {3, 4}, {0, 4}, {1, 2}, {2, 5}, {1, 5}]
ROUTED = ("swarm", "swarm-restart", "gwtf")
ALL = (*ROUTED, "gpipe", "dtfm")


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize(("split", "waited_s"), [("false", 9.0), ("true", 7.0)])
def test_a_pipeline_takes_what_can_be_worked_out_by_hand(
    tmp_path: Path, policy: str, split: str, waited_s: float
) -> None:
    _, report = simulated(tmp_path, PIPELINE.replace("[model]", f"split_backward = {split}\n[model]"), policy)
    assert (report.outcome, report.violations) == ("finished", ())
    # Three forwards and backwards, of which the gradients of the parameters of two stages, a second each, are computed
    # beside if they come last; four ways of 0.1 s + 1 MB at 80 Mb/s; three times there and back to ask; tokens out
    # and the word of the last gradient back to the trainer; the words that begin the update, end it, and open the next.
    for row in report.measured:
        assert row.seconds == pytest.approx(waited_s + 4 * 0.2 + 3 * 0.2 + 2 * 0.1 + 0.1 + 0.1 + 0.1, abs=0.11)
        assert row.useful_s == pytest.approx(9.0)
        assert (row.wasted_s, row.lost_s) == (0.0, 0.0)
        assert row.communication_s == pytest.approx(4 * 0.2, abs=0.11)
    assert {device.stage for device in report.devices} == {0, 1, 2}
    assert report.messages["Forward"] == report.messages["Backward"] == 3 * 3


def test_an_all_reduce_moves_the_bytes_of_a_butterfly(tmp_path: Path) -> None:
    text = PIPELINE.replace("count = 3", "count = 6").replace("parameters = 1000", "parameters = 1_000_000")
    _, report = simulated(tmp_path, text, "swarm")
    plain = sum(report.wire_bytes[kind] for kind in ("Part", "Sum"))
    # Two peers a stage: each sends 2 (n-1)/n = 1 times the 4 MB, three iterations, six peers.
    assert plain == pytest.approx(3 * 6 * 4_000_000, rel=0.001)
    tied = simulated(tmp_path, text.replace("token_bytes", "tied_parameters = 500_000\ntoken_bytes"), "swarm")[1]
    more = sum(tied.wire_bytes[kind] for kind in ("Part", "Sum")) - plain
    # The four of the first and the last stage: 2 (n-1)/n of 2 MB each.
    assert more == pytest.approx(3 * 4 * 1.5 * 2_000_000, rel=0.001)


@pytest.mark.parametrize("policy", ALL)
@pytest.mark.parametrize("seed", seeds(1, 2))
@pytest.mark.parametrize(("break_s", "spare"), [(0.0, "false"), *more_of((0.5, "true"), (0.5, "false"), (0.0, "true"))])
def test_every_microbatch_is_learnt_under_churn(
    tmp_path: Path, policy: str, break_s: float, spare: str, seed: int
) -> None:
    text = CHURN.replace("[churn]", f"break_s = {break_s}\n[churn]\nspare_last = {spare}")
    simulation, report = simulated(tmp_path, text, policy, seed)
    assert (report.outcome, report.violations) == ("finished", ())
    assert simulation.churn.deaths > 5
    assert report.counts["retries"] > 0
    assert report.waste()[1] > 0
    assert all(0 <= row.unlearnt < row.microbatches for row in report.iterations)
    computed_s = sum(simulation.world.life(process).busy_s for process in simulation.world.peers())
    meter = simulation.world.meter
    assert meter.useful_s + meter.twice_s + meter.wasted_s + meter.lost_s == pytest.approx(computed_s, rel=0.02)


@pytest.mark.parametrize("policy", ALL)
def test_what_has_no_room_for_its_graph_is_computed_twice(tmp_path: Path, policy: str) -> None:
    """Three stages of one peer with memory for one graph, and links that take far longer than a pass."""
    text = PIPELINE.replace("capacity = 4", "capacity = 1").replace("microbatches = 1", "microbatches = 4")
    text = text.replace("forward_s = 1.0\nbackward_s = 2.0", "forward_s = 0.01\nbackward_s = 0.02")
    _, report = simulated(tmp_path, text, policy)
    _, without = simulated(tmp_path, text.replace("[model]", "recompute = false\n[model]"), policy)
    assert (report.outcome, without.outcome) == ("finished", "finished")
    # All but the first one of four, at the two stages that wait for gradients.
    assert [row.twice_s for row in report.measured] == pytest.approx([2 * 3 * 0.01] * 3)
    assert [row.twice_s for row in without.measured] == [0.0] * 3
    for row in (*report.measured, *without.measured):
        assert row.useful_s == pytest.approx(4 * 3 * 0.03)
        assert row.wasted_s == 0.0
    assert report.over(lambda row: row.seconds)[0] < 0.6 * without.over(lambda row: row.seconds)[0]


def test_a_restart_wastes_what_a_resend_keeps(tmp_path: Path) -> None:
    text = PIPELINE.replace("count = 3", "count = 6").replace("microbatches = 1", "microbatches = 4") + "[churn]\n"
    text = text.replace("iterations = 3", "iterations = 1")
    for policy, restarted in (("swarm", False), ("swarm-restart", True)):
        found = []
        for second in range(4, 24, 5):
            (tmp_path / "churn.csv").write_text(f"{second},leave,1\n", encoding="utf-8")
            simulation, report = simulated(tmp_path, text + "trace = 'churn.csv'\n", policy)
            assert report.outcome == "finished"
            found.append((simulation.world.meter.wasted_s, report.counts.get("microbatches_restarted", 0)))
        assert any(count > 0 for _, count in found) == restarted
        assert all(wasted_s == 0 for wasted_s, _ in found) != restarted


@pytest.mark.parametrize("offset_s", [4.0, 6.0, 8.0])
def test_a_restart_comes_when_the_gradient_was_out_as_long_as_ever(tmp_path: Path, offset_s: float) -> None:
    stages = "".join(f"[[peers]]\nstage = {stage}\ncount = {count}\n" for stage, count in enumerate((1, 2, 1)))
    each = "forward_s = 1.0\nbackward_s = 2.0\ncapacity = 4\nup_mbps = 80\n"
    head, rest = PIPELINE.split("[[peers]]")
    text = head + stages.replace("[[peers]]\n", f"[[peers]]\n{each}") + "[network]" + rest.split("[network]")[1]
    text = text.replace("[model]", "split_backward = false\n[model]")

    def seconds(struck: int) -> tuple[float, float]:
        """How long an iteration takes when a peer of stage 1 dies that has handed on what it had; and undisturbed."""
        simulation = Simulation(scenario(tmp_path, text), 0, "swarm-restart")
        world = simulation.world
        assert isinstance(world, BaselineWorld)

        def strike() -> None:
            machines = {process: world.processes[process].machine for process in world.alive_peers()}
            [holder] = [p for p, m in machines.items() if isinstance(m, BaselinePeer) and m.stage == 1 and m.slots]
            world.kill(holder)

        usual = simulated(tmp_path, text, "swarm-restart")[1].iterations
        world.clock.after(usual[struck].end_s - usual[struck].seconds + offset_s, strike)
        report = simulation.run()
        assert (report.outcome, report.counts["microbatches_restarted"]) == ("finished", 1)
        return report.iterations[struck].seconds, usual[struck].seconds

    # Undisturbed: 10.6 s until the trainer has the last word, two words with the leader, two for the all-reduce of the
    # two peers of stage 1. Nothing is measured in the first iteration: 1 s until the connection breaks, and a word.
    found_s, _ = seconds(0)
    assert found_s == pytest.approx(offset_s + 1.0 + 0.1 + 10.8, abs=0.05)
    # Later stage 0, which had handed on at 1.5 s, waits until 8.5 s, when the gradient would have come, if not longer
    # for the connection to break.
    found_s, usual_s = seconds(1)
    assert usual_s == pytest.approx(11.0, abs=0.05)
    assert found_s == pytest.approx(max(8.5, offset_s + 1.0) + 0.1 + 10.8, abs=0.05)


@pytest.mark.parametrize("policy", ["swarm", "swarmflow"])
def test_gradients_that_died_with_a_peer_and_count_as_learnt_are_told(tmp_path: Path, policy: str) -> None:
    """Either peer of stage 2 dies when it has sent its last gradient: both together have had all four microbatches."""
    text = PIPELINE.replace("count = 3", "count = 6").replace("microbatches = 1", "microbatches = 4")
    text += "[churn]\ntrace = 'churn.csv'\n"
    (tmp_path / "churn.csv").write_text("", encoding="utf-8")
    usual = simulated(tmp_path, text, policy)[1].iterations[1]
    rows = []
    for peer in (2, 5):
        (tmp_path / "churn.csv").write_text(f"{usual.end_s - 1.0},leave,{peer}\n", encoding="utf-8")
        simulation, report = simulated(tmp_path, text, policy)
        assert [life.stage for life in map(simulation.world.life, simulation.world.peers()) if life.died_s < 1e9] == [2]
        assert {row.unlearnt for row in report.iterations if not row.deaths} == {0.0}
        rows += [row for row in report.iterations if row.deaths]
    assert sum(row.unlearnt for row in rows) == pytest.approx(4 / 3 if policy == "swarm" else 0.0)
    for row in rows:
        assert row.learnt_seconds == pytest.approx(row.seconds / (1 - row.unlearnt / 4))


def test_what_a_peer_has_learnt_is_lost_when_it_is_moved_amid_an_iteration(tmp_path: Path) -> None:
    """Stage 1 loses its only peer, which has done three microbatches, and one of stage 0, which has done one, moves."""
    (tmp_path / "churn.csv").write_text("10,leave,1\n", encoding="utf-8")
    text = PIPELINE.replace("microbatches = 1", "microbatches = 8").replace("stages = 3", "stages = 2")
    text = text.replace("spread = true\n", "").replace("up_mbps = 80\n", "").split("[network]")[0]
    text += "[churn]\ntrace = 'churn.csv'\nspare_last = false\n"
    simulation, report = simulated(tmp_path, text, "swarm")
    meter, row = simulation.world.meter, report.iterations[0]
    assert report.counts["moves"] == 1
    hops, learnt = 8 * 2, 8 * 2 - round(2 * row.unlearnt)
    assert row.useful_s == pytest.approx(3.0 * learnt), "three seconds for each hop"
    assert hops - learnt == 3 + 1, "of the dead peer, and of the other one"
    assert meter.unlearnt == row.unlearnt, "in no later iteration"


@pytest.mark.parametrize("policy", ["swarm", "gwtf", *more("swarm-restart", "gpipe", "dtfm")])
def test_the_same_seed_gives_the_same_trace(tmp_path: Path, policy: str) -> None:
    def traced(seed: int) -> list[str]:
        lines: list[str] = []
        text = CHURN.replace("iterations = 6", "iterations = 1").replace("count = 12", "count = 6")
        Simulation(scenario(tmp_path, text), seed, policy, lines.append).run()
        return lines

    assert traced(1) == traced(1)
    assert traced(1) != traced(2)


def test_a_swarm_that_cannot_go_on_says_what_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "churn.csv").write_text("12,leave,1\n", encoding="utf-8")
    text = PIPELINE.replace("iterations = 3", "iterations = 3\nlimit_s = 500") + "[churn]\ntrace = 'churn.csv'\n"
    _, report = simulated(tmp_path, text + "spare_last = false\n", "swarm")
    assert report.outcome == "stands still: a peer for stage 1"


@pytest.mark.parametrize(("period_s", "sizes"), [(20, [3, 3, 3]), (0, [1, 4, 4])])
def test_peers_move_to_the_stage_that_needs_them(tmp_path: Path, period_s: int, sizes: list[int]) -> None:
    text = CHURN.split("[churn]")[0].replace("iterations = 6", f"iterations = 12\nrebalance_s = {period_s}")
    text = text.replace("forward_s = { uniform = [0.1, 0.4] }", "forward_s = 0.2")
    simulation = Simulation(scenario(tmp_path, text), 0, "swarm")
    world = simulation.world

    def stages() -> list[int]:
        return [world.life(process).stage for process in world.alive_peers()]

    def thin_out() -> None:
        for process in [process for process in world.alive_peers() if world.life(process).stage == 1][1:]:
            world.kill(process)

    world.clock.after(20.0, thin_out)
    assert simulation.run().outcome == "finished"
    assert sorted(stages().count(stage) for stage in range(3)) == sizes


def test_pipelines_share_microbatches_by_their_speed(tmp_path: Path) -> None:
    fast, slow = (f"count = 3\nspread = true\nforward_s = {s}\ncapacity = 12\n" for s in ("0.1", "0.3"))
    text = CHURN.split("[[peers]]")[0] + f"[[peers]]\n{fast}[[peers]]\n{slow}"
    _, report = simulated(tmp_path, text, "gpipe")
    assert report.outcome == "finished"
    busy_s = [device.busy_s for device in sorted(report.devices, key=lambda device: device.peer)]
    # k microbatches take (k + 2) * 0.3 s or (k + 2) * 0.9 s: 10 and 2 are the best of all shares.
    assert busy_s == pytest.approx([6 * 10 * 0.3] * 3 + [6 * 2 * 0.9] * 3, rel=0.12)
    assert report.iterations[0].seconds > 1.5 * report.iterations[-1].seconds


def test_a_broken_pipeline_waits_for_a_newcomer(tmp_path: Path) -> None:
    (tmp_path / "churn.csv").write_text("6,leave,1\n60,join,1\n", encoding="utf-8")
    text = (
        PIPELINE.replace("microbatches = 1", "microbatches = 2") + "[churn]\ntrace = 'churn.csv'\nspare_last = false\n"
    )
    simulation, report = simulated(tmp_path, text, "gpipe")
    assert report.outcome == "finished"
    hit = [row for row in report.iterations if row.deaths]
    assert len(hit) == 1
    assert hit[0].end_s > 60
    assert report.counts["microbatches_restarted"] == 2
    assert simulation.world.meter.wasted_s > 0


def load_of_newcomer_s(folder: Path, text: str, megabytes: int, churn: str = "") -> float:
    """How long peer 1 loads a state of so many megabytes, when it comes back at 61 s."""
    (folder / "churn.csv").write_text(f"60,leave,1\n61,join,1\n{churn}", encoding="utf-8")
    lines: list[str] = []
    text = text.replace("parameters = 1000", f"parameters = {megabytes * 1_000_000 // 12}")
    text = text.replace("iterations = 3", "iterations = 12") + "[churn]\ntrace = 'churn.csv'\nspare_last = false\n"
    report = Simulation(scenario(folder, text), 0, "swarm", lines.append).run()
    assert report.outcome == "finished"
    ready = [line.split()[0] for line in lines if " p1." in line and " sends Ready " in line]
    return float(ready[-1]) - 61.0


def test_a_newcomer_loads_from_the_peers_of_its_stage_and_not_from_the_leader(tmp_path: Path) -> None:
    """From uplinks of 10 MB/s, that are busy sometimes; the leader's has no limit."""
    three = load_of_newcomer_s(tmp_path, PIPELINE.replace("count = 3", "count = 12"), 60)
    one = load_of_newcomer_s(tmp_path, PIPELINE.replace("count = 3", "count = 6"), 60)
    assert 6.0 / 3 <= three < one / 2, "three donors, and one"
    assert one >= 6.0


def test_a_newcomer_whose_donors_die_loads_the_rest_from_the_leader(tmp_path: Path) -> None:
    text = PIPELINE.replace("count = 3", "count = 6") + "[trainers]\nup_mbps = 8\n"
    assert 30.0 < load_of_newcomer_s(tmp_path, text, 60, "63,leave,4\n") < 60.0, "at 1 MB/s what was left after 2 s"


def test_a_peer_that_serves_a_stage_alone_gives_a_newcomer_a_quarter_of_its_uplink(tmp_path: Path) -> None:
    """Between two stages it sends 32 tensors of 2 s each in an iteration, as its mate did with half of them."""
    text = PIPELINE.replace("count = 3", "count = 6").replace("microbatches = 1", "microbatches = 16")
    text = text.replace("activation_bytes = 1_000_000", "activation_bytes = 20_000_000")
    assert load_of_newcomer_s(tmp_path, text, 240) < 4 * 24.0


def pipelines(simulation: Simulation) -> set[frozenset[str]]:
    """Who is together in one."""
    assert isinstance(simulation.world, BaselineWorld)
    assert simulation.world.leader_machine is not None
    assert simulation.world.leader_machine.opened is not None
    return {
        frozenset(p.name for p in line if p is not None) for line in simulation.world.leader_machine.opened.pipelines
    }


def test_an_oracle_finds_the_fast_ways(tmp_path: Path) -> None:
    """Peers 0, 3, 4 are near each other, and so are 1, 2, 5: the pipelines are those, whatever the order of the ids."""
    near = [[one == other or {one, other} in NEAR for other in range(6)] for one in range(6)]
    rows = [[True] * 7, *([True, *row] for row in near)]
    table = "\n".join(",".join("800" if fast else "8" for fast in row) for row in rows)
    (tmp_path / "mbps.csv").write_text(table + "\n", encoding="utf-8")
    text = PIPELINE.replace("count = 3", "count = 6").replace("microbatches = 1", "microbatches = 4")
    text = text.replace("spread = true\n", "").replace("up_mbps = 80\n", "") + "mbps_matrix = 'mbps.csv'\n"
    simulation, report = simulated(tmp_path, text, "dtfm")
    assert pipelines(simulation) == {frozenset({"p0", "p3", "p4"}), frozenset({"p1", "p2", "p5"})}
    routed = simulated(tmp_path, text, "gpipe")[1]
    assert report.over(lambda row: row.seconds)[0] < routed.over(lambda row: row.seconds)[0]


@pytest.mark.parametrize(("microbatches", "together"), [(2, False), (32, True)])
def test_an_oracle_weighs_all_the_activations_of_an_iteration(
    tmp_path: Path, microbatches: int, together: bool
) -> None:
    """Peers 0 and 3 are near each other, and so are 1 and 2; a gradient has 4 MB, and an activation 1 MB."""
    near = [[{one, other} in ({0, 3}, {1, 2}) for other in range(4)] for one in range(4)]
    rows = [[True] * 5, *([True, *row] for row in near)]
    table = "\n".join(",".join("800" if fast else "8" for fast in row) for row in rows)
    (tmp_path / "mbps.csv").write_text(table + "\n", encoding="utf-8")
    text = PIPELINE.replace("count = 3", "count = 4").replace("microbatches = 1", f"microbatches = {microbatches}")
    text = text.replace("spread = true\n", "").replace("up_mbps = 80\n", "") + "mbps_matrix = 'mbps.csv'\n"
    text = text.replace("stages = 3", "stages = 2").replace("parameters = 1000", "parameters = 1_000_000")
    found = pipelines(simulated(tmp_path, text, "dtfm")[0])
    assert (found == {frozenset({"p0", "p3"}), frozenset({"p1", "p2"})}) == together


def test_a_link_costs_what_equation_1_says(tmp_path: Path) -> None:
    text = PIPELINE.replace("token_bytes = 0", "token_bytes = 100_000") + "[trainers]\nup_mbps = 80\n"
    hardware = ScenarioHardware(scenario(tmp_path, text), 0, Random(0))
    names = [hardware.add_peer(number) for number in range(3)]
    # A pass takes 1.5 s on the average; 0.1 s of latency, and 1 MB at 80 Mb/s. Tokens and targets are a fifth of that;
    # from the last stage to the trainer nothing is sent.
    assert link_s(hardware, (names[0], 0), (names[1], 1)) == pytest.approx(1.5 + 0.1 + 0.1)
    assert link_s(hardware, (names[1], 1), (names[0], 0)) == pytest.approx(1.5 + 0.1 + 0.1)
    assert link_s(hardware, ("t0", TRAINER), (names[0], 0)) == pytest.approx(1.5 / 2 + 0.1 + 0.1 / 5)
    assert link_s(hardware, (names[2], 2), ("t0", TRAINER)) == pytest.approx(1.5 / 2)


def test_microbatches_go_along_flows_over_fast_ways(tmp_path: Path) -> None:
    """Two peers of each stage; 0, 4, 2 are near each other, and so are 3, 1, 5: each three hold half of all."""
    triples = [{"p0", "p4", "p2"}, {"p3", "p1", "p5"}]
    near = [[any({f"p{a}", f"p{b}"} <= triple for triple in triples) for b in range(6)] for a in range(6)]
    rows = [[True] * 7, *([True, *row] for row in near)]
    table = "\n".join(",".join("800" if fast else "8" for fast in row) for row in rows)
    (tmp_path / "mbps.csv").write_text(table + "\n", encoding="utf-8")
    text = PIPELINE.replace("count = 3", "count = 6").replace("microbatches = 1", "microbatches = 8")
    text = text.replace("up_mbps = 80\n", "") + "mbps_matrix = 'mbps.csv'\n"
    text = text.replace("[model]", "recompute = false\n[model]")
    lines: list[str] = []
    report = Simulation(scenario(tmp_path, text), 0, "gwtf", lines.append).run()
    assert report.outcome == "finished"
    assert report.counts.get("denials", 0) == 0, "who is not over its capacity denies nothing"
    edges = [(line.split()[1], line.split()[-1]) for line in lines if " sends Forward " in line]
    hops = [{sender.split(".")[0], to.split(".")[0]} for sender, to in edges if not sender.startswith("t")]
    assert len(hops) == 4 * 8 * 2
    assert all(any(hop <= triple for triple in triples) for hop in hops)
    routed = simulated(tmp_path, text, "swarm")[1]
    assert report.over(lambda row: row.seconds)[0] < routed.over(lambda row: row.seconds)[0]


def test_the_highest_capacities_go_to_the_most_utilised_stages(tmp_path: Path) -> None:
    each = "".join(f"[[peers]]\ncount = 2\nforward_s = 0.1\ncapacity = {capacity}\n" for capacity in (1, 2, 3))
    text = CHURN.split("[[peers]]")[0] + each + "[churn]\ntrace = 'churn.csv'\n"
    (tmp_path / "churn.csv").write_text("75,leave,1\n76,join,1\n", encoding="utf-8")
    simulation, report = simulated(tmp_path, text, "gwtf")
    assert report.outcome == "finished"
    held = [0] * 3
    for process in simulation.world.alive_peers():
        number = int(process.name.removeprefix("p"))
        held[simulation.world.life(process).stage] += (1, 1, 2, 2, 3, 3)[number]
    # 3 and 3; 2 and 2 to the third; 1 to each of the two that hold least. Who comes back finds its stage the narrowest.
    assert held == [4, 4, 4]
    assert simulation.churn.deaths == 1
