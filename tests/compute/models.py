"""Tiny configurations of every family that must work, and the plain transformers model as the oracle."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from swarmflow.boundary import Boundary
from swarmflow.compute.families import model_config, to_config
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import init_stage

VOCAB = 61
_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "max_position_embeddings": 32,
    "bos_token_id": None,
    "eos_token_id": None,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
GIVEN: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 4,
        "n_head": 4,
        "vocab_size": VOCAB,
        "n_positions": 32,
        "bos_token_id": None,
        "eos_token_id": None,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "llama": {"model_type": "llama", **_GROUPED},
    "llama-tied": {"model_type": "llama", **_GROUPED, "tie_word_embeddings": True},
    "qwen2": {
        "model_type": "qwen2",
        **_GROUPED,
        "use_sliding_window": True,
        "sliding_window": 4,
        "max_window_layers": 2,
    },
    "qwen3": {"model_type": "qwen3", **_GROUPED, "head_dim": 8},
    "mistral": {"model_type": "mistral", **_GROUPED, "sliding_window": 4},
    "gpt_neox": {"model_type": "gpt_neox", **_SIZES},
}
GIVEN["llama-shared"] = GIVEN["llama-tied"]
SHARED_BLOCKS = {"llama-shared": 2}
FAMILIES = tuple(GIVEN)
UNSHARED = tuple(family for family in FAMILIES if family not in SHARED_BLOCKS)
CUTS: tuple[tuple[int, ...], ...] = ((), (2,), (1, 3))


def config_of(family: str) -> dict[str, Any]:
    return copy.deepcopy(_config(family))


@functools.cache
def _config(family: str) -> dict[str, Any]:
    return model_config(GIVEN[family], SHARED_BLOCKS.get(family))


def stages_of(
    config: dict[str, Any],
    cut: tuple[int, ...],
    *,
    seed: int = 0,
    dropout: bool = False,
    microbatches: int | None = None,
    reduce_codec: str = "none",
    align: int = 1,
    boundary: Boundary | None = None,
) -> list[Stage]:
    """microbatches: gradients are rounded, exactly or by the codec, in steps of so many."""
    accumulate = "exact" if reduce_codec == "none" else "fp32"
    rounding = [microbatches and rounding_of(accumulate, reduce_codec, microbatches) for _ in range(len(cut) + 1)]
    stages = [
        build_stage(
            config,
            cut,
            number,
            device="cpu",
            dropout=dropout,
            rounding=rounding[number] or None,
            align=align,
            boundary=boundary,
        )
        for number in range(len(cut) + 1)
    ]
    for stage in stages:
        init_stage(stage, seed)
    return stages


def whole_model(config: dict[str, Any], stages: list[Stage]) -> PreTrainedModel:
    """Transformers' own model with the weights of the stages."""
    factory: Any = AutoModelForCausalLM  # untyped in transformers
    model: PreTrainedModel = factory.from_config(to_config(config), dtype=torch.float32)
    model.train(mode=False)
    share_blocks(model, config.get("shared_blocks"))
    own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    with torch.no_grad():
        for stage in stages:
            for name, values, _ in stage.named_parameters():
                own[name].copy_(values)
    return model


def share_blocks(model: PreTrainedModel, groups: int | None) -> None:
    """Put the first block of each group in the place of the others. groups: they divide the number of blocks."""
    blocks = model.get_submodule("model.layers") if groups else nn.ModuleList()
    assert isinstance(blocks, nn.ModuleList)
    size = len(blocks) // (groups or 1)
    for number in range(len(blocks)):
        blocks[number] = blocks[number - number % size]


def batch(seed: int = 0, sequences: int = 2, length: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (sequences, length + 1), generator=generator)
    return tokens[:, :-1].int(), tokens[:, 1:].contiguous()
