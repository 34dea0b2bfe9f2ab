"""The loss that balances the experts of a mixture (Fedus et al., Switch Transformers, equations 4 to 6).

As transformers computes it, over all layers jointly: E * the sum over experts of the share of choices that an expert
got, times the mean probability that routers gave it. So the stages add up the choices and the probabilities of their
layers, for each sequence, and what is added up travels on beside the hidden states: [B, 2E + 1], the sums of
probabilities, the numbers of choices, and the number of tokens that passed a router. The gradient of the probabilities
comes back the same path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Balance:
    """The balancing loss of a model. chosen: experts of a token. coefficient: of the loss beside a token's."""

    experts: int
    chosen: int
    coefficient: float

    @property
    def width(self) -> int:
        """How many numbers of a sequence travel."""
        return 2 * self.experts + 1

    def counted(self, router_logits: Sequence[Tensor], sequences: int, tokens: Tensor | None = None) -> Tensor:
        """Return what the layers of a stage add, fp32 [B, 2E + 1].

        router_logits: of each layer, [B * T, E]. tokens: bool [B, T], the places that hold one; None: all do.
        """
        first = router_logits[0]
        length = first.shape[0] // sequences
        if tokens is None:
            tokens = torch.ones((sequences, length), dtype=torch.bool, device=first.device)
        counts = tokens.float()
        probabilities = first.new_zeros((sequences, self.experts), dtype=torch.float32)
        choices = torch.zeros_like(probabilities)
        for logits in router_logits:
            weights = torch.nn.functional.softmax(logits, dim=-1)
            chosen = torch.topk(weights.detach(), self.chosen, dim=-1).indices.view(sequences, -1)
            # Sums of ones are exact in whatever order a device adds them.
            choices.scatter_add_(1, chosen, counts.repeat_interleave(self.chosen, dim=1))
            probabilities = probabilities + (weights.float().view(sequences, length, -1) * counts.unsqueeze(-1)).sum(1)
        passed = counts.sum(1, keepdim=True) * len(router_logits)
        return torch.cat([probabilities, choices, passed], dim=1)

    def loss(self, totals: Tensor) -> Tensor:
        """Return the loss, a scalar, of what all layers have added up, [B, 2E + 1]."""
        probabilities, choices, passed = totals.sum(0).split([self.experts, self.experts, 1])
        passed = passed.detach().clamp(min=1.0)
        return self.coefficient * self.experts * torch.sum(choices.detach() / passed * (probabilities / passed))


def balance_of(model: PreTrainedModel) -> Balance | None:
    """Return the balancing loss that a model has with its configuration; None: it has none."""
    if not getattr(model.config, "output_router_logits", False) or not hasattr(model, "router_aux_loss_coef"):
        return None
    of: Any = model  # torch's modules have attributes of any type
    return Balance(int(of.num_experts), int(of.num_experts_per_tok), float(of.router_aux_loss_coef))


def packed(hidden: Tensor, totals: Tensor) -> Tensor:
    """Return both in one: hidden [B, T, W], totals [B, n] -> fp32 [B, T*W + n]."""
    return torch.cat([hidden.float().flatten(1), totals], dim=1)


def unpacked(both: Tensor, width: int, count: int) -> tuple[Tensor, Tensor]:
    """Return hidden [B, T, width] and totals [B, count] of what `packed` returned."""
    hidden, totals = both[:, : both.shape[1] - count], both[:, both.shape[1] - count :]
    return hidden.unflatten(1, (-1, width)), totals
