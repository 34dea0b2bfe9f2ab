"""Writes a Hugging Face folder from the stages' flat parameters, one piece of one tensor in memory at a time.

Transformers has no place for learnt boundaries. The folder of a model with them holds `stages.json` instead of
config.json, and its weights have other names than transformers looks for, so that nothing takes it for the plain model.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from swarmflow.boundary import Boundary
from swarmflow.compute.adapters import adapters_of, peft_config, stored_name
from swarmflow.compute.attention import ATTENTION
from swarmflow.compute.families import dissect, to_config
from swarmflow.compute.flat_tensors import bytes_of, memory_of
from swarmflow.compute.graphs.description import GraphModel, graph_model, is_graph
from swarmflow.compute.layout import TIED, StageLayout, TensorSlot, layout_of
from swarmflow.compute.sharing import SHARED_BLOCKS
from swarmflow.compute.tensorfile import ITEM_BYTES, TensorFileWriter
from swarmflow.drafts import draft_of, move_into_place
from swarmflow.errors import CheckpointError
from swarmflow.files import sync_folder
from swarmflow.ownership import check_replaceable, seal

if TYPE_CHECKING:
    from peft import LoraConfig

KIND = "export"
STAGES_FILE = "stages.json"
ADAPTER_FILE = "adapter_model.safetensors"
PIECE_ELEMENTS = 1 << 20
_STORED_AS = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}  # torch's name -> safetensors'

# (reduction group, first element, one past the last) -> the flat parameters there, as little-endian fp32 bytes
ReadParameters = Callable[[str, int, int], bytes | bytearray | memoryview]


def export_stagewise(
    config: Mapping[str, Any],
    cut: Sequence[int],
    read: Callable[[int], ReadParameters],
    out: Path,
    save_tokenizer: Callable[[Path], None] | None = None,
    *,
    dtype: str = "float32",
    align: int = 1,
    run: str = "",
    content: str = "",
    boundary: Boundary | None = None,
) -> None:
    """Writes the model to `out`; where no boundary is learnt, `AutoModelForCausalLM.from_pretrained(out)` loads it.

    Of a module, the trained parameters under their names in its state_dict, and `module.json`, which names it. Of a run
    that trains adapters, these in peft's format: `PeftModel.from_pretrained(base, out)` loads them.

    read: stage -> reader of its flat parameters, asked for one stage after another. save_tokenizer: writes the
    tokenizer's files into the folder that it is given. dtype: of the numbers that are written, to which parameters are
    rounded. align: as in `stage_layout`. run: its id. content: names what is exported. The folder is made beside `out`
    and renamed; an export of the same run that is there already is replaced once the new one is whole. Raises
    ForeignFileError, before anything is written, when something else is there; CheckpointError when it cannot be
    written; what a reader raises.
    """
    check_replaceable(out, KIND, run)
    out = Path(os.path.realpath(out))
    layouts, write_description = _described(config, cut, dtype, align, boundary)
    try:
        with draft_of(out, run) as draft:
            write_description(draft)
            _write_weights(layouts, read, dtype, draft, None if boundary is None else "stage")
            if save_tokenizer is not None:
                save_tokenizer(draft)
            seal(draft, KIND, run, content)
            sync_folder(draft)
            move_into_place(draft, out, KIND, run)
            sync_folder(out.parent)
    except OSError as error:
        raise CheckpointError(f"{out} cannot be written: {error.strerror or error}") from error


def _described(
    config: Mapping[str, Any], cut: Sequence[int], dtype: str, align: int, boundary: Boundary | None
) -> tuple[list[StageLayout], Callable[[Path], None]]:
    """Return the layouts of all stages, and what writes the description of the model into a folder."""
    if is_graph(config):
        model = graph_model(config)
        layouts = [model.layout(cut, stage, align) for stage in range(len(cut) + 1)]
        return layouts, lambda folder: _write_module(model, folder)
    made = to_config(config)
    anatomy = dissect(made)
    if (lora := adapters_of(made)) is not None:
        layouts = [layout_of(anatomy, cut, stage, align) for stage in range(len(cut) + 1)]
        adapter = peft_config(anatomy.model, anatomy.blocks_name, lora)
        return layouts, lambda folder: _write_adapter_config(adapter, folder)
    layouts = [layout_of(anatomy, cut, stage, align, boundary) for stage in range(len(cut) + 1)]
    if boundary is not None:
        return layouts, lambda folder: _write_stages(config, cut, boundary, folder)
    return layouts, lambda folder: _write_config(made, type(anatomy.model).__name__, dtype, folder)


def _write_adapter_config(adapter: LoraConfig, folder: Path) -> None:
    adapter.inference_mode = True
    adapter.save_pretrained(str(folder))


def _write_module(model: GraphModel, folder: Path) -> None:
    described = {"module": model.module, "module_config": model.module_config}
    (folder / "module.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def _write_config(config: PreTrainedConfig, architecture: str, dtype: str, folder: Path) -> None:
    config.architectures = [architecture]
    for key in (SHARED_BLOCKS, ATTENTION):
        if hasattr(config, key):
            delattr(config, key)
    config.dtype = dtype
    # `use_cache` is off for training only; generation is slow without it.
    config.use_cache = True
    config.save_pretrained(folder)
    GenerationConfig.from_model_config(config).save_pretrained(folder)


def export_note(boundary: Boundary) -> str:
    """Return what a user of a run with learnt boundaries has to know of its exports."""
    return (
        f"final/, step-N/ and `swarmflow export` hold the parameters of all stages and {STAGES_FILE}; transformers "
        f"cannot load them: it has no place for the layers of {boundary} (docs/run-toml.md, Learnt boundaries)"
    )


def _write_stages(config: Mapping[str, Any], cut: Sequence[int], boundary: Boundary, folder: Path) -> None:
    fields = {"model": dict(config), "cut": list(cut), "boundary": str(boundary)}
    (folder / STAGES_FILE).write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def _write_weights(
    layouts: Sequence[StageLayout], read: Callable[[int], ReadParameters], dtype: str, folder: Path, named: str | None
) -> None:
    """named: the start of the files' names; None: as transformers wants them, with an index.

    Adapters are in one file, as peft wants them.
    """
    if layouts[0].base:
        _write_adapters(layouts, read, dtype, folder)
        return
    count = len(layouts)
    where: dict[str, str] = {}
    total_bytes = 0
    for layout in layouts:
        number = "" if count == 1 else f"-{layout.stage + 1:05d}-of-{count:05d}"
        file = f"{named or 'model'}{number}.safetensors"
        entries = [(group, entry) for group in _groups(layout) for entry in layout.groups[group]]
        shapes = {name: entry.shape for _, entry in entries for name in _stored(layout, entry)}
        writer = TensorFileWriter(folder / file, shapes, {"format": "pt"}, _STORED_AS[dtype])
        try:
            _copy_stage(layout, entries, _rounded(read(layout.stage), getattr(torch, dtype)), writer)
            writer.finish()
        finally:
            writer.abandon()
        where.update(dict.fromkeys(shapes, file))
        total_bytes += export_item_bytes(dtype) * sum(math.prod(shape) for shape in shapes.values())
    if count > 1 and named is None:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_adapters(
    layouts: Sequence[StageLayout], read: Callable[[int], ReadParameters], dtype: str, folder: Path
) -> None:
    slots = [(layout, slot) for layout in layouts for slots in layout.groups.values() for slot in slots]
    shapes = {stored_name(slot.name): slot.shape for _, slot in slots}
    writer = TensorFileWriter(folder / ADAPTER_FILE, shapes, {"format": "pt"}, _STORED_AS[dtype])
    try:
        for layout in layouts:
            numbers = _rounded(read(layout.stage), getattr(torch, dtype))
            for group, entries in layout.groups.items():
                for slot in entries:
                    writer.write(stored_name(slot.name), 0, numbers(group, slot.offset, slot.stop))
        writer.finish()
    finally:
        writer.abandon()


def export_item_bytes(dtype: str) -> int:
    """Return the bytes of a number in an export of this dtype."""
    return ITEM_BYTES[_STORED_AS[dtype]]


def _rounded(read: ReadParameters, dtype: torch.dtype) -> ReadParameters:
    """Return a reader of the parameters in another dtype, rounded to the nearest."""
    if dtype == torch.float32:
        return read

    def rounded(group: str, start: int, stop: int) -> memoryview:
        numbers = bytes_of(bytearray(read(group, start, stop))).view(torch.float32)  # torch warns of what is read-only
        return memory_of(numbers.to(dtype))

    return rounded


def _groups(layout: StageLayout) -> list[str]:
    """The groups that this stage's file holds: the last stage's copy of the tied weight is the first stage's."""
    return [group for group in layout.groups if group != TIED or layout.stage == 0]


def _stored(layout: StageLayout, entry: TensorSlot) -> list[str]:
    """The names of a parameter in the file: blocks that share their weights have each a copy."""
    return [layout.stored.get(name, name) for name in layout.stored_of(entry)]


def _copy_stage(
    layout: StageLayout, entries: Sequence[tuple[str, TensorSlot]], read: ReadParameters, writer: TensorFileWriter
) -> None:
    for group, entry in entries:
        for start in range(entry.offset, entry.stop, PIECE_ELEMENTS):
            stop = min(start + PIECE_ELEMENTS, entry.stop)
            numbers = read(group, start, stop)
            for name in _stored(layout, entry):
                writer.write(name, start - entry.offset, numbers)
