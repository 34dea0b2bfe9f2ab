"""How a run fine-tunes a model: low-rank adapters beside frozen weights (Hu et al., LoRA, 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

ALL_LINEAR: Final = "all-linear"
RANK_MAX: Final = 1 << 12
ALPHA_MAX: Final = 1 << 20


@dataclass(frozen=True)
class Lora:
    """Adapters B A of a rank r beside matrices W of the blocks: y = W x + (alpha / r) B A x.

    targets: last names of the modules that get adapters; empty: every linear layer of the blocks. half: the frozen
    matrices are kept in bf16, not in fp32. quantized: those of linear layers of the blocks are kept in 4 bits (NF4;
    Dettmers et al., QLoRA, 2023).
    """

    rank: int
    alpha: int
    targets: tuple[str, ...] = ()
    half: bool = False
    quantized: bool = False

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value."""
        return {**asdict(self), "targets": list(self.targets)}

    @classmethod
    def of_json(cls, value: object) -> Lora:
        """Return that of a JSON value, which may come from anyone. Raises ValueError for what is none."""
        if not isinstance(value, Mapping) or set(value) != {"rank", "alpha", "targets", "half", "quantized"}:
            raise ValueError("adapters have a rank, an alpha, targets, half and quantized")
        rank, alpha, targets, half, quantized = (
            value[key] for key in ("rank", "alpha", "targets", "half", "quantized")
        )
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= RANK_MAX:
            raise ValueError(f"a rank is an integer from 1 to {RANK_MAX}")
        if isinstance(alpha, bool) or not isinstance(alpha, int) or not 1 <= alpha <= ALPHA_MAX:
            raise ValueError(f"an alpha is an integer from 1 to {ALPHA_MAX}")
        if not isinstance(targets, list) or not all(isinstance(name, str) and name for name in targets):
            raise ValueError("targets are names of modules")
        if not isinstance(half, bool) or not isinstance(quantized, bool):
            raise ValueError("half and quantized are true or false")
        return cls(rank, alpha, tuple(targets), half, quantized)
