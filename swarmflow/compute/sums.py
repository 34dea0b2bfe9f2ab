"""What the gradients of a step add up to: held by a peer, packed piece by piece, and summed with those of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from blake3 import blake3
from torch import Tensor

from swarmflow.compute.exact import FixedPoint
from swarmflow.compute.flat_tensors import Blocks, Buffer, Moved, added_up, block_squares, bytes_of, memory_of
from swarmflow.errors import FrameError

SUMMED = "reduced"  # the name of the sums among stored tensors


class Sums(Protocol):
    """The sums of a reduction group's gradients, over microbatches. A range of elements is a piece of an all-reduce.

    They lie where gradients are computed. What is made of them lies with the group's parameters, which may be another
    device: other sums, and the gradient.
    """

    @property
    def elements(self) -> int:
        """Return how many there are."""
        ...

    @property
    def nbytes(self) -> int:
        """Return their memory, in bytes."""
        ...

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of which they consist."""
        ...

    def zero(self) -> None:
        """Set everything to zero."""
        ...

    def empty(self, elements: int | None = None) -> Sums:
        """Return others like these with anything in them, beside the parameters. elements: how many; None: as many."""
        ...

    def pack(self, start: int, stop: int) -> Buffer:
        """Return a piece as it is sent."""
        ...

    def digest(self, start: int, stop: int) -> str:
        """Return the blake3 hex digest of a piece's values: like that of the packed piece, and faster."""
        ...

    def put(self, start: int, stop: int, data: Buffer) -> None:
        """Replace a piece by one that was packed. Raises FrameError for what does not fit."""
        ...

    def total(self, start: int, stop: int, addends: Sequence[Sums | Buffer]) -> None:
        """Replace a piece by the sum of others, in this order: of sums of the same group, or packed.

        Raises FrameError for a packed one that does not fit.
        """
        ...

    def gradient(self) -> Blocks:
        """Return the gradient that they stand for."""
        ...

    def storable(self) -> Sums:
        """Return sums of the same gradient that `stored` has in fp32 tensors; they may be these."""
        ...

    def stored(self) -> dict[str, Tensor]:
        """Return storable sums by name, as fp32 tensors in place, or with the bytes of fp32 tensors."""
        ...

    def sum_of_squares(self) -> float:
        """Return that of the gradient. It is the same whatever the number of threads."""
        ...

    def block_squares(self, start: int, stop: int) -> list[float]:
        """Return what `sum_of_squares` adds up for a piece, which starts at an edge of SUM_BLOCK_ELEMENTS."""
        ...

    def first_not_finite(self) -> int | None:
        """Return the first element that is not finite."""
        ...


@dataclass
class TensorSums:
    """Sums as one tensor [elements], packed as they are: fp32, or with `fixed` the int64 that it makes of gradients.

    home: the device of the group's parameters; None: that of the tensor.
    """

    flat: Tensor
    fixed: FixedPoint | None = None
    home: torch.device | None = None

    @property
    def elements(self) -> int:
        """Return the length of the tensor."""
        return self.flat.numel()

    @property
    def nbytes(self) -> int:
        """Return the memory of the tensor, in bytes."""
        return self.flat.nbytes

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensor."""
        return (self.flat,)

    def zero(self) -> None:
        """Set everything to zero."""
        self.flat.zero_()

    def empty(self, elements: int | None = None) -> TensorSums:
        """Return others like these with anything in them."""
        size = self.elements if elements is None else elements
        return TensorSums(torch.empty(size, dtype=self.flat.dtype, device=self.home or self.flat.device), self.fixed)

    def pack(self, start: int, stop: int) -> Buffer:
        """Return the bytes of a piece; no copy on a CPU."""
        return memory_of(self.flat[start:stop].cpu())

    def digest(self, start: int, stop: int) -> str:
        """Return the blake3 hex digest of a piece."""
        return blake3(self.pack(start, stop)).hexdigest()

    def put(self, start: int, stop: int, data: Buffer) -> None:
        """Replace a piece. Raises FrameError when the size differs."""
        self.flat[start:stop].copy_(self._numbers(data, stop - start))

    def total(self, start: int, stop: int, addends: Sequence[Sums | Buffer]) -> None:
        """Replace a piece by a sum. Raises FrameError when the size of one differs."""
        target = self.flat[start:stop]
        for rank, addend in enumerate(addends):
            if isinstance(addend, TensorSums):
                part = addend.flat[start:stop].to(target.device)
            else:
                assert isinstance(addend, bytes | bytearray | memoryview), "of the same group, or packed"
                part = self._numbers(addend, stop - start)
            if rank == 0:
                target.copy_(part)
            else:
                target.add_(part)

    def gradient(self) -> Blocks:
        """Return the tensor, or what its integers stand for."""
        return self._here if self.fixed is None else self.fixed.floats(self._here)

    def storable(self) -> TensorSums:
        """Return these."""
        return self

    def stored(self) -> dict[str, Tensor]:
        """Return the tensor; its bytes as fp32 where it has integers."""
        return {SUMMED: self.flat.detach().view(torch.float32)}

    def sum_of_squares(self) -> float:
        """Return that of the gradient."""
        return added_up(self.block_squares(0, self.elements))

    def block_squares(self, start: int, stop: int) -> list[float]:
        """Return what `sum_of_squares` adds up for a piece."""
        return block_squares(self._here, start, stop, 1.0 if self.fixed is None else self.fixed.unit)

    def first_not_finite(self) -> int | None:
        """Return the first element that is not finite."""
        broken = torch.isfinite(self.flat).logical_not_().nonzero()
        return int(broken[0]) if broken.numel() else None

    @property
    def _here(self) -> Blocks:
        """The tensor, beside the parameters."""
        return self.flat if self.home in (None, self.flat.device) else Moved(self.flat, self.home)

    def _numbers(self, data: Buffer, elements: int) -> Tensor:
        numbers = bytes_of(data)
        if numbers.numel() != elements * self.flat.element_size():
            raise FrameError(f"a piece has {numbers.numel()} bytes, not {elements * self.flat.element_size()}")
        return numbers.view(self.flat.dtype).to(self.flat.device)


def digest_of_pieces(sums: Sums, elements: int) -> tuple[str, tuple[str, ...]]:
    """Digests of the pieces of so many elements, and the one over these digests, first."""
    starts = range(0, sums.elements, elements)
    pieces = tuple(sums.digest(start, min(start + elements, sums.elements)) for start in starts)
    return digest_of_texts(pieces), pieces


def digest_of_texts(texts: Sequence[str]) -> str:
    """Return the blake3 hex digest over texts, one after another."""
    return blake3("".join(texts).encode()).hexdigest()
