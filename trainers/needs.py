"""The disk space that a run needs at a trainer: computed before it begins, and compared with the free space."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from swarmflow.compute.adapters import adapters_of
from swarmflow.compute.checkpoint import GENERATIONS_KEPT
from swarmflow.compute.export import export_item_bytes
from swarmflow.compute.layout import stage_layout
from swarmflow.compute.tensorfile import file_bytes
from swarmflow.config import RunConfig
from swarmflow.files import existing_parent, free_bytes, readable_size, tree_bytes
from swarmflow.manifest import Manifest
from swarmflow.runtime.operations.exporting import state_tensor_lengths

_CHECKPOINTS = GENERATIONS_KEPT + 1  # those that stay, and the one that is being written
_EXPORTS_WRITTEN = 2  # `final`, and the one that is being written


@dataclass(frozen=True)
class DiskNeeds:
    """The disk space that a run needs at a trainer."""

    checkpoint_bytes: int  # of one version: weights and optimizer state of all stages
    export_bytes: int  # of one Hugging Face folder
    checkpoints: int  # on the disk at a time, at most
    exports: int  # on the disk at a time, at most

    @property
    def state_bytes(self) -> int:
        """The bytes of all checkpoints, in the state folder."""
        return self.checkpoint_bytes * self.checkpoints

    @property
    def output_bytes(self) -> int:
        """The bytes of all exports, in the output folder."""
        return self.export_bytes * self.exports

    def __str__(self) -> str:
        state, one = readable_size(self.state_bytes), readable_size(self.checkpoint_bytes)
        output, each = readable_size(self.output_bytes), readable_size(self.export_bytes)
        return f"{state} for {self.checkpoints} checkpoints of {one}, {output} for {self.exports} exports of {each}"


def disk_needs(manifest: Manifest, config: RunConfig) -> DiskNeeds:
    """Return the most that a run takes on the disk of one trainer; not the token cache, nor what others still copy."""
    checkpoint = sum(file_bytes(state_tensor_lengths(manifest, stage)) for stage in range(manifest.stages))
    how = manifest.model, manifest.cut
    layouts = (stage_layout(*how, stage, boundary=manifest.boundary) for stage in range(manifest.stages))
    frozen = adapters_of(manifest.model) is not None
    parameters = sum(layout.parameters if frozen else layout.stored_parameters for layout in layouts)
    every = config.train.checkpoint_every if config.run.export_every is None else config.run.export_every
    written = config.train.steps // every if every else 0
    kept = min(config.run.keep_exports, written) if config.run.keep_exports else written
    return DiskNeeds(
        checkpoint, export_item_bytes(manifest.export_dtype) * parameters, _CHECKPOINTS, kept + _EXPORTS_WRITTEN
    )


def shortfalls(needs: DiskNeeds, checkpoints: Path, output: Path) -> list[str]:
    """Return a line for each file system with less room than the run may take; its own files count as room.

    checkpoints: the folder of the run's, as it is cut now. output: [run] output.
    """
    wanted: dict[int, list[tuple[Path, int]]] = {}
    for path, size in (
        (checkpoints.parent, needs.state_bytes - sum(map(tree_bytes, checkpoints.glob("version-*")))),
        (output, needs.output_bytes - sum(map(tree_bytes, [*output.glob("step-*"), output / "final"]))),
    ):
        wanted.setdefault(existing_parent(path).stat().st_dev, []).append((path, max(0, size)))
    lines: list[str] = []
    for folders in wanted.values():
        needed, free = sum(size for _, size in folders), free_bytes(folders[0][0])
        if needed > free:
            where = " and ".join(str(path) for path, _ in folders)
            lines.append(
                f"the run may take {readable_size(needed)} more in {where}, and {readable_size(free)} are free: make "
                f"{readable_size(needed - free)} free there, or the run pauses when the disk is full"
            )
    return lines
