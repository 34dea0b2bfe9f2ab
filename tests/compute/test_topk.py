"""The codec `adatopk`: what it keeps, how few bytes that takes, and that a peer learns from it without a bias."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmflow.compute.codec import codec_named
from swarmflow.compute.runner import StageRunner
from swarmflow.compute.stage import build_stage
from swarmflow.compute.topk import TopKCodec, codec_of, kept_share_of
from swarmflow.compute.weights import init_stage
from swarmflow.errors import FrameError
from tests.compute.models import batch, config_of

SHAPES = [(1,), (3, 1), (2, 5, 64), (2, 3, 256), (2, 3, 257), (4, 520), (0,), (2, 0, 4), ()]


def sent(codec: TopKCodec, tensor: Tensor) -> Tensor:
    return codec.decode(codec.encode(tensor), tensor.shape, tensor.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_largest_numbers_of_each_token_are_kept(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    codec, tensor = TopKCodec(10), torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    wire = codec.encode(tensor)
    decoded = codec.decode(wire, shape, dtype)
    assert wire.nbytes == codec.wire_bytes(shape, dtype)
    assert (decoded.shape, decoded.dtype) == (tensor.shape, dtype)
    kept = decoded != 0
    assert torch.allclose(decoded[kept].float(), tensor[kept].float(), atol=0.1)
    if shape and shape[-1] in (64, 256):  # a token is one run
        a_token = max(1, 10 * shape[-1] // 256)
        least_kept = tensor.abs().masked_fill(~kept, math.inf).amin(-1)
        assert bool((kept.sum(-1) == a_token).all())
        assert bool((tensor.abs().masked_fill(kept, 0.0).amax(-1) <= least_kept).all())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0]), min_size=1, max_size=300), st.integers(1, 255))
def test_of_like_numbers_the_first_are_kept(values: list[float], kept: int) -> None:
    """So that the bytes do not depend on the device: compared with a sort that keeps the order of like ones."""
    codec, tensor = TopKCodec(kept), torch.tensor(values)
    runs, length = -(-len(values) // 256), math.ceil(len(values) / -(-len(values) // 256))
    wanted = torch.zeros(len(values))
    shortest = len(values) - (runs - 1) * length
    for start in range(0, len(values), length):
        run = values[start : start + length]
        order = sorted(range(len(run)), key=lambda place: (-abs(run[place]), place))
        for place in order[: min(shortest, max(1, kept * length // 256))]:
            wanted[start + place] = run[place]
    assert torch.allclose(sent(codec, tensor), wanted, atol=0.02)


def test_what_a_token_sends_depends_on_no_other_token_but_for_the_scale() -> None:
    codec, tensor = TopKCodec(12), torch.randn(2, 4, 256, generator=torch.Generator().manual_seed(1))
    whole, alone = sent(codec, tensor), sent(codec, tensor[:, :2])
    assert torch.equal(whole[:, :2] != 0, alone != 0)


def test_what_is_no_number_is_not_hidden() -> None:
    tensor = torch.ones(2, 256)
    tensor[1, 77] = math.nan
    assert bool(sent(TopKCodec(10), tensor).isnan().any())


def test_places_that_no_tensor_has_are_refused() -> None:
    codec, shape = TopKCodec(3), (1, 257)
    wire = bytearray(codec.encode(torch.arange(1.0, 258.0).view(shape)))
    for places, reason in [([0, 128], "outside its run"), ([128, 129], "outside its run")]:
        wire[-2:] = bytes(places)
        with pytest.raises(FrameError, match=reason):
            codec.decode(wire, shape, torch.float32)
    codec, shape = TopKCodec(3), (1, 256)
    wire = bytearray(codec.encode(torch.arange(1.0, 257.0).view(shape)))
    wire[-3:] = bytes([4, 4, 5])
    with pytest.raises(FrameError, match="do not rise"):
        codec.decode(wire, shape, torch.float32)


def test_all_numbers_need_no_places() -> None:
    assert codec_of("adatopk", 256) is codec_named("blockwise8")
    assert codec_of("fp16", 1) is codec_named("fp16")


def test_a_sparse_input_has_the_gradient_of_the_kept_numbers() -> None:
    """The gradient is that of the network that sets the other numbers to zero, as autograd finds it."""
    stage = build_stage(config_of("llama"), (1,), 1, device="cpu")
    init_stage(stage, seed=0)
    runner, codec = StageRunner(stage), TopKCodec(64)
    _, targets = batch()
    hidden = torch.randn(*targets.shape, stage.boundary_width, generator=torch.Generator().manual_seed(2))
    mask = sent(codec, hidden) != 0
    whole = sent(codec, hidden).requires_grad_()
    stage.loss(whole * mask * 2.0, targets).backward()  # a quarter is kept
    assert whole.grad is not None
    wanted = whole.grad.clone()
    runner.begin(0, kept_share=kept_share_of(codec))
    for defer in (False, True):
        _, _, gradient = runner.loss(0, sent(codec, hidden), targets, defer=defer)
        assert gradient is not None
        assert torch.allclose(gradient, wanted, atol=1e-6)
        assert 0 < int((gradient != 0).sum()) <= int(mask.sum())
    runner.begin(0)
    _, _, gradient = runner.loss(0, sent(codec, hidden), targets)
    assert gradient is not None
    assert int((gradient != 0).sum()) > int(mask.sum()), "without it all numbers have one"
