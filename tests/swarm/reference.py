"""The models that the tests train, and the plain loop that says what is to be learnt from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import GPT2Config, LlamaConfig, PreTrainedConfig, Qwen2Config

from swarmflow.chaos.compare import relative_difference
from swarmflow.chaos.plain import Recipe, load_model, parameters, train, write_model

__all__ = [
    "FAMILIES",
    "VOCAB",
    "Recipe",
    "load_model",
    "parameters",
    "relative_difference",
    "save_model",
    "tiny_config",
    "train",
]

VOCAB = 256
_GROUPED: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES = ("gpt2", "llama", "qwen2")


def tiny_config(family: str) -> PreTrainedConfig:
    """A small configuration: gpt2 shares its embedding with the head, llama and qwen2 do not."""
    if family == "gpt2":
        return GPT2Config(
            n_embd=32, n_layer=3, n_head=4, vocab_size=VOCAB, n_positions=64, bos_token_id=None, eos_token_id=None
        )
    if family == "llama":
        return LlamaConfig(**_GROUPED, tie_word_embeddings=False)
    return Qwen2Config(**_GROUPED, tie_word_embeddings=False)


def save_model(family: str, folder: Path, seed: int = 0) -> None:
    """Writes a Hugging Face folder with fresh weights, as `write_model` does."""
    write_model(tiny_config(family), folder, seed)
