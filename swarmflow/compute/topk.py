"""The codec `adatopk`: the largest numbers of each token alone, more of them where the links are fast.

FusionLLM (section 5) sparsifies each boundary tensor to its largest elements, the slowest boundary most (AdaTopK), with
values of 4 bytes and indices of 8. Here a kept number takes 2.016 bytes; and a peer sends the gradients of the kept
numbers alone (`StageRunner.begin`), so that what is learnt is the gradient of the sparse network, without a bias. There
is no error feedback: a microbatch's bytes would depend on those before it, and another peer could not repeat them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from swarmflow.compute.codec import BLOCK_ELEMENTS, BlockwiseCodec, Codec, codec_named
from swarmflow.compute.device_work import DeviceWork, bytes_of, tensor_of
from swarmflow.errors import FrameError
from swarmflow.manifest import ADAPTIVE


class TopKCodec(Codec):
    """The largest numbers of each vector, in 8 bits with their places; the others become zeros.

    The vectors of the last dimension are cut into runs of like length, at most 256; of each, `kept` of 256 elements are
    kept, at least one: the largest by magnitude, of like ones the first. Which these are depends on no other token; of
    a module, whose tensors are packed into one vector, they are those of a stretch of it.
    Data: the kept numbers as `blockwise8`, then a byte for each, its place in its run; in rising order within a run.
    """

    name = ADAPTIVE
    wire_id = 4

    def __init__(self, kept: int) -> None:
        if not 1 <= kept <= BLOCK_ELEMENTS:
            raise ValueError(f"{kept} of {BLOCK_ELEMENTS} elements; allowed: 1 to {BLOCK_ELEMENTS}")
        self.kept = kept
        self._values = BlockwiseCodec()

    def _data_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        numbers = self._numbers(shape)
        return self._values._data_bytes((numbers,), dtype) + numbers

    def _write(self, tensor: Tensor, data: npt.NDArray[np.uint8]) -> None:
        runs = _in_runs(tensor)
        places = self._places(runs, tensor.shape[-1:].numel())
        numbers = places.numel()
        self._values._write(runs.gather(1, places).view(-1), data[:-numbers])
        data[-numbers:] = bytes_of(places.view(-1).to(torch.uint8))

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        runs = _in_runs(tensor)
        places = self._places(runs, tensor.shape[-1:].numel())
        return [*self._values._parts(runs.gather(1, places).view(-1)), places.reshape(-1).to(torch.uint8)]

    def _read(self, data: npt.NDArray[np.uint8], shape: Sequence[int], dtype: torch.dtype, work: DeviceWork) -> Tensor:
        width = math.prod(shape[-1:])
        a_vector, length = _runs(width)
        numbers = self._numbers(shape)
        places = tensor_of(data[-numbers:], numbers, torch.uint8).view(-1, a_vector, self._of_run(width)).long()
        shorter = a_vector * length - width  # the last run, by so many
        if bool((places >= length).any()) or bool((places[:, -1] >= length - shorter).any()):
            raise FrameError("an adatopk tensor has a number outside its run")
        if bool((places.diff(dim=-1) <= 0).any()):
            raise FrameError("an adatopk tensor's places do not rise")
        values = self._values._read(data[:-numbers], (numbers,), dtype, work)
        runs = torch.zeros(places.shape[0] * a_vector, length, dtype=dtype, device=work.device)
        runs.scatter_(1, work.copy_in(places.view(runs.shape[0], -1)), values.view(runs.shape[0], -1))
        return runs.view(-1, a_vector * length)[:, :width].contiguous()

    def _places(self, runs: Tensor, width: int) -> Tensor:
        """The places of the numbers of each run [runs, length] that are kept: int64 [runs, kept], rising."""
        kept = self._of_run(width)
        sizes = runs.float().abs().nan_to_num(nan=math.inf)  # a number that is none is never hidden
        a_vector, length = _runs(width)
        sizes.view(-1, a_vector, length)[:, -1, length - (a_vector * length - width) :] = -1.0
        # Which of like elements torch.topk returns differs between devices; the value of the last kept one does not.
        least = sizes.topk(kept, dim=1).values[:, -1:]
        above, equal = sizes > least, sizes == least
        taken = above | (equal & (equal.cumsum(1) <= kept - above.sum(1, keepdim=True)))
        if taken.device.type == "cpu":
            return taken.nonzero()[:, 1].view(-1, kept)
        # Elsewhere the host would wait for `nonzero`. Of each run as many are taken: a stable sort puts them first.
        return taken.sort(dim=1, descending=True, stable=True).indices[:, :kept]

    def _numbers(self, shape: Sequence[int]) -> int:
        """How many numbers are kept of a tensor."""
        width = math.prod(shape[-1:])
        return math.prod(shape[:-1]) * _runs(width)[0] * self._of_run(width)

    def _of_run(self, width: int) -> int:
        """How many numbers are kept of each run of a vector."""
        a_vector, length = _runs(width)
        shortest = width - (a_vector - 1) * length
        return min(shortest, max(1, self.kept * length // BLOCK_ELEMENTS))


@functools.cache
def codec_of(name: str, kept: int) -> Codec:
    """The codec of a boundary in one step. kept: of 256 numbers, where the run's codec is adaptive.

    All 256 are `blockwise8`, which is shorter than to send their places. Raises ConfigError for an unknown name.
    """
    if name != ADAPTIVE:
        return codec_named(name)
    return TopKCodec(kept) if kept < BLOCK_ELEMENTS else codec_named("blockwise8")


def kept_share_of(codec: Codec) -> float:
    """The share of a tensor's numbers that a codec keeps, for `StageRunner.begin`."""
    return codec.kept / BLOCK_ELEMENTS if isinstance(codec, TopKCodec) else 1.0


def _runs(width: int) -> tuple[int, int]:
    """(runs of a vector of `width` elements, elements of each but the last, which may have fewer)."""
    count = max(1, -(-width // BLOCK_ELEMENTS))
    return count, -(-width // count)


def _in_runs(tensor: Tensor) -> Tensor:
    """The vectors of the last dimension as runs: [runs, length], the last of each vector with zeros at its end."""
    width = tensor.shape[-1:].numel()
    count, length = _runs(width)
    return nn.functional.pad(tensor.reshape(-1, width), (0, count * length - width)).view(-1, length)
