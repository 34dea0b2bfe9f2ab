"""The learnt compression of what crosses the boundaries between stages: `[model] boundary` of RUN.toml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

_WRITTEN = re.compile(r"(bottleneck|maxout):([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Boundary:
    """One of the compression-aware architectures of SWARM (Ryabinin et al., appendix J.1), at every boundary of a run.

    number: of "bottleneck" the width that travels, of "maxout" the factor by which the hidden size is divided.
    """

    kind: Literal["bottleneck", "maxout"]
    number: int

    @classmethod
    def parse(cls, text: str) -> Boundary:
        """Return what `bottleneck:64` or `maxout:2` names. Raises ValueError for any other text."""
        found = _WRITTEN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} names no boundary")
        return cls("bottleneck" if found[1] == "bottleneck" else "maxout", int(found[2]))

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}"

    def width(self, hidden_size: int) -> int:
        """Return how many numbers of each token travel."""
        return self.number if self.kind == "bottleneck" else hidden_size // self.number

    def problem(self, hidden_size: int) -> str | None:
        """Return why a model of this hidden size cannot have it, with what is possible; None: it can.

        At least two numbers travel: LayerNorm makes 0 of a single one.
        """
        if self.kind == "bottleneck":
            fits, possible = 1 < self.number < hidden_size, f"a bottleneck from 2 to {hidden_size - 1}"
        else:
            fits = 2 <= self.number <= hidden_size // 2 and hidden_size % self.number == 0
            possible = f"a maxout from 2 to {hidden_size // 2} that divides it"
        return None if fits else f"the model's hidden size is {hidden_size}, which allows {possible}"
