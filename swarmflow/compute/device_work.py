"""One piece of work on a device: how operands get there from host memory, and how the host learns the results.

Whoever computes asks for numbers with `read` and says what follows from them. On the CPU that happens at once. On
another device the copies are queued behind the work, and what follows from the numbers happens when all of it is done.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarmflow.compute.finite import NotFiniteError

# Takes CPU tensors with the values of those that were asked for; they are valid until it returns.
Then = Callable[[list[Tensor]], None]


class DeviceWork(ABC):
    """The transfers of one piece of work between host memory and `device`."""

    device: torch.device
    at_once: bool  # whether numbers are read while the work is done, which waits for the device

    @abstractmethod
    def receive(self, data: npt.NDArray[np.uint8], elements: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor on the device ([elements], in memory of its own) with these bytes."""

    @abstractmethod
    def copy_in(self, host: Tensor) -> Tensor:
        """Return a CPU tensor's values on the device; on the CPU it may be the tensor itself."""

    @abstractmethod
    def read(self, values: list[Tensor], then: Then) -> None:
        """Call `then` with the values of tensors on the device: at once, or when the work is done.

        What it raises is the work's error.
        """

    @abstractmethod
    def hand_over(self, tensor: Tensor) -> Tensor:
        """Return a result of this work that passes through the stage use."""


class AtOnce(DeviceWork):
    """Reads at once: on the CPU that costs nothing, on any other device the thread waits."""

    at_once = True

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def receive(self, data: npt.NDArray[np.uint8], elements: int, dtype: torch.dtype) -> Tensor:
        """Return a tensor with these bytes."""
        return tensor_of(data, elements, dtype).to(self.device)

    def copy_in(self, host: Tensor) -> Tensor:
        """Return a tensor with the same values on the device."""
        return host.to(self.device)

    def read(self, values: list[Tensor], then: Then) -> None:
        """Call `then` now."""
        then([value.detach().cpu() for value in values])

    def hand_over(self, tensor: Tensor) -> Tensor:
        """Return it: the device does one thing after another."""
        return tensor


@dataclass
class LossSum:
    """The sum of a microbatch's losses; `value` is NaN until it was read."""

    value: float = math.nan

    def put(self, losses: list[Tensor]) -> None:
        """Add up the losses of the microbatch's parts, fp32 [parts], in double precision."""
        [parts] = losses
        self.value = sum(parts.tolist())

    def settle(self, losses: list[Tensor]) -> None:
        """As `put`. Raises NotFiniteError."""
        self.put(losses)
        if not math.isfinite(self.value):
            raise NotFiniteError("loss")


def tensor_of(data: npt.NDArray[np.uint8], elements: int, dtype: torch.dtype) -> Tensor:
    """Return a CPU tensor ([elements]) with a copy of `data`, which may be unaligned, and is kept by others."""
    tensor = torch.empty(elements, dtype=dtype)
    tensor.view(torch.uint8).numpy()[:] = data
    return tensor


def bytes_of(flat: Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous flat tensor, without a copy when it is on the CPU."""
    return flat.cpu().view(torch.uint8).numpy()
