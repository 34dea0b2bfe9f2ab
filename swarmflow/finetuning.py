"""How a run fine-tunes a model: low-rank adapters beside frozen weights (Hu et al., LoRA, 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

ALL_LINEAR: Final = "all-linear"
RANK_MAX: Final = 1 << 12
ALPHA_MAX: Final = 1 << 20
_KEYS: Final = {"rank", "alpha", "targets", "half", "quantized"}


@dataclass(frozen=True)
class Lora:
    """Adapters B A of a rank r beside matrices W of the blocks: y = W x + (alpha / r) B A drop(x).

    targets: last names of the modules that get adapters; empty: every linear layer of the blocks. half: the frozen
    matrices are kept in bf16, not in fp32. quantized: those of linear layers of the blocks are kept in 4 bits (NF4;
    Dettmers et al., QLoRA, 2023). dropout: the share of an adapter's input that is dropped in training.
    """

    rank: int
    alpha: int
    targets: tuple[str, ...] = ()
    half: bool = False
    quantized: bool = False
    dropout: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON value. Without dropout it is as it was before there was some."""
        value = {**asdict(self), "targets": list(self.targets)}
        if not self.dropout:
            del value["dropout"]
        return value

    @classmethod
    def of_json(cls, value: object) -> Lora:
        """Return that of a JSON value, which may come from anyone. Raises ValueError for what is none."""
        if not isinstance(value, Mapping) or set(value) - {"dropout"} != _KEYS:
            raise ValueError("adapters have a rank, an alpha, targets, half and quantized, and may have a dropout")
        rank, alpha, targets, half, quantized = (
            value[key] for key in ("rank", "alpha", "targets", "half", "quantized")
        )
        dropout = value.get("dropout", 0.0)
        if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= RANK_MAX:
            raise ValueError(f"a rank is an integer from 1 to {RANK_MAX}")
        if isinstance(alpha, bool) or not isinstance(alpha, int) or not 1 <= alpha <= ALPHA_MAX:
            raise ValueError(f"an alpha is an integer from 1 to {ALPHA_MAX}")
        if not isinstance(targets, list) or not all(isinstance(name, str) and name for name in targets):
            raise ValueError("targets are names of modules")
        if not isinstance(half, bool) or not isinstance(quantized, bool):
            raise ValueError("half and quantized are true or false")
        if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
            raise ValueError("a dropout is a number from 0 on, below 1")
        return cls(rank, alpha, tuple(targets), half, quantized, float(dropout))
