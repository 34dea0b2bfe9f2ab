"""From a committed version on disk to a Hugging Face folder; shared by trainers and `swarmflow export`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from blake3 import blake3

from swarmflow.compute.checkpoint import Generation, tensor_name
from swarmflow.compute.export import export_stagewise
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.optimizer import OptimizerSettings, make_optimizer
from swarmflow.manifest import Manifest


def state_elements(manifest: Manifest, stage: int) -> dict[str, int]:
    """The flat tensors of a stage's state and their lengths, in the order in which they are stored."""
    settings = OptimizerSettings(
        manifest.optimizer, manifest.betas, manifest.momentum, manifest.eps, manifest.weight_decay
    )
    names = ("params", *make_optimizer(settings).state_names())
    layout = stage_layout(manifest.model, manifest.cut, stage)
    return {tensor_name(group, name): layout.elements(group) for group in layout.groups for name in names}


def content_of(generation: Generation) -> str:
    """Names a version by its bits: after a roll-back its number may be made anew with other ones."""
    return f"version {generation.version}, {blake3(''.join(generation.digests).encode()).hexdigest()[:32]}"


def export_generation(
    manifest: Manifest, generation: Generation, out: Path, save_tokenizer: Callable[[Path], None]
) -> None:
    """Write a complete version to `out`, one stage at a time. Raises CheckpointError, ForeignFileError."""
    with ExitStack() as files:

        def reader(stage: int) -> Callable[[str, int, int], bytes]:
            state = files.enter_context(generation.state(stage))
            return lambda group, start, stop: state.read(tensor_name(group, "params"), start, stop)

        export_stagewise(
            manifest.model,
            manifest.cut,
            reader,
            out,
            save_tokenizer,
            run=manifest.run_id,
            content=content_of(generation),
        )
