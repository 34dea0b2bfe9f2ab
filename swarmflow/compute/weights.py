"""Where a stage's weights come from: a seed, or the safetensors of a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from swarmflow.compute.adapters import draw_adapters
from swarmflow.compute.boundary_layers import is_of_boundary, new_values
from swarmflow.compute.dropout import seed_of
from swarmflow.compute.families import init_module, unsupported
from swarmflow.compute.finite import finite
from swarmflow.compute.flat_tensors import memory_of
from swarmflow.compute.grouped_stage import GroupedStage
from swarmflow.compute.layout import StageLayout, TensorSlot
from swarmflow.compute.stage import Stage
from swarmflow.compute.weights_folder import WeightsFolder
from swarmflow.errors import CheckpointError

READ_ELEMENTS_MAX = 1 << 22


@torch.no_grad()
def init_stage(stage: GroupedStage, seed: int) -> None:
    """Fresh weights by the family's own rule (`_init_weights`), the same bits however the model is cut.

    Every module draws from a CPU generator seeded by (seed, its full name); the tied weight is drawn as the embedding,
    and blocks that share their weights are drawn as the first of them. The halves of boundaries have a rule of their
    own, `new_values`. Beside frozen weights, which come from a folder, there are adapters alone.
    """
    assert isinstance(stage, Stage), "of a module: see graphs/stage.py"
    if stage.layout.base:
        draw_adapters(((name, values) for name, values, _ in stage.named_parameters()), seed)
        return
    views = {name: values for name, values, _ in stage.named_parameters()}
    for name, values in new_halves(stage.layout, seed).items():
        views[name].copy_(values)
    drawn = {name: unit for name, unit in stage.drawn.items() if name not in stage.halves}
    for unit_name, unit in drawn.items():
        wanted = {f"{unit_name}.{leaf}" for leaf in unit.state_dict()} & set(views)
        if wanted:
            for name, value in _drawn(stage, unit_name, unit, seed).items():
                if name in wanted:
                    views[name].copy_(value)


def new_halves(layout: StageLayout, seed: int) -> dict[str, Tensor]:
    """The first values of the halves of boundaries that a stage holds, by the parameters' names."""
    if layout.boundary is None:
        return {}
    entries = [entry for entries in layout.groups.values() for entry in entries if is_of_boundary(entry.name)]
    return {entry.name: new_values(layout.boundary, entry.name, entry.shape, seed) for entry in entries}


def _drawn(stage: Stage, unit_name: str, unit: nn.Module, seed: int) -> dict[str, Tensor]:
    """The initial parameters and frozen buffers of one unit by full name; its own ones are put back untouched."""
    placed: list[tuple[nn.Module, str, Tensor]] = []
    fresh: dict[str, Tensor] = {}
    modules = list(unit.named_modules(prefix=unit_name))
    for name, module in modules:
        for leaf, parameter in module.named_parameters(recurse=False):
            placed.append((module, leaf, parameter))
            drawn = nn.Parameter(torch.zeros(parameter.shape, dtype=torch.float32), requires_grad=False)
            fresh[f"{name}.{leaf}"] = drawn
            setattr(module, leaf, drawn)
        for leaf, buffer in module.named_buffers(recurse=False):
            if leaf not in module._non_persistent_buffers_set:
                placed.append((module, leaf, buffer))
                fresh[f"{name}.{leaf}"] = module._buffers[leaf] = torch.full(buffer.shape, torch.nan)
    default = torch.default_generator
    state = default.get_state()
    try:
        # Children before their parents, as transformers does: a parent may redo a child's weight (gpt2's c_proj).
        for name, module in sorted(modules, key=lambda pair: -pair[0].count(".")):
            default.manual_seed(seed_of(seed, name))
            init_module(stage.model, module)
    finally:
        default.set_state(state)
        for module, leaf, own in placed:
            setattr(module, leaf, own)
    for name, value in fresh.items():
        if not finite(value):
            raise unsupported(stage.model.config, f"their {name} has no rule that fills it")
    return fresh


@torch.no_grad()
def load_stage(stage: Stage, folder: Path, seed: int = 0) -> None:
    """Reads only this stage's tensors from a Hugging Face folder. Raises CheckpointError: missing, corrupt, shapes."""
    with LayoutReader(stage.layout, folder, seed) as reader:
        for name, group in stage.groups.items():
            total = group.params.numel()
            for start in range(0, total, READ_ELEMENTS_MAX):
                stop = min(start + READ_ELEMENTS_MAX, total)
                reader.read_into(name, start, group.params[start:stop])


class LayoutReader:
    """Serves a stage's initial weights as ranges of its flat layout, straight from a Hugging Face folder.

    Only the rows that are asked for are read. Opening it checks that every tensor of the stage is there in its shape:
    raises CheckpointError, naming the first that is not, for a missing or corrupt file too. The halves of boundaries,
    which such a folder lacks, are new: from the seed.
    """

    def __init__(self, layout: StageLayout, folder: Path, seed: int = 0) -> None:
        self.layout = layout
        self.folder = folder
        entries = [entry for entries in layout.groups.values() for entry in entries]
        self._new = new_halves(layout, seed)
        self._weights = WeightsFolder(folder)
        try:
            self._slices = {e.name: self._weights.find(layout, e) for e in entries if e.name not in self._new}
        except CheckpointError:
            self.close()
            raise

    def __enter__(self) -> LayoutReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._weights.close()

    def read(self, group: str, start: int, stop: int) -> bytes:
        """Elements start to stop of the group's flat parameters, as little-endian fp32 bytes."""
        if not 0 <= start <= stop <= self.layout.elements(group):
            raise ValueError(f"elements {start} to {stop} of {self.layout.elements(group)} in group {group!r}")
        out = torch.zeros(stop - start, dtype=torch.float32)  # also between parameters
        self.read_into(group, start, out)
        return bytes(memory_of(out))

    def read_into(self, group: str, start: int, out: Tensor) -> None:
        """As `read`, into a flat fp32 tensor of any device."""
        stop = start + out.numel()
        for entry in self.layout.groups[group]:
            low, high = max(start, entry.offset), min(stop, entry.stop)
            if low < high:
                out[low - start : high - start].copy_(self._range(entry, low - entry.offset, high - entry.offset))

    def _range(self, entry: TensorSlot, low: int, high: int) -> Tensor:
        if entry.name in self._new:
            return self._new[entry.name].reshape(-1)[low:high]
        row = entry.elements // entry.shape[0]
        first, last = low // row, -(-high // row)
        try:
            rows: Tensor = self._slices[entry.name][first:last]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {entry.name} in {self.folder}: {error}") from error
        return rows.reshape(-1).float()[low - first * row : high - first * row]
