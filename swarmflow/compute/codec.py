"""The wire form of boundary tensors and tokens: what one peer's bytes mean to the next.

Layout, little-endian: format version (1 byte), codec (1), dtype (1), number of dimensions (1), each dimension
(4 bytes), then the data:

- `none`: the elements in the tensor's own dtype.
- `fp16`: the elements as half precision.
- `blockwise8`: one fp32 scale for each block of 256 elements, then one byte an element: an index into the dynamic map
  of "8-Bit Optimizers via Block-wise Quantization" (Dettmers et al., 2022), as bitsandbytes computes it.
- tokens: the elements as int32.

NaN and infinity are never hidden: `none` and `fp16` carry them as they are, and a `blockwise8` block that holds one
decodes to NaN as a whole. Peers never send a value that is not finite, and refuse a tensor that holds one.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import os
import struct
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from swarmflow.compute.device_work import AtOnce, DeviceWork, bytes_of, tensor_of
from swarmflow.compute.finite import finite
from swarmflow.errors import ConfigError, FrameError

WireBytes = bytes | bytearray | memoryview

WIRE_VERSION: Final = 1
DIMENSIONS_MAX: Final = 8
# Relative error of a Gaussian, the same with 0.1 % outliers of 30 sigma, and bytes an element: 0.0095, 0.0086, 1.063 at
# 64; 0.0108, 0.0113, 1.016 at 256; 0.0130, 0.0216, 1.001 at 4096. The speed is the same for all.
BLOCK_ELEMENTS: Final = 256
FP16_MAX: Final = float(torch.finfo(torch.float16).max)

_HEADER: Final = struct.Struct("<BBBB")
_DTYPE_IDS: Final = {torch.float32: 1, torch.bfloat16: 2, torch.int32: 3}
_TOKENS_CODEC_ID: Final = 16
_NO_COMPILER: Final = "TORCHDYNAMO_DISABLE"
_IMPORTING: Final = threading.Lock()
# Torch's wrapper of bitsandbytes' operators and torch.export change the same global state of torch.fx, in whatever
# thread: a peer that exported a module while it encoded its first tensor ended with a KeyError.
FX_STATE: Final = threading.RLock()


@dataclass
class Encoding:
    """The wire form of a tensor; None until its work is done, and for a tensor with a value that is not finite."""

    wire: memoryview | None = None


class Codec(ABC):
    """How boundary tensors (fp32 or bf16, any shape of up to 8 dimensions) become bytes and tensors again.

    Codecs hold no state, so that any number of threads may share one; the same input gives the same bytes.
    """

    name: str
    wire_id: int

    @abstractmethod
    def _data_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """The exact number of data bytes that follow the header."""

    @abstractmethod
    def _write(self, tensor: Tensor, data: npt.NDArray[np.uint8]) -> None:
        """Fill `data` (uint8 [_data_bytes]) from `tensor` (contiguous, at least one element)."""

    @abstractmethod
    def _parts(self, tensor: Tensor) -> list[Tensor]:
        """The data of `tensor` (contiguous, finite, at least one element) as flat tensors on its device, in order.

        Nothing waits for the device. Of a tensor that is not finite they are anything.
        """

    @abstractmethod
    def _read(self, data: npt.NDArray[np.uint8], shape: Sequence[int], dtype: torch.dtype, work: DeviceWork) -> Tensor:
        """The tensor (`dtype`, on the device, in memory of its own) that `data` stands for; `decode` shapes it.

        Raises FrameError for data that no tensor has.
        """

    def wire_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """The exact length of the wire form of any tensor of this shape and dtype."""
        return _header_bytes(len(shape)) + self._data_bytes(shape, dtype)

    def encode(self, tensor: Tensor) -> memoryview:
        """The wire form of `tensor` (fp32 or bf16, on any device); it shares no memory with the tensor.

        Raises ValueError where dtype or number of dimensions cannot be sent: the caller's mistake, not the network's.
        """
        _check_sendable(tensor)
        wire = np.empty(self.wire_bytes(tensor.shape, tensor.dtype), dtype=np.uint8)
        header = _header(self.wire_id, tensor.dtype, tensor.shape)
        wire[: len(header)] = np.frombuffer(header, dtype=np.uint8)
        if tensor.numel():
            self._write(tensor.detach().contiguous(), wire[len(header) :])
        return wire.data

    def begin_encode(self, tensor: Tensor, work: DeviceWork) -> Encoding:
        """The wire form of `tensor`, computed on its device; a flag that says whether it is finite comes with the data.

        Raises ValueError, as `encode`.
        """
        if work.at_once:
            return Encoding(self.encode(tensor) if finite(tensor) else None)
        _check_sendable(tensor)
        tensor, encoding = tensor.detach().contiguous(), Encoding()
        parts = self._parts(tensor) if tensor.numel() else []
        header = _header(self.wire_id, tensor.dtype, tensor.shape)

        def assemble(found: list[Tensor]) -> None:
            is_finite, *data = found
            if bool(is_finite):
                encoding.wire = _joined(header, self.wire_bytes(tensor.shape, tensor.dtype), data)

        work.read([torch.isfinite(tensor).all(), *parts], assemble)
        return encoding

    def decode(
        self,
        buffer: WireBytes,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        work: DeviceWork | None = None,
    ) -> Tensor:
        """The tensor (`shape`, `dtype`, on `device` or that of `work`, in memory of its own) with wire form `buffer`.

        What `buffer` claims is compared with what the caller expects before anything is allocated. Raises FrameError
        where codec, dtype, shape or length differ, or where no tensor has this form.
        """
        work = work or AtOnce(torch.device(device))
        expected_bytes = self.wire_bytes(shape, dtype)
        data = _checked_data(buffer, _header(self.wire_id, dtype, shape), expected_bytes, self.name)
        if not math.prod(shape):
            return torch.empty(tuple(shape), dtype=dtype, device=work.device)
        return self._read(data, shape, dtype, work).reshape(tuple(shape))


class PlainCodec(Codec):
    """Elements as they are: exact, 4 (fp32) or 2 (bf16) bytes an element."""

    name = "none"
    wire_id = 1

    def _data_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        return math.prod(shape) * dtype.itemsize

    def _write(self, tensor: Tensor, data: npt.NDArray[np.uint8]) -> None:
        torch.from_numpy(data).view(tensor.dtype).copy_(tensor.view(-1))

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.view(-1)]

    def _read(self, data: npt.NDArray[np.uint8], shape: Sequence[int], dtype: torch.dtype, work: DeviceWork) -> Tensor:
        return work.receive(data, math.prod(shape), dtype)


class HalfCodec(Codec):
    """Half precision, 2 bytes an element: finite values beyond its range become its largest, 65504, with their sign."""

    name = "fp16"
    wire_id = 2

    def _data_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        return math.prod(shape) * 2

    def _write(self, tensor: Tensor, data: npt.NDArray[np.uint8]) -> None:
        flat = tensor.view(-1)
        lowest, highest = _extremes(flat)
        if not (lowest >= -FP16_MAX and highest <= FP16_MAX):
            flat = flat.float()  # bf16 has no 65504: it would round to 65536, which is infinite in fp16
            flat = torch.where(torch.isfinite(flat), flat.clamp(-FP16_MAX, FP16_MAX), flat)
        torch.from_numpy(data).view(torch.float16).copy_(flat)

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        return [tensor.view(-1).float().clamp(-FP16_MAX, FP16_MAX).to(torch.float16)]

    def _read(self, data: npt.NDArray[np.uint8], shape: Sequence[int], dtype: torch.dtype, work: DeviceWork) -> Tensor:
        return work.receive(data, math.prod(shape), torch.float16).to(dtype)


class BlockwiseCodec(Codec):
    """Eight bits an element and a scale for each 256: 1.016 bytes an element, relative error 0.011 on a Gaussian."""

    name = "blockwise8"
    wire_id = 3

    def _data_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        return _blocks(math.prod(shape)) * 4 + math.prod(shape)

    def _write(self, tensor: Tensor, data: npt.NDArray[np.uint8]) -> None:
        flat = tensor.view(-1)
        # bitsandbytes turns NaN into an ordinary number silently, so it must not see one.
        is_finite = all(map(math.isfinite, _extremes(flat)))
        source = flat if is_finite else torch.nan_to_num(flat, nan=0.0, posinf=0.0, neginf=0.0)
        scales, indices = _quantized(source)
        if not is_finite:
            affected_blocks = torch.nonzero(~torch.isfinite(flat)).flatten() // BLOCK_ELEMENTS
            scales[affected_blocks] = math.nan
        scale_bytes = scales.numel() * 4
        data[:scale_bytes] = bytes_of(scales)
        data[scale_bytes:] = bytes_of(indices)

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        return list(_quantized(tensor.view(-1)))

    def _read(self, data: npt.NDArray[np.uint8], shape: Sequence[int], dtype: torch.dtype, work: DeviceWork) -> Tensor:
        elements = math.prod(shape)
        scale_bytes = _blocks(elements) * 4
        scales = work.receive(data[:scale_bytes], _blocks(elements), torch.float32)
        indices = work.receive(data[scale_bytes:], elements, torch.uint8)
        with FX_STATE:
            decoded: Tensor = _bitsandbytes().dequantize_blockwise(
                indices, scales, _dynamic_map(work.device), BLOCK_ELEMENTS, dtype
            )
        return decoded


CODECS: Final[dict[str, Codec]] = {codec.name: codec for codec in (BlockwiseCodec(), HalfCodec(), PlainCodec())}


def codec_named(name: str) -> Codec:
    """The codec that RUN.toml's `[train] codec` names. Raises ConfigError for any other name."""
    codec = CODECS.get(name)
    if codec is None:
        raise ConfigError(f'train.codec = "{name}": allowed are {", ".join(CODECS)}')
    return codec


