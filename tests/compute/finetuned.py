"""A base model in a folder, stages with adapters beside its frozen weights, and the same by peft in one process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from transformers import AutoModelForCausalLM, PreTrainedModel

from swarmflow.compute.adapters import peft_config, with_adapters
from swarmflow.compute.base_weights import fill_base
from swarmflow.compute.families import dissect, to_config
from swarmflow.compute.stage import Stage, build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.finetuning import Lora
from tests.compute.models import stages_of, whole_model


def save_base(config: dict[str, Any], folder: Path) -> Path:
    """Write a model with weights."""
    whole_model(config, stages_of(config, ())).save_pretrained(folder)
    return folder


def adapted_stages(
    config: dict[str, Any], lora: Lora, cut: tuple[int, ...], folder: Path, *, in_host_memory: bool = False
) -> list[Stage]:
    """Return the stages of a model in a folder, with the first values of adapters, of which B is not zero."""
    given = with_adapters(config, lora)
    how: dict[str, Any] = {"device": "cpu", "in_host_memory": in_host_memory}
    stages = [build_stage(given, cut, number, **how) for number in range(len(cut) + 1)]
    for stage in stages:
        assert stage.base is not None
        fill_base(stage.base, folder, stage.layout)
        init_stage(stage, seed=0)
        for name, values, _ in stage.named_parameters():
            if ".lora_B." in name:
                with torch.no_grad():
                    values.copy_(torch.randn(values.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)
    return stages


def by_peft(config: dict[str, Any], lora: Lora, folder: Path, stages: Iterable[Stage]) -> Any:  # noqa: ANN401
    """Return peft's model of the same base and adapters."""
    base: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    anatomy = dissect(to_config(config))
    model: Any = get_peft_model(base, peft_config(base, anatomy.blocks_name, lora))
    own = dict(model.named_parameters())
    with torch.no_grad():
        for stage in stages:
            for name, values, _ in stage.named_parameters():
                own[f"base_model.model.{name}"].copy_(values)
    return model.eval()


def reader_of(stages: Sequence[Stage]) -> Any:  # noqa: ANN401
    """Return what exports read stages by."""
    return lambda stage: (
        lambda group, start, stop: bytes(stages[stage].groups[group].params[start:stop].detach().numpy().tobytes())
    )
