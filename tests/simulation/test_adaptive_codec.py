"""`codec = "adatopk"` in a scenario: the leader's choice by the measured links, and the bytes that follow from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarmflow.core.commit.adaptive_compression import byte_share, kept_numbers
from swarmflow.errors import ConfigError
from swarmflow.forecast.simulation import Simulation
from swarmflow.simulator.scenario import load
from swarmflow.simulator.world import World

MBPS = (80.0, 8.0)  # between the first and the second stage, the second and the third
RATIO, TENSOR_BYTES, MICROBATCHES, STEPS = 20.0, 4_000_000, 4, 3
SCENARIO = f"""
[run]
iterations = {STEPS}
warmup = 0
CODEC
[model]
stages = 3
microbatches = {MICROBATCHES}
activation_bytes = {TENSOR_BYTES}
token_bytes = 0
parameters = 1000
[trainers]
region = "a"
[[peers]]
count = 3
spread = true
forward_s = 0.1
region = ["a", "b", "c"]
[network]
latency_s = 0.0005
regions = ["a", "b", "c"]
mbps_matrix = [[1000, {MBPS[0]}, 40], [{MBPS[0]}, 1000, {MBPS[1]}], [40, {MBPS[1]}, 1000]]
"""


def simulation(folder: Path, codec: str, policy: str = "swarmflow") -> Simulation:
    file = folder / "scenario.toml"
    file.write_text(SCENARIO.replace("CODEC", codec), encoding="utf-8")
    return Simulation(load(file), 0, policy)


def test_a_fast_boundary_is_compressed_less_from_the_second_step_on(tmp_path: Path) -> None:
    adaptive = simulation(tmp_path, f'codec = "adatopk"\ncompression_ratio = {RATIO}')
    report = adaptive.run()
    assert report.outcome == "finished"
    assert isinstance(adaptive.world, World)
    kept = [result.kept for result in adaptive.world.results]
    assert kept[0] == kept_numbers((0.0, 0.0), RATIO), "no link is known yet: both count as the slowest"
    assert kept[-1][1] == kept_numbers(MBPS, RATIO)[1]
    assert kept[-1][0] == pytest.approx(kept_numbers(MBPS, RATIO)[0], rel=0.05), "as measured: with the latency"
    tensors = 2 * MICROBATCHES * TENSOR_BYTES
    for row, step in zip(report.iterations, kept, strict=True):
        assert row.wire_bytes == pytest.approx(tensors * sum(map(byte_share, step)), rel=0.02)


def test_the_bytes_of_all_numbers_are_those_of_eight_bits(tmp_path: Path) -> None:
    every, fixed = (
        simulation(tmp_path, codec).run().iterations[-1].wire_bytes
        for codec in ('codec = "adatopk"\ncompression_ratio = 1', 'codec = "fixed"')
    )
    assert every / fixed == pytest.approx(1.016 / 4, rel=0.01)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("compression_ratio = 10", r'run.compression_ratio = 10: run.codec is "fixed"'),
        ('codec = "adatopk"\n[model]\ncodec_ratio = 2.0', r'model.codec_ratio = 2: run.codec is "adatopk"'),
        ('codec = "adatopk"\n[model]\ndelay = 1', r"model.delay = 1: .* no delay"),
        ('codec = "adatopp"', r'run.codec = "adatopp": must be .*did you mean adatopk'),
    ],
)
def test_what_does_not_go_together_is_refused(tmp_path: Path, given: str, what: str) -> None:
    file = tmp_path / "scenario.toml"
    head, body = SCENARIO.split("CODEC\n[model]\n")
    file.write_text(head + (given if "[model]" in given else given + "\n[model]") + "\n" + body, encoding="utf-8")
    with pytest.raises(ConfigError, match=what):
        load(file)


def test_a_baseline_has_no_leader_that_decides_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="gpipe has no leader that decides it"):
        simulation(tmp_path, 'codec = "adatopk"', "gpipe")
