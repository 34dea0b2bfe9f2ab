"""From a committed version on disk to a Hugging Face folder; shared by trainers and `swarmflow export`."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TypedDict

from blake3 import blake3

from swarmflow.compute.base_weights import base_roots
from swarmflow.compute.blocks import alignment, grid_blocks
from swarmflow.compute.checkpoint import Checkpoint
from swarmflow.compute.export import export_stagewise
from swarmflow.compute.flat import rounding_of
from swarmflow.compute.grid import Blockwise
from swarmflow.compute.layout import layout_in_run
from swarmflow.compute.merging import export_merged
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.compute.stage_state import BEFORE
from swarmflow.compute.state_root import GRID, tensor_elements, tensor_name
from swarmflow.errors import CheckpointError
from swarmflow.manifest import Manifest

# As transformers saves them: several chat templates are in a folder of their own.
TOKENIZER_FILE = re.compile(r"(additional_chat_templates/)?[^./\\\0][^/\\\0]{0,254}")


class _ExportedFrom(TypedDict):
    """What an export says of itself (swarmflow/ownership.py)."""

    run: str
    content: str


def state_tensor_lengths(manifest: Manifest, stage: int) -> dict[str, int]:
    """Return the flat tensors of a stage's state, in the order in which they are stored, and their elements."""
    names = ("params", *make_optimizer(OptimizerSettings.of(manifest)).state_names())
    layout = layout_in_run(manifest, stage)
    lengths: dict[str, int] = {}
    for group in layout.groups:
        lengths |= {tensor_name(group, name): tensor_elements(name, layout.elements(group)) for name in names}
        if isinstance(rounding_of(manifest.accumulate, manifest.reduce_codec, manifest.microbatches), Blockwise):
            lengths[tensor_name(group, GRID)] = grid_blocks(layout.elements(group))
    if manifest.delay:  # and of the version before
        parts = [tensor_name(group, part) for group in layout.groups for part in ("params", GRID)]
        lengths |= {name.replace(".", f".{BEFORE}"): lengths[name] for name in parts if name in lengths}
    return lengths


def content_id(checkpoint: Checkpoint) -> str:
    """Return the number of a version and a digest of its files: after a roll-back the number alone is ambiguous."""
    return f"version {checkpoint.version}, {blake3(''.join(checkpoint.roots).encode()).hexdigest()[:32]}"


def tokenizer_files(folder: Path) -> dict[str, Path]:
    """Return the files of a tokenizer in a trainer's folder, by their names there."""
    found = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {name: path for name, path in found.items() if TOKENIZER_FILE.fullmatch(name)}


def check_base(manifest: Manifest, base: Path) -> None:
    """Read the whole model to whose weights adapters are to be added.

    Raises CheckpointError where they are not those beside which the run has trained them.
    """
    if manifest.base and base_roots(manifest, base) != manifest.base:
        raise CheckpointError(f"--merge {base}: it has other weights than those that the run began with")


def export_checkpoint(
    manifest: Manifest,
    checkpoint: Checkpoint,
    out: Path,
    save_tokenizer: Callable[[Path], None],
    dtype: str | None = None,
    base: Path | None = None,
) -> None:
    """Write a complete version to `out`, one stage at a time; its files stay open until all are written.

    dtype: of the numbers; None: as the run exports them. base: the folder of the model to which the run's adapters are
    added (`check_base`); None: adapters are written alone. Raises CheckpointError, ForeignFileError.
    """
    with ExitStack() as files:

        def reader(stage: int) -> Callable[[str, int, int], bytes]:
            state = files.enter_context(checkpoint.state(stage))
            return lambda group, start, stop: state.read(tensor_name(group, "params"), start, stop)

        named = _ExportedFrom(run=manifest.run_id, content=content_id(checkpoint))
        align = alignment(manifest.state_bits)
        if base is not None:
            of = manifest.model, manifest.cut
            export_merged(*of, reader, base, out, save_tokenizer, dtype=dtype, align=align, **named)
            return
        export_stagewise(
            manifest.model,
            manifest.cut,
            reader,
            out,
            save_tokenizer,
            dtype=dtype or manifest.export_dtype,
            align=align,
            boundary=manifest.boundary,
            **named,
        )
