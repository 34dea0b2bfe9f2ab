"""SCENARIO.toml: what it may say, and that whatever it may not say is refused in one line that names the key."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random

import pytest

from swarmflow.errors import ConfigError
from swarmflow.simulator import scenario as parts
from swarmflow.simulator.distributions import Constant
from swarmflow.simulator.network import INFINITE
from swarmflow.simulator.scenario import load
from swarmflow.simulator.scenario_hardware import BYTES_PER_MBIT, ScenarioHardware

ROOT = Path(__file__).parents[2]
SHORT = """
[model]
stages = 2
[[peers]]
count = 4
forward_s = 0.5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "scenario.toml"
    path.write_text(text, encoding="utf-8")
    return path


def hardware(folder: Path, text: str, seed: int = 0) -> ScenarioHardware:
    found = ScenarioHardware(load(written(folder, text)), seed, Random(0))
    for number in range(found.scenario.peer_count):
        found.add_peer(number)
    return found


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("stages = 2", "stages = 0", r"model.stages = 0: must be an integer, at least 1"),
        ("stages = 2", "stage = 2", r"unknown key model.stage = 2 \(did you mean stages\?\)"),
        ("[model]", "[modle]", r"unknown section or key 'modle' \(did you mean model\?\)"),
        ("forward_s = 0.5", "", r"peers\[0\] needs forward_s"),
        ("forward_s = 0.5", "forward_s = -1", r"peers\[0\].forward_s = -1: must be a number at least 0, or \{ uniform"),
        ("forward_s = 0.5", "forward_s = { uniform = [2, 1] }", r"peers\[0\].forward_s = .*: must be a number"),
        ("forward_s = 0.5", "forward_s = { even = [1, 2] }", r"peers\[0\].forward_s = .*: must be a number"),
        ("forward_s = 0.5", "flops = 1e12", r"peers\[0\].flops: goes with model.forward_flops above 0"),
        ("count = 4", "count = 4\nstage = 2", r"peers\[0\].stage = 2: the stages are 0 to 1"),
        (
            "count = 4",
            "count = 4\nmemory_bytes = 9",
            r"peers\[0\].memory_bytes: goes with model.microbatch_memory_bytes",
        ),
        ("count = 4", "count = 4\nregion = 'eu'", r"peers\[0\].region = 'eu': must be one of network.regions"),
        ("stages = 2", "stages = 2\ncosts = [1]", r"model.costs = \[1.0\]: must have one for each of the 2 stages"),
        ("[model]", "[network]\nlatency_matrix_s = [[1]]\n[model]", r"network.latency_matrix_s: must have 5 rows of 5"),
        ("[model]", "[network]\nmbps_matrix = 'no.csv'\n[model]", r"network.mbps_matrix = 'no.csv': cannot read"),
        ("[model]", "[churn]\nleave_chance = 1\n[model]", r"churn.leave_chance = 1: must be a finite number"),
        ("[model]", "[churn]\ntrace = 'no.csv'\n[model]", r"churn.trace = 'no.csv': cannot read the file"),
        ("count = 4", "count = 4\nup_mbps = { uniform = [0, 9] }", r"peers\[0\].up_mbps = .*: must be .* above 0"),
        ("count = 4", "count = 4\ndown_mbps = { normal = [0, 9] }", r"peers\[0\].down_mbps = .*: must be .* above 0"),
        ("[model]", "[network]\nmbps = { integers = [0, 9] }\n[model]", r"network.mbps = .*: must be .* above 0"),
        ("stages = 2", "stages = 5", r"model.stages = 5: each stage needs a peer of its own, and there are 4 \("),
        (
            "stages = 2",
            "stages = 6\n[churn]\ntrace = 'one.csv'",
            r"model.stages = 6: .* there are 4 .*, and 1 come later \(churn.trace\)",
        ),
        (
            "stages = 2",
            "stages = 2\nstage_memory_bytes = 90\nmicrobatch_memory_bytes = 11\n[[peers]]\nforward_s = 1\n"
            "memory_bytes = { choice = [100, 50] }",
            r"peers\[0\].memory_bytes: at most 100, but a stage with one microbatch takes 101 \(",
        ),
        ("[[peers]]", "[peers]", r"a scenario needs peers: write \[\[peers\]\]"),
        ("[model]", "[model", r"is not valid TOML"),
    ],
)
def test_what_cannot_be_is_refused_with_the_key(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    (tmp_path / "one.csv").write_text("5,join\n6,leave\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=complaint) as caught:
        load(written(tmp_path, SHORT.replace(old, new)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ["1,jion", "x,join", "1", "1,leave,-3", "-1,join", "1,join,two"])
def test_a_bad_line_of_a_churn_trace_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "churn.csv").write_text(f"# seconds,what\n5,leave\n{line}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"churn.trace = 'churn.csv': line 3 must be seconds,join or seconds,leave"):
        load(written(tmp_path, SHORT + "[churn]\ntrace = 'churn.csv'\n"))


def test_tables_are_read_from_files_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "delay.csv").write_text("0.0,0.1\n0.2,0.0\n", encoding="utf-8")
    text = SHORT + "region = ['a', 'b']\n[trainers]\nregion = 'b'\n"
    text += "[network]\nregions = ['a', 'b']\nlatency_matrix_s = 'delay.csv'\nmbps = 80\n"
    found = hardware(tmp_path, text)
    ports, links = found.network.ports, found.network.links
    assert [ports[name].place for name in ("t0", "p0", "p1", "p2")] == [1, 0, 1, 0]
    assert links.between(0, 1) == (0.1, 80 * BYTES_PER_MBIT)
    assert links.between(1, 0) == (0.2, 80 * BYTES_PER_MBIT)
    for wrong in ("0.0,x\n0.2,0.0\n", '0.0,"0.1\n' + "0.2,0.0\n" * 20_000):
        (tmp_path / "delay.csv").write_text(wrong, encoding="utf-8")
        with pytest.raises(ConfigError, match=r"network.latency_matrix_s = 'delay.csv': must hold numbers"):
            load(written(tmp_path, text))


def test_machines_are_what_the_scenario_says(tmp_path: Path) -> None:
    text = """
    [model]
    stages = 2
    costs = [1, 3]
    forward_flops = 6e12
    microbatch_memory_bytes = 4
    stage_memory_bytes = 10
    activation_bytes = 1000
    codec_ratio = 4.0
    parameters = [5, 7]
    [[peers]]
    count = 2
    spread = true
    flops = 3e12
    memory_bytes = 24
    up_mbps = 8
    [[peers]]
    stage = 1
    forward_s = 1.0
    backward_s = 1.5
    capacity = 2
    update_s = 0.25
    """
    found = hardware(tmp_path, text)
    profiles = [found.profiles[name] for name in ("p0", "p1", "p2")]
    assert [(p.forward_s, p.backward_s, p.capacities[0], p.stage) for p in profiles] == [
        (2.0, 4.0, 3, 0),
        (2.0, 4.0, 3, 1),
        (1.0, 1.5, 2, 1),
    ]
    assert [found.compute_s("p2", 1, work) for work in ("forward", "backward", "loss", "replay", "update")] == [
        1.5,
        2.25,
        3.75,
        3.75,
        0.25,
    ]
    assert found.compute_s("p2", 0, "forward") == 0.5
    assert found.boundary_bytes(0, "activation") == found.boundary_bytes(1, "gradient") == 250
    assert [found.elements("stage-0"), found.elements("stage-1"), found.state_bytes(1)] == [5, 7, 84]
    assert (found.network.ports["p0"].up, found.network.ports["p0"].down) == (1e6, INFINITE)


def test_what_is_drawn_is_drawn_again_alike_and_otherwise_under_another_seed(tmp_path: Path) -> None:
    text = SHORT.replace("forward_s = 0.5", "forward_s = { uniform = [1, 2] }\ncapacity = { integers = [1, 3] }")
    text = text.replace("count = 4", "count = 40")
    first, again, other = (hardware(tmp_path, text, seed).profiles for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert len({profile.forward_s for profile in first.values()}) == 40
    assert {profile.capacities[0] for profile in first.values()} == {1, 2, 3}


@pytest.mark.parametrize("form", ["uniform = [1e-12, 2e-12]", "normal = [1e9, 1e11]"])
def test_what_has_to_be_above_0_is_never_drawn_as_0(tmp_path: Path, form: str) -> None:
    text = SHORT.replace("stages = 2", "stages = 2\nforward_flops = 1e9")
    text = text.replace("forward_s = 0.5", f"flops = {{ {form} }}\nup_mbps = {{ {form} }}").replace(
        "count = 4", "count = 99"
    )
    found = hardware(tmp_path, text)
    flops = found.scenario.peers[0].flops
    assert flops is not None
    assert min(flops.at(share / 100) for share in range(100)) > 0
    assert all(profile.forward_s > 0 for profile in found.profiles.values())
    assert all(0 < port.up < INFINITE for name, port in found.network.ports.items() if name != "t0")


def test_only_a_choice_may_leave_a_link_without_limit(tmp_path: Path) -> None:
    found = hardware(tmp_path, SHORT.replace("count = 4", "count = 40\nup_mbps = { choice = [0, 8] }"))
    assert {port.up for port in found.network.ports.values()} == {INFINITE, 1e6}


def test_the_documentation_lists_every_key_with_its_default() -> None:
    page = (ROOT / "docs" / "simulate.md").read_text(encoding="utf-8")
    sections = {
        "[run]": parts.RunPart,
        "[model]": parts.ModelPart,
        "[trainers]": parts.TrainersPart,
        "[[peers]]": parts.PeersPart,
        "[network]": parts.NetworkPart,
        "[churn]": parts.ChurnPart,
    }
    for title, kind in sections.items():
        body = page.split(f"## {title}\n")[1].split("\n## ")[0]
        rows = {c[1].strip(" `"): c[2].strip(" `") for line in body.splitlines() if (c := line.split("|"))[1:]}
        fields = [field for field in dataclasses.fields(kind) if field.name not in ("key", "---")]
        assert [name for name in rows if name not in {"key", "---"}] == [field.name for field in fields]
        for field in fields:
            default = field.default
            plain = default.value if isinstance(default, Constant) else default
            shown = "" if plain is None else json.dumps(list(plain) if isinstance(plain, tuple) else plain)
            documented = rows[field.name]
            assert documented == shown or (documented and float(documented) == float(shown)), (title, field.name)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_the_examples_are_scenarios(path: Path) -> None:
    assert load(path).peer_count > 0
