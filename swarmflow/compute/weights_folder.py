"""The safetensors files of a Hugging Face folder: whether they are whole, and where each tensor lies."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError, safe_open
from transformers import PreTrainedModel

from swarmflow.compute.adapters import with_adapters
from swarmflow.compute.families import dissect, model_config, to_config
from swarmflow.compute.layout import StageLayout, TensorSlot, layout_of
from swarmflow.compute.stored_experts import JoinedRows, StackedExperts, UnreadTensor, stored_experts, stored_rows
from swarmflow.errors import CheckpointError

INDEX_BYTES_MAX = 1 << 26
COMPARED_ELEMENTS = 1 << 22  # at a time
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_OTHER_WEIGHTS = ("*.safetensors", "pytorch_model*.bin", "*.pth", "*.gguf", "tf_model*.h5", "flax_model*.msgpack")
_FLOATS = ("F64", "F32", "F16", "BF16")
_NAMES = re.compile(r"\S*\.\S+|\[[^]]*\]")  # of tensors and files, and shapes: what tells like problems apart


class _File(Protocol):
    """An open safetensors file."""

    def keys(self) -> list[str]: ...
    def get_slice(self, name: str) -> UnreadTensor: ...


def has_weights(folder: Path) -> bool:
    """Whether a Hugging Face folder holds weights in safetensors, whole or sharded."""
    return any((folder / name).is_file() for name in (_SINGLE, _INDEX))


def weights_problems(config: Mapping[str, Any], folder: Path) -> list[str]:
    """What keeps a run from beginning with the weights in a Hugging Face folder: a line for each kind of problem.

    Reads names, shapes and sizes, and the values of blocks that are to share them. Nothing is wrong with a folder
    without any weights. Raises ModelError for a configuration that cannot be used.
    """
    if not has_weights(folder):
        others = sorted({path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern)})
        if not others:
            return []
        return [
            f"{folder} holds {others[0]}, but no {_SINGLE} and no {_INDEX}: only those are read; fetch the missing "
            "files, convert the weights, or take them away to begin from fresh ones"
        ]
    anatomy = dissect(to_config(with_adapters(config, None)))
    layout = layout_of(anatomy, (), 0)
    found: dict[str, list[str]] = {}
    try:
        with WeightsFolder(folder) as weights:
            for entry in (entry for entries in layout.groups.values() for entry in entries):
                for name in layout.stored_of(entry):
                    try:
                        weights.find(layout, replace(entry, name=name))
                    except CheckpointError as error:
                        found.setdefault(_NAMES.sub("", str(error)), []).append(str(error))
            if not found and (unlike := _unlike(weights, layout)):
                return [unlike]
    except CheckpointError as error:
        return [str(error)]
    return [some[0] + (f" (and {len(some) - 1} tensors like it)" if some[1:] else "") for some in found.values()]


def _unlike(weights: WeightsFolder, layout: StageLayout) -> str | None:
    """Return a line about the first tensor of blocks that are to share their weights but do not; None: all do.

    Raises CheckpointError.
    """
    for entry in (entry for entries in layout.groups.values() for entry in entries):
        first, *others = layout.stored_of(entry)
        for other in others:
            one, another = (weights.find(layout, replace(entry, name=name)) for name in (first, other))
            if not _are_equal(one, another, entry):
                return (
                    f"{weights.folder}: {other} is not equal to {first}, but with model.shared_blocks these blocks "
                    "share their weights; leave shared_blocks out, or begin from a folder without weights"
                )
    return None


def _are_equal(one: UnreadTensor, other: UnreadTensor, entry: TensorSlot) -> bool:
    """Return whether two tensors are equal; read piece by piece."""
    rows = entry.shape[0]
    step = max(1, COMPARED_ELEMENTS * rows // entry.elements)
    return all(bool((one[at : at + step] == other[at : at + step]).all()) for at in range(0, rows, step))


class WeightsFolder:
    """The tensors of a Hugging Face folder's safetensors files, by name; only headers are read until one is asked for.

    Raises CheckpointError: there are none, or the index is missing or corrupt.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._model: PreTrainedModel | None = None  # on the meta device
        self._files: dict[str, _File] = {}
        self._broken: dict[str, CheckpointError] = {}
        self._stack = ExitStack()
        try:
            self._where = self._index()
        except CheckpointError:
            self.close()
            raise

    def __enter__(self) -> WeightsFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._stack.close()
        self._files.clear()

    def find(self, layout: StageLayout, entry: TensorSlot) -> UnreadTensor:
        """A parameter's values. Raises CheckpointError: missing, of another shape or type, or in a corrupt file."""
        bare = entry.name.removeprefix(layout.prefix + ".")
        stored = layout.stored.get(entry.name, entry.name)
        names = [entry.name, stored, bare] + [layout.tied_alias] * (entry.name == layout.tied)
        found = next((name for name in names if name in self._where), None)
        held = found or entry.name
        try:
            view = self._converted(entry) if found is None else self._view(found)
            if view is None:
                raise CheckpointError(f"{self.folder} has no tensor {entry.name}; do its weights fit its config.json?")
            shape, dtype = tuple(view.get_shape()), view.get_dtype()
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"cannot read {held} in {self.folder}: {error}") from error
        if shape != entry.shape:
            raise CheckpointError(
                f"{held} in {self.folder} has the shape {list(shape)}, but config.json asks for {list(entry.shape)}"
            )
        if dtype not in _FLOATS:
            raise CheckpointError(f"{held} in {self.folder} is of type {dtype}; allowed: {', '.join(_FLOATS)}")
        return view

    def _view(self, name: str) -> UnreadTensor:
        return self._open(self._where[name]).get_slice(name)

    def _converted(self, entry: TensorSlot) -> UnreadTensor | None:
        """Return a parameter that is stored in parts, as transformers saves its family's; None: the folder lacks it."""
        if len(entry.shape) != 3:  # matrices of experts, or kernels of several convolutions
            return None
        if self._model is None:
            self._model = dissect(to_config(model_config(self.folder))).model
        experts = stored_experts(self._model, entry.name, entry.shape[0])
        if experts and all(name in self._where for names in experts for name in names):
            return StackedExperts(experts, {name: self._view(name) for names in experts for name in names})
        joined = stored_rows(self._model, entry.name, entry.shape)
        if joined and all(name in self._where for name in joined):
            return JoinedRows([self._view(name) for name in joined])
        return None

    def _index(self) -> dict[str, str]:
        """Tensor name -> file name. As with transformers, an index beside the one file does not count."""
        if (self.folder / _SINGLE).is_file():
            return dict.fromkeys(self._open(_SINGLE).keys(), _SINGLE)
        index = self.folder / _INDEX
        if not index.is_file():
            raise CheckpointError(f"{self.folder} has no {_SINGLE}; only safetensors are read")
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
        if file in self._broken:
            raise self._broken[file]
        if file not in self._files:
            path = self.folder / file
            try:
                self._files[file] = self._stack.enter_context(safe_open(path, framework="pt"))
            except (SafetensorError, OSError) as error:
                self._broken[file] = CheckpointError(f"{path} is missing or corrupt: {error}")
                raise self._broken[file] from error
        return self._files[file]
