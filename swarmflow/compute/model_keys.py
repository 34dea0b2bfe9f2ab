"""What a model's configuration says, key by key: which keys its family knows, and how long a sequence may be."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, modeling_rope_utils
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from swarmflow.compute.families import to_config
from swarmflow.errors import ModelError
from swarmflow.suggestions import did_you_mean

# Names of the longest sequence that families give, beside those that an attribute map leads to the first.
_POSITIONS = ("max_position_embeddings", "max_seq_len", "n_positions")
_OF_ALL = {"architectures", "torch_dtype", "dtype", "use_cache"}


def unknown_keys(config: Mapping[str, Any]) -> list[str]:
    """A line for each key that neither the family's configuration nor its code knows: transformers would ignore it.

    Raises ModelError when the configuration as a whole is refused.
    """
    made = to_config(config)
    declared = _declared(type(made))
    lines = []
    for key in config:
        if key in declared or key == "model_type" or _read_by_code(key, made):
            continue
        hint = did_you_mean(key, sorted(declared))
        lines.append(f"model.config.{key}: models of type {made.model_type} have no such key{hint}")
    return lines


def positions_of(config: Mapping[str, Any]) -> int | None:
    """The most tokens that a sequence of this model may have; None: there is no limit. Raises ModelError."""
    made = to_config(config)
    for name in _POSITIONS:
        value = getattr(made, name, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def check_positions(config: Mapping[str, Any], seq_len: int) -> None:
    """Raises ModelError when sequences are longer than the model's positions."""
    most = positions_of(config)
    if most is not None and seq_len > most:
        raise ModelError(
            f"data.seq_len = {seq_len} is more than the {most} positions of the model: give a smaller seq_len, or a "
            "larger max_position_embeddings in its configuration"
        )


def _declared(family: type[PreTrainedConfig]) -> set[str]:
    fields = {field.name for field in dataclasses.fields(family)} if dataclasses.is_dataclass(family) else set()
    arguments = set(inspect.signature(family.__init__).parameters)
    return fields | arguments | set(family().to_dict()) | set(family.attribute_map) | _OF_ALL


def _read_by_code(key: str, made: PreTrainedConfig) -> bool:
    """Whether the family's code, or what all families share, takes a key that it does not declare, as an older name."""
    sources: list[Any] = [type(made), PreTrainedConfig, MODEL_FOR_CAUSAL_LM_MAPPING[type(made)]]
    files = {inspect.getfile(source) for source in sources} | {str(modeling_rope_utils.__file__)}
    name = re.escape(key)
    quoted = rf"""["']{name}["']"""
    called = rf"(pop|get|attr)\([^()]*{quoted}"
    used = re.compile("|".join((rf"config\.{name}\b", called, rf"kwargs\[{quoted}\]", rf"{quoted} (not )?in ")))
    return any(used.search(Path(file).read_text(encoding="utf-8")) for file in sorted(files))
