"""The wire form of tensors: exact where it promises to be, close where it does not, deaf to hostile bytes."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from swarmflow.compute.codec import CODECS, FP16_MAX, codec_named, decode_tokens, encode_tokens, tokens_wire_bytes
from swarmflow.errors import ConfigError, FrameError

SHAPES = [(), (1,), (255,), (256,), (257,), (2, 3, 129), (1, 1, 1, 5), (0,), (2, 0, 4)]
DTYPES = [torch.float32, torch.bfloat16]
ALIGNMENT_BYTES = 64  # of what torch allocates itself
every_codec = pytest.mark.parametrize("name", list(CODECS))
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def gaussian(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def relative_error(got: Tensor, wanted: Tensor) -> float:
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


@every_codec
@every_dtype
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_length_shape_and_dtype_are_kept(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    codec = codec_named(name)
    tensor = gaussian(shape, dtype)
    wire = codec.encode(tensor)
    decoded = codec.decode(wire, shape, dtype)
    assert wire.nbytes == codec.wire_bytes(shape, dtype)
    assert (decoded.shape, decoded.dtype) == (tensor.shape, dtype)
    assert torch.allclose(decoded.float(), tensor.float(), atol=0.05)


@every_dtype
def test_none_is_exact_even_for_what_is_no_number(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0.0, -0.0, math.nan, math.inf, -math.inf, 1e-40, 3e38], dtype=dtype)
    codec = codec_named("none")
    decoded = codec.decode(codec.encode(tensor), tensor.shape, dtype)
    assert torch.equal(decoded.view(torch.uint8), tensor.view(torch.uint8))


def test_none_of_a_transposed_tensor_keeps_its_order() -> None:
    tensor = gaussian((3, 5), torch.float32).T
    codec = codec_named("none")
    assert torch.equal(codec.decode(codec.encode(tensor), (5, 3), torch.float32), tensor)


@every_dtype
def test_fp16_clamps_what_is_too_large_and_keeps_infinity(dtype: torch.dtype) -> None:
    tensor = torch.tensor([70000.0, -1e30, math.inf, -math.inf, math.nan, 0.5], dtype=dtype)
    codec = codec_named("fp16")
    decoded = codec.decode(codec.encode(tensor), tensor.shape, dtype).float()
    largest = float(torch.tensor(FP16_MAX, dtype=dtype))
    wanted = torch.tensor([largest, -largest, math.inf, -math.inf, math.nan, 0.5])
    assert torch.equal(decoded.nan_to_num(7.0), wanted.nan_to_num(7.0))


@pytest.mark.parametrize(("name", "allowed"), [("none", 0.0), ("fp16", 3e-4), ("blockwise8", 0.0115)])
def test_relative_error_on_a_gaussian(name: str, allowed: float) -> None:
    codec = codec_named(name)
    tensor = gaussian((4, 128, 257), torch.float32)
    error = relative_error(codec.decode(codec.encode(tensor), tensor.shape, torch.float32), tensor)
    assert error <= allowed


def test_blockwise_keeps_the_largest_of_each_block() -> None:
    tensor = gaussian((1000,), torch.float32) * torch.logspace(-10, 10, 1000)
    codec = codec_named("blockwise8")
    decoded = codec.decode(codec.encode(tensor), tensor.shape, torch.float32)
    for start in range(0, 1000, 256):
        block = slice(start, start + 256)
        # The map holds +1 but ends at -0.993, so a negative extreme is kept to 0.7 %.
        assert decoded[block].abs().max() == pytest.approx(float(tensor[block].abs().max()), rel=0.0075)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@every_dtype
def test_blockwise_never_hides_what_is_not_finite(value: float, dtype: torch.dtype) -> None:
    tensor = gaussian((700,), dtype)
    tensor[300] = value
    codec = codec_named("blockwise8")
    decoded = codec.decode(codec.encode(tensor), tensor.shape, dtype)
    assert torch.isnan(decoded[256:512]).all()
    assert torch.isfinite(decoded[:256]).all()
    assert torch.isfinite(decoded[512:]).all()


@every_codec
def test_zeros_stay_zeros(name: str) -> None:
    codec = codec_named(name)
    tensor = torch.zeros(300)
    assert torch.equal(codec.decode(codec.encode(tensor), (300,), torch.float32), tensor)


@every_codec
def test_decoding_from_unaligned_read_only_memory_gives_a_tensor_of_its_own(name: str) -> None:
    codec = codec_named(name)
    tensor = gaussian((5, 100), torch.float32)
    wire = bytes(codec.encode(tensor))
    decoded = codec.decode(memoryview(b"x" + wire)[1:], (5, 100), torch.float32)
    first = decoded.clone()
    decoded.zero_()
    assert torch.equal(codec.decode(wire, (5, 100), torch.float32), first)


@every_codec
@every_dtype
@pytest.mark.parametrize("offset", [0, 1, 4, 37])
def test_decoded_tensors_lie_at_aligned_addresses(name: str, dtype: torch.dtype, offset: int) -> None:
    """Wherever the bytes lay: matrix products may round differently at another alignment."""
    codec, shape = codec_named(name), (2, 3, 129)
    wires = (codec.encode(gaussian(shape, dtype)), encode_tokens(np.ones(shape, dtype=np.int32)))
    tensor, tokens = (memoryview(bytearray(bytes(offset) + bytes(wire)))[offset:] for wire in wires)
    assert codec.decode(tensor, shape, dtype).data_ptr() % ALIGNMENT_BYTES == 0
    assert decode_tokens(tokens, shape, 2).data_ptr() % ALIGNMENT_BYTES == 0


@every_codec
def test_threads_get_the_same_bytes(name: str) -> None:
    codec = codec_named(name)
    tensors = [gaussian((3, 1000), torch.float32, seed) for seed in range(16)]
    alone = [bytes(codec.encode(tensor)) for tensor in tensors]
    with ThreadPoolExecutor(4) as pool:
        together = [bytes(wire) for wire in pool.map(codec.encode, tensors)]
    assert together == alone


@every_codec
def test_another_shape_dtype_codec_or_length_is_refused(name: str) -> None:
    codec = codec_named(name)
    wire = bytes(codec.encode(gaussian((4, 8), torch.float32)))
    other = next(each for each in CODECS.values() if each is not codec)
    for buffer, shape, dtype in [
        (wire, (8, 4), torch.float32),
        (wire, (32,), torch.float32),
        (wire, (4, 8), torch.bfloat16),
        (wire[:-1], (4, 8), torch.float32),
        (wire + b"\0", (4, 8), torch.float32),
        (b"", (4, 8), torch.float32),
        (b"\x02" + wire[1:], (4, 8), torch.float32),
        (bytes(other.encode(gaussian((4, 8), torch.float32))), (4, 8), torch.float32),
    ]:
        with pytest.raises(FrameError):
            codec.decode(buffer, shape, dtype)


@every_codec
def test_a_huge_claim_is_refused_without_memory_for_it(name: str) -> None:
    shape = (2**31, 2**31)
    with pytest.raises(FrameError, match="were expected"):
        codec_named(name).decode(b"\1" * 64, shape, torch.float32)


@settings(max_examples=200)
@given(name=st.sampled_from(sorted(CODECS)), noise=st.binary(max_size=300), dtype=st.sampled_from(DTYPES))
def test_noise_is_refused_or_gives_the_expected_shape(name: str, noise: bytes, dtype: torch.dtype) -> None:
    codec = codec_named(name)
    genuine = bytes(codec.encode(torch.ones(3, 5, dtype=dtype)))
    with pytest.raises(FrameError):
        codec.decode(noise, (3, 7), dtype)
    header_bytes = 12
    forged = genuine[:header_bytes] + noise
    if len(forged) == len(genuine):
        assert codec.decode(forged, (3, 5), dtype).shape == (3, 5)
    else:
        with pytest.raises(FrameError):
            codec.decode(forged, (3, 5), dtype)


@settings(max_examples=100)
@given(data=st.data(), name=st.sampled_from(sorted(CODECS)))
def test_a_changed_header_byte_is_refused(data: st.DataObject, name: str) -> None:
    codec = codec_named(name)
    wire = bytearray(codec.encode(torch.ones(3, 5)))
    position = data.draw(st.integers(0, 11))
    wire[position] ^= data.draw(st.integers(1, 255))
    with pytest.raises(FrameError):
        codec.decode(wire, (3, 5), torch.float32)


@settings(max_examples=100)
@given(numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=600))
def test_decoding_what_was_decoded_changes_nothing_for_exact_codecs(numbers: list[float]) -> None:
    tensor = torch.tensor(numbers, dtype=torch.float32)
    for name in ("none", "fp16"):
        codec = codec_named(name)
        once = codec.decode(codec.encode(tensor), tensor.shape, torch.float32)
        assert torch.equal(codec.decode(codec.encode(once), tensor.shape, torch.float32), once)


@pytest.mark.parametrize("tensor", [torch.zeros(2, dtype=torch.int64), torch.zeros((1,) * 9)])
def test_a_tensor_that_cannot_be_sent_is_a_mistake_of_the_caller(tensor: Tensor) -> None:
    with pytest.raises(ValueError, match="boundary tensors"):
        codec_named("none").encode(tensor)


def test_an_unknown_codec_names_the_allowed() -> None:
    with pytest.raises(ConfigError, match="blockwise8, fp16, none"):
        codec_named("zip")


def test_tokens_come_back_as_int64() -> None:
    tokens = np.array([[0, 1, 255], [7, 8, 9]], dtype=np.int32)
    wire = encode_tokens(tokens)
    decoded = decode_tokens(wire, (2, 3), vocab_size=256)
    assert wire.nbytes == tokens_wire_bytes((2, 3))
    assert decoded.dtype == torch.int64
    assert decoded.tolist() == tokens.tolist()


@pytest.mark.parametrize("bad", [-1, 256, 2**31 - 1, -(2**31)])
def test_a_token_outside_the_vocabulary_is_refused(bad: int) -> None:
    wire = encode_tokens(np.array([[3, bad]], dtype=np.int32))
    with pytest.raises(FrameError, match=r"outside \[0, 256\)"):
        decode_tokens(wire, (1, 2), vocab_size=256)


@settings(max_examples=100)
@given(noise=st.binary(max_size=64))
def test_noise_is_no_tokens(noise: bytes) -> None:
    with pytest.raises(FrameError):
        decode_tokens(noise, (2, 11), vocab_size=2**31)


def test_64_bit_tokens_are_not_cut_silently() -> None:
    with pytest.raises(TypeError):
        encode_tokens(np.array([[2**40]]))


def test_the_codec_does_not_load_torchs_compiler() -> None:
    """A peer of a small stage would need a tenth more memory for it, and another second to start."""
    program = (
        "import os, sys, torch; from swarmflow.compute.codec import codec_named;"
        "codec_named('blockwise8').encode(torch.ones(300));"
        "assert 'torch._inductor.compile_fx' not in sys.modules; assert 'TORCHDYNAMO_DISABLE' not in os.environ"
    )
    inherited = {key: value for key, value in os.environ.items() if key != "TORCHDYNAMO_DISABLE"}
    subprocess.run([sys.executable, "-c", program], env=inherited, check=True, timeout=60)
