"""Where a stage's weights come from: a seed, or the safetensors of a Hugging Face folder."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from swarmflow.compute.dropout import seed_of
from swarmflow.compute.families import init_module
from swarmflow.compute.flat import memory_of
from swarmflow.compute.layout import Entry, StageLayout
from swarmflow.compute.stage import Stage
from swarmflow.errors import CheckpointError

READ_ELEMENTS_MAX = 1 << 22
INDEX_BYTES_MAX = 1 << 26
_FLOATS = ("F64", "F32", "F16", "BF16")


class _Slice(Protocol):
    """What safetensors gives for a tensor that is not read yet."""

    def get_shape(self) -> list[int]: ...
    def get_dtype(self) -> str: ...
    def __getitem__(self, rows: slice) -> Tensor: ...


class _File(Protocol):
    """An open safetensors file."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> _Slice: ...


@torch.no_grad()
def init_stage(stage: Stage, seed: int) -> None:
    """Fresh weights by the family's own rule (`_init_weights`), the same bits however the model is cut.

    Every module draws from a CPU generator seeded by (seed, its full name); the tied weight is drawn as the embedding.
    """
    views = {name: values for name, values, _ in stage.named_parameters()}
    units = dict(stage.units)
    if stage.layout.tied in views:
        # The last stage holds the embedding's weight as its head, but must draw it as the first stage does.
        units[stage.embedding[0]] = stage.embedding[1]
    for unit_name, unit in units.items():
        wanted = {f"{unit_name}.{leaf}" for leaf, _ in unit.named_parameters()} & set(views)
        if wanted:
            for name, value in _drawn(stage, unit_name, unit, seed).items():
                if name in wanted:
                    views[name].copy_(value)


def _drawn(stage: Stage, unit_name: str, unit: nn.Module, seed: int) -> dict[str, Tensor]:
    """The initial parameters of one unit by full name; the unit's own parameters are put back untouched."""
    placed: list[tuple[nn.Module, str, nn.Parameter]] = []
    fresh: dict[str, Tensor] = {}
    modules = list(unit.named_modules(prefix=unit_name))
    for name, module in modules:
        for leaf, parameter in module.named_parameters(recurse=False):
            placed.append((module, leaf, parameter))
            drawn = nn.Parameter(torch.zeros(parameter.shape, dtype=torch.float32), requires_grad=False)
            fresh[f"{name}.{leaf}"] = drawn
            setattr(module, leaf, drawn)
    default = torch.default_generator
    state = default.get_state()
    try:
        # Children before their parents, as transformers does: a parent may redo a child's weight (gpt2's c_proj).
        for name, module in sorted(modules, key=lambda pair: -pair[0].count(".")):
            default.manual_seed(seed_of(seed, name))
            init_module(stage.model, module)
    finally:
        default.set_state(state)
        for module, leaf, parameter in placed:
            setattr(module, leaf, parameter)
    return fresh


def has_weights(folder: Path) -> bool:
    """Whether a Hugging Face folder holds weights in safetensors, whole or sharded."""
    return any((folder / name).is_file() for name in ("model.safetensors", "model.safetensors.index.json"))


@torch.no_grad()
def load_stage(stage: Stage, folder: Path) -> None:
    """Reads only this stage's tensors from a Hugging Face folder. Raises CheckpointError: missing, corrupt, shapes."""
    with LayoutReader(stage.layout, folder) as reader:
        for name, group in stage.groups.items():
            total = group.params.numel()
            for start in range(0, total, READ_ELEMENTS_MAX):
                stop = min(start + READ_ELEMENTS_MAX, total)
                reader.read_into(name, start, group.params[start:stop])


class LayoutReader:
    """Serves a stage's initial weights as ranges of its flat layout, straight from a Hugging Face folder.

    Only the rows that are asked for are read. Opening it checks that every tensor of the stage is there in its shape:
    raises CheckpointError, naming the first that is not, for a missing or corrupt file too.
    """

    def __init__(self, layout: StageLayout, folder: Path) -> None:
        self.layout = layout
        self.folder = folder
        self._files: dict[str, _File] = {}
        self._stack = ExitStack()
        try:
            self._where = self._index()
            self._slices = {e.name: self._checked(e) for entries in layout.groups.values() for e in entries}
        except CheckpointError:
            self.close()
            raise

    def __enter__(self) -> LayoutReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()
        self._files.clear()

    def read(self, group: str, start: int, stop: int) -> bytes:
        """Elements start to stop of the group's flat parameters, as little-endian fp32 bytes."""
        if not 0 <= start <= stop <= self.layout.elements(group):
            raise ValueError(f"elements {start} to {stop} of {self.layout.elements(group)} in group {group!r}")
        out = torch.empty(stop - start, dtype=torch.float32)
        self.read_into(group, start, out)
        return bytes(memory_of(out))

    def read_into(self, group: str, start: int, out: Tensor) -> None:
        """As `read`, into a flat fp32 tensor of any device."""
        stop = start + out.numel()
        for entry in self.layout.groups[group]:
            low, high = max(start, entry.offset), min(stop, entry.stop)
            if low < high:
                out[low - start : high - start].copy_(self._range(entry, low - entry.offset, high - entry.offset))

    def _range(self, entry: Entry, low: int, high: int) -> Tensor:
        row = entry.elements // entry.shape[0]
        first, last = low // row, -(-high // row)
        try:
            rows: Tensor = self._slices[entry.name][first:last]
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {entry.name} in {self.folder}: {error}") from error
        return rows.reshape(-1).float()[low - first * row : high - first * row]

    def _index(self) -> dict[str, str]:
        """Tensor name -> file name."""
        index = self.folder / "model.safetensors.index.json"
        if not index.is_file():
            single = "model.safetensors"
            if not (self.folder / single).is_file():
                raise CheckpointError(f"{self.folder} has no model.safetensors; only safetensors are read")
            return dict.fromkeys(self._open(single).keys(), single)
        if index.stat().st_size > INDEX_BYTES_MAX:
            raise CheckpointError(f"{index} is larger than {INDEX_BYTES_MAX} bytes")
        try:
            where = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            if not all(isinstance(file, str) and Path(file).name == file for file in where.values()):
                raise ValueError("a file name in it is not a plain name")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{index} is corrupt: {error!r}") from error
        return dict(where)

    def _open(self, file: str) -> _File:
        if file not in self._files:
            path = self.folder / file
            try:
                self._files[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{path} is missing or corrupt: {error}") from error
        return self._files[file]

    def _checked(self, entry: Entry) -> _Slice:
        layout = self.layout
        bare = entry.name.removeprefix(layout.prefix + ".")
        stored = layout.stored.get(entry.name, entry.name)
        names = [entry.name, stored, bare] + [layout.tied_alias] * (entry.name == layout.tied)
        found = next((name for name in names if name in self._where), None)
        if found is None:
            raise CheckpointError(f"{self.folder} has no tensor {entry.name}; do its weights fit its config.json?")
        opened = self._open(self._where[found])
        try:
            view = opened.get_slice(found)
            shape, dtype = tuple(view.get_shape()), view.get_dtype()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {found} in {self.folder}: {error}") from error
        if shape != entry.shape:
            raise CheckpointError(
                f"{found} in {self.folder} has the shape {list(shape)}, but config.json asks for {list(entry.shape)}"
            )
        if dtype not in _FLOATS:
            raise CheckpointError(f"{found} in {self.folder} is of type {dtype}; allowed: {', '.join(_FLOATS)}")
        return view
