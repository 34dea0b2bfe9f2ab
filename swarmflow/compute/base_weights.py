"""The frozen weights of a stage beside its adapters: one flat buffer of bytes, named by a root over its pieces.

They are no part of a stage's state: no optimizer, reduction, version or checkpoint has them. The manifest holds the
root of each stage, so a peer can take pieces from anyone and knows whether they are right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import PreTrainedModel

from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.layout import layout_in_run
from swarmflow.compute.layout_types import NF4_BLOCK, BaseSlot, StageLayout, TensorSlot
from swarmflow.compute.nf4 import FrozenLinear, quantize, scales_of
from swarmflow.compute.state_root import leaf_of, root_of
from swarmflow.compute.weights_folder import WeightsFolder
from swarmflow.errors import CheckpointError
from swarmflow.manifest import Manifest

PIECE_BYTES = 1 << 20
HASH_BYTES = 32
_SCALE_BYTES = 4  # of a block of numbers in 4 bits

ReadBase = Callable[[int, int], bytes]
"""(first byte, the one after the last) -> these bytes of a stage's frozen weights."""


def piece_ranges(total_bytes: int) -> list[tuple[int, int]]:
    """Return first byte and end of each piece."""
    return [(start, min(start + PIECE_BYTES, total_bytes)) for start in range(0, total_bytes, PIECE_BYTES)]


def base_leaves(total_bytes: int, read: ReadBase) -> bytes:
    """Return the hashes of all pieces, one after another."""
    return b"".join(leaf_of([read(*piece)]) for piece in piece_ranges(total_bytes))


def base_root(leaves: bytes) -> str:
    """Return the root over the hashes of all pieces."""
    return root_of([leaves])


@torch.no_grad()
def place_base(model: PreTrainedModel, layout: StageLayout, device: torch.device, base: Tensor | None) -> Tensor:
    """Give every frozen parameter of a stage its view of one buffer, which is returned: uint8 [layout.base_bytes].

    base: of another stage object of this layout, to be shared; None: a new one, of zeros.
    """
    flat = torch.zeros(layout.base_bytes, dtype=torch.uint8, device=device) if base is None else base
    for slot in sorted(layout.base, key=lambda slot: slot.form == "NF4"):  # their layers take over a bias
        for holder in slot.holders:
            owner_name, _, leaf = holder.rpartition(".")
            owner = model.get_submodule(owner_name)
            if slot.form != "NF4":
                view = view_of(flat, slot)
                setattr(owner, leaf, view if leaf in owner._buffers else nn.Parameter(view, requires_grad=False))
                continue
            codes, scales = _codes_and_scales(flat, slot)
            bias = getattr(owner, "bias", None)
            model.set_submodule(owner_name, FrozenLinear(codes, scales, bias, (slot.shape[0], slot.shape[1])))
    return flat


def view_of(flat: Tensor, slot: BaseSlot) -> Tensor:
    """Return the numbers of a frozen tensor that is not in 4 bits: a view of the buffer."""
    dtype = torch.float32 if slot.form == "F32" else torch.bfloat16
    return flat[slot.offset : slot.offset + slot.nbytes].view(dtype).view(slot.shape)


