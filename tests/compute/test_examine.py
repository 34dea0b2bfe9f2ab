"""Examining a model before a run, here or in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from swarmflow.compute import examine as module
from swarmflow.compute.demands import measure_activations
from swarmflow.compute.examine import examine
from swarmflow.compute.families import model_config
from swarmflow.errors import ModelError
from tests.compute.models import GIVEN

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 32,
}
APERTUS = {**LLAMA, "model_type": "apertus"}


@pytest.mark.parametrize(
    "here",
    [pytest.param(True, id="here"), pytest.param(False, id="in a process of its own", marks=pytest.mark.extended)],
)
def test_the_answer_is_the_same_wherever_it_is_found(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not here:
        monkeypatch.setattr(module, "SMALL_PARAMETERS", 0)
    examined = examine(LLAMA, measure=True)
    assert examined.costs is not None
    assert examined.costs.block_s > 0
    assert examined.activations == measure_activations(model_config(LLAMA), "fp32", False)
    with pytest.raises(ModelError, match="apertus"):
        examine(APERTUS, measure=False)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_model_of_fewer_blocks_than_are_compared_is_examined(family: str, blocks: int) -> None:
    config = model_config({**GIVEN[family], "num_hidden_layers": blocks, "max_window_layers": 1})
    assert examine(config, measure=True).activations.block[0] > 0


def test_a_model_of_several_kinds_of_blocks_is_examined_with_all_of_them() -> None:
    """The first three alone are none that the family allows."""
    config = {
        **LLAMA,
        "model_type": "olmo_hybrid",
        "layer_types": ["linear_attention"] * 3 + ["full_attention"],
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    examined = examine(model_config(config), measure=True)
    assert examined.activations.block[0] > 0


def test_what_cannot_be_run_as_asked_is_told_with_the_settings() -> None:
    """Attention that drops out is computed without the fused kernel, for which the heads of this one do not fit."""
    config = {
        **LLAMA,
        "model_type": "minicpm3",
        "num_key_value_heads": 2,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 4,
        "qk_nope_head_dim": 4,
        "v_head_dim": 8,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    with pytest.raises(ModelError, match=r"minicpm3 are not supported: with .* and model\.dropout = true"):
        examine(model_config(config), measure=False, dropout=True)