def tokens_wire_bytes(shape: Sequence[int]) -> int:
    """The exact length of the wire form of tokens of this shape."""
    return _header_bytes(len(shape)) + 4 * math.prod(shape)


def encode_tokens(tokens: npt.NDArray[np.int32]) -> memoryview:
    """The wire form of token ids (int32 [B, T])."""
    header = _header(_TOKENS_CODEC_ID, torch.int32, tokens.shape)
    return memoryview(header + tokens.astype("<i4", casting="safe", copy=False).tobytes())


def decode_tokens(
    buffer: WireBytes, shape: Sequence[int], vocab_size: int, device: torch.device | str = "cpu"
) -> Tensor:
    """The token ids (int64 `shape`, on `device`) whose wire form is `buffer`: int64 because cross-entropy wants it.

    Raises FrameError where codec, shape or length differ from what is expected or an id is outside [0, vocab_size).
    """
    expected = _header(_TOKENS_CODEC_ID, torch.int32, shape)
    data = _checked_data(buffer, expected, tokens_wire_bytes(shape), "tokens")
    tokens = tensor_of(data, math.prod(shape), torch.int32)
    if tokens.numel():
        lowest, highest = (int(extreme) for extreme in torch.aminmax(tokens))
        if lowest < 0 or highest >= vocab_size:
            raise FrameError(f"token id {lowest if lowest < 0 else highest} is outside [0, {vocab_size})")
    return tokens.to(device=device, dtype=torch.int64).reshape(tuple(shape))


