"""`swarmflow plan`: what it prints, writes and draws, and what it says to bad input."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from click import Choice

from swarmflow.cli import main
from swarmflow.commands.plan import plan
from swarmflow.planning.strategies import STRATEGIES

SCENARIO = """
[run]
name = "two"
iterations = 1

[model]
stages = 2
microbatches = 8
activation_bytes = 1000000
parameters = 100000
forward_flops = 1e9


[trainers]
region = "here"

[[peers]]
count = 4
flops = 1e12
capacity = 4
region = ["here", "there"]

[network]
regions = ["here", "there"]
latency_matrix_s = [[0.001, 0.1], [0.1, 0.001]]
mbps_matrix = [[1000, MBPS], [MBPS, 1000]]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(SCENARIO.replace("MBPS", "10"))
    return path


def tables(folder: Path, latency: str, bandwidth: str, *more: str) -> list[str]:
    for name, text in (("latency.csv", latency), ("mbps.csv", bandwidth)):
        (folder / name).write_text(text)
    files = "--latency", str(folder / "latency.csv"), "--bandwidth", str(folder / "mbps.csv")
    return ["plan", *files, "--activation-mb", "1", "--gradient-mb", "1", *more]


def test_a_pipeline_stays_in_its_place_where_activations_are_large(scenario: Path, tmp_path: Path) -> None:
    assert main(["plan", str(scenario), "--json", str(tmp_path / "plan.json")]) == 0
    found = json.loads((tmp_path / "plan.json").read_text())
    (ours,) = found["plans"]
    assert sorted(map(sorted, ours["pipelines"])) == [["p0", "p2"], ["p1", "p3"]]
    assert ours["cost_s"] == pytest.approx(ours["gradients_s"] + ours["pipelines_s"])
    assert found["bound_s"] <= ours["cost_s"]


