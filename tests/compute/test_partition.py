"""Configurations that are refused, and cuts that are even."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarmflow.compute.families import model_config, shrink
from swarmflow.compute.partition import BlockCosts, block_count, check_family, measure_costs, plan_cut
from swarmflow.errors import ModelError
from tests.compute.models import FAMILIES, GIVEN, config_of


def _slowest(cut: tuple[int, ...], blocks: int, costs: BlockCosts) -> float:
    load = [(stop - start) * costs.block_s for start, stop in itertools.pairwise((0, *cut, blocks))]
    load[0] += costs.embedding_s
    load[-1] += costs.head_s
    return max(load)


@given(st.integers(1, 7), st.integers(1, 7), st.floats(0, 5), st.floats(0.1, 5), st.floats(0, 5))
def test_the_slowest_stage_is_as_fast_as_any_cut_makes_it(
    stages: int, blocks: int, embedding_s: float, block_s: float, head_s: float
) -> None:
    config, costs = {"model_type": "gpt2", "n_layer": blocks}, BlockCosts(embedding_s, block_s, head_s)
    if stages > blocks:
        with pytest.raises(ModelError, match=f"{stages} stages.*{blocks} blocks"):
            plan_cut(config, stages, costs)
        return
    cut = plan_cut(config, stages, costs)
    assert len(cut) == stages - 1
    best = min(_slowest(other, blocks, costs) for other in itertools.combinations(range(1, blocks), stages - 1))
    assert _slowest(cut, blocks, costs) == pytest.approx(best)


def test_costs_are_measured_on_few_blocks() -> None:
    config = config_of("llama") | {"num_hidden_layers": 50}
    costs = measure_costs(config, tokens=16)
    assert costs.block_s > 0
    assert len(plan_cut(config, 3)) == 2


def test_costs_of_a_model_for_short_texts_are_measured_on_short_ones() -> None:
    assert measure_costs(config_of("gpt2") | {"n_positions": 8}).block_s > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_families_that_must_work_pass_the_check(family: str) -> None:
    check_family(config_of(family))


def test_what_a_family_does_before_its_first_block_is_done_once() -> None:
    check_family(model_config({**GIVEN["llama"], "model_type": "granite", "embedding_multiplier": 3.0}))


def test_a_configuration_survives_json_and_itself() -> None:
    for family in FAMILIES:
        config = config_of(family)
        assert model_config(json.loads(json.dumps(config)), config.get("shared_blocks")) == config
        assert block_count(config) == 4
        assert block_count(shrink(config, 2)) == 2


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({}, "model_type"),
        ({"model_type": "lama"}, r"\(did you mean llama\?\)"),
        ({"model_type": "vit"}, "not a causal"),
        ({"model_type": "llama", "hidden_size": 30, "num_attention_heads": 4, "num_hidden_layers": 2}, "30"),
        ({"model_type": "llama", "hidden_size": "big"}, "hidden_size"),
        ({"model_type": "gpt2", "n_layer": 0}, "this model of type gpt2 has no blocks"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "this model of type llama has no blocks"),
        ({"model_type": "longcat_flash", "num_layers": 2}, "longcat_flash are not supported: their blocks are not one"),
    ],
)
def test_impossible_configurations_are_one_clear_line(config: dict[str, Any], what: str) -> None:
    with pytest.raises(ModelError, match=what) as caught:
        check_family(model_config(config))
    assert "\n" not in str(caught.value)


def test_folders_without_a_usable_config_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json"):
        model_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelError, match="cannot be read"):
        model_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelError, match="JSON object"):
        model_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(GIVEN["llama"]))
    assert model_config(tmp_path) == config_of("llama")
