"""Sequences of 32k tokens: through a stage of a tiny model, in the wire form of a run, and within its limits."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from swarmflow.compute.codec import codec_named, encode_tokens
from swarmflow.compute.device_work import AtOnce
from swarmflow.compute.families import model_config
from swarmflow.compute.runner import StageRunner
from swarmflow.runtime.execution.microbatch_format import format_of
from swarmflow.runtime.transport.frames import FrameLimits, check_limits, frame_pieces, pack_front, read_frame
from swarmflow.runtime.transport.limits import budget_limits
from tests.compute.models import GIVEN, VOCAB, stages_of
from tests.runtime.manifests import manifest

TOKENS = 1 << 15


@pytest.mark.parametrize("learn", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_a_microbatch_of_32k_tokens_passes_two_stages(learn: bool) -> None:
    """learn: with the backward passes, which take the CPU a minute for the attention of so many tokens."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1}
    config = model_config({**GIVEN["llama"], **sizes, "max_position_embeddings": TOKENS})
    of = manifest(model=config, cut=(1,), seq_len=TOKENS, hidden_size=8, microbatch_sequences=1)
    stages = stages_of(config, of.cut)
    first, last = (StageRunner(stage) for stage in stages)
    form, codec = format_of(of), codec_named(of.codec)
    words = np.arange(TOKENS + 1, dtype=np.int32)[None] % VOCAB
    inputs, targets = encode_tokens(words[:, :-1]), encode_tokens(words[:, 1:])
    work = AtOnce(stages[0].device)
    sent = form.encode(stages[0], first.forward("m", form.input(stages[0], inputs, targets, codec)), codec, work).wire
    assert sent is not None
    x, wanted = form.input(stages[1], sent, targets, codec), form.targets(targets)
    if learn:
        loss, count, gradient = last.loss("m", x, wanted)
        assert gradient is not None
        first.backward("m", gradient)
        assert all(bool(group.grads.isfinite().all() and group.grads.any()) for group in stages[0].groups.values())
    else:
        evaluated = last.evaluate(x, wanted)
        assert isinstance(evaluated, tuple)
        loss, count = evaluated[0].value, evaluated[1]
        gradient = torch.ones(1, TOKENS, 8)
    assert count == TOKENS
    assert abs(loss / count - np.log(VOCAB)) < 0.5
    back = form.encode(stages[1], gradient, codec, work).wire
    assert back is not None
    error = (form.gradient(stages[0], back, codec) - gradient).abs().max()
    assert error < 0.05 * gradient.abs().max()
    assert max(len(wire) for wire in (inputs, targets, sent, back)) <= of.tensor_bytes_max


@pytest.mark.asyncio
async def test_a_frame_carries_its_hidden_states_in_fp32() -> None:
    of = manifest(seq_len=TOKENS, microbatch_sequences=1, codec="none")
    limits = FrameLimits(bodies_bytes_max=of.tensor_bytes_max)
    body = codec_named("none").encode(torch.zeros(1, TOKENS, of.boundary_width))
    reader = asyncio.StreamReader()
    for piece in frame_pieces(pack_front(0, b"header", [len(body)], limits), [body], 1 << 20):
        reader.feed_data(bytes(piece))
    frame = await read_frame(reader, 0, limits, 10.0)
    assert frame is not None
    assert frame.bodies == [body]


def test_links_take_the_tensors_of_a_wide_model() -> None:
    """Larger than any frame is without a run: 32k tokens of width 8192 have 1 GiB in fp32."""
    of = manifest(seq_len=TOKENS, hidden_size=8192, microbatch_sequences=1)
    size = codec_named("none").wire_bytes((1, TOKENS, 8192), torch.float32)
    with pytest.raises(ValueError, match="over the limit"):
        check_limits(0, [size], FrameLimits())
    check_limits(0, [size], FrameLimits(bodies_bytes_max=of.tensor_bytes_max))
    assert budget_limits(of.tensor_bytes_max).of_process >= 2 * size