def _codes_and_scales(flat: Tensor, slot: BaseSlot) -> tuple[Tensor, Tensor]:
    middle = slot.offset + -(-slot.elements // 2)
    return flat[slot.offset : middle], flat[middle : slot.offset + slot.nbytes].view(torch.float32)


class FolderBase:
    """The frozen weights of a stage, read by ranges of bytes from a Hugging Face folder.

    Opening it checks that every tensor is there in its shape. Raises CheckpointError, as reading does.
    """

    def __init__(self, layout: StageLayout, folder: Path) -> None:
        self._layout = layout
        self._weights = WeightsFolder(folder)
        self._folder = folder
        try:
            self._slices = {
                slot.name: self._weights.find(layout, TensorSlot(slot.name, slot.shape, 0)) for slot in layout.base
            }
        except CheckpointError:
            self.close()
            raise

    @property
    def total_bytes(self) -> int:
        """Return how many bytes there are."""
        return self._layout.base_bytes

    def close(self) -> None:
        """Close the files."""
        self._weights.close()

    def read(self, start: int, stop: int) -> bytes:
        """Return bytes start to stop."""
        out = bytearray(stop - start)
        for slot in self._layout.base:
            low, high = max(start, slot.offset), min(stop, slot.offset + slot.nbytes)
            if low < high:
                out[low - start : high - start] = self._range(slot, low - slot.offset, high - slot.offset)
        return bytes(out)

    def _range(self, slot: BaseSlot, low: int, high: int) -> bytes | memoryview:
        """Return bytes low to high of a tensor."""
        if slot.form == "NF4":
            return self._quantized(slot, low, high)
        row = slot.nbytes // slot.shape[0]
        first, last = low // row, -(-high // row)
        dtype = torch.float32 if slot.form == "F32" else torch.bfloat16
        rows = self._rows(slot, first, last).to(dtype).contiguous()
        return memory_of(rows.reshape(-1))[low - first * row : high - first * row]

    def _quantized(self, slot: BaseSlot, low: int, high: int) -> bytes:
        """Return bytes low to high of a tensor in 4 bits: only what these need is read and quantized."""
        middle, found = -(-slot.elements // 2), b""
        if low < middle:
            first, stop = 2 * low // NF4_BLOCK, -(-2 * min(high, middle) // NF4_BLOCK)  # blocks
            codes = quantize(self._blocks(slot, first, stop))[0]
            before = first * NF4_BLOCK // 2
            found += memory_of(codes)[low - before : min(high, middle) - before]
        if high > middle:
            low = max(low, middle) - middle
            first, stop = low // _SCALE_BYTES, -(-(high - middle) // _SCALE_BYTES)
            scales = scales_of(self._blocks(slot, first, stop))
            before = first * _SCALE_BYTES
            found += memory_of(scales)[low - before : high - middle - before]
        return found

    def _blocks(self, slot: BaseSlot, first: int, stop: int) -> Tensor:
        """Return the numbers of some blocks that share a scale."""
        row = slot.elements // slot.shape[0]
        low, high = first * NF4_BLOCK, min(stop * NF4_BLOCK, slot.elements)
        rows = self._rows(slot, low // row, -(-high // row))
        return rows.reshape(-1)[low % row :][: high - low]

    def _rows(self, slot: BaseSlot, first: int, last: int) -> Tensor:
        try:
            rows: Tensor = self._slices[slot.name][first:last]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {slot.name} in {self._folder}: {error}") from error
        return rows


def fill_base(flat: Tensor, folder: Path, layout: StageLayout) -> None:
    """Set a stage's frozen weights from a Hugging Face folder. Raises CheckpointError."""
    source = FolderBase(layout, folder)
    try:
        for start, stop in piece_ranges(layout.base_bytes):
            write_base(flat, start, source.read(start, stop))
    finally:
        source.close()


def write_base(flat: Tensor, start: int, data: bytes | memoryview) -> None:
    """Set bytes of a stage's frozen weights from `start` on."""
    flat[start : start + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))


def read_base(flat: Tensor, start: int, stop: int) -> bytes:
    """Return bytes of a stage's frozen weights."""
    return bytes(memory_of(flat[start:stop].cpu()))


def base_roots(manifest: Manifest, folder: Path) -> tuple[str, ...]:
    """Return the roots of all stages of a run with the weights in this folder, as `stage_roots`."""
    return stage_roots((layout_in_run(manifest, stage) for stage in range(manifest.stages)), folder)


def stage_roots(layouts: Iterator[StageLayout], folder: Path) -> tuple[str, ...]:
    """Return the roots of the frozen weights of all stages; reads the whole folder. Raises CheckpointError."""
    roots = []
    for layout in layouts:
        source = FolderBase(layout, folder)
        try:
            roots.append(base_root(base_leaves(source.total_bytes, source.read)))
        finally:
            source.close()
    return tuple(roots)
