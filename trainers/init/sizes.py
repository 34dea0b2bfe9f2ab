"""The models that `swarmflow init` knows by a size, and models in Hugging Face folders: what each is and needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarmflow.compute.families import model_config
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.model_keys import positions_of
from swarmflow.compute.partition import block_count
from swarmflow.compute.weights_folder import has_weights
from swarmflow.errors import ModelError
from swarmflow.suggestions import did_you_mean

BYTES_OF_PARAMETER = 20  # in a peer's memory: fp32 weight, gradient, the sum of gradients, AdamW's two moments
POSITIONS = 2048
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class ModelShape:
    """The dimensions of a model with fresh weights."""

    hidden_size: int
    intermediate_size: int  # of llama; gpt2 has 4 * hidden_size
    blocks: int
    heads: int


SHAPES = {
    "3m": ModelShape(hidden_size=192, intermediate_size=512, blocks=6, heads=6),
    "25m": ModelShape(hidden_size=512, intermediate_size=1376, blocks=8, heads=8),
    "100m": ModelShape(hidden_size=768, intermediate_size=2048, blocks=14, heads=12),
    "300m": ModelShape(hidden_size=1024, intermediate_size=2816, blocks=24, heads=16),
    "1b": ModelShape(hidden_size=2048, intermediate_size=5632, blocks=20, heads=16),
}


@dataclass(frozen=True)
class NewModel:
    """The model of a new run. Exactly one of `config` and `path` is set."""

    name: str  # as the user gave it
    config: Mapping[str, Any] | None  # for [model.config]
    path: Path | None  # a Hugging Face folder, absolute
    parameters: int
    blocks: int
    positions: int | None  # the longest sequence; None: no limit
    has_weights: bool
    has_tokenizer: bool

    @property
    def state_bytes(self) -> int:
        """The memory for weights, gradients and optimizer state, over all stages."""
        return BYTES_OF_PARAMETER * self.parameters


def size_names() -> list[str]:
    """Return the models that are known by a size: `llama-3m`, ..., smallest first within each family."""
    return [f"{family}-{size}" for family in _FAMILIES for size in SHAPES]


def find_model(name: str, vocab_size: int, positions: int = POSITIONS) -> NewModel:
    """Return the model of a size, or of a Hugging Face folder.

    For a size, vocab_size is the tokenizer's, and positions the longest sequence.
    Raises ModelError for a folder that is no model's, and for a name that is neither.
    """
    if name in size_names():
        family, size = name.split("-")
        config = _FAMILIES[family](SHAPES[size], vocab_size, positions)
        return _described(name, model_config(config), config=config)
    path = Path(name).expanduser().absolute()
    if path.is_dir():
        return _described(name, model_config(path), path=path)
    raise ModelError(
        f"--model {name}: neither a folder nor a known size{did_you_mean(name, size_names())}; "
        f"sizes: {', '.join(size_names())}"
    )


def _described(
    name: str, complete: dict[str, Any], *, config: Mapping[str, Any] | None = None, path: Path | None = None
) -> NewModel:
    return NewModel(
        name=name,
        config=config,
        path=path,
        parameters=stage_layout(complete, (), 0).parameters,
        blocks=block_count(complete),
        positions=positions_of(complete),
        has_weights=path is not None and has_weights(path),
        has_tokenizer=path is not None and any((path / file).is_file() for file in _TOKENIZER_FILES),
    )


def _llama(shape: ModelShape, vocab_size: int, positions: int) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "vocab_size": vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.blocks,
        "num_attention_heads": shape.heads,
        "max_position_embeddings": positions,
    }


def _gpt2(shape: ModelShape, vocab_size: int, positions: int) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": vocab_size,
        "n_embd": shape.hidden_size,
        "n_layer": shape.blocks,
        "n_head": shape.heads,
        "n_positions": positions,
        "bos_token_id": 0,  # the family's default is of GPT-2's vocabulary, which is larger
        "eos_token_id": 0,
    }


_FAMILIES: dict[str, Callable[[ModelShape, int, int], dict[str, Any]]] = {"llama": _llama, "gpt2": _gpt2}
