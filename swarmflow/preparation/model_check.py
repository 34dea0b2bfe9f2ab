"""Whether a model can be trained as RUN.toml asks: all problems are found before others are invited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarmflow.compute.adapters import with_adapters
from swarmflow.compute.examine import Examined, examine
from swarmflow.compute.families import dissect, model_config, to_config
from swarmflow.compute.layout import check_cut
from swarmflow.compute.model_keys import check_positions, unknown_keys
from swarmflow.compute.partition import block_count, check_packing
from swarmflow.compute.weights_folder import has_weights, weights_problems
from swarmflow.config import ModelSection, RunConfig
from swarmflow.errors import CheckpointError, ModelError, SwarmflowError


@dataclass(frozen=True)
class CheckedModel:
    """A model that can be trained."""

    config: dict[str, object]  # its complete config.json
    vocab_size: int
    examined: Examined


@dataclass(frozen=True)
class ModelCheck:
    """The outcome of a check."""

    problems: list[SwarmflowError]
    model: CheckedModel | None = None  # None where there are problems
    vocab_size: int | None = None  # None where it is not known


def check_model(config: RunConfig, measure: bool | None = None) -> ModelCheck:
    """Whether the model can be trained as RUN.toml asks. Headers of its weights are read, not the weights.

    measure: what its parts cost; None: if the cut follows from that.
    """
    section = config.model
    try:
        model = with_adapters(read_model(section), config.adapters)
        if config.adapters is not None:
            _check_adapters(section, model)
        problems: list[SwarmflowError] = [ModelError(line) for line in _unknown_keys(section)]
    except ModelError as error:
        return ModelCheck([error])
    size: int | None = None
    examined: Examined | None = None
    try:
        size = vocabulary(model)
    except ModelError as error:
        problems.append(error)
    fits: list[Callable[[], None]] = [
        lambda: check_positions(model, config.data.seq_len),
        lambda: _check_stages(section, model),
        lambda: _check_boundary(section, model),
        lambda: check_packing(model, config.data.seq_len) if config.data.packing == "bfd" else None,
    ]
    for check in fits:
        try:
            check()
        except ModelError as error:
            problems.append(error)
    problems += check_weights(section, model)
    try:
        if measure is None:
            measure = section.cut is None and section.stages > 1
        examined = examine(
            model,
            measure,
            precision=config.train.precision,
            dropout=section.dropout,
            boundary=section.parsed_boundary if not problems else None,
            positions=config.data.packing == "bfd" and not problems,
        )
    except ModelError as error:
        problems.append(error)
    if problems or examined is None or size is None:
        return ModelCheck(problems, None, size)
    return ModelCheck([], CheckedModel(model, size, examined), size)


def read_model(section: ModelSection) -> dict[str, object]:
    """Return the model's complete config.json, from its folder or from RUN.toml. Raises ModelError."""
    source = section.path if section.path is not None else dict(section.config or {})
    return model_config(source, section.shared_blocks, section.attention)


def check_weights(section: ModelSection, model: dict[str, object]) -> list[SwarmflowError]:
    """Return the problems of the weights that a run begins from. Raises ModelError."""
    return [] if section.path is None else [CheckpointError(line) for line in weights_problems(model, section.path)]


def _check_adapters(section: ModelSection, model: dict[str, object]) -> None:
    """Raises ModelError: there are no weights to be fine-tuned, or no layers of the blocks that adapters may have."""
    if section.path is None or not has_weights(section.path):
        raise ModelError(f"finetune.lora needs a model with weights, and {section.path} has none in safetensors")
    dissect(to_config(model))


def vocabulary(model: dict[str, object]) -> int:
    """Return the model's vocab_size. Raises ModelError."""
    size = model.get("vocab_size")
    if not isinstance(size, int) or size < 1:
        raise ModelError(f"the model's configuration has vocab_size = {size!r}; it must be a number above 0")
    return size


def _unknown_keys(section: ModelSection) -> list[str]:
    """Of a table in RUN.toml: in a folder's config.json others leave notes of their own."""
    return [] if section.config is None else unknown_keys(section.config)


def _check_stages(section: ModelSection, model: dict[str, object]) -> None:
    blocks = block_count(model)
    if section.numbered_cut is not None:
        check_cut(section.numbered_cut, blocks)
    elif section.stages > blocks:
        raise ModelError(f"{section.stages} stages asked of a model with {blocks} blocks; allowed: 1 to {blocks}")


def _check_boundary(section: ModelSection, model: dict[str, object]) -> None:
    boundary = section.parsed_boundary
    problem = boundary.problem(int(to_config(model).hidden_size)) if boundary is not None else None
    if problem is not None:
        raise ModelError(f'model.boundary = "{boundary}": {problem}')
