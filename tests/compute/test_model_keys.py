"""Keys of a model's configuration that nobody would read, and sequences that are too long for it."""

from __future__ import annotations

from typing import Any

import pytest

from swarmflow.compute.model_keys import check_positions, positions_of, unknown_keys
from swarmflow.errors import ModelError
from tests.compute.models import GIVEN
from tests.compute.test_families import WORK

KNOWN = {**GIVEN, **WORK}
OLDER = {"rope_theta": 1e4, "torch_dtype": "float32", "architectures": ["A"], "use_cache": False}


@pytest.mark.parametrize("what", KNOWN)
def test_keys_that_a_family_knows_are_let_through(what: str) -> None:
    assert unknown_keys(KNOWN[what]) == []


def test_so_are_older_names_of_keys_and_what_belongs_to_every_family() -> None:
    assert unknown_keys(GIVEN["llama"] | OLDER) == []
    assert unknown_keys(GIVEN["gpt2"] | {"num_hidden_layers": 4, "hidden_size": 32}) == []


def test_every_other_key_is_told_with_the_nearest_that_there_is() -> None:
    wrong = {"num_hiden_layers": 3, "layers": 2, "hiddensize": 8}
    assert unknown_keys(GIVEN["llama"] | wrong) == [
        "model.config.num_hiden_layers: models of type llama have no such key (did you mean num_hidden_layers?)",
        "model.config.layers: models of type llama have no such key",
        "model.config.hiddensize: models of type llama have no such key (did you mean hidden_size?)",
    ]


@pytest.mark.parametrize(
    ("config", "most"),
    [
        (GIVEN["gpt2"], 32),
        (GIVEN["llama"], 32),
        (WORK["the head calls a part of the base model"] | {"max_position_embeddings": 20}, 20),
        (WORK["biases in place of positions"], None),
        (WORK["no attention"], None),
    ],
    ids=["gpt2", "llama", "opt", "bloom", "mamba"],
)
def test_sequences_are_no_longer_than_the_positions(config: dict[str, Any], most: int | None) -> None:
    assert positions_of(config) == most
    check_positions(config, most or 1 << 20)
    if most is not None:
        with pytest.raises(ModelError, match=rf"seq_len = {most + 1} is more than the {most} positions"):
            check_positions(config, most + 1)
