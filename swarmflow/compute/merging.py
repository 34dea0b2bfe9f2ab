"""A base model with its adapters added to the weights, written as an ordinary Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from swarmflow.compute.adapters import NAME, adapters_of, is_adapter, plain_name, with_adapters
from swarmflow.compute.export import ReadParameters, export_stagewise
from swarmflow.compute.families import dissect, stored_dtype, to_config
from swarmflow.compute.flat_tensors import bytes_of, memory_of
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.weights import LayoutReader
from swarmflow.errors import CheckpointError

_DTYPES = ("float32", "bfloat16", "float16")


def export_merged(
    config: Mapping[str, Any],
    cut: Sequence[int],
    read: Callable[[int], ReadParameters],
    base: Path,
    out: Path,
    save_tokenizer: Callable[[Path], None] | None = None,
    *,
    dtype: str | None = None,
    align: int = 1,
    run: str = "",
    content: str = "",
) -> None:
    """Write W + (alpha / r) B A for each matrix W with an adapter, and the other weights as they are.

    read, out, save_tokenizer, align, run, content: as in `export_stagewise`. base: the folder of the base model. dtype:
    of the numbers; None: the base's own. Sums are made in fp32. Raises CheckpointError where the base lacks a tensor or
    config has no adapters, and what `export_stagewise` raises.
    """
    if adapters_of(config) is None:
        raise CheckpointError("--merge is for runs that train adapters; this one trains all weights")
    plain = with_adapters(config, None)
    added = _deltas(config, cut, read, align)
    stored = stored_dtype(base)
    chosen = dtype or (stored if stored in _DTYPES else "float32")
    layout = stage_layout(plain, (), 0)
    with LayoutReader(layout, base) as reader:

        def merged(group: str, start: int, stop: int) -> memoryview:
            numbers = bytes_of(bytearray(reader.read(group, start, stop))).view(torch.float32)
            for slot in layout.groups[group]:
                low, high = max(start, slot.offset), min(stop, slot.stop)
                if low < high and slot.name in added:
                    numbers[low - start : high - start] += added[slot.name](low - slot.offset, high - slot.offset)
            return memory_of(numbers)

        export_stagewise(plain, (), lambda stage: merged, out, save_tokenizer, dtype=chosen, run=run, content=content)


def _deltas(
    config: Mapping[str, Any], cut: Sequence[int], read: Callable[[int], ReadParameters], align: int
) -> dict[str, Callable[[int, int], Tensor]]:
    """Return what gives elements of (alpha / r) B A, by the plain name of the matrix that they are added to."""
    lora, model = adapters_of(config), dissect(to_config(config)).model
    assert lora is not None, "the caller has looked"
    factors: dict[str, Tensor] = {}
    for stage in range(len(cut) + 1):
        numbers = read(stage)
        for group, slots in stage_layout(config, cut, stage, align).groups.items():
            for slot in slots:
                raw = bytearray(numbers(group, slot.offset, slot.stop))
                factors[slot.name] = bytes_of(raw).view(torch.float32).view(slot.shape)
    found: dict[str, Callable[[int, int], Tensor]] = {}
    for name, _ in model.named_parameters():
        layer = name.removesuffix(".base_layer.weight")
        if is_adapter(name) or layer == name:
            continue
        down, up = (factors[f"{layer}.lora_{part}.{NAME}.weight"] for part in "AB")
        turned = not isinstance(model.get_submodule(f"{layer}.base_layer"), nn.Linear)  # Conv1D has [in, out]
        rows, columns = (down.T, up.T) if turned else (up, down)
        found[plain_name(name)] = _product(rows, columns, lora.alpha / lora.rank)
    return found


def _product(left: Tensor, right: Tensor, scale: float) -> Callable[[int, int], Tensor]:
    """Return what gives elements low to high of the flat product of two matrices."""
    width = right.shape[1]

    def elements(low: int, high: int) -> Tensor:
        first, last = low // width, -(-high // width)
        rows = (left[first:last] @ right) * scale
        return rows.reshape(-1)[low - first * width : high - first * width]

    return elements
