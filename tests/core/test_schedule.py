"""The learning rate against the one that transformers' own scheduler gives a plain torch loop."""

from __future__ import annotations

import pytest
import torch
from transformers import get_scheduler

from swarmflow.config import OptimizerSection
from swarmflow.core.commit.schedule import learning_rate

TRANSFORMERS_NAMES = {"constant": "constant_with_warmup", "linear": "linear", "cosine": "cosine"}


def plain_loop_rates(settings: OptimizerSection, steps: int) -> list[float]:
    """The rate that torch uses for each update of a loop over `steps` steps."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=settings.lr)
    scheduler = get_scheduler(
        TRANSFORMERS_NAMES[settings.schedule],
        optimizer,
        num_warmup_steps=settings.warmup_steps,
        num_training_steps=steps,
    )
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize(("steps", "warmup_steps"), [(1, 0), (1, 1), (20, 0), (20, 1), (20, 7), (20, 19), (20, 20)])
def test_equals_transformers(schedule: str, steps: int, warmup_steps: int) -> None:
    settings = OptimizerSection(lr=3e-4, schedule=schedule, warmup_steps=warmup_steps)
    ours = [learning_rate(settings, steps, step) for step in range(steps)]
    assert ours == pytest.approx(plain_loop_rates(settings, steps), rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("step", [-1, 10, 11])
def test_refuses_a_step_outside_the_run(step: int) -> None:
    with pytest.raises(ValueError, match=f"step {step} is not in a run of 10 steps"):
        learning_rate(OptimizerSection(), 10, step)


def test_refuses_an_unknown_schedule() -> None:
    with pytest.raises(ValueError, match="unknown schedule 'square'"):
        learning_rate(OptimizerSection(schedule="square"), 10, 5)
