"""The flow experiment: the optimum, the instances, the command line, and the machines in both worlds."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from experiments.flow.instance import OURS, SETTINGS, Instance, draw, read, symmetric
from experiments.flow.policies import GWTF_ROUNDS, POLICIES, greedy, make, negotiate
from swarmflow.errors import ConfigError
from swarmflow.simulator.flow.delays import Delays
from swarmflow.simulator.flow.paths import find_paths, over_capacity
from swarmflow.simulator.flow.rounds import Rounds
from tests.further import seeds

pytest.importorskip("scipy", reason="the extra `experiments` is not installed")

from experiments.flow.__main__ import flow
from experiments.flow.asynchronous import negotiate_with_delays
from experiments.flow.effort import effort
from experiments.flow.optimum import optimum


def small(seed: int, sources: int = 1) -> Instance:
    random = Random(seed)
    stages = tuple(tuple(range(sources + 2 * k, sources + 2 * k + 2)) for k in range(3))
    capacity = {i: random.randint(1, 2) for i in range(sources, sources + 6)}
    return Instance(tuple(range(sources)), stages, capacity, symmetric(sources + 6, lambda: random.randint(1, 20)))


def tried(instance: Instance) -> float:
    """The optimum by trying all combinations of paths."""
    paths = [(s, *relays) for s in instance.sources for relays in product(*instance.stages)]
    costs = [sum(instance.cost[a][b] for a, b in zip(p, (*p[1:], p[0]), strict=True)) for p in paths]
    best = float("inf")
    for chosen in product(range(len(paths)), repeat=instance.flow):
        uses = {node: sum(node in paths[i] for i in chosen) for node in instance.capacity}
        if list(chosen) == sorted(chosen) and all(uses[node] <= count for node, count in instance.capacity.items()):
            best = min(best, sum(costs[i] for i in chosen))
    return best


@pytest.mark.parametrize(("seed", "sources"), [(0, 1), (1, 1), (2, 2), (3, 2)])
def test_the_optimum_is_that_of_trying_everything(seed: int, sources: int) -> None:
    instance = small(seed, sources)
    assert optimum(instance) == pytest.approx(tried(instance))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("setting", ["1", "5"])
def test_every_policy_establishes_the_maximum_flow_within_capacity(policy: str, setting: str) -> None:
    instance = draw(SETTINGS[setting], 1)
    found = negotiate(instance, policy, 1)
    assert len(found.paths) == instance.flow
    for stage in range(len(instance.stages)):
        at = [path[stage + 1] for path in found.paths]
        assert all(at.count(node) <= instance.capacity[node] for node in instance.stages[stage])
        assert set(at) <= set(instance.stages[stage])
    assert found.cost(instance) >= optimum(instance) - 1e-6


@pytest.mark.parametrize(("setting", "limit"), [("1", 1.03), ("4", 1.03), ("5", 1.06)])
def test_the_exchange_comes_close_to_the_optimum_with_few_messages(setting: str, limit: float) -> None:
    instance = draw(SETTINGS[setting], 3)
    ours, gwtf = negotiate(instance, "swarmflow", 3), negotiate(instance, "gwtf", 3)
    assert ours.cost(instance) <= limit * optimum(instance)
    assert 4 * ours.messages <= gwtf.messages


def test_no_node_is_ever_over_its_capacity_in_any_round() -> None:
    instance = draw(SETTINGS["5"], 2)
    swarm = Rounds(make(instance, "swarmflow", 2))
    for _ in range(120):
        swarm.step()
        assert over_capacity(swarm.nodes) == []
    swarm.settle()
    assert find_paths(swarm.nodes, len(instance.stages)).torn == 0


@pytest.mark.parametrize(
    ("policy", "setting", "seed"), [("gwtf-sum", "2", 2), ("gwtf-sum", "5", 0), ("gwtf", "3", 1), ("gwtf", "5", 0)]
)
def test_gwtfs_negotiation_tears_no_unit_and_exceeds_no_capacity(policy: str, setting: str, seed: int) -> None:
    instance = draw(SETTINGS[setting], seed)
    swarm = Rounds(make(instance, policy, seed))
    for _ in range(GWTF_ROUNDS):
        swarm.step()
        assert over_capacity(swarm.nodes) == []
    swarm.settle()
    found = find_paths(swarm.nodes, len(instance.stages))
    assert (len(found.paths), found.torn) == (instance.flow, 0)


@pytest.mark.parametrize("setting", ["1", "5"])
def test_gwtfs_negotiation_is_cheaper_than_greedy_over_some_instances(setting: str) -> None:
    instances = [draw(SETTINGS[setting], seed) for seed in range(3)]
    gwtf = sum(negotiate(instance, "gwtf-sum", 0).cost(instance) for instance in instances)
    assert gwtf < sum(greedy(instance).cost(instance) for instance in instances)


def test_the_same_seed_sends_the_same_messages() -> None:
    instance = draw(SETTINGS["1"], 4)

    def negotiated() -> tuple[int, object]:
        swarm = Rounds(make(instance, "swarmflow", 4))
        swarm.run(60)
        return swarm.messages, [sorted(node.outflow.items()) for node in swarm.nodes.values()]

    assert negotiated() == negotiated()


def test_an_exchange_ends_and_then_there_is_silence() -> None:
    instance = draw(SETTINGS["1"], 0)
    swarm = Rounds(make(instance, "swarmflow", 0))
    swarm.run(300)
    before = swarm.messages
    swarm.run(200)
    assert swarm.messages - before <= 5 * len(swarm.nodes) * 2  # labels, told again ever more rarely


@pytest.mark.parametrize("seed", seeds(2, 2))
def test_losses_and_deaths_tear_nothing_for_good(seed: int) -> None:
    instance = draw(SETTINGS["1"], seed)
    random = Random(seed)
    nodes = make(instance, "swarmflow", seed, 0.2)
    world = Delays(nodes, lambda a, b: 0.02 + 0.002 * (int(a.name) + int(b.name)), random, 0.05, loss=0.05)
    for name in random.sample([name for name in nodes if name.name > "000000"], 2):
        world.kill(name, random.uniform(0.0, 10.0))
    world.run(60.0)
    dead = {int(name.name) for name in world.dead}
    capacity = min(sum(instance.capacity[i] for i in stage if i not in dead) for stage in instance.stages)
    found = find_paths(world.nodes, len(instance.stages))
    assert world.violations == []
    assert world.lost > 0
    assert len(found.paths) == capacity
    assert found.torn == 0


@pytest.mark.parametrize("seed", range(2))
def test_the_flows_of_a_dead_data_node_give_way_to_those_of_the_others(seed: int) -> None:
    instance = draw(SETTINGS["5"], seed)
    nodes = make(instance, "swarmflow", seed, 0.2)
    world = Delays(nodes, lambda a, b: 0.05, Random(seed), 0.05, loss=0.05)
    first = next(iter(nodes))  # it leads the handovers
    world.kill(first, 12.0)
    world.run(60.0)
    while find_paths(world.nodes, len(instance.stages)).torn and world.now_s < 80.0:
        world.run(world.now_s + 0.1)
    assert world.violations == []
    assert len(find_paths(world.nodes, len(instance.stages)).paths) == instance.narrowest
    assert all(source != first for node in nodes.values() for _, source in (*node.inflow, *node.outflow))


@pytest.mark.parametrize("seed", [310, 711])
def test_a_node_that_an_exchange_has_filled_counts_for_the_width_of_its_stage(seed: int) -> None:
    found = negotiate_with_delays("small", seed)
    assert (found.share, found.torn, found.violations) == (1.0, 0, 0)


@pytest.mark.parametrize("setting", ["large", "pareto", "scarce", "many"])
def test_uneven_instances_are_drawn_with_all_their_relays(setting: str) -> None:
    wanted = OURS[setting]
    instance = draw(wanted, 0)
    assert len(instance.stages) == wanted.stages
    assert sum(map(len, instance.stages)) == len(instance.capacity) == wanted.relays
    assert max(map(len, instance.stages)) >= 1.5 * min(map(len, instance.stages))


def test_stages_of_many_nodes_come_close_to_the_optimum() -> None:
    instance = draw(SETTINGS["pareto"], 1)
    found = negotiate(instance, "swarmflow", 1)
    assert len(found.paths) == instance.flow
    assert found.cost(instance) <= 1.02 * optimum(instance)


@pytest.mark.extended
def test_at_rest_nodes_take_and_say_little() -> None:
    found = effort("1", 0)
    assert 0 < found.mean_s < found.longest_s
    assert found.core < 0.01
    assert 0 < found.sent_bytes_s < 1000


def test_greedy_goes_to_the_closest_that_has_room() -> None:
    cost = ((0, 1, 2, 0, 0), (1, 0, 0, 5, 9), (2, 0, 0, 1, 1), (0, 5, 1, 0, 0), (0, 9, 1, 0, 0))
    matrix = tuple(tuple(float(c) for c in line) for line in cost)
    instance = Instance((0,), ((1, 2), (3, 4)), {1: 1, 2: 1, 3: 1, 4: 1}, matrix)
    assert greedy(instance).paths == ((0, 1, 3), (0, 2, 4))


GOOD = {"sources": [0], "stages": [[1], [2]], "capacity": {"1": 1, "2": 2}, "cost": [[0, 1, 2], [1, 0, 3], [2, 3, 0]]}


def test_an_instance_from_outside_gives_every_policy_its_paths(tmp_path: Path) -> None:
    file, out = tmp_path / "in.json", tmp_path / "out.json"
    file.write_text(json.dumps(GOOD))
    assert CliRunner().invoke(flow, ["--instance", str(file), "--json", str(out)]).exit_code == 0
    found = json.loads(out.read_text())
    assert [each["policy"] for each in found] == list(POLICIES)
    assert all(each["paths"] == [[0, 1, 2]] for each in found)
    assert all(each["rounds"] > 0 and each["messages"] > 0 for each in found)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": {"1": 0, "2": 1}}, "stage 0 has no capacity"),
        ({"cost": [[0, -1, 2], [1, 0, 3], [2, 3, 0]]}, "has to be a number from 0"),
        ({"capacity": {"1": 1}}, "nothing for id 2"),
        ({"stages": [[1], [3]]}, "none for id 3"),
        ({"stages": [[1], [1]]}, "named twice"),
        ({"stages": []}, "stages has to be"),
        ({"sources": []}, "sources has to be"),
        ({"cost": [[0, 1], [1, 0, 3], [2, 3, 0]]}, "square"),
        ({"capacity": {"0": 0, "1": 1, "2": 1}}, "nothing to send"),
        ({"sources": [True]}, "whole numbers"),
        ({"capacity": {"1": 1.5, "2": 1}}, "capacity of 1"),
    ],
)
def test_impossible_instances_are_refused(tmp_path: Path, change: dict[str, object], message: str) -> None:
    file = tmp_path / "in.json"
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ConfigError, match=message):
        read(file)


def test_gwtfs_negotiation_comes_to_an_end() -> None:
    """Two nodes that had given one flow to each other sent word of it to and fro for ever in this instance."""
    assert negotiate(draw(SETTINGS["5"], 0), "gwtf", 0).paths
