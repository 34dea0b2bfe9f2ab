"""Low-rank adapters in a model, by peft's definitions: which modules get some, their first values, their names.

The configuration of a run's model holds them under a key of its own, as it does groups of blocks that share weights.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from swarmflow.compute.dropout import SeededDropout, seed_of
from swarmflow.errors import ModelError
from swarmflow.finetuning import ALL_LINEAR, Lora

if TYPE_CHECKING:
    from peft import LoraConfig

ADAPTERS: Final = "finetune_lora"  # in a run's model configuration
NAME: Final = "default"  # of the adapter, as peft has it
_PARTS: Final = (f".lora_A.{NAME}.", f".lora_B.{NAME}.")
_BASE: Final = ".base_layer."
_WORD_CODES: Final = 8


def with_adapters(config: Mapping[str, Any], lora: Lora | None) -> dict[str, Any]:
    """Return a model's configuration with these adapters; None: with none."""
    own = {key: value for key, value in config.items() if key != ADAPTERS}
    return own if lora is None else {**own, ADAPTERS: lora.as_json()}


def adapters_of(config: PreTrainedConfig | Mapping[str, Any]) -> Lora | None:
    """Return the adapters that a configuration asks for, if any. Raises ModelError where they are impossible."""
    value = config.get(ADAPTERS) if isinstance(config, Mapping) else getattr(config, ADAPTERS, None)
    try:
        return None if value is None else Lora.of_json(value)
    except ValueError as error:
        raise ModelError(f"the model's configuration has an impossible {ADAPTERS}: {error}") from error


def is_adapter(name: str) -> bool:
    """Whether a parameter of this name belongs to an adapter."""
    return any(part in name for part in _PARTS)


def seeded_dropout(config: PreTrainedConfig, *, everywhere: bool) -> SeededDropout | None:
    """Return what draws the masks of a model in training. everywhere: or those of its adapters alone, if they drop."""
    adapters = adapters_of(config)
    if everywhere:
        return SeededDropout(lambda module: [module])
    return SeededDropout(dropouts_of_adapters) if adapters is not None and adapters.dropout else None


def dropouts_of_adapters(module: nn.Module) -> list[nn.Module]:
    """Return the parts of a module by which its adapters drop some of what enters them."""
    return [part for name, part in module.named_modules() if name.endswith(f".lora_dropout.{NAME}")]


def plain_name(name: str) -> str:
    """Return the name that a parameter beside adapters has in the model without them."""
    return name.replace(_BASE, ".")


def stored_name(name: str) -> str:
    """Return the name of an adapter's parameter in peft's files."""
    return f"base_model.model.{name.replace(f'.{NAME}.', '.')}"


def attach_adapters(model: PreTrainedModel, blocks_name: str, lora: Lora) -> None:
    """Give the linear layers of the blocks their adapters, in place. The model is on the meta device.

    Raises ModelError for targets that no block has, and for a block without any.
    """
    _quiet()
    from peft import inject_adapter_in_model

    config = peft_config(model, blocks_name, lora)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # of layers whose matrices lie the other way, which peft sees by itself
        try:
            inject_adapter_in_model(config, model, NAME, low_cpu_mem_usage=True)
        except ValueError as error:  # some modules of some families may not have any
            raise ModelError(f"finetune.lora.targets = {list(lora.targets) or ALL_LINEAR!r}: {error}") from error
    if lora.quantized and not any(is_quantized(model, blocks_name, name) for name, _ in model.named_parameters()):
        raise ModelError(
            f'finetune.base = "4bit": the blocks of {model.config.model_type} models have no linear layers of torch, '
            'whose matrices could be kept in 4 bits; leave it out, or take "bf16"'
        )
    blocks = model.get_submodule(blocks_name)
    assert isinstance(blocks, nn.ModuleList)
    bare = [
        n for n, block in enumerate(blocks) if not any(is_adapter(f".{name}") for name, _ in block.named_parameters())
    ]
    if bare:
        raise ModelError(
            f"finetune.lora.targets = {list(lora.targets)}: block {bare[0]} has none of them; every block needs an "
            f"adapter, and all of them have some with {ALL_LINEAR!r}"
        )


