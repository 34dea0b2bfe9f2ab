"""What an optimizer keeps of a gradient for each parameter: a moment, as fp32 numbers or as 8-bit ones.

8-bit moments are those of Dettmers et al., 8-bit Optimizers via Block-wise Quantization (2022), section 2: a block of
256 numbers has one scale, its largest absolute value, and of each number the nearest of 256 shares of that is stored.
An update makes fp32 numbers of a block, changes them, and rounds them again. bitsandbytes has the same shares, but its
kernels for CPUs and for GPUs choose otherwise between two that are about as near. Here each number is divided by the
scale, and compared with the middles between the shares: the result is the same bits on every device.

A second moment that is above 0 stays so: it takes the smallest share at least. Else it would vanish while the first
one, of which smaller shares are stored than of squares, is still there, and is divided by eps alone: a parameter
without gradients, such as the embedding of a rare token, would make steps of many times the learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swarmflow.compute.blocks import BLOCK_ELEMENTS, grid_blocks
from swarmflow.compute.moments_kernel import moments_kernel
from swarmflow.compute.state_root import CODES, SCALES

_DECADES: Final = 7
_HIGH_PATTERNS: Final = 1 << 16  # of the upper half of a fp32 number's bits

State = Mapping[str, Tensor]


class Moment(Protocol):
    """A number for each parameter, stored among a group's state. `where` begins at the edge of a block of 256."""

    def names(self) -> tuple[str, ...]:
        """Names of the tensors that store it."""
        ...

    def read(self, state: State, where: slice) -> Tensor:
        """Return the numbers of a range of parameters, fp32, to be changed in place; for good once they are written."""
        ...

    def write(self, state: State, where: slice, values: Tensor) -> None:
        """Store what was read of a range, and changed. Of a block at its end no other parameter has a number but 0."""
        ...


@dataclass(frozen=True)
class FullMoment:
    """A moment of fp32 numbers. What is read is what is stored."""

    name: str

    def names(self) -> tuple[str, ...]:
        return (self.name,)

    def read(self, state: State, where: slice) -> Tensor:
        return state[self.name][where]

    def write(self, state: State, where: slice, values: Tensor) -> None:
        """Nothing: the numbers were changed in place."""


@dataclass(frozen=True)
class CodedMoment:
    """A moment of 8-bit numbers: codes, uint8 [elements], and scales, fp32 [blocks]. signed: it may be negative."""

    name: str
    signed: bool

    def names(self) -> tuple[str, ...]:
        return self.name + CODES, self.name + SCALES

    def read(self, state: State, where: slice) -> Tensor:
        codes, scales = (state[name] for name in self.names())
        return decoded(codes[where], scales[_blocks(where)], self.signed)

    def write(self, state: State, where: slice, values: Tensor) -> None:
        codes, scales = (state[name] for name in self.names())
        codes[where], scales[_blocks(where)] = coded(values, self.signed)


