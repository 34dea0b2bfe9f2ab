"""The functions that RUN.toml names, "package:function", and the module that one of them makes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from swarmflow.compute.families import one_line
from swarmflow.errors import ModelError


def load_function(name: str, key: str) -> Callable[..., object]:
    """Import and return a function "package:function". key: that names it, for the message. Raises ModelError."""
    package, _, function = name.partition(":")
    try:
        found: object = getattr(importlib.import_module(package), function)
    except ImportError as error:
        raise ModelError(
            f"{key} = {name!r} cannot be imported ({one_line(error)}): install its package on this machine; a file "
            "beside RUN.toml does not travel to peers"
        ) from None
    except AttributeError:
        raise ModelError(f"{key} = {name!r}: the package {package} has no {function}") from None
    except Exception as error:  # code of a user fails in its own way
        raise ModelError(f"{key} = {name!r}: its package fails at import ({_error_line(error)})") from error
    if not callable(found):
        raise ModelError(f"{key} = {name!r} is no function")
    return found


class LossModule(nn.Module):
    """The user's module with its loss alone: a scalar in fp32, the sum over the items of a microbatch."""

    def __init__(self, module: nn.Module, name: str) -> None:
        super().__init__()
        self.module = module
        self._name = name

    def forward(self, **batch: Tensor) -> Tensor:
        """Return the loss: the output itself, the first of a tuple, or `loss` of a mapping or a dataclass."""
        output = self.module(**batch)
        loss = output
        if isinstance(output, Mapping):
            loss = output.get("loss")
        elif isinstance(output, tuple | list):
            loss = output[0] if output else None
        elif is_dataclass(output):
            loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.dtype == torch.bfloat16:
            raise ModelError(f"{self._name}: its loss is a sum in bf16; compute it of logits.float()")
        if not isinstance(loss, Tensor) or loss.numel() != 1 or loss.dtype != torch.float32:
            raise ModelError(f"{self._name}: its forward returns no loss; it has to be one number in fp32, a tensor")
        return loss.reshape(1)


def build_module(name: str, config: Mapping[str, Any], seed: int) -> LossModule:
    """Call the user's function, with torch's generator seeded, and return its module, ready for training.

    Normalisation uses the statistics of each microbatch and keeps none. Raises ModelError.
    """
    function = load_function(name, "model.module")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = function(**config)
        except Exception as error:  # code of a user fails in its own way
            raise ModelError(f"model.module = {name!r} fails with this module_config: {_error_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise ModelError(f"model.module = {name!r} returns {type(module).__name__}; it has to return a torch.nn.Module")
    for key, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ModelError(f"model.module = {name!r}: its parameter {key} is {parameter.dtype}; fp32 is needed")
    module.train()
    for part in module.modules():
        if isinstance(part, _NormBase) and part.training:
            part.track_running_stats = False
    return LossModule(module, f"model.module = {name!r}")


def first_values(name: str, config: Mapping[str, Any], seed: int) -> dict[str, Tensor]:
    """Return the parameters with which the user's module begins, by all of their names. Raises ModelError."""
    named = build_module(name, config, seed).module.named_parameters(remove_duplicate=False)
    return {key: parameter.detach() for key, parameter in named}


def _error_line(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(error)}"