def peft_config(model: PreTrainedModel, blocks_name: str, lora: Lora) -> LoraConfig:
    """Return peft's configuration of the adapters of a model, with or without them. Raises ModelError."""
    _quiet()
    from peft import LoraConfig

    linear = _linear_layers(model, blocks_name)
    every = sorted({name.rpartition(".")[2] for name in linear})
    leaves = [leaf for leaf in every if not _means_experts(model, leaf)]
    unknown = [target for target in lora.targets if target not in leaves]
    if unknown:
        why = f"no block has a linear layer {unknown[0]!r}"
        if unknown[0] in every:
            family = model.config.model_type
            why = f"in {family} models peft means experts by {unknown[0]!r}, and those have no adapters here"
        raise ModelError(
            f"finetune.lora.targets = {list(lora.targets)}: {why}; it may have {', '.join(leaves)}, or {ALL_LINEAR!r}"
        )
    targets = list(lora.targets) or leaves
    others = (plain_name(f"{name}.") for name, _ in model.named_modules())
    # A last name would be found outside the linear layers too: peft has no other way to leave those out.
    if any(name[:-1] not in linear and name[:-1].rpartition(".")[2] in targets for name in others):
        targets = [name for name in linear if name.rpartition(".")[2] in targets]
    turned = any(isinstance(layer, Conv1D) for layer in linear.values())
    return LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=targets,
        lora_dropout=lora.dropout,
        bias="none",
        fan_in_fan_out=turned,
        task_type="CAUSAL_LM",
    )


def _means_experts(model: PreTrainedModel, leaf: str) -> bool:
    """Whether peft gives adapters to the fused matrices of experts where a target has this name.

    So it does in families whose experts were linear layers of that name, in earlier versions of transformers; a linear
    layer of the same name, as of a block without experts, then gets none.
    """
    from peft import LoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    config = LoraConfig(target_modules=[leaf])
    try:
        convert_peft_config_for_transformers(config, model, None)
    except ValueError:  # of matrices that are fused, both have to be named
        return True
    return bool(config.target_parameters)


@torch.no_grad()
def draw_adapters(values: Iterable[tuple[str, Tensor]], seed: int) -> None:
    """Set the first values of adapters by peft's rule: B is zero, so that the model is the base.

    values: by the parameters' full names. Each A is drawn from a CPU generator that is seeded by (seed, its layer's
    name), as `LoraLayer.reset_lora_parameters` draws.
    """
    generator = torch.Generator()
    for name, value in values:
        layer, _, part = name.partition(".lora_")
        drawn = torch.zeros(value.shape)
        if part.startswith("A."):
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator.manual_seed(seed_of(seed, layer)))
        value.copy_(drawn)


def is_quantized(model: PreTrainedModel, blocks_name: str, name: str) -> bool:
    """Whether a parameter is the matrix of a linear layer of a block, which may be kept in 4 bits.

    Its codes fill whole words, so that the scales behind them begin at one.
    """
    owner, _, leaf = name.rpartition(".")
    if is_adapter(name) or leaf != "weight":
        return False
    if not name.startswith(f"{blocks_name}.") or type(model.get_submodule(owner)) is not nn.Linear:
        return False
    return model.get_parameter(name).numel() % _WORD_CODES == 0


def _quiet() -> None:
    """Do not let bitsandbytes, which peft imports, advise to install kernels that nothing here uses."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def _linear_layers(model: PreTrainedModel, blocks_name: str) -> dict[str, nn.Module]:
    """Return the linear layers of the blocks, by the names that they have without adapters."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if name.startswith(f"{blocks_name}.") and isinstance(module, nn.Linear | Conv1D) and not is_adapter(f"{name}."):
            found[name.removesuffix(_BASE[:-1])] = module
    return found