def decode_words(buffer: WireBytes, shape: Sequence[int]) -> Tensor:
    """The words (int32, flat) whose wire form, as `encode_tokens` writes it, is `buffer`: any bits.

    Raises FrameError where codec, shape or length differ from what is expected.
    """
    expected = _header(_TOKENS_CODEC_ID, torch.int32, shape)
    data = _checked_data(buffer, expected, tokens_wire_bytes(shape), "words")
    return tensor_of(data, math.prod(shape), torch.int32)


def _header_bytes(dimensions: int) -> int:
    return _HEADER.size + 4 * dimensions


def _header(codec_id: int, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    return _HEADER.pack(WIRE_VERSION, codec_id, _DTYPE_IDS[dtype], len(shape)) + struct.pack(f"<{len(shape)}I", *shape)


def _check_sendable(tensor: Tensor) -> None:
    if tensor.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"boundary tensors are fp32 or bf16, not {tensor.dtype}")
    if tensor.ndim > DIMENSIONS_MAX:
        raise ValueError(f"boundary tensors have at most {DIMENSIONS_MAX} dimensions, not {tensor.ndim}")


def _checked_data(buffer: WireBytes, header: bytes, expected_bytes: int, what: str) -> npt.NDArray[np.uint8]:
    """The data part of `buffer` without a copy, after its length and its whole header are as expected."""
    view = memoryview(buffer)
    if view.nbytes != expected_bytes:
        raise FrameError(f"a {what} tensor of {view.nbytes} bytes came where {expected_bytes} were expected")
    view = view.cast("B")
    if view[: len(header)] != header:
        raise FrameError(f"a {what} tensor's header is {bytes(view[: len(header)]).hex()}, expected {header.hex()}")
    return np.frombuffer(view[len(header) :], dtype=np.uint8)