def test_strategies_stand_beside_each_other_and_are_drawn(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = tmp_path / "plan.svg"
    assert main(["plan", str(scenario), "--compare", "--strategy", "megatron", "--plot", str(image)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("4 machines as 2 pipelines of 2 stages; bound ")
    assert [line.split()[0] for line in printed.splitlines() if line.split()[:1] and line.split()[0] in STRATEGIES] == [
        "megatron", "places", "dtfm", "op-fence", "random",
    ]  # fmt: skip
    assert all(f"{strategy}: " in image.read_text() for strategy in STRATEGIES)
    assert main(["plan", str(scenario), "--plot", str(image)]) == 0  # its own image it replaces


def test_machines_of_tables_and_who_is_in_no_pipeline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    latency = "0,0.01,0.01\n0.01,0,0.5\n0.01,0.5,0\n"
    assert main(tables(tmp_path, latency, "0,100,100\n100,0,100\n100,100,0\n", "--stages", "2")) == 0
    printed = capsys.readouterr().out
    assert "3 machines as 1 pipelines of 2 stages" in printed
    assert "in no pipeline: m" in printed


def test_links_that_are_not_there_cost_nothing_where_nothing_is_sent(tmp_path: Path) -> None:
    latency = "0,0.01\n0.01,0\n"
    given = tables(tmp_path, latency, "0,100\n100,0\n", "--stages", "2", "--activation-mb", "0", "--gradient-mb", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert main([*given, "--compare"]) == 0


def test_a_plan_of_many_stages_is_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = "\n".join(",".join("1" * 20) for _ in range(20))
    file = tmp_path / "plan.json"
    assert main(tables(tmp_path, rows, rows, "--stages", "20", "--json", str(file))) == 0
    assert "who serves which stage is written by --json FILE" in capsys.readouterr().out
    assert len(json.loads(file.read_text())["plans"][0]["pipelines"][0]) == 20


@pytest.mark.parametrize(
    ("latency", "bandwidth", "stages", "said"),
    [
        ("0,1\n1,0\n", "0,1\n1,0\n", "3", "--stages 3: needs at least as many machines"),
        ("0,1\n1,0\n", "0,1,1\n1,0,1\n1,1,0\n", "2", "has 2 machines, --bandwidth"),
        ("0,1\n1,0\n", "0,0\n1,0\n", "2", "machines m0 and m1 have no link (0 Mb/s from the first to the second)"),
        ("0,1\n1\n", "0,1\n1,0\n", "2", "must have 2 rows of 2 numbers"),
        ("0,x\n1,0\n", "0,1\n1,0\n", "2", "must hold numbers, at least 0, separated by commas"),
    ],
)
def test_tables_that_do_not_fit_are_one_line(
    latency: str, bandwidth: str, stages: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(tables(tmp_path, latency, bandwidth, "--stages", stages)) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give a SCENARIO, --join, or two tables of links; of these options --latency, --bandwidth, --stages"),
        (["x.toml", "--stages", "2"], "--stages is for machines of tables; x.toml describes its own."),
        (["x.toml"], "x.toml: No such file"),
        (["x.toml", "--plot", "x.gif"], "--plot x.gif: must end in .png or .svg or .pdf"),
        (["x.toml", "--microbatches", "nan"], "'--microbatches': nan is not a finite number."),
        (["--activation-mb", "inf"], "'--activation-mb': inf is not a finite number."),
        (["x.toml", "--strategy", "place"], "did you mean places?"),
    ],
)
def test_other_mistakes_are_told(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_machine_with_memory_for_some_stages_alone_is_planned_where_it_asks_for_one(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = SCENARIO.replace("MBPS", "10").replace("capacity = 4", "memory_bytes = 200")
    text = text.replace(
        "microbatches = 8", "microbatches = 8\nmicrobatch_memory_bytes = 10\nstage_memory_bytes = [1000, 100]"
    )
    text += "[[peers]]\ncount = 4\nflops = 1e12\nmemory_bytes = 2000\nregion = ['here', 'there']\n"
    scenario.write_text(text, encoding="utf-8")
    assert main(["plan", str(scenario)]) == 2
    assert f"{scenario}: p0 has no memory for stage 0" in capsys.readouterr().err
    scenario.write_text(text.replace("count = 4", "count = 4\nstage = 1", 1), encoding="utf-8")
    file = tmp_path / "plan.json"
    assert main(["plan", str(scenario), "--strategy", "dtfm", "--json", str(file)]) == 0
    pipelines = json.loads(file.read_text())["plans"][0]["pipelines"]
    assert {line[1] for line in pipelines} == {"p0", "p1", "p2", "p3"}


def test_an_image_of_somebody_else_stays(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = tmp_path / "holiday.png"
    image.write_bytes(b"a beach")
    assert main(["plan", str(scenario), "--plot", str(image)]) != 0
    assert "holiday.png" in capsys.readouterr().err
    assert image.read_bytes() == b"a beach"


def test_the_command_offers_every_strategy() -> None:
    (option,) = (each for each in plan.params if each.name == "strategy")
    assert isinstance(option.type, Choice)
    assert list(option.type.choices) == list(STRATEGIES)


RUN = """
[run]
output = "out"
[model]
config = { model_type = "llama", hidden_size = 64, intermediate_size = 128, num_hidden_layers = 8, vocab_size = 256, \
num_attention_heads = 2, max_position_embeddings = 64 }
stages = 2
[data]
path = "text"
seq_len = 32
"""


def test_a_model_is_cut_for_the_machines_that_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "RUN.toml").write_text(RUN)
    machines = ["--machines", "1x20MB@3", "--machines", "1x20MB", "--json", str(tmp_path / "cut.json")]
    assert main(["plan", str(tmp_path / "RUN.toml"), "--cut", *machines, "--stages", "2"]) == 0
    found = json.loads((tmp_path / "cut.json").read_text())
    [cut] = found["cut"]
    assert sorted(stage["blocks"] for stage in found["stages"]) == sorted((cut, 8 - cut))
    fast = next(stage for stage in found["stages"] if stage["machines"]["1x20MB@3"])
    assert fast["blocks"] > 4
    [even] = found["even_cut"]
    assert even in (3, 4, 5), "by measured compute"
    assert found["gain"] > 1.2
    printed = capsys.readouterr().out
    assert f"in RUN.toml: cut = [{cut}]" in printed
    assert f"times as fast as the best even cut, [{even}] in 2 stages, by computing alone" in printed


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--machines", "9x1MB"], "no machine can hold block 0 alone: it needs one with more memory"),
        (["--machines", "2x8"], "--machines 2x8: 8: write a size such as 8GB or 512MiB"),
        (["--machines", "24GB"], "--machines 24GB: write COUNTxMEMORY, or COUNTxMEMORY@SPEED, such as 2x24GB@3"),
        (["--machines", "0x8GB"], "--machines 0x8GB: the count must be from 1 to 100,000, and the speed above 0"),
        (["--machines", "3000000x8GB"], "--machines 3000000x8GB: the count must be from 1 to 100,000"),
        (["--machines", "1x8GB", "--stages", "2"], "at most 1 are possible here"),
        (["--machines", "1x8GB", "--at-least", "2"], "at most 0 are possible here"),
        (["--machines", "1x8GB", "--seed", "2"], "--seed has no meaning for a cut"),
        (["--machines", "1x8GB", "--strategy", "places"], "--strategy has no meaning for a cut"),
        (["--machines", "1x8GB"] * 9, "9 kinds of machines: name 8 at most, similar ones together"),
        ([], "give its RUN.toml, --cut, and --machines for each kind of machine"),
    ],
)
def test_machines_that_will_not_do(
    more: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "RUN.toml").write_text(RUN)
    assert main(["plan", str(tmp_path / "RUN.toml"), "--cut", *more]) in (1, 2)
    assert line in capsys.readouterr().err
