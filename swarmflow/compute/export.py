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
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import build_glob_alternation

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

# full name of a parameter -> the dtype that it is written in, as torch names it
DtypeOf = Callable[[str], str]


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
    rounded, but for what transformers keeps in fp32 whatever the others are in. align: as in `stage_layout`. run: its
    id. content: names what is exported. The folder is made beside `out` and renamed; an export of the same run that is
    there already is replaced once the new one is whole. Raises ForeignFileError, before anything is written, when
    something else is there; CheckpointError when it cannot be written; what a reader raises.
    """
    check_replaceable(out, KIND, run)
    out = Path(os.path.realpath(out))
    layouts, dtype_of, write_description = _described(config, cut, dtype, align, boundary)
    try:
        with draft_of(out, run) as draft:
            write_description(draft)
            _write_weights(layouts, read, dtype_of, draft, None if boundary is None else "stage")
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
) -> tuple[list[StageLayout], DtypeOf, Callable[[Path], None]]:
    """Return the layouts of all stages, the dtypes, and what writes the description of the model into a folder."""

    def alike(name: str) -> str:
        return dtype

    if is_graph(config):
        model = graph_model(config)
        layouts = [model.layout(cut, stage, align) for stage in range(len(cut) + 1)]
        return layouts, alike, lambda folder: _write_module(model, folder)
    made = to_config(config)
    anatomy = dissect(made)
    if (lora := adapters_of(made)) is not None:
        layouts = [layout_of(anatomy, cut, stage, align) for stage in range(len(cut) + 1)]
        adapter = peft_config(anatomy.model, anatomy.blocks_name, lora)
        return layouts, alike, lambda folder: _write_adapter_config(adapter, folder)
    layouts = [layout_of(anatomy, cut, stage, align, boundary) for stage in range(len(cut) + 1)]
    dtype_of = _dtypes(anatomy.model, dtype)
    if boundary is not None:
        return layouts, dtype_of, lambda folder: _write_stages(config, cut, boundary, folder)
    return layouts, dtype_of, lambda folder: _write_config(made, type(anatomy.model).__name__, dtype, folder)


def _dtypes(model: PreTrainedModel, dtype: str) -> DtypeOf:
    """Return in which dtype transformers has each parameter of a model that it loads in `dtype`."""
    plan: dict[str, torch.dtype] = model._get_dtype_plan(getattr(torch, dtype))
    kept = build_glob_alternation(list(plan))[0] if plan else None
    return lambda name: "float32" if kept is not None and kept.search(name) else dtype


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
    layouts: Sequence[StageLayout],
    read: Callable[[int], ReadParameters],
    dtype_of: DtypeOf,
    folder: Path,
    named: str | None,
) -> None:
    """named: the start of the files' names; None: as transformers wants them, with an index.

    Adapters are in one file, as peft wants them.
    """
    if layouts[0].base:
        _write_adapters(layouts, read, dtype_of, folder)
        return
    count = len(layouts)
    where: dict[str, str] = {}
    total_bytes = 0
    for layout in layouts:
        number = "" if count == 1 else f"-{layout.stage + 1:05d}-of-{count:05d}"
        file = f"{named or 'model'}{number}.safetensors"
        entries = [(group, entry) for group in _groups(layout) for entry in layout.groups[group]]
        stored = {name: entry for _, entry in entries for name in _stored(layout, entry)}
        shapes = {name: entry.shape for name, entry in stored.items()}
        dtypes = {name: _STORED_AS[dtype_of(entry.name)] for name, entry in stored.items()}
        writer = TensorFileWriter(folder / file, shapes, {"format": "pt"}, dtypes)
        try:
            _copy_stage(layout, entries, read(layout.stage), dtype_of, writer)
            writer.finish()
        finally:
            writer.abandon()
        where.update(dict.fromkeys(shapes, file))
        total_bytes += sum(ITEM_BYTES[dtypes[name]] * math.prod(shape) for name, shape in shapes.items())
    if count > 1 and named is None:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": where}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _write_adapters(
    layouts: Sequence[StageLayout], read: Callable[[int], ReadParameters], dtype_of: DtypeOf, folder: Path
) -> None:
    slots = [(layout, slot) for layout in layouts for slots in layout.groups.values() for slot in slots]
    shapes = {stored_name(slot.name): slot.shape for _, slot in slots}
    dtypes = {stored_name(slot.name): _STORED_AS[dtype_of(slot.name)] for _, slot in slots}
    writer = TensorFileWriter(folder / ADAPTER_FILE, shapes, {"format": "pt"}, dtypes)
    try:
        for layout in layouts:
            numbers = read(layout.stage)
            for group, entries in layout.groups.items():
                for slot in entries:
                    rounded = _rounded(numbers(group, slot.offset, slot.stop), dtype_of(slot.name))
                    writer.write(stored_name(slot.name), 0, rounded)
        writer.finish()
    finally:
        writer.abandon()


def export_item_bytes(dtype: str) -> int:
    """Return the bytes of a number in an export of this dtype."""
    return ITEM_BYTES[_STORED_AS[dtype]]


def _rounded(numbers: bytes | bytearray | memoryview, dtype: str) -> bytes | bytearray | memoryview:
    """Return fp32 numbers in another dtype, rounded to the nearest."""
    if dtype == "float32":
        return numbers
    exact = bytes_of(bytearray(numbers)).view(torch.float32)  # torch warns of what is read-only
    return memory_of(exact.to(getattr(torch, dtype)))


def _groups(layout: StageLayout) -> list[str]:
    """The groups that this stage's file holds: the last stage's copy of the tied weight is the first stage's."""
    return [group for group in layout.groups if group != TIED or layout.stage == 0]


def _stored(layout: StageLayout, entry: TensorSlot) -> list[str]:
    """The names of a parameter in the file: blocks that share their weights have each a copy."""
    return [layout.stored.get(name, name) for name in layout.stored_of(entry)]


def _copy_stage(
    layout: StageLayout,
    entries: Sequence[tuple[str, TensorSlot]],
    read: ReadParameters,
    dtype_of: DtypeOf,
    writer: TensorFileWriter,
) -> None:
    for group, entry in entries:
        for start in range(entry.offset, entry.stop, PIECE_ELEMENTS):
            stop = min(start + PIECE_ELEMENTS, entry.stop)
            numbers = _rounded(read(group, start, stop), dtype_of(entry.name))
            for name in _stored(layout, entry):
                writer.write(name, start - entry.offset, numbers)