def _blocks(elements: int) -> int:
    return -(-elements // BLOCK_ELEMENTS)


def _extremes(flat: Tensor) -> tuple[float, float]:
    """The lowest and the highest element ([elements], at least one); NaN where there is one."""
    lowest, highest = torch.stack(torch.aminmax(flat)).tolist()
    return lowest, highest


def _joined(header: bytes, wire_bytes: int, parts: Sequence[Tensor]) -> memoryview:
    """The wire form: a header, and flat CPU tensors that follow each other."""
    wire = np.empty(wire_bytes, dtype=np.uint8)
    np.concatenate([np.frombuffer(header, dtype=np.uint8), *map(bytes_of, parts)], out=wire)
    return wire.data


def _quantized(flat: Tensor) -> tuple[Tensor, Tensor]:
    """A scale for each block, fp32, and an index into the dynamic map for each element, uint8."""
    with FX_STATE:
        indices, scales = _bitsandbytes().quantize_blockwise(flat, _dynamic_map(flat.device), BLOCK_ELEMENTS)
    return scales, indices


def preload() -> None:
    """Import bitsandbytes now, so that processes that are forked from this one need not.

    Where there is a CUDA device each of them does so itself: the import starts CUDA, and no process that is forked
    afterwards can use it.
    """
    if not torch.cuda.device_count():
        _bitsandbytes()


class _Bitsandbytes:
    """The two bitsandbytes operations in use, imported at first use.

    Without transformers the import takes seconds and 120 MB, which neither a trainer nor a run with another codec
    should pay.
    """

    def __init__(self) -> None:
        # It warns at import about a 4-bit kernel that is not used here.
        logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
        with _without_compiler():
            functional = importlib.import_module("bitsandbytes.functional")
        self.dynamic_map: Tensor = functional.create_dynamic_map()
        self.quantize_blockwise = torch.ops.bitsandbytes.quantize_blockwise.default
        self.dequantize_blockwise = torch.ops.bitsandbytes.dequantize_blockwise.default


@contextmanager
def _without_compiler() -> Iterator[None]:
    """No torch.compile inside the block.

    At its import bitsandbytes has a kernel compiled that is not used here. That loads torch's whole compiler: on top of
    transformers 1.04 s and 45 MB, and 0.05 s and 3 MB without it.
    """
    before = os.environ.get(_NO_COMPILER)
    os.environ[_NO_COMPILER] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_NO_COMPILER, None)
        else:
            os.environ[_NO_COMPILER] = before


def _bitsandbytes() -> _Bitsandbytes:
    with _IMPORTING:  # functools.cache alone lets two threads import it at once, and both change the environment
        return _imported()


@functools.cache
def _imported() -> _Bitsandbytes:
    return _Bitsandbytes()


@functools.cache
def _dynamic_map(device: torch.device) -> Tensor:
    return _bitsandbytes().dynamic_map.to(device)
