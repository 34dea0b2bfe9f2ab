"""The sum of cross-entropies beside torch's own in fp64."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from swarmflow.compute.cross_entropy import cross_entropy_sum
from swarmflow.targets import IGNORED


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-4), (torch.bfloat16, 2**-8)])
@pytest.mark.parametrize("words", [7, 300_000])  # many rows at once, and one
def test_loss_and_gradient_are_those_of_torch(dtype: torch.dtype, bound: float, words: int) -> None:
    drawn = torch.Generator().manual_seed(words)
    logits = (4 * torch.randn(20, words, generator=drawn)).to(dtype).requires_grad_()
    targets = torch.randint(words, (20,), generator=drawn)
    targets[[3, 19]] = IGNORED
    exact = logits.detach().double().requires_grad_()
    wanted = nn.functional.cross_entropy(exact, targets, reduction="sum")
    found = cross_entropy_sum(logits, targets)
    assert found.dtype == torch.float32
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    (-2.0 * found).backward()
    (-2.0 * wanted).backward()
    assert logits.grad is not None
    assert exact.grad is not None
    assert logits.grad.dtype == dtype
    assert not logits.grad[3].any()
    torch.testing.assert_close(logits.grad.double(), exact.grad, rtol=bound, atol=1e-6)


def test_without_targets_there_is_nothing() -> None:
    logits = torch.randn(3, 5, requires_grad=True)
    loss = cross_entropy_sum(logits, torch.full((3,), IGNORED))
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert logits.grad is not None
    assert not logits.grad.any()