def coded(values: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """Return the codes of fp32 numbers [n], uint8 [n], and the scales of their blocks, fp32 [blocks].

    The code of 0 is 0. Of two shares that are as near the lower one counts. Unless signed, only 0 has the share 0, and
    no number may be negative. The numbers must be finite.
    """
    table, on_cpu = _table(signed), values.device.type == "cpu"
    if on_cpu and (kernel := moments_kernel()):
        return kernel.encode(values, table.lowest, table.ends, table.zero)
    padded = nn.functional.pad(values, (0, -values.numel() % BLOCK_ELEMENTS)).view(-1, BLOCK_ELEMENTS)
    scales = padded.abs().amax(dim=1)
    shares = padded / torch.where(scales > 0, scales, 1.0).unsqueeze(1)
    if on_cpu:
        places = torch.from_numpy(table.places(shares.numpy()))
    else:
        places = torch.bucketize(shares, _table_on(values.device, signed)[1], out_int32=True).to(torch.uint8)
    return (places - table.zero).view(-1)[: values.numel()], scales


def decoded(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """Return the fp32 numbers [n] of codes, uint8 [n]. scales: fp32, of their blocks; the last one may be shorter."""
    table, on_cpu = _table(signed), codes.device.type == "cpu"
    if on_cpu and (kernel := moments_kernel()):
        return kernel.decode(codes, scales, table.by_code)
    if on_cpu:
        values = torch.from_numpy(table.by_code.take(codes.numpy()))
    else:
        values = _table_on(codes.device, signed)[0][codes.int()]
    whole = codes.numel() // BLOCK_ELEMENTS
    values[: whole * BLOCK_ELEMENTS].view(-1, BLOCK_ELEMENTS).mul_(scales[:whole].unsqueeze(1))
    values[whole * BLOCK_ELEMENTS :].mul_(scales[whole:])
    return values


def shares_of(signed: bool) -> npt.NDArray[np.float32]:
    """Return the 256 shares of a scale that codes stand for, rising: bitsandbytes' dynamic map (`create_dynamic_map`).

    Each decade below 1 is divided into intervals, twice as many as the one below it, whose middles are the shares; and
    there are 0 and 1. Computed as fractions and rounded once, so that they are the same on every machine; those of
    bitsandbytes differ in the last digits.
    """
    found = [0.0, 1.0]
    for decade in range(_DECADES):
        intervals = 2 << decade if not signed else 1 << decade
        below = 20 * intervals * 10 ** (_DECADES - 1 - decade)
        middles = [(2 * intervals + 9 * (2 * number + 1)) / below for number in range(intervals)]
        found += middles + ([-middle for middle in middles] if signed else [])
    return np.array(sorted(found), dtype=np.float32)


class _Table:
    """The shares, and what finds the nearest one.

    A CPU looks up the upper half of a number's bits. Numbers that have it in common lie around one middle between two
    shares at most, so one comparison decides; a search takes twenty times as long.
    """

    def __init__(self, signed: bool) -> None:
        shares = shares_of(signed)
        self.zero = int(np.flatnonzero(shares == 0)[0])
        self.by_code = np.roll(shares, -self.zero)
        middles = _rounded_down((shares[:-1].astype(np.float64) + shares[1:]) / 2)
        if not signed:
            middles[0] = 0.0  # what is above it takes the smallest share at least
        self.ends = np.append(middles, np.float32(np.inf))
        patterns = np.arange(_HIGH_PATTERNS, dtype=np.uint32) << 16
        lowest = np.where(patterns >> 31, patterns | 0xFFFF, patterns).astype(np.uint32).view(np.float32)
        self.lowest = np.searchsorted(middles, lowest).astype(np.uint8)

    def places(self, shares: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Return the places of the nearest shares among the 256. shares: from -1 to 1."""
        places = self.lowest.take(shares.view(np.uint32) >> 16)
        places += shares > self.ends.take(places)
        return places


def _rounded_down(numbers: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    """Return the largest fp32 numbers that are not above these: no fp32 number lies between."""
    nearest = numbers.astype(np.float32)
    return np.where(nearest > numbers, np.nextafter(nearest, np.float32(-np.inf)), nearest)


@lru_cache(maxsize=2)
def _table(signed: bool) -> _Table:
    return _Table(signed)


@lru_cache(maxsize=16)
def _table_on(device: torch.device, signed: bool) -> tuple[Tensor, Tensor]:
    """Return the shares by code, fp32 [256], and the middles between neighbouring ones, fp32 [255]."""
    table = _table(signed)
    return torch.from_numpy(table.by_code).to(device), torch.from_numpy(table.ends[:-1]).to(device)


def names_of(moments: Iterable[Moment]) -> tuple[str, ...]:
    """Return the names of all tensors that store these moments."""
    return tuple(name for moment in moments for name in moment.names())


def _blocks(where: slice) -> slice:
    assert where.start % BLOCK_ELEMENTS == 0, "whole blocks"
    return slice(where.start // BLOCK_ELEMENTS, grid_blocks(where.stop))
