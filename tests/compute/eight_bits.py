"""Optimizers whose moments are stored in 8 bits, in plain numpy, a tensor at a time: dequantise, update, quantise."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from swarmflow.compute.optimizer import OptimizerSettings

Numbers = npt.NDArray[np.float32]
BLOCK = 256
ONE = np.float32


def shares(signed: bool) -> Numbers:
    """The dynamic map: the middles of 2^k intervals between 0.1 and 1, for each decade below it, 0 and 1."""
    found = [Fraction(0), Fraction(1)]
    for decade in range(7):
        count = 2**decade if signed else 2 ** (decade + 1)
        edges = [Fraction(1, 10) + Fraction(9, 10) * number / count for number in range(count + 1)]
        middles = [(low + high) / 2 / 10 ** (6 - decade) for low, high in itertools.pairwise(edges)]
        found += middles + [-middle for middle in middles] * signed
    return np.array([float(share) for share in sorted(found)], dtype=np.float32)


SHARES = {signed: shares(signed) for signed in (True, False)}


def stored(values: npt.NDArray[np.floating[Any]], signed: bool) -> Numbers:
    """What is left of the numbers of one tensor, flat, once they were stored."""
    found = np.empty_like(values, dtype=np.float32)
    for start in range(0, len(values), BLOCK):
        block = values[start : start + BLOCK]
        scale = np.abs(block).max()
        parts = block / scale if scale > 0 else block
        wide = SHARES[signed].astype(np.float64)
        places = np.searchsorted((wide[1:] + wide[:-1]) / 2, parts.astype(np.float64))  # the lower one of two as near
        if not signed:
            places[(places == 0) & (parts > 0)] = 1  # no second moment vanishes
        found[start : start + BLOCK] = SHARES[signed][places] * scale
    return found


class Twin:
    """The parameters and the moments of one tensor. ratio: LAMB's in the last update, in double precision."""

    ratio = 1.0

    def __init__(self, settings: OptimizerSettings, params: Numbers) -> None:
        self.settings = settings
        self.params = params.copy()
        self.moments = [np.zeros_like(params) for _ in range(1 if settings.name == "sgd" else 2)]

    def update(self, gradient: Numbers, scale: float, lr: float, version: int, ratio: float = 1.0) -> None:
        """Make one update with gradient * scale. ratio: of LAMB, whose sums have their own order."""
        g: Numbers = gradient * ONE(scale)
        of = self.settings
        if of.name == "sgd":
            momentum = self.moments[0] * ONE(of.momentum) + (g + self.params * ONE(of.weight_decay))
            self.params = self.params - momentum * ONE(lr)
            self.moments = [stored(momentum, signed=True)]
            return
        b1, b2 = of.betas
        mean = self.moments[0] * ONE(b1) + g * ONE(1.0 - b1)
        spread = self.moments[1] * ONE(b2) + g * g * ONE(1.0 - b2)
        below = np.sqrt(spread) * ONE(1.0 / math.sqrt(1.0 - b2 ** (version + 1))) + ONE(of.eps)
        direction = mean / below * ONE(1.0 / (1.0 - b1 ** (version + 1)))
        if of.name == "adamw":
            self.params = self.params * ONE(1.0 - lr * of.weight_decay) - direction * ONE(lr)
        else:
            direction = direction + self.params * ONE(of.weight_decay)
            self.ratio = math.sqrt(_squares(self.params) / _squares(direction))
            self.params = self.params - direction * ONE(lr * ratio)
        self.moments = [stored(mean, signed=True), stored(spread, signed=False)]


def _squares(values: Numbers) -> float:
    return float(np.square(values.astype(np.float64)).sum())
