"""Examining a model before a run, here or in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest

from swarmflow.compute import examine as module
from swarmflow.compute.demands import measure_activations
from swarmflow.compute.examine import examine
from swarmflow.compute.families import model_config
from swarmflow.errors import ModelError

LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 64, "max_position_embeddings": 32,
}  # fmt: skip
GRANITE = {**LLAMA, "model_type": "granite", "embedding_multiplier": 3.0}


@pytest.mark.parametrize("here", [True, False], ids=["here", "in a process of its own"])
def test_the_answer_is_the_same_wherever_it_is_found(here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not here:
        monkeypatch.setattr(module, "SMALL_PARAMETERS", 0)
    examined = examine(LLAMA, measure=True)
    assert examined.costs is not None
    assert examined.costs.block_s > 0
    assert examined.activations == measure_activations(model_config(LLAMA), "fp32", False)
    with pytest.raises(ModelError, match="granite"):
        examine(GRANITE, measure=False)
