"""A stage on Apple's GPU beside the same stage on the CPU. Skipped where torch has no Metal device."""

from __future__ import annotations

import pytest
import torch

from swarmflow.compute.device import choose_device, free_memory_bytes
from swarmflow.compute.families import model_config
from swarmflow.compute.flat_tensors import in_double, rounded_product, sum_of_squares
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.weights import init_stage
from swarmflow.errors import ConfigError

THERE = torch.backends.mps.is_available()
SIZES = {
    **{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2},
    **{"num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 64, "max_position_embeddings": 32},
}


@pytest.mark.skipif(THERE, reason="this machine has the device")
def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="--device mps: this machine, or this build of torch, has no Metal device"):
        choose_device("mps")


@pytest.mark.skipif(not THERE, reason="no Metal device")
def test_a_stage_gives_the_gradients_of_the_cpu() -> None:
    tokens, gradients = torch.arange(32).view(1, 32) % 64, []
    for device in (torch.device("cpu"), choose_device("mps")):
        assert free_memory_bytes(device) > 0
        stage = build_stage(model_config(SIZES), (1,), 0, device=str(device))
        init_stage(stage, 0)
        runner = StageRunner(stage)
        output = runner.forward("m", tokens.to(device))
        runner.backward("m", torch.ones_like(output))
        [group] = stage.groups.values()
        gradients.append(group.grads.cpu())
        assert sum_of_squares(group.grads) == pytest.approx(float(in_double(group.grads).square().sum()), rel=1e-6)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)


def test_products_are_rounded_once() -> None:
    integers = torch.tensor([2**53 + 1, -3, 0, 2**40 + 1], dtype=torch.int64)
    wanted = (integers.double() * 2.0**-12).float()
    assert torch.equal(rounded_product(integers, 2.0**-12), wanted)
    factors = torch.tensor([2.0**-12, 0.5, 1.0, 2.0], dtype=torch.float32)
    assert torch.equal(rounded_product(integers, factors), (integers.double() * factors).float())
