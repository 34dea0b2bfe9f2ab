"""Which of transformers' implementations of attention a model is computed with: `[model] attention` of RUN.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from transformers import PreTrainedConfig

from swarmflow.errors import ModelError

# In a run's model configuration, beside the keys of its family. It is not in files that others read.
ATTENTION: Final = "model_attention"
_KINDS: Final = ("sdpa", "eager")


def with_attention(config: Mapping[str, Any], attention: str | None) -> dict[str, Any]:
    """Return a model's configuration with this implementation; None: with the one that its family has by itself."""
    own = {key: value for key, value in config.items() if key != ATTENTION}
    return own if attention is None else {**own, ATTENTION: attention}


def attention_of(config: PreTrainedConfig, *, has_sdpa: bool, dropout: bool) -> str:
    """Return transformers' attn_implementation.

    has_sdpa: whether the family can be computed with torch's fused attention, as nearly all can; gemma2 and gpt_oss
    cannot, for what they do with the scores. dropout: whether there is any in training. Its masks in fused attention
    come from the device's own generator, which a replay cannot ask again. Raises ModelError for what cannot be.
    """
    asked = getattr(config, ATTENTION, None)
    if asked not in (None, *_KINDS):
        raise ModelError(f"model.attention = {asked!r}: allowed: {', '.join(_KINDS)}")
    if asked == "sdpa" and not has_sdpa:
        raise ModelError(
            f'model.attention = "sdpa": transformers has no such attention for models of type {config.model_type}; '
            'take "eager", or leave it out'
        )
    if asked == "sdpa" and dropout:
        raise ModelError('model.attention = "sdpa": goes only without model.dropout; take "eager", or leave it out')
    return "eager" if dropout or not has_sdpa else asked or "sdpa"
